"""Stage 4 of training the toy model: the files of the pack from a student and an autoencoder; preview constants.

    python -m headforcing.headforcing_core.demo.training.release --student student-200.safetensors \\
        --autoencoder tiny_ae_bf16.safetensors --out FOLDER [--rooms]
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from ...files import replacing
from ...hashing import digest
from .. import assets
from ..autoencoder import fit_preview_factors
from .rooms_data import training_clip
from .train_autoencoder import random_clip
from .training import STRUCTURE

log = logging.getLogger(__name__)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", type=Path, required=True)
    parser.add_argument("--autoencoder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rooms", action="store_true", help="files of the world of rooms")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    world, clip = (assets.ROOMS, training_clip) if args.rooms else (assets.LANDMARKS, random_clip)
    for source, name, metadata in (
        (args.student, world.model, ABOUT | STRUCTURE),
        (args.autoencoder, world.autoencoder, ABOUT),
    ):
        log.info("%s: %s", name, write(source, args.out / name, metadata))
    autoencoder = world.network()
    autoencoder.load_state_dict(load_file(args.out / world.autoencoder))
    autoencoder = autoencoder.float().eval().requires_grad_(False)
    factors, bias = fit_preview_factors(autoencoder, [autoencoder.encode(clip(i).video_frames) for i in range(60)])
    log.info("PREVIEW_FACTORS and PREVIEW_BIAS of the autoencoder's module:")
    log.info("%s", np.array2string(factors.numpy(), precision=4, separator=", ", floatmode="fixed"))
    log.info("%s", np.array2string(bias.numpy(), precision=4, separator=", ", floatmode="fixed"))


if __name__ == "__main__":
    main()
