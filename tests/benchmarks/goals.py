"""What a GPU is to reach, printed beside what was measured. One H200 at 832x480, random weights of the real size."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

Results = dict[str, Any]


def _block_ms(results: Results, name: str) -> float:
    return next(row for row in results["rows"] if row["row"] == name)["ms_per_block"]["block"]["median"]


def _fps(results: Results) -> float:
    """Video frames per second of the fastest of our rows."""
    ours = [row for row in results["rows"] if row["row"].startswith("B") and "ms_per_block" in row]
    return 12000 / min(row["ms_per_block"]["block"]["median"] for row in ours)


def _beside(other: str, ours: str) -> Callable[[Results], float]:
    """How many times as long another row takes as the row of ours that does the same work with the same kernels."""
    return lambda results: _block_ms(results, other) / _block_ms(results, ours)


def _rounding(results: Results) -> float:
    return max(task["times_rounding"] for task in results["tasks"].values() if "times_rounding" in task)


def _steady(*videos: str) -> Callable[[Results], float]:
    """Video frames per second of the first of these that was measured."""
    return lambda results: next(
        results["tasks"][name]["steady_fps"] for name in videos if "steady_fps" in results["tasks"].get(name, {})
    )


def _memory(results: Results) -> float:
    found = results["tasks"]["sampled and decoded"]
    return found["peak_bytes"] / found["estimated_bytes"]


def _flat(results: Results) -> float:
    first, *_, last = results["tasks"]["length"]
    return last["fastest_ms"] / first["fastest_ms"]


# per part of the day: what is measured, a function that reads it from the part's results, and its least and its most
GOALS: dict[str, list[tuple[str, Callable[[Results], float], float | None, float | None]]] = {
    "check": [("error of attention, in errors of plain attention that rounds alike", _rounding, None, 2.0)],
    "rows": [
        ("video frames per second, transformer and cache only", _fps, 45, None),
        ("times as fast as a uniform window of 21 with its best attention", _beside("W21", "B3"), 1.45, None),
        ("times as fast as V4, one varlen call a layer in both", _beside("V4", "B2"), 1.15, None),
        ("times as fast as V1, plain PyTorch around attention in both", _beside("V1", "B2"), 1.7, None),
    ],
    "video": [
        ("video frames per second, VAE included, and encoding where it is possible",
         _steady("sampled, decoded and encoded", "sampled and decoded"), 36, None),
        ("video frames per second with a tiny VAE and fp8 linear layers",
         _steady("sampled in fp8, decoded by a tiny VAE"), 59, None),
        ("peak memory, in estimates of it", _memory, 0.9, 1.1),
    ],
    "rest": [("time of a late block, in times of an early one", _flat, 0.95, 1.05)],
}  # fmt: skip


def lines(part: str, results: Results) -> list[str]:
    """A line for every goal of a part: the measured value, the bound and whether it is kept.

    Only values of a GPU are compared; those of a dry run mean nothing.
    """
    told = []
    for text, value, least, most in GOALS.get(part, []):
        measured = "not measured"
        with suppress(KeyError, ValueError, TypeError, StopIteration):
            number = value(results)
            kept = (least is None or number >= least) and (most is None or number <= most)
            if results["environment"]["clock"] == "CUDA events":
                measured = f"{number:.3g} {'reached' if kept else 'MISSED'}"
            else:
                measured = f"dry run {number:.3g}"
        bounds = [f"{word} {bound:g}" for word, bound in (("at least", least), ("at most", most)) if bound is not None]
        told.append(f"{measured}: {text} (goal: {', '.join(bounds)})")
    return told
