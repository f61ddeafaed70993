"""The command `train`: the model of the world of rooms, from autoencoder, base, gate, distillation
and picture decoder; see TRAINING.md.

It goes on where it was stopped, with as many workers as before; remove a stage's file to make it
again.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...cli.arguments import Result
from ...cli.parser import PathType
from ...headforcing_core.demo.rooms_autoencoder import (
    RoomsAutoencoder,
)
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import claimed_folder
from ...headforcing_core.timeline.clock import TEMPORAL_STRIDE
from . import gate as rooms_gate
from .data import training_clip
from .picture import train_picture
from .sizes import SPATIAL_FACTOR
from .stages import Recipe, Run, distill, train_autoencoder, train_base
from .training import Workers, load

log = logging.getLogger(__name__)
GATE_STORIES = 32
PREVIEW_CLIPS = 60


STAGES = ("autoencoder", "base", "student", "picture")


def train(run: Run, names: Iterable[str] = STAGES) -> None:
    """Make every stage that is not there yet; HeadForcingError where the base or the student
    remembers too little.
    """
    stages: dict[str, tuple[Callable[[Run], None], float | None]] = {
        "autoencoder": (train_autoencoder, None),
        "base": (train_base, rooms_gate.BASE_LEAST),
        "student": (distill, rooms_gate.STUDENT_LEAST),
        "picture": (train_picture, None),
    }
    for name in names:
        stage, least = stages[name]
        if not run.recipe.file(name).exists():
            stage(run)
            run.workers.wait()
        if least is not None and (memory := pass_gate(run, name)) < least:
            raise HeadForcingError(
                f"the {name} remembers {memory:.3f}, at least {least} is asked for: train it anew"
            )


def pass_gate(run: Run, name: str) -> float:
    """Measure what a stage's model remembers and store it, by the first worker, unless the stored
    number is that of these files; returns the gate's number."""
    weights = run.recipe.file(name)
    target = weights.with_suffix(".gate.json")
    if run.workers.rank == 0:
        measured = rooms_gate.measured_on(weights, run.recipe.file("autoencoder"))
        if not (
            target.exists()
            and measured.items() <= json.loads(target.read_text(encoding="utf-8")).items()
        ):
            model = load(run.recipe.config, weights).requires_grad_(False)
            effects = rooms_gate.measure(model, run.autoencoder, GATE_STORIES)
            log.info("%s", "\n".join((weights.name, *rooms_gate.describe(effects))))
            rooms_gate.write(target, effects, measured)
    run.workers.wait()
    return float(json.loads(target.read_text(encoding="utf-8"))["memory"])


def fit_preview_factors(
    autoencoder: RoomsAutoencoder, videos: Iterable[Tensor]
) -> tuple[Tensor, Tensor]:
    """Least-squares map, factors `[16, 3]` and bias `[3]`, from a latent pixel of videos `[frames,
    16, h, w]` to the mean colour of its patch, in -1..1 as in ComfyUI's `latent_rgb_factors`."""
    inputs = []
    colours = []
    for latents in videos:
        later = autoencoder.decode(latents)[1:].movedim(-1, 1)
        patches = F.avg_pool2d(later, SPATIAL_FACTOR).unflatten(0, (-1, TEMPORAL_STRIDE)).mean(1)
        colours.append(patches.movedim(1, -1).reshape(-1, 3) * 2 - 1)
        inputs.append(latents[1:].to(later).movedim(1, -1).reshape(-1, latents.shape[1]))
    x = torch.cat(inputs)
    solution = torch.linalg.lstsq(
        torch.cat([x, x.new_ones(len(x), 1)], 1), torch.cat(colours)
    ).solution
    return solution[:-1], solution[-1]


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command(
        "train",
        train_all,
        "Train the model of the world of rooms; goes on where it was stopped.",
    )
    sub.add_argument(
        "--out",
        type=PathType(),
        required=True,
        help="folder for weights, states and journal",
    )
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument(
        "--stage", choices=STAGES, help="only this one; --out has the files of those before it"
    )


def train_all(args: argparse.Namespace) -> Result:
    """Train from the first stage that is not finished, and say what previews are computed with."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run = Run(Recipe(args.out, args.seed), Workers())
    names = [args.stage] if args.stage else [*STAGES]
    if run.workers.rank:
        train(run, names)
        return Result([], {})
    with claimed_folder(args.out):  # two trainings in one folder would take each other's states
        train(run, names)
    if args.stage:
        return Result([f"trained  {run.recipe.file(args.stage)}"], {"trained": str(args.out)})
    clips = (run.autoencoder.encode(training_clip(i).video_frames) for i in range(PREVIEW_CLIPS))
    factors = [x.numpy() for x in fit_preview_factors(run.autoencoder, clips)]
    lines = [np.array2string(x, precision=4, separator=", ", floatmode="fixed") for x in factors]
    told = [f"trained  {args.out}", "factors and bias of rooms_preview.json:"]
    return Result([*told, *lines], {"trained": str(args.out)})
