"""The files of the pack from a finished training: copies of the chosen student, the autoencoder and what was measured.

python -m headforcing.headforcing_core.demo.training.release TRAINED --out FOLDER --evidence FOLDER
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import HeadForcingError
from ...files import replacing
from ...hashing import file_hash
from ...timeline.clock import TEMPORAL_STRIDE
from .. import assets
from ..rooms_autoencoder import SPATIAL_FACTOR, RoomsAutoencoder, load_rooms_autoencoder
from .rooms_data import training_clip

log = logging.getLogger(__name__)
PREVIEW_CLIPS = 60


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


def release(trained: Path, out: Path, evidence: Path) -> list[tuple[Path, str]]:
    """Copy the student that `chosen.json` names, and all that belongs to it; returns each file and its source's name.

    Raises HeadForcingError where no student passed the gate.
    """
    student = json.loads((trained / "chosen.json").read_text("utf-8"))["chosen"]
    if student is None:
        raise HeadForcingError(f"no student in {trained} passed the gate, so nothing is released")
    kept = ("chosen.json", "base.gate.json", f"{Path(student).stem}.gate.json", "journal.jsonl")
    copies = {out / assets.MODEL: student, out / assets.AUTOENCODER: "autoencoder.safetensors"}
    copies |= {evidence / name: name for name in kept}
    for target, name in copies.items():
        with replacing(target) as partial:
            shutil.copyfile(trained / name, partial)
    return list(copies.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", type=Path, help="folder of the training")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--evidence", type=Path, required=True, help="folder for the gate's numbers and the journal")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    for target, name in release(args.trained, args.out, args.evidence):
        log.info("%s from %s: %s", target, name, file_hash(target))
    autoencoder = load_rooms_autoencoder(args.out / assets.AUTOENCODER)
    latents = [autoencoder.encode(training_clip(i).video_frames) for i in range(PREVIEW_CLIPS)]
    factors, bias = fit_preview_factors(autoencoder, latents)
    log.info("PREVIEW_FACTORS and PREVIEW_BIAS of rooms_autoencoder.py:")
    log.info("%s", np.array2string(factors.numpy(), precision=4, separator=", ", floatmode="fixed"))
    log.info("%s", np.array2string(bias.numpy(), precision=4, separator=", ", floatmode="fixed"))


if __name__ == "__main__":
    main()
