"""Time and memory of the demo's decoder for what is shown, on one core: CPU time, which other
processes change little.

    python tests/benchmarks/run.py picture
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.demo.picture_decoder import (
    SCALE,
    PictureStreamingDecoder,
    read_features,
)
from headforcing.headforcing_core.demo.picture_drawing import draw
from headforcing.headforcing_core.plan.describe import markdown_table
from headforcing.headforcing_core.timeline.clock import TEMPORAL_STRIDE

from .stopwatch import peak_bytes, reset_peak

CPU = torch.device("cpu")
CALLS = 25
BLOCK = 3  # latent frames that are decoded in one call


def table() -> str:
    """Milliseconds a video frame by part, and the memory of a block, in Markdown."""
    torch.set_num_threads(1)
    decoder = assets.load_picture_decoder()
    latents = torch.randn(BLOCK, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    mebibytes = memory_bytes(PictureStreamingDecoder(decoder), latents) / 2**20
    rows = [[name, f"{ms:.1f} ms"] for name, ms in milliseconds(decoder, latents[:1]).items()]
    rows.append(["memory of a block, beside the weights", f"{mebibytes:.0f} MiB"])
    return markdown_table(["decoding at 256 pixels", "a video frame"], rows)


@torch.no_grad()
def milliseconds(decoder: Any, latent: torch.Tensor) -> dict[str, float]:
    """The fastest of some calls for one latent frame, divided by its four video frames."""
    first = torch.zeros(1)
    features = read_features(decoder.autoencoder, latent, latent)
    outlines, others = decoder.network(latent, latent, features, first)
    parts: dict[str, Callable[[], Any]] = {
        "features of the 64-pixel decoder": lambda: read_features(
            decoder.autoencoder, latent, latent
        ),
        "network": lambda: decoder.network(latent, latent, features, first),
        "drawing": lambda: draw(outlines[0], others[0], SCALE),
    }
    found = {name: fastest(part) / TEMPORAL_STRIDE for name, part in parts.items()}
    return {**found, "together": sum(found.values())}


def fastest(part: Callable[[], Any]) -> float:
    """Milliseconds of CPU time of the fastest of some calls."""
    times = []
    for _ in range(CALLS):
        start = time.process_time()
        part()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def memory_bytes(decoder: PictureStreamingDecoder, latents: torch.Tensor) -> int:
    """The process's most memory while latents are decoded, less that before; 0 where nobody
    counts. Right for the first call of a process only: memory that is free already is used again.
    """
    decoder.decode(latents[:1, :, :2, :2])  # what is allocated once
    decoder.reset()
    reset_peak(CPU)
    before = peak_bytes(CPU) or 0
    decoder.decode(latents)
    return (peak_bytes(CPU) or 0) - before
