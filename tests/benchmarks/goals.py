"""What a GPU is to reach, printed beside what was measured. One H200 at 832x480, random weights of the real size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A line of the list.

    Attributes:
        part: which part of the day measures it.
        text: what is measured.
        least, most: the bound; None for none.
        value: reads it from the part's results; KeyError, ValueError or TypeError where it was not measured.
    """

    part: str
    text: str
    value: Callable[[Results], float]
    least: float | None = None
    most: float | None = None


def _row(results: Results, name: str) -> Any:
    return next(row for row in results["rows"] if row["row"] == name)["ms_per_block"]["block"]["median"]


def _fps(results: Results) -> float:
    """Video frames per second of the fastest of our rows."""
    present = [row for row in results["rows"] if row["row"].startswith("B") and "ms_per_block" in row]
    return 12000 / min(row["ms_per_block"]["block"]["median"] for row in present)


def _beside(other: str, ours: str) -> Callable[[Results], float]:
    """How many times as long another row takes as the row of ours that does the same work with the same kernels."""
    return lambda results: _row(results, other) / _row(results, ours)


def _memory(results: Results) -> float:
    found = results["tasks"]["sampled and decoded"]
    return found["peak_bytes"] / found["estimated_bytes"]


def _flat(results: Results) -> float:
    first, *_, last = results["tasks"]["length"]
    return last["fastest_ms"] / first["fastest_ms"]


def _rounding(results: Results) -> float:
    layers = [task for name, task in results["tasks"].items() if name.startswith("attention: ")]
    return max(layer["times_rounding"] for layer in layers if "times_rounding" in layer)


def _end_to_end(results: Results) -> float:
    """With encoding, or without where the machine lacks the packages for it."""
    tasks = results["tasks"]
    encoded = tasks.get("sampled, decoded and encoded", {})
    return encoded["steady_fps"] if "steady_fps" in encoded else tasks["sampled and decoded"]["steady_fps"]


def _tiny(results: Results) -> float:
    return results["tasks"]["sampled in fp8, decoded by a tiny VAE"]["steady_fps"]


GOALS = (
    Goal("check", "error of attention, in errors of plain attention that rounds alike", _rounding, most=2.0),
    Goal("rows", "video frames per second, transformer and cache only", _fps, least=45),
    Goal("rows", "times as fast as a uniform window of 21 with its best attention", _beside("W21", "B3"), least=1.45),
    Goal("rows", "times as fast as V4, one varlen call a layer in both", _beside("V4", "B2"), least=1.15),
    Goal("rows", "times as fast as V1, plain PyTorch around attention in both", _beside("V1", "B2"), least=1.7),
    Goal("video", "video frames per second, VAE included, and encoding where it is possible", _end_to_end, least=36),
    Goal("video", "video frames per second with a tiny VAE and fp8 linear layers", _tiny, least=59),
    Goal("video", "peak memory, in estimates of it", _memory, least=0.9, most=1.1),
    Goal("rest", "time of a late block, in times of an early one", _flat, least=0.95, most=1.05),
)


def lines(part: str, results: Results, goals: Iterable[Goal] = GOALS) -> list[str]:
    """A line for every goal of a part: the measured value, the bound and whether it is kept.

    Only values of a GPU are compared; those of a dry run mean nothing.
    """
    compared = results.get("environment", {}).get("clock") == "CUDA events"
    told = []
    for goal in goals:
        if goal.part == part:
            bounds = [f"at least {goal.least:g}"] if goal.least is not None else []
            bounds += [f"at most {goal.most:g}"] if goal.most is not None else []
            told.append(f"{_measured(goal, results, compared)}: {goal.text} (goal: {', '.join(bounds)})")
    return told


def _measured(goal: Goal, results: Results, compared: bool) -> str:
    with suppress(KeyError, ValueError, TypeError, StopIteration):
        value = goal.value(results)
        if not compared:
            return f"dry run {value:.3g}"
        kept = (goal.least is None or value >= goal.least) and (goal.most is None or value <= goal.most)
        return f"{value:.3g} {'reached' if kept else 'MISSED'}"
    return "not measured"
