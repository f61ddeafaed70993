"""The files of the pack from a finished training: the chosen student, the autoencoder and what was measured."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.parser import PathType, folder_read, folder_written
from ...headforcing_core.demo import assets
from ...headforcing_core.demo.rooms_autoencoder import SPATIAL_FACTOR, RoomsAutoencoder, load_rooms_autoencoder
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import replacing
from ...headforcing_core.hashing import file_hash
from ...headforcing_core.timeline.clock import TEMPORAL_STRIDE
from .data import training_clip

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
    copies = {out / assets.model_path().name: student, out / assets.autoencoder_path().name: "autoencoder.safetensors"}
    copies |= {evidence / name: name for name in kept}
    for target, name in copies.items():
        with replacing(target) as partial:
            shutil.copyfile(trained / name, partial)
    return list(copies.items())


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `release` to the commands."""
    sub = command("release", release_files, "Copy the files of a finished training to where they ship from.")
    sub.add_argument("trained", type=folder_read("*.json", "*.jsonl", "*.safetensors"), help="folder of the training")
    sub.add_argument("--out", type=PathType(), required=True, help="folder for the weights")
    evidence = folder_written("chosen.json", "*.gate.json", "journal.jsonl")
    sub.add_argument("--evidence", type=evidence, required=True, help="folder for the gate's numbers and the journal")


def release_files(args: argparse.Namespace) -> Result:
    """Copy the files, and say what previews are computed with."""
    torch.set_num_threads(1)
    copies = release(args.trained, args.out, args.evidence)
    autoencoder = load_rooms_autoencoder(args.out / assets.autoencoder_path().name)
    latents = [autoencoder.encode(training_clip(i).video_frames) for i in range(PREVIEW_CLIPS)]
    factors, bias = fit_preview_factors(autoencoder, latents)
    lines = [f"{target} from {name}: {file_hash(target)}" for target, name in copies]
    lines.append("PREVIEW_FACTORS and PREVIEW_BIAS of rooms_autoencoder.py:")
    lines += [np.array2string(x.numpy(), precision=4, separator=", ", floatmode="fixed") for x in (factors, bias)]
    return {"text": "\n".join(lines), "json": {str(target): name for target, name in copies}}
