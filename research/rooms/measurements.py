"""Measurements of a model of the rooms: the files that they are of, the code that makes them, and their journals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from ...headforcing_core.demo import assets, rooms_autoencoder, word_hash, words
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import check_regular, claimed, replacing
from ...headforcing_core.hashing import digest, file_hash
from ...headforcing_core.head_profiles.profile import HeadProfile, bundled_profiles, load_profile
from .. import ablations, role_rules
from ..statistics import Numbers
from . import detector, drawing, judge, masks, scenes, stories
from .verdicts import GATE_STUDENT, Verdict, gate

Known = dict[str, Numbers]
"""The numbers of every measured video, by its key."""
Job = TypeVar("Job")
MEASURED_BY = (
    words, scenes, drawing, stories, rooms_autoencoder, masks, detector, judge, word_hash, role_rules, ablations,
)  # fmt: skip
"""The modules that define what a measured number is; a change of one of them makes earlier measurements unusable.

What defines a row is in the key of its videos, so that another table can be added.
"""


@dataclass(frozen=True)
class Trained:
    """Results of a training of the world of rooms: files, and the effects of memory that the gate found.

    Of the embedded model there are only the files: it was chosen by its gate, which needs the base, too.
    """

    weights: Path
    autoencoder: Path
    student: dict[str, Any] | None = None
    base: dict[str, Any] | None = None

    @classmethod
    def embedded(cls) -> Trained:
        return cls(assets.model_path(), assets.autoencoder_path())

    @classmethod
    def of(cls, folder: Path) -> Trained:
        """Read the folder; raises HeadForcingError where no student passed or the gate was measured on other files."""
        name, autoencoder = _read(folder / "chosen.json")["chosen"], folder / "autoencoder.safetensors"
        if name is None:
            raise HeadForcingError(
                f"the gate is not passed, so no table is made: no student in {folder} remembers at least "
                f"{GATE_STUDENT}; train a model that remembers more"
            )
        found = []
        for weights in (folder / str(name), folder / "base.safetensors"):
            for path in (weights, autoencoder):
                check_regular(path)
            stored = _read(weights.with_suffix(".gate.json"))
            if (stored.get("weights"), stored.get("autoencoder")) != (file_hash(weights), file_hash(autoencoder)):
                raise HeadForcingError(
                    f"{weights.with_suffix('.gate.json')} was not measured on {weights.name} and {autoencoder.name} as "
                    "they are now; give the training's command again, which measures what has changed"
                )
            found.append(stored)
        return cls(folder / str(name), autoencoder, *found)

    @property
    def gate(self) -> Verdict | None:
        """H0; None for the embedded model."""
        if self.student is None or self.base is None:
            return None
        return gate(float(self.student["memory"]), float(self.base["memory"]))

    @property
    def nearest(self) -> list[float]:
        """The effects of memory where the room was not left, the gate's positive control."""
        return [] if self.student is None else list(self.student["effects"].get("0", []))

    def profile(self, given: Path | None = None) -> HeadProfile:
        """The given head profile, or the bundled one; raises HeadForcingError for a profile of other weights."""
        profile = load_profile(given or bundled_profiles()["toy_world"])
        if profile.measured.get("fingerprint") != assets.inspect_toy(self.weights).fingerprint:
            raise HeadForcingError(
                f"--profile must name the head profile of {self.weights}; "
                f"`headforcing profile profile.json --demo --demo-weights {self.weights}` measures it"
            )
        return profile

    def judge(self, profile: HeadProfile | None = None) -> judge.RoomsJudge:
        """The judge of this model, with the given head profile or the bundled one."""
        return judge.RoomsJudge(self.weights, self.autoencoder, profile or self.profile())

    def measured_on(self, profile: HeadProfile) -> dict[str, str]:
        """The hashes of the files that the measurements are of."""
        files = {"model": file_hash(self.weights), "autoencoder": file_hash(self.autoencoder)}
        return {**files, "profile": digest(profile.to_json())}


def _read(path: Path) -> dict[str, Any]:
    """Read what the training wrote as JSON; raises HeadForcingError for any other file."""
    check_regular(path)
    try:
        return {"chosen": None, **json.loads(path.read_text("utf-8"))}
    except (ValueError, TypeError) as error:
        raise HeadForcingError(f"{path} must be a JSON object, as the training writes it: {error}") from error


def hashes_of(modules: Iterable[ModuleType]) -> list[str]:
    """Hashes of the files that define a measurement, so that none made by other code is taken for one of this code."""
    return [file_hash(Path(str(module.__file__))) for module in modules]


def complete(
    journal: Path, weights: str, jobs: Mapping[str, Job], measured: Callable[[Job], Numbers], quiet: bool
) -> Known:
    """Measure the jobs that no journal beside this one knows, append each to it, and return all that is known.

    Args:
        weights: hash of the files that are measured and of the code that measures.
        jobs: by the key of the video.

    Raises HeadForcingError for journals of another model or by other code.
    """
    with claimed(journal):
        _mend(journal)
        known = _read_journals(journal.parent, weights)
        torch.set_num_threads(1)  # several are slower for a model this small
        with journal.open("a", encoding="utf-8") as file:
            for key in tqdm([key for key in jobs if key not in known], unit="video", disable=quiet):
                found = measured(jobs[key]).items()
                known[key] = {name: None if value is None else round(value, 5) for name, value in found}
                file.write(json.dumps({"video": key, "weights": weights, "numbers": known[key]}) + "\n")
                file.flush()
    return known


def _mend(journal: Path) -> None:
    """Remove a last line that was cut off when a process died."""
    if journal.exists() and (text := journal.read_text("utf-8")) and not text.endswith("\n"):
        with replacing(journal) as partial:
            partial.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")


def _read_journals(folder: Path, weights: str) -> Known:
    known: Known = {}
    for path in sorted(folder.glob("measured*.jsonl")):
        for line in path.read_text("utf-8").split("\n")[:-1]:  # another process may be writing the last one
            found = json.loads(line)
            if found["weights"] != weights:
                raise HeadForcingError(
                    f"{path} was measured with another model, autoencoder or head profile, or by other code (one of "
                    f"{', '.join(module.__name__.rpartition('.')[2] for module in MEASURED_BY)}); choose another folder"
                )
            known[found["video"]] = found["numbers"]
    return known
