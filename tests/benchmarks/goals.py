"""What a GPU is to reach, printed beside what was measured. One H200 at 832x480, random weights of
the real size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

Results = dict[str, Any]


def _block_ms(results: Results, name: str) -> float:
    return next(row for row in results["rows"] if row["row"] == name)["block_ms"]


def _fps(results: Results) -> float:
    """Video frames per second of the fastest of our rows."""
    return max(row["fps"] for row in results["rows"] if row["row"].startswith("B") and "fps" in row)


def _beside(other: str, ours: str) -> Callable[[Results], float]:
    """How many times as long another row takes as the row of ours that does the same work with the
    same kernels.
    """
    return lambda results: _block_ms(results, other) / _block_ms(results, ours)


def _number(key: str, *tasks: str) -> Callable[[Results], float]:
    """That of the first of these tasks that was measured."""
    return lambda results: next(
        results["tasks"][name][key] for name in tasks if key in results["tasks"].get(name, {})
    )


def _rounding(results: Results) -> float:
    return max(
        task["times_rounding"] for task in results["tasks"].values() if "times_rounding" in task
    )


def _memory(results: Results) -> float:
    found = results["tasks"]["sampled and decoded"]
    return found["peak_bytes"] / found["estimated_bytes"]


def _flat(results: Results) -> float:
    first, *_, last = results["tasks"]["length"]
    return last["fastest_ms"] / first["fastest_ms"]


# per part of the day: what is measured, a function that reads it from the part's results, and its
# bounds
GOALS: dict[str, list[tuple[str, Callable[[Results], float], float, float]]] = {
    "first": [
        ("the same bits twice, in another process and resumed", _number("right", "same bits"), 1, 1)
    ],
    "check": [
        ("error of attention, in errors of plain attention that rounds alike", _rounding, 0, 2)
    ],
    "rows": [
        ("video frames per second, transformer and cache only", _fps, 45, inf),
        (
            "times as fast as a uniform window of 21 with its best attention",
            _beside("W21", "B3"),
            1.45,
            inf,
        ),
        ("times as fast as V4, one varlen call a layer in both", _beside("V4", "B2"), 1.15, inf),
        (
            "times as fast as V1, plain PyTorch around attention in both",
            _beside("V1", "B2"),
            1.7,
            inf,
        ),
    ],
    "video": [
        (
            "video frames per second, VAE included, and encoding where it is possible",
            _number("steady_fps", "sampled, decoded and encoded", "sampled and decoded"),
            30,
            inf,
        ),
        (
            "video frames per second with a tiny VAE",
            _number("steady_fps", "sampled, decoded by a tiny VAE"),
            34.9,
            inf,
        ),
        (
            "video frames per second with a tiny VAE and fp8 linear layers",
            _number("steady_fps", "sampled in fp8, decoded by a tiny VAE"),
            59,
            inf,
        ),
        ("peak memory, in estimates of it", _memory, 0.9, 1.1),
    ],
    "rest": [("time of a late block, in times of an early one", _flat, 0.95, 1.05)],
}


def lines(part: str, results: Results) -> list[str]:
    """A line for every goal of a part: the measured value, which only on a GPU is compared, and the
    goal.
    """
    told = []
    gpu = results["environment"]["clock"] == "CUDA events"
    for text, value, least, most in GOALS.get(part, []):
        measured = "not measured"
        with suppress(KeyError, ValueError, TypeError, StopIteration):
            number = value(results)
            kept = "reached" if least <= number <= most else "MISSED"
            measured = f"{number:.3g} {kept}" if gpu else f"dry run {number:.3g}"
        told.append(f"{measured}: {text} (goal: {least:g} to {most:g})")
    return told
