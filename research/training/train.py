"""Train the model of the world of rooms: autoencoder, base, gate, distillation, choice. Stop it whenever you like.

    torchrun --nproc-per-node 2 -m headforcing.research train --out FOLDER

The same command goes on where it was stopped, with as many workers as before. Finished stages are left as they are;
remove a stage's file to make it again. `journal.jsonl` holds losses and seconds a step, files in `.gate.json` what was
remembered, `chosen.json` the student to release: the latest of those that remember enough.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.parser import PathType
from ...headforcing_core.files import claimed_folder, replacing
from . import gate as rooms_gate
from .resumable import Deadline, Stopped, wait
from .stages import Recipe, Run, distill, train_autoencoder, train_base
from .training import Workers, load

log = logging.getLogger(__name__)
GATE_STORIES = 32
_STEPS = ("autoencoder_steps", "base_steps", "student_steps")


def gate(run: Run, weights: Path, target: Path) -> float:
    """Measure what a model remembers and store it, by the first worker; returns the gate's number.

    Measured again where the stored number is that of other weights or of another autoencoder.
    """
    if run.workers.rank == 0:
        measured = rooms_gate.measured_on(weights, run.recipe.autoencoder)
        if not (target.exists() and measured.items() <= json.loads(target.read_text(encoding="utf-8")).items()):
            model = load(run.recipe.config, weights).requires_grad_(False)
            effects = rooms_gate.measure(model, run.autoencoder, GATE_STORIES)
            log.info("%s", "\n".join((weights.name, *rooms_gate.describe(effects))))
            rooms_gate.write(target, effects, measured)
    wait()
    return float(json.loads(target.read_text(encoding="utf-8"))["memory"])


def choose(run: Run) -> None:
    """Write which student is released: the latest that passes the gate; none where none passes.

    The gate is one pass from noise, which favours the student that was distilled least: it asks for enough, not for
    most.
    """
    recipe, least = run.recipe, rooms_gate.STUDENT_LEAST
    found: dict[str, float] = {}
    chosen = None
    for path in reversed(recipe.students()):  # earlier ones are not asked where a later one passes
        found[path.name] = gate(run, path, path.with_suffix(".gate.json"))
        if found[path.name] >= least:
            chosen = path.name
            break
    run.checkpoints("student").remove()  # left where the time was over with the last step
    if run.workers.rank == 0:
        memory = None if chosen is None else found[chosen]
        verdict = {"chosen": chosen, "memory": memory, "least": least, "passes": chosen is not None}
        with replacing(recipe.out / "chosen.json") as partial:
            partial.write_text(json.dumps(verdict | {"students": found}, indent=2) + "\n", encoding="utf-8")
        if chosen is None:
            log.info("The best of the students remembers %.3f: does not pass, no table is made", max(found.values()))
        else:
            log.info("%s remembers %.3f: passes", chosen, found[chosen])


def train(run: Run, below_gate: bool = False) -> None:
    """Make every stage that is not there yet; raises Stopped when the time is over or the base remembers little."""
    recipe = run.recipe
    stages: tuple[tuple[Path, Callable[[Run], None]], ...] = (
        (recipe.autoencoder, train_autoencoder),
        (recipe.base, train_base),
    )
    for result, stage in stages:
        if not result.exists():
            stage(run)
    memory = gate(run, recipe.base, recipe.base.with_suffix(".gate.json"))
    if memory < rooms_gate.BASE_LEAST and not below_gate:
        raise Stopped(
            f"The base remembers {memory:.3f}, at least {rooms_gate.BASE_LEAST} is expected: remove base.safetensors "
            "and give more --base-steps, which go on from the last state, or give --below-gate."
        )
    if not recipe.students()[-1].exists():
        distill(run)
    choose(run)


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `train` to the commands."""
    sub = command("train", train_all, "Train the model of the world of rooms; goes on where it was stopped.")
    sub.add_argument("--out", type=PathType(), required=True, help="folder for weights, states and journal")
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--minutes", type=float, help="stop after so many minutes, at the next stored state")
    sub.add_argument("--below-gate", action="store_true", help="distil a base that remembers too little, too")
    for name in _STEPS:
        sub.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Recipe, name))


def train_all(args: argparse.Namespace) -> Result:
    """Train from the first stage that is not finished, until the end or the time is over."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    workers = Workers()
    recipe = replace(Recipe(args.out, args.seed), **{name: getattr(args, name) for name in _STEPS})
    run = Run(recipe, workers, Deadline(args.minutes))
    torch.manual_seed(args.seed)
    try:
        if workers.rank == 0:
            with claimed_folder(args.out):  # two trainings in one folder would take each other's states
                train(run, args.below_gate)
        else:
            train(run, args.below_gate)
    except Stopped as stopped:
        return {"text": str(stopped), "json": {"finished": False}}
    return {"text": "" if workers.rank else f"trained  {args.out}", "json": {"finished": True}}
