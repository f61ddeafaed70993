"""Compare methods on the same prompts and noise: cache size, time per block, and drift of the
videos.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..errors import HeadForcingError
from ..files import Fields
from ..methods.registry import METHODS, describe_method, method_names, unknown_method
from ..names import ALL
from ..plan.describe import format_bytes, markdown_table
from ..plan.options import RenderOptions
from ..plan.plan import RenderPlan
from ..report.drift import Progress, report_video
from ..report.metrics import METRICS, Numbers
from ..video.grid import write_grid
from ..video.writer import VideoInfo
from .result import RenderResult

NOTE = (
    "Drift of the videos: flicker 1 means no motion, edges 1 means no seams between blocks; no "
    "VBench scores."
)


@dataclass(frozen=True)
class Entry:
    """A row of a comparison: a method, under its label in tables and videos."""

    label: str
    method_name: str

    @property
    def key(self) -> str:
        """A name for files."""
        return self.method_name

    def options(self, common: RenderOptions, seed: int) -> RenderOptions:
        """The options of this entry's render, from the options that all entries share and the
        seed.
        """
        return replace(common.for_method(self.method_name), seed=seed)


def all_methods() -> list[str]:
    """The published methods in the order of menus; of those that share their settings the first."""
    first = {row.method: name for name, row in reversed(METHODS.items())}
    return [name for name in method_names() if name in first.values()]


def names_all(text: str) -> bool:
    """Whether a list of methods names `all`, of which those that cannot be rendered are left
    out.
    """
    return ALL in re.split(r"[,\s]+", text)


def entries_of(text: str) -> list[Entry]:
    """One entry per method named in a text, separated by commas or newlines; `all` stands for
    `all_methods`.
    """
    names = []
    for part in re.split(r"[,\n]", text):
        name = part.strip()
        if name == ALL:
            names += all_methods()
        elif name:
            names.append(name)
    choices = method_names()
    unknown = next((name for name in names if name not in choices), None)
    if unknown is not None:
        raise unknown_method(unknown, "methods")
    if not names:
        raise HeadForcingError(f"methods must be one of {', '.join(choices)}, got nothing")
    return [Entry(name, name) for name in dict.fromkeys(names)]


PlannedVideo = TypeVar("PlannedVideo")


def plan_entries(
    entries: Sequence[Entry], plan_one: Callable[[Entry], PlannedVideo], skip: bool
) -> tuple[list[PlannedVideo], dict[str, str]]:
    """Plan and check the videos of all entries before the first is rendered.

    Returns them and, with `skip`, why others cannot be rendered, by their labels. Raises
    HeadForcingError, with the label, for the first that cannot without `skip`, and if none can.
    """
    planned = []
    left_out = {}
    for entry in entries:
        try:
            planned.append(plan_one(entry))
        except HeadForcingError as error:
            if not skip:
                raise HeadForcingError(f"{entry.label}: {error}") from error
            left_out[entry.label] = str(error)
    if not planned:
        raise HeadForcingError(
            f"none of the methods can be rendered: {next(iter(left_out.values()))}"
        )
    return planned, left_out


@dataclass(frozen=True)
class ComparisonRow:
    """Measurements of a finished video of a comparison."""

    entry: Entry
    seed: int
    video: Path
    video_frames: int
    frame_slots: int  # capacity of the cache, all heads together
    # upper bound of the cache's size from its shape, temporary tensors of a prompt switch included
    cache_bytes: int
    reused_blocks: int
    seconds_per_block: float | None
    drift: Numbers  # the metrics of `report.metrics.METRICS` for the whole video

    @property
    def numbers(self) -> Fields:
        """The numbers of its line of the table, by name."""
        return {
            "frame_slots": self.frame_slots,
            "cache_bytes": self.cache_bytes,
            "seconds_per_block": self.seconds_per_block,
            **self.drift,
        }

    def to_dict(self) -> Fields:
        """Plain numbers."""
        own = asdict(self)
        names = {"method_name": "method"}
        entry = {names.get(name, name): value for name, value in own["entry"].items()}
        return {**own, "entry": entry, "video": str(self.video)}


def measure_video(
    entry: Entry,
    plan: RenderPlan,
    dtype: torch.dtype,
    result: RenderResult,
    *,
    on_progress: Progress | None = None,
) -> ComparisonRow:
    """Measure the finished video of a plan."""
    assert result.video is not None
    video = result.video.path
    report = report_video(video, on_progress=on_progress)  # its prompts and blocks are in its tags
    return ComparisonRow(
        entry,
        plan.seed,
        video,
        report.video_frames,
        frame_slots=plan.shape.frame_slots,
        cache_bytes=plan.cache_bytes(dtype),
        reused_blocks=result.reused_blocks,
        seconds_per_block=result.seconds_per_block,
        drift=report.whole,
    )


# by heading: the name of a number, of `ComparisonRow` or of its drift, and its form
TABLE_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "frame-slots": ("frame_slots", "{:,.0f}".format),
    "cache, at most": ("cache_bytes", format_bytes),
    "s/block": ("seconds_per_block", "{:.3g}".format),
    **{metric.heading: (metric.key, metric.form.format) for metric in METRICS if metric.heading},
}


def table(rows: Sequence[ComparisonRow]) -> str:
    """A Markdown table with one line per entry, in order; means over the seeds."""
    lines = []
    for entry in dict.fromkeys(row.entry for row in rows):
        group = [row.numbers for row in rows if row.entry == entry]
        cells = []
        for name, form in TABLE_COLUMNS.values():
            known = [numbers[name] for numbers in group if numbers[name] is not None]
            cells.append(form(sum(known) / len(known)) if known else "-")
        lines.append([entry.label, *cells])
    return markdown_table(["method", *TABLE_COLUMNS], lines)


def report_text(rows: Sequence[ComparisonRow], left_out: Mapping[str, str]) -> str:
    """The table, notes on the methods, and on those that `all` asked for and that cannot be
    rendered.
    """
    lines = [table(rows), "", NOTE, "", *method_notes(rows)]
    lines += [f"left out: {label}: {reason}" for label, reason in left_out.items()]
    return "\n".join(lines)


def method_notes(rows: Sequence[ComparisonRow]) -> list[str]:
    """Per published method in a table: its paper, the weights it is meant for, and notes."""
    lines = []
    for name in dict.fromkeys(row.entry.method_name for row in rows):
        lines += describe_method(name)
    return lines


def grid(path: Path, rows: Sequence[ComparisonRow], **options: Any) -> VideoInfo:
    """Write the videos of the first seed side by side, with their labels, as one MP4."""
    tiles = [(row.entry.label, row.video) for row in rows if row.seed == rows[0].seed]
    return write_grid(path, tiles, **options)
