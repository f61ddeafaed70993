"""Files of the embedded toy model, its dimensions and the demo story."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from ..model.wan import WanConfig
from .autoencoder import ToyAutoencoder

TOY_CONFIG = WanConfig(
    dim=192,
    ffn_dim=768,
    num_layers=8,
    num_heads=6,
    freq_dim=192,
    text_dim=64,
    text_len=12,
)

LATENT_HEIGHT = 8
LATENT_WIDTH = 8
BLOCK_FRAMES = 3

DEMO_STORY = """\
0:00 a red ball bouncing on a teal floor
0:10 a yellow star gliding on a navy checkerboard
0:20 a yellow star gliding on a navy checkerboard panning right
0:30 a cyan ring circling on a maroon stripes
0:40 a pink square bouncing on a olive floor panning left
0:50 a green triangle gliding on a black checkerboard
"""
"""A minute in six prompts. ('a maroon stripes' is the toy world's grammar.)"""
DEMO_SECONDS = 60.0

_FOLDER = Path(__file__).parent


def model_path() -> Path:
    """Path of the toy transformer, distilled for the Self Forcing sampler (four steps with fresh noise, no CFG)."""
    return _FOLDER / "tiny_wan_4step_bf16.safetensors"


def autoencoder_path() -> Path:
    """Path of the toy autoencoder."""
    return _FOLDER / "tiny_ae_bf16.safetensors"


def load_autoencoder(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, weights: str | Path | None = None
) -> ToyAutoencoder:
    """The toy autoencoder with its trained weights, ready for inference."""
    autoencoder = ToyAutoencoder()
    autoencoder.load_state_dict(load_file(weights or autoencoder_path()))
    return autoencoder.to(device, dtype).eval().requires_grad_(False)
