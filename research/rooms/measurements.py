"""Measurements of the embedded model: the files and the code that they are of, and their
journal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from ...headforcing_core.cache import head_cache, roles
from ...headforcing_core.cache import scenes as cached_scenes
from ...headforcing_core.demo import assets, rooms_autoencoder, word_hash, words
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import claimed, replacing
from ...headforcing_core.hashing import digest, file_hash
from ...headforcing_core.head_profiles import rules
from ...headforcing_core.head_profiles.profile import (
    HeadProfile,
    bundled_profiles,
    load_profile,
)
from ...headforcing_core.methods import head_forcing as method
from ...headforcing_core.names import DEMO_AUTOENCODER
from ...headforcing_core.timeline import returns as told_returns
from .. import ablations
from ..statistics import Numbers
from . import detector, drawing, judge, scenes, stories

Known = dict[str, Numbers]
"""The numbers of every measured video, by its key."""
Job = TypeVar("Job")
MEASURED_BY = (
    words,
    scenes,
    drawing,
    stories,
    rooms_autoencoder,
    detector,
    judge,
    word_hash,
    ablations,
    head_cache,
    method,
    roles,
    cached_scenes,
    rules,
    told_returns,
)
"""The modules that define what a measured number is; a change of one of them makes earlier
measurements unusable.
"""


def embedded_profile() -> HeadProfile:
    """The bundled head profile of the embedded model."""
    return load_profile(bundled_profiles()["toy_world"])


def embedded_judge(profile: HeadProfile | None = None) -> judge.RoomsJudge:
    """The judge of the embedded model, with the given head profile or the bundled one."""
    return judge.RoomsJudge(assets.model_path(), DEMO_AUTOENCODER, profile or embedded_profile())


def measured_files() -> dict[str, str]:
    """The hashes of the files that measurements are of."""
    files = {
        "model": file_hash(assets.model_path()),
        "autoencoder": file_hash(DEMO_AUTOENCODER),
    }
    # notes on where the roles are from may change, the roles may not
    return {**files, "profile": digest(embedded_profile().roles)}


def measured_by(more: Sequence[ModuleType] = ()) -> str:
    """A hash of the files that are measured and of the code that measures, `MEASURED_BY` and
    `more`.
    """
    return digest(
        measured_files(),
        [file_hash(Path(str(module.__file__))) for module in (*MEASURED_BY, *more)],
    )


def complete(
    journal: Path,
    jobs: Mapping[str, Job],
    measured: Callable[[Job], Numbers],
    quiet: bool,
    more: Sequence[ModuleType] = (),
) -> Known:
    """Measure the jobs, by the keys of videos, that the journal does not know, append each to it,
    and return all that is known. Raises HeadForcingError for a journal of another model or by other
    code, that of `more` modules too."""
    by = measured_by(more)
    with claimed(journal):
        known = _read(journal, by)
        torch.set_num_threads(1)  # several are slower for a model this small
        with journal.open("a", encoding="utf-8") as file:
            for key in tqdm(
                [key for key in jobs if key not in known],
                unit="video",
                disable=quiet,
            ):
                found = measured(jobs[key]).items()
                known[key] = {
                    name: None if value is None else round(value, 5) for name, value in found
                }
                file.write(json.dumps({"video": key, "weights": by, "numbers": known[key]}) + "\n")
                file.flush()
    return known


def measured_rows(
    args: argparse.Namespace,
    rows: Mapping[str, Any],
    story: str,
    first: int,
    measured: Callable[[tuple[str, int]], Numbers],
) -> dict[str, list[Numbers]]:
    """The numbers of `args.videos` videos of every row, from number `first` on, of one story; what
    is missing in the folder's journal is measured, by the name of a row and a number."""
    numbers = range(first, first + args.videos)

    def key(name: str, number: int) -> str:
        return f"{name}: {number}: {digest(repr((rows[name], story)))[:8]}"

    jobs = {key(name, number): (name, number) for number, name in product(numbers, rows)}
    known = complete(args.out / "measured.jsonl", jobs, measured, args.json)
    found: dict[str, list[Numbers]] = {}
    for name in rows:
        found[name] = [known[key(name, number)] for number in numbers]
    return found


def _read(journal: Path, by: str) -> Known:
    """The lines of a journal; a last one that was cut off when a process died is removed."""
    text = journal.read_text("utf-8") if journal.exists() else ""
    whole, _, cut = text.rpartition("\n")
    if cut:
        with replacing(journal) as partial:
            partial.write_text(whole + "\n" if whole else "", encoding="utf-8")
    lines = [json.loads(line) for line in whole.splitlines()]
    if any(line["weights"] != by for line in lines):
        raise HeadForcingError(
            f"{journal} was measured with another model, autoencoder or head profile, or by other "
            "code (one of "
            f"{', '.join(module.__name__.rpartition('.')[2] for module in MEASURED_BY)}); choose "
            "another folder"
        )
    return {line["video"]: line["numbers"] for line in lines}
