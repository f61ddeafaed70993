"""The gate: does a model remember a room that it has not seen for a while? The latest student that
does is chosen.

A room is left and comes back in the last block. The model predicts that block from pure noise
twice: after the true past, and after one with other pictures in that room. *Recall* is where the
prediction lies on the line from the other pictures' latents (0) to the true ones (1), at cells
where just one of the two has a picture. The effect of memory is
the recall after the true past minus that after the other one: 1 is perfect, 0 is none.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...cli.arguments import Result
from ...cli.parser import READ, WRITTEN, count
from ...headforcing_core.demo.assets import TOY_CONFIG
from ...headforcing_core.demo.rooms_autoencoder import (
    RoomsAutoencoder,
    load_rooms_autoencoder,
)
from ...headforcing_core.demo.words import Look
from ...headforcing_core.files import replacing
from ...headforcing_core.hashing import file_hash
from ...headforcing_core.model.wan import WanModel
from ..rooms.scenes import render
from ..rooms.stories import returning_story
from .data import latent_cells
from .parallel_forward import teacher_forced_flow
from .sizes import BLOCK_FRAMES
from .training import load, word_vectors

SHOWN = 2  # blocks of the room before it is left
AWAY = (
    0,
    1,
    2,
    3,
    5,
    7,
    9,
)  # blocks in other rooms; with 0 the room is not left, which shows that the test works
BASE_LEAST = 0.6
STUDENT_LEAST = 0.4  # mean effect over all stories in which the room is left
FIRST_STORY = 70_000  # seed of the first story; training uses other seeds


class Case(NamedTuple):
    """A story that comes back, with its own past and with another one."""

    true: Tensor  # latents [frames, channels, 8, 8]
    other: Tensor  # of the same story with other layouts of the room that comes back
    differs: Tensor  # [3, 8, 8] of the last block: cells where just one of the two has a picture
    text: Tensor  # [blocks, words, 64]


@lru_cache(maxsize=512)  # several checkpoints are measured on the same stories
def make_case(autoencoder: RoomsAutoencoder, away: int, seed: int) -> Case:
    """The story number `seed`, in which the room is left for `away` blocks."""
    looks: tuple[Look, ...] = returning_story(np.random.default_rng(seed), SHOWN, away)
    clips = (
        render(looks, seed),
        render(looks, seed, [int(look.room == looks[-1].room) for look in looks]),
    )
    true = latent_cells(clips[0].pictures)[-BLOCK_FRAMES:]
    other = latent_cells(clips[1].pictures)[-BLOCK_FRAMES:]
    actor = latent_cells(clips[0].shape)[-BLOCK_FRAMES:]
    own = autoencoder.encode(clips[0].video_frames)
    changed = autoencoder.encode(clips[1].video_frames)
    text = torch.stack([word_vectors(look.prompt) for look in looks])
    return Case(own, changed, ((true - other).abs() > 0.3) & (actor < 0.05), text)


def recalls(model: WanModel, cases: Sequence[Case], noise: Tensor) -> Tensor:
    """Recall after the true and after the other past, `[2, cases]`; NaN where the actor hides all
    that differs.

    `noise [cases, 3, 16, 8, 8]` is what the last block is predicted from, the same for both pasts.
    """
    true, other, differs, text = map(torch.stack, zip(*cases, strict=True))
    differs = differs[:, :, None]
    line = (true - other)[:, -BLOCK_FRAMES:] * differs
    results = []
    for past in (true, other):
        noisy = torch.cat((past[:, :-BLOCK_FRAMES], noise), 1)  # only the last block is looked at
        flow = teacher_forced_flow(
            model,
            past,
            noisy=noisy,
            timesteps=torch.full(noisy.shape[:2], 1000.0),
            text=text,
        )[:, -BLOCK_FRAMES:]
        predicted = (noise - flow - other[:, -BLOCK_FRAMES:]) * differs
        results.append((predicted * line).flatten(1).sum(1) / line.square().flatten(1).sum(1))
    return torch.stack(results)


@torch.no_grad()
def measure(
    model: WanModel, autoencoder: RoomsAutoencoder, stories: int, batch: int = 8
) -> dict[str, list[float]]:
    """The effect of memory in every story, by the blocks for which its room was left (as text, for
    JSON).
    """
    effects: dict[str, list[float]] = {}
    for away in AWAY:
        values: list[float] = []
        for first in range(0, stories, batch):
            seeds = range(FIRST_STORY + first, FIRST_STORY + min(first + batch, stories))
            cases = [make_case(autoencoder, away, 100 * seed + away) for seed in seeds]
            generator = torch.Generator().manual_seed(first)
            noise = torch.randn(len(cases), BLOCK_FRAMES, 16, 8, 8, generator=generator)
            with torch.compiler.set_stance("force_eager"):
                true, other = recalls(model, cases, noise)
            values += [
                round(effect, 5) for effect in (true - other).tolist() if not math.isnan(effect)
            ]
        effects[str(away)] = values
    return effects


def memory(effects: dict[str, list[float]]) -> float:
    """The gate's number: the mean effect over all stories in which the room is left."""
    values_away = [values for away, values in effects.items() if away != "0"]
    return statistics.fmean(chain(*values_away))


def describe(effects: dict[str, list[float]]) -> list[str]:
    """One line per gap, with the standard error of the mean."""
    lines = []
    for away, values in effects.items():
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        last_seen = int(away) * BLOCK_FRAMES + 1
        lines.append(
            f"last seen {last_seen} to {last_seen + BLOCK_FRAMES - 1} latent frames before: "
            f"{statistics.fmean(values):+.3f} +- {error:.3f} ({len(values)} stories)"
        )
    return [
        *lines,
        f"the gate's number, all gaps from 4 frames on: {memory(effects):+.3f}",
    ]


def measured_on(weights: Path, autoencoder: Path) -> dict[str, str]:
    """The hashes of the files that the effects are measured on."""
    return {"weights": file_hash(weights), "autoencoder": file_hash(autoencoder)}


def write(path: Path, effects: dict[str, list[float]], measured: dict[str, str]) -> None:
    """Store the gate's number, the effects, and what they were measured on."""
    with replacing(path) as partial:
        partial.write_text(
            json.dumps({"memory": memory(effects), "effects": effects, **measured}) + "\n",
            "utf-8",
        )


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("gate", show_gate, "Measure what a model of the world of rooms remembers.")
    sub.add_argument("weights", type=READ, help="a base or a student")
    sub.add_argument("--autoencoder", type=READ, required=True)
    sub.add_argument("--stories", type=count, default=32, help="for each gap")
    sub.add_argument("--out", type=WRITTEN, help="JSON to write")


def show_gate(args: argparse.Namespace) -> Result:
    """Measure the effect of memory of a model's file."""
    torch.set_num_threads(1)
    model = load(TOY_CONFIG, args.weights).requires_grad_(False)
    effects = measure(model, load_rooms_autoencoder(args.autoencoder), args.stories)
    if args.out:
        write(args.out, effects, measured_on(args.weights, args.autoencoder))
    return Result(describe(effects), {"memory": memory(effects), "effects": effects})
