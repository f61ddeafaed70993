"""Drift metrics of a finished video, and statistics of latents during sampling."""
