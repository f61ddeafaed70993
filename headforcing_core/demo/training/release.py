"""Stage 4 of training the toy model: the files of the pack, copies of a student and an autoencoder; preview constants.

    python -m headforcing.headforcing_core.demo.training.release --student student-200.safetensors \\
        --autoencoder tiny_ae_bf16.safetensors --out FOLDER [--rooms]
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from ...files import replacing
from ...hashing import digest
from .. import assets
from ..autoencoder import fit_preview_factors
from .rooms_data import training_clip
from .train_autoencoder import random_clip

log = logging.getLogger(__name__)


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
    for source, name in ((args.student, world.model), (args.autoencoder, world.autoencoder)):
        with replacing(args.out / name) as partial:
            shutil.copyfile(source, partial)
        tensors = sorted(load_file(args.out / name).items())
        log.info("%s: %s", name, digest(*(part for pair in tensors for part in pair)))
    autoencoder = world.network()
    autoencoder.load_state_dict(load_file(args.out / world.autoencoder))
    autoencoder = autoencoder.float().eval().requires_grad_(False)
    factors, bias = fit_preview_factors(autoencoder, [autoencoder.encode(clip(i).video_frames) for i in range(60)])
    log.info("PREVIEW_FACTORS and PREVIEW_BIAS of the autoencoder's module:")
    log.info("%s", np.array2string(factors.numpy(), precision=4, separator=", ", floatmode="fixed"))
    log.info("%s", np.array2string(bias.numpy(), precision=4, separator=", ", floatmode="fixed"))


if __name__ == "__main__":
    main()
