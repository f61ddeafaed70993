"""Several methods on the same prompts and the same noise: what each holds and takes, and how its video changes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ..cache.method import Method
from ..cache.policy import CachePolicy
from ..drift.metrics import Numbers
from ..drift.report import Progress, report_video
from ..errors import HeadForcingError
from ..methods.registry import describe_method, method_names, method_policy
from ..render.describe import format_bytes
from ..render.options import RenderOptions
from ..render.plan import RenderPlan
from ..render.result import RenderResult
from ..video.grid import write_grid
from ..video.stream import VideoInfo
from .markdown import markdown_table

NOTE = "Drift of the videos: flicker 1 is still, edges 1 is seamless; no VBench scores. Read rows against each other."

Cell = Callable[[Any], str]


@dataclass(frozen=True)
class Entry:
    """What is compared: a method, or an ablation of one.

    Attributes:
        label: what people read.
        roles: an arrangement of `policy.arrange_roles`.
        rope: rotary positions other than the method's own; only for methods of `policy.PRESETS`.
        given: settings that have no name in the lists of methods; `method` is then a name for files alone.
    """

    label: str
    method: str
    roles: str = "profile"
    rope: str | None = None
    given: CachePolicy | None = None

    @property
    def key(self) -> str:
        """A name for files."""
        return "-".join(filter(None, [self.method, self.roles.replace("profile", ""), self.rope]))

    @property
    def policy(self) -> Method:
        """The method's settings, or an error that lists the names."""
        policy = self.given or method_policy(self.method)
        if self.rope is None:
            return policy
        other = policy.with_rope(self.rope)
        if other is None:
            raise HeadForcingError(f"{self.label}: {self.method} has its own rotary positions, got {self.rope!r}")
        return other

    def options(self, common: RenderOptions, seed: int) -> RenderOptions:
        """What this entry's render with this seed is asked for, from what all entries have in common."""
        return replace(common, method=self.method, roles=self.roles, policy=self.policy, seed=seed)

    def planned(self, plan: Callable[[], RenderPlan]) -> RenderPlan:
        """The entry's plan; names the entry in what is refused."""
        try:
            return plan()
        except HeadForcingError as error:
            raise HeadForcingError(f"{self.label}: {error}") from error


def entries_of(text: str) -> list[Entry]:
    """One entry for each method named in a text, by commas or lines; a name that comes twice counts once."""
    names = [name for name in (part.strip() for part in re.split(r"[,\n]", text)) if name]
    known = method_names()
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None and (meant := difflib.get_close_matches(unknown[:60], known, 1, 0.75)):
        raise HeadForcingError(f"methods has no {unknown[:60]!r}; did you mean {meant[0]}?")
    if unknown is not None or not names:
        found = "nothing" if unknown is None else repr(unknown[:60])
        raise HeadForcingError(f"methods must be names out of {', '.join(known)}, got {found}")
    return [Entry(name, name) for name in dict.fromkeys(names)]


@dataclass(frozen=True)
class Compared:
    """A finished video of a comparison.

    Attributes:
        frame_slots: that the cache has room for, all heads together.
        slots_in_use: the most that were in use after a block; None where all blocks come from an earlier render.
        cache_bytes: the most that the cache can take, from its shape; what a prompt switch needs for a moment included.
        seconds_per_block: median, decoding left out; None where all blocks come from an earlier render.
        drift: the numbers of `metrics.GROUPS` for the whole video.
    """

    entry: Entry
    seed: int
    video: Path
    video_frames: int
    frame_slots: int
    slots_in_use: int | None
    cache_bytes: int
    reused_blocks: int
    seconds_per_block: float | None
    drift: Numbers

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        numbers = {**asdict(self), "entry": asdict(self.entry), "video": str(self.video)}
        numbers["pictures"] = numbers.pop("video_frames")  # the key that stored comparisons have
        return numbers


def measured(
    entry: Entry,
    seed: int,
    plan: RenderPlan,
    dtype: torch.dtype,
    result: RenderResult,
    on_progress: Progress | None = None,
) -> Compared:
    """Measure the video that a plan has become."""
    assert result.video is not None
    video, in_use = result.video.path, [slots for slots in result.run.occupied if slots is not None]
    report = report_video(video, plan.timeline, plan.schedule.frames_per_block, on_progress)
    return Compared(
        entry,
        seed,
        video,
        report.video_frames,
        plan.shape.frame_slots,
        max(in_use, default=None),
        plan.cache_bytes(dtype),
        result.reused_blocks,
        result.seconds_per_block,
        report.whole,
    )


COLUMNS: dict[str, tuple[Callable[[Compared], float | None], Cell]] = {
    "frame-slots": (lambda row: row.frame_slots, "{:,.0f}".format),
    "in use": (lambda row: row.slots_in_use, "{:,.0f}".format),
    "cache, at most": (lambda row: row.cache_bytes, format_bytes),
    "s/block": (lambda row: row.seconds_per_block, "{:.3g}".format),
    "flicker": (lambda row: row.drift["flicker"], "{:.4f}".format),
    "block edges": (lambda row: row.drift["edge_ratio"], "{:.2f}".format),
    "motion": (lambda row: row.drift["motion"], "{:.2f}".format),
    "longest freeze, s": (lambda row: row.drift["longest_freeze_seconds"], "{:.2f}".format),
    "sharpness, end/start": (lambda row: row.drift["sharpness_ratio"], "{:.2f}".format),
    "saturation, a minute": (lambda row: row.drift["saturation_slope_per_minute"], "{:+.1%}".format),
}


def table(rows: Sequence[Compared]) -> str:
    """One Markdown line for each entry, in order; the mean where there are several seeds."""
    lines = []
    for entry, videos in groupby(sorted(rows, key=_order(rows)), key=lambda row: row.entry):
        group = list(videos)
        cells = [_mean_cell([value(row) for row in group], cell) for value, cell in COLUMNS.values()]
        lines.append([entry.label, *cells])
    return markdown_table(["method", *COLUMNS], lines)


def method_notes(rows: Sequence[Compared]) -> list[str]:
    """For every published method in a table: its paper, the weights it is meant for, and what to know about it."""
    return [line for name in dict.fromkeys(row.entry.method for row in rows) for line in describe_method(name)]


def grid(path: Path, rows: Sequence[Compared], **options: Any) -> VideoInfo:
    """The videos side by side under their labels; those of the first seed where there are several."""
    tiles = [(row.entry.label, row.video) for row in rows if row.seed == rows[0].seed]
    return write_grid(path, tiles, **options)


def _order(rows: Sequence[Compared]) -> Callable[[Compared], int]:
    entries = list(dict.fromkeys(row.entry for row in rows))
    return lambda row: entries.index(row.entry)


def _mean_cell(values: Sequence[float | None], cell: Cell) -> str:
    known = [value for value in values if value is not None]
    return cell(sum(known) / len(known)) if known else "-"
