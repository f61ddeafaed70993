"""Checkpoints, LoRA files and text encoders."""
