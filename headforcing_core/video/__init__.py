"""Decoding of latents to video frames, MP4 files, contact sheets and grids."""
