"""The files of the pack from a student and an autoencoder, and the constants of the preview.

    python -m headforcing.headforcing_core.demo.training.release --student student-100.safetensors \\
        --autoencoder autoencoder.safetensors --out FOLDER
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from ...files import replacing
from ...hashing import digest
from ...timeline.clock import TEMPORAL_STRIDE
from .. import assets
from ..rooms_autoencoder import SPATIAL_FACTOR, RoomsAutoencoder, load_rooms_autoencoder
from .rooms_data import training_clip
from .training import STRUCTURE

log = logging.getLogger(__name__)
PREVIEW_CLIPS = 60
ABOUT = {
    "format": "pt",
    "title": "Head Forcing toy world",
    "description": "Trained from scratch on procedurally drawn shapes; no other data, no other weights.",
    "license": "Apache-2.0",
}


def write(source: Path, target: Path, metadata: dict[str, str]) -> str:
    """Write a bfloat16 copy with metadata; returns a hash of its tensors (the file's depends on the metadata order)."""
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in sorted(load_file(source).items())}
    with replacing(target) as partial:
        save_file(tensors, partial, metadata)
    return digest(*(part for pair in tensors.items() for part in pair))


def fit_preview_factors(autoencoder: RoomsAutoencoder, videos: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Least-squares linear map from a latent pixel to its decoded colour, for previews during sampling.

    `videos` are latents `[frames, 16, h, w]`. The colour is the mean of the latent pixel's 8x8 patch over its four
    video frames, in -1..1 as in ComfyUI's `latent_rgb_factors`. Returns factors `[16, 3]` and bias `[3]`.
    """
    inputs, colours = [], []
    for latents in videos:
        later = autoencoder.decode(latents)[1:].movedim(-1, 1)
        patches = F.avg_pool2d(later, SPATIAL_FACTOR).unflatten(0, (-1, TEMPORAL_STRIDE)).mean(1)
        colours.append(patches.movedim(1, -1).reshape(-1, 3) * 2 - 1)
        inputs.append(latents[1:].to(later).movedim(1, -1).reshape(-1, latents.shape[1]))
    x = torch.cat(inputs)
    solution = torch.linalg.lstsq(torch.cat([x, x.new_ones(len(x), 1)], 1), torch.cat(colours)).solution
    return solution[:-1], solution[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", type=Path, required=True)
    parser.add_argument("--autoencoder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    files = ((args.student, assets.MODEL, ABOUT | STRUCTURE), (args.autoencoder, assets.AUTOENCODER, ABOUT))
    for source, name, metadata in files:
        log.info("%s: %s", name, write(source, args.out / name, metadata))
    autoencoder = load_rooms_autoencoder(args.out / assets.AUTOENCODER)
    latents = [autoencoder.encode(training_clip(i).video_frames) for i in range(PREVIEW_CLIPS)]
    factors, bias = fit_preview_factors(autoencoder, latents)
    log.info("PREVIEW_FACTORS and PREVIEW_BIAS of rooms_autoencoder.py:")
    log.info("%s", np.array2string(factors.numpy(), precision=4, separator=", ", floatmode="fixed"))
    log.info("%s", np.array2string(bias.numpy(), precision=4, separator=", ", floatmode="fixed"))


if __name__ == "__main__":
    main()
