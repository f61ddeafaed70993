"""Measures of a finished video, and of latents while they are made."""
