"""Parts of the embedded toy model: files, dimensions, the demo story, and the methods compared on
it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..model.wan import WanConfig
from ..names import DEMO_AUTOENCODER, DEMO_MODEL, DEMO_PICTURE_DECODER
from ..weights.checkpoint import CheckpointInfo, inspect_checkpoint
from .picture_decoder import PictureDecoder, load_picture_network
from .rooms_autoencoder import RoomsAutoencoder, load_rooms_autoencoder

TOY_CONFIG = WanConfig(
    dim=192, ffn_dim=768, num_layers=8, num_heads=6, freq_dim=192, text_dim=64, text_len=12
)
SIZE = (64, 64)  # width and height in pixels: all that the model was trained on
DEMO_SECONDS = 60.0
DEMO_STORY = """\
0:00 a red ball bouncing in the navy checkerboard room
0:10 a red ball bouncing in the sand plain room
0:20 a red ball bouncing in the maroon striped room
0:30 a red ball bouncing in the navy checkerboard room
0:40 a red ball bouncing in the sand plain room
0:50 a red ball bouncing in the maroon striped room
"""
"""What is rendered without other prompts: each room is left and comes back."""
COMPARED = {
    "self_forcing": "full cache: every frame is kept",
    "head_forcing": "Head Forcing: each head keeps what it needs",
    "head_forcing_scenes": (
        "head_forcing_scenes: besides, a scene that returns gets its own frames back"
    ),
    "self_forcing_window_21": "window: the last 21 frames are kept",
}
"""The methods that are compared on the story without others, labels by name."""


def model_path() -> Path:
    """Path of the toy transformer, distilled for the Self Forcing sampler (four steps with fresh
    noise, no CFG).
    """
    return DEMO_MODEL


def inspect_toy(path: Path) -> CheckpointInfo:
    """Describe a file of a toy model; other dimensions are allowed, with heads as wide as the
    embedded model's.
    """
    info = inspect_checkpoint(path, num_heads=1)
    heads = info.config.dim // (TOY_CONFIG.dim // TOY_CONFIG.num_heads)
    return replace(info, config=replace(info.config, num_heads=heads, text_len=TOY_CONFIG.text_len))


def load_autoencoder(device: str | torch.device = "cpu") -> RoomsAutoencoder:
    """The toy autoencoder with its trained weights, ready for inference."""
    return load_rooms_autoencoder(DEMO_AUTOENCODER).to(device)


def load_picture_decoder(device: str | torch.device = "cpu") -> PictureDecoder:
    """The decoder for what is shown, four times as large as the autoencoder's frames, ready for
    inference."""
    network = load_picture_network(DEMO_PICTURE_DECODER)
    return PictureDecoder(network, load_autoencoder()).to(device)
