"""What comes with the embedded toy model: files, dimensions, words and the demo story of its world, `WORLD`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ..model.wan import WanConfig
from . import autoencoder as landmarks_autoencoder
from . import rooms, rooms_autoencoder, world
from .autoencoder import ToyAutoencoder, ToyStreamingDecoder
from .rooms_autoencoder import RoomsAutoencoder, RoomsStreamingDecoder

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


@dataclass(frozen=True)
class World:
    """What depends on the world that the embedded model was trained on.

    Attributes:
        model, autoencoder: names of files in this folder.
        network, decoder: classes of the autoencoder, and of the decoder that is given one.
        preview: factors and bias from a latent pixel to a colour in -1..1.
        look: class of a prompt's content, with `parse`, `draw` and `prompt`.
        choices: the words of a prompt by kind, in the order of `template`.
        story, seconds: what is rendered without other prompts.
        methods: compared without others, labels by name; empty for those that are compared with real weights.
    """

    model: str
    autoencoder: str
    network: Callable[[], Any]
    decoder: Callable[[Any], Any]
    preview: tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]
    look: Any
    choices: Mapping[str, tuple[str, ...]]
    template: str
    story: str
    seconds: float
    methods: Mapping[str, str]


LANDMARKS = World(
    "tiny_wan_4step_bf16.safetensors",
    "tiny_ae_bf16.safetensors",
    ToyAutoencoder,
    ToyStreamingDecoder,
    (landmarks_autoencoder.PREVIEW_FACTORS, landmarks_autoencoder.PREVIEW_BIAS),
    world.Look,
    world.CHOICES,
    "a {colour} {shape} {motion} on a {background} {pattern} {camera}",
    # 'a maroon stripes' is this world's grammar
    """\
0:00 a red ball bouncing on a teal floor
0:10 a yellow star gliding on a navy checkerboard
0:20 a yellow star gliding on a navy checkerboard panning right
0:30 a cyan ring circling on a maroon stripes
0:40 a pink square bouncing on a olive floor panning left
0:50 a green triangle gliding on a black checkerboard
""",
    60.0,
    {},
)
ROOMS = World(
    "rooms_wan_4step_bf16.safetensors",
    "rooms_ae_bf16.safetensors",
    RoomsAutoencoder,
    RoomsStreamingDecoder,
    (rooms_autoencoder.PREVIEW_FACTORS, rooms_autoencoder.PREVIEW_BIAS),
    rooms.Look,
    rooms.CHOICES,
    "a {colour} {shape} {motion} in the {background} {pattern} room {camera}",
    # each room is left and comes back
    """\
0:00 a red ball bouncing in the navy checkerboard room
0:10 a red ball bouncing in the sand plain room
0:20 a red ball bouncing in the maroon striped room
0:30 a red ball bouncing in the navy checkerboard room
0:40 a red ball bouncing in the sand plain room
0:50 a red ball bouncing in the maroon striped room
""",
    60.0,
    {
        "self_forcing": "full cache: every frame is kept",
        "self_forcing_window_21": "window: the last 21 frames are kept",
        "head_forcing": "Head Forcing: each head keeps what it needs",
    },
)
WORLD = LANDMARKS
"""The world of the files in this folder; `ROOMS` once its weights are there. Nothing else has to be switched."""

DEMO_STORY, DEMO_SECONDS = WORLD.story, WORLD.seconds
_FOLDER = Path(__file__).parent


def model_path() -> Path:
    """Path of the toy transformer, distilled for the Self Forcing sampler (four steps with fresh noise, no CFG)."""
    return _FOLDER / WORLD.model


def autoencoder_path() -> Path:
    """Path of the toy autoencoder."""
    return _FOLDER / WORLD.autoencoder


def load_autoencoder(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, weights: str | Path | None = None
) -> Any:
    """The toy autoencoder with its trained weights, ready for inference."""
    autoencoder = WORLD.network()
    autoencoder.load_state_dict(load_file(weights or autoencoder_path()))
    return autoencoder.to(device, dtype).eval().requires_grad_(False)


def streaming_decoder(autoencoder: Any) -> Any:
    """A `video.stream.StreamingDecoder` for the toy autoencoder."""
    return WORLD.decoder(autoencoder)
