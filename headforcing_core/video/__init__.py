"""Latents to frames to MP4 and back."""
