"""Paths of the embedded model's files; imports no torch."""

from __future__ import annotations

from pathlib import Path

MODEL = "rooms_wan_4step_bf16.safetensors"
AUTOENCODER = "rooms_ae_bf16.safetensors"
_FOLDER = Path(__file__).parent


def model_path() -> Path:
    """Path of the toy transformer, distilled for the Self Forcing sampler (four steps with fresh noise, no CFG)."""
    return _FOLDER / MODEL


def autoencoder_path() -> Path:
    """Path of the toy autoencoder."""
    return _FOLDER / AUTOENCODER
