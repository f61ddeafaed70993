"""Checkpoints of a training that may be stopped at any moment and goes on as if it had not been.

Noise and clips of a step follow from the seed and the number of the step (`seed_step`), so that the state of random
numbers is the number of the step.
"""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ...headforcing_core.files import replacing

log = logging.getLogger(__name__)
_MADE_BY = "made_by"  # in a stored state


def seed_step(seed: int, rank: int, step: int) -> None:
    """Seed torch's random numbers for one step of one worker."""
    torch.manual_seed((seed * 64 + rank) * 10_000_000 + step)


def wait() -> None:
    """Wait until all workers are here."""
    if distributed.is_initialized():
        distributed.barrier()


class Checkpoints:
    """The state of one stage of a training, a file per worker; two generations are kept.

    All workers save after the same steps. One that was stopped while another had already saved finds the generation
    before, which is complete.
    """

    def __init__(self, folder: Path, stage: str, rank: int = 0, workers: int = 1, seed: int = 1):
        self.folder, self.stage, self.rank, self.workers, self.seed = folder, stage, rank, workers, seed

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Store the state after `step` steps, atomically, and remove generations that are no longer needed."""
        with replacing(self._path(step, self.rank)) as partial:
            torch.save({**state, _MADE_BY: {"workers": self.workers, "seed": self.seed}}, partial)
        for old in [found for found in self._steps(self.rank) if found < step][:-1]:
            self._path(old, self.rank).unlink(missing_ok=True)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """The last step after which every worker stored its state, and this worker's state; None without any state.

        Raises Stopped, in all workers, where the states are those of another number of workers or of another seed.
        """
        wait()  # nobody may remove a generation before all have chosen
        common = set(self._steps(0)).intersection(*(self._steps(rank) for rank in range(1, self.workers)))
        exist = any(self.folder.glob(f"{self.stage}-*.rank*.pt"))
        step = max(common, default=0)
        paths = [self._path(step, rank) for rank in range(self.workers)] if common else []
        made_by = [torch.load(path, weights_only=True, mmap=True)[_MADE_BY] for path in paths]
        wait()
        if not exist:
            return None
        if not common:
            raise Stopped(
                f"{self.stage}: there is no step after which all {self.workers} workers stored their states; start as "
                f"many as before, or remove {self.stage}-*.pt from {self.folder} to begin anew"
            )
        mine = {"workers": self.workers, "seed": self.seed}
        if other := next((found for found in made_by if found != mine), None):
            raise Stopped(
                f"{self.stage}: the states were stored by {other['workers']} workers with seed {other['seed']}, and "
                f"these are {self.workers} with seed {self.seed}; start as many with the same seed, or remove "
                f"{self.stage}-*.pt from {self.folder} to begin anew"
            )
        for newer in [found for found in self._steps(self.rank) if found > step]:
            self._path(newer, self.rank).unlink(missing_ok=True)
        log.info("%s: going on after step %d", self.stage, step)
        state = torch.load(self._path(step, self.rank), weights_only=True)
        state.pop(_MADE_BY)
        return step, state

    def remove(self) -> None:
        """Remove this worker's states, after the stage has ended."""
        for step in self._steps(self.rank):
            self._path(step, self.rank).unlink(missing_ok=True)

    def _path(self, step: int, rank: int) -> Path:
        return self.folder / f"{self.stage}-{step:06d}.rank{rank}.pt"

    def _steps(self, rank: int) -> list[int]:
        pattern = re.compile(rf"{re.escape(self.stage)}-(\d{{6}})\.rank{rank}\.pt")
        names = (pattern.fullmatch(path.name) for path in self.folder.glob(f"{self.stage}-*.pt"))
        return sorted(int(name[1]) for name in names if name)


class Journal:
    """Lines of JSON with what a stage measured, also of steps that were made twice after an interruption."""

    def __init__(self, path: Path, stage: str, rank: int):
        self.path, self.stage, self.rank, self.begun = path, stage, rank, time.monotonic()
        self.first: int | None = None

    def write(self, step: int, **numbers: float) -> None:
        """Log the numbers of a step with the mean seconds a step since the program was started."""
        if self.first is None:  # the first steps compile
            self.first, self.begun = step, time.monotonic()
        seconds = (time.monotonic() - self.begun) / max(1, step - self.first)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        log.info("%s %d: %s, %.2f s a step", self.stage, step, shown, seconds)
        if self.rank == 0:
            line = {"stage": self.stage, "step": step, **numbers, "seconds_a_step": round(seconds, 3)}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


class Deadline:
    """Asks a training to stop after some minutes, at the next step at which all workers agree."""

    def __init__(self, minutes: float | None):
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    def over(self) -> bool:
        """Whether the time of any worker is over; all workers must ask after the same step."""
        mine = torch.tensor(float(self.end is not None and time.monotonic() > self.end))
        if distributed.is_initialized():
            distributed.all_reduce(mine, distributed.ReduceOp.MAX)
        return bool(mine)


class Stopped(Exception):
    """The training ends here, and the message says how to go on; what was stored stays."""
