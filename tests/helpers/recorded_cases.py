"""Recorded cases, and a test for each of their runs.

`subset` lies in tests/golden, `full` in ../shared/golden, which a clone lacks: then only the subset
is tested. Weights are random, sizes tiny, everything is float32 on CPU.
"""

import functools
import json
from collections.abc import Container
from pathlib import Path

import pytest
import torch
from headforcing.research.recordings import replay as replaying
from headforcing.research.recordings.replay import Case, Replay, replay

ROOT = Path(__file__).parents[2]
GOLDEN = {"subset": ROOT / "tests" / "golden", "full": ROOT.parent / "shared" / "golden"}

open_case = functools.cache(lambda which, name: Case.open(GOLDEN[which] / name))


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test where the full set has no such folder."""
    here = (GOLDEN["full"] / name).is_dir()
    return pytest.mark.skipif(
        not here, reason=f"the recordings of {name} (../shared/golden) are not here"
    )


def each_run(*names: str, sets: Container[str] = ("subset", "full"), wanted=lambda run: True):
    """A test for every wanted run of these cases; its id begins with the set."""
    found = []
    for which in filter(sets.__contains__, GOLDEN):
        for name in names:
            file = GOLDEN[which] / name / "config.json"
            runs = json.loads(file.read_text("utf-8"))["runs"] if file.exists() else {}
            found += [(which, name, run) for run in filter(wanted, runs)]
    ids = ["-".join((which, name.rpartition("/")[2], run)) for which, name, run in found]
    return pytest.mark.parametrize(("which", "name", "run"), found, ids=ids)


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference in standard deviations of what was recorded."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.std())


def kept_cache(monkeypatch: pytest.MonkeyPatch) -> list:
    """The caches that replays make."""
    caches = []
    make = replaying.new_cache

    def keeping(*given):
        caches.append(make(*given))
        return caches[-1]

    monkeypatch.setattr(replaying, "new_cache", keeping)
    return caches


def replayed(case: Case, run: str, tolerance: float = 1e-4) -> Replay:
    """The replay of a run of a method, whose latents must be the recorded ones."""
    done = replay(case, run)
    expected = case.tensors[f"latents/{run}"]
    expected = expected[:, 0].flatten(0, 1) if case.config["method"] == "causvid" else expected[0]
    assert apart(done.latents, expected) < tolerance
    return done


def noted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list:
    """What a method of a class returned, call by call."""
    notes = []
    original = getattr(owner, name)

    def noting(self, *args, **options):
        notes.append(original(self, *args, **options))
        return notes[-1]

    monkeypatch.setattr(owner, name, noting)
    return notes
