"""Compare methods on the same prompts and noise: cache size, time per block, and drift of the videos."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..cache.method import Method
from ..cache.policy import CachePolicy
from ..errors import HeadForcingError
from ..methods.registry import METHODS, describe_method, method_names, method_policy
from ..names import ALL, unknown_method
from ..report.drift import Progress, report_video
from ..report.learned.base import Numbers, Panel
from ..report.metrics import METRICS
from ..video.grid import write_grid
from ..video.writer import VideoInfo
from .describe import format_bytes, markdown_table
from .options import RenderOptions
from .plan import RenderPlan
from .result import RenderResult

NOTE = "Drift of the videos: flicker 1 means no motion, edges 1 means no seams between blocks; no VBench scores."

Cell = Callable[[Any], str]


@dataclass(frozen=True)
class Entry:
    """A row of a comparison: a method, or an ablation of one.

    Attributes:
        label: name of the row in tables and videos.
        roles: an arrangement of head roles, see `cache.roles.arrange_roles`.
        shuffle: number of the shuffle where `roles` shuffles them.
        rope: a RoPE mode other than the method's own; only for methods in `cache.policy.PRESETS`.
        given: settings without a name in the lists of methods; `method` is then only a name for files.
    """

    label: str
    method: str
    roles: str = "profile"
    rope: str | None = None
    given: CachePolicy | None = None
    shuffle: int = 0

    @property
    def key(self) -> str:
        """A name for files."""
        roles = f"{self.roles}_{self.shuffle}" if self.shuffle else self.roles.replace("profile", "")
        return "-".join(filter(None, [self.method, roles, self.rope]))

    @property
    def policy(self) -> Method:
        """The method's settings; raises HeadForcingError for an unknown name."""
        policy = self.given or method_policy(self.method)
        if self.rope is None:
            return policy
        if not isinstance(policy, CachePolicy):
            raise HeadForcingError(f"{self.label}: {self.method} has a fixed RoPE mode, got {self.rope!r}")
        return replace(policy, rope=self.rope)

    def options(self, common: RenderOptions, seed: int) -> RenderOptions:
        """The options of this entry's render, from the options that all entries share and the seed."""
        return replace(
            common, method=self.method, roles=self.roles, shuffle=self.shuffle, policy=self.policy, seed=seed
        )

    def planned(self, plan: Callable[[], RenderPlan]) -> RenderPlan:
        """The entry's plan; error messages begin with the entry's label."""
        try:
            return plan()
        except HeadForcingError as error:
            raise HeadForcingError(f"{self.label}: {error}") from error


def all_methods() -> list[str]:
    """The published methods in the order of menus; of those that share their settings the first, ablations left out."""
    seen: dict[Method, str] = {}
    for name, row in METHODS.items():
        seen.setdefault(row.policy, name)
    return [name for name in method_names() if name in seen.values()]


def names_all(text: str) -> bool:
    """Whether a list of methods names `all`, of which those that cannot be rendered are left out."""
    return ALL in re.split(r"[,\s]+", text)


def entries_of(text: str) -> list[Entry]:
    """One entry per method named in a text, separated by commas or newlines; repeated names count once.

    `all` stands for `all_methods`.
    """
    given = [name for name in (part.strip() for part in re.split(r"[,\n]", text)) if name]
    names = [name for part in given for name in (all_methods() if part == ALL else [part])]
    choices = method_names()
    unknown = next((name for name in names if name not in choices), None)
    if unknown is not None:
        raise unknown_method(unknown, "methods")
    if not names:
        raise HeadForcingError(f"methods must be one of {', '.join(choices)}, got nothing")
    return [Entry(name, name) for name in dict.fromkeys(names)]


@dataclass(frozen=True)
class Compared:
    """Measurements of a finished video of a comparison.

    Attributes:
        frame_slots: capacity of the cache, all heads together.
        slots_in_use: the largest number in use after a block; None if all blocks come from an earlier render.
        cache_bytes: upper bound of the cache's size from its shape, temporary tensors of a prompt switch included.
        seconds_per_block: median without decoding; None if it is not known.
        drift: the metrics of `report.metrics.GROUPS` for the whole video, and of models for metrics.
        guards: a line for every guard that acted, see `cache.guards`.
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
    guards: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        numbers = {**asdict(self), "entry": asdict(self.entry), "video": str(self.video)}
        if not self.guards:
            del numbers["guards"]
        return numbers


def measured(
    entry: Entry,
    seed: int,
    plan: RenderPlan,
    dtype: torch.dtype,
    result: RenderResult,
    on_progress: Progress | None = None,
    panel: Panel | None = None,
) -> Compared:
    """Measure the finished video of a plan, with these metrics, too."""
    assert result.video is not None
    video, in_use = result.video.path, [slots for slots in result.run.occupied if slots is not None]
    report = report_video(video, on_progress=on_progress, panel=panel)  # its prompts and blocks are in its tags
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
        tuple(result.guards),
    )


def _drift(key: str) -> Callable[[Compared], float | None]:
    return lambda row: row.drift[key]


TABLE_COLUMNS: dict[str, tuple[Callable[[Compared], float | None], Cell]] = {
    "frame-slots": (lambda row: row.frame_slots, "{:,.0f}".format),
    "in use": (lambda row: row.slots_in_use, "{:,.0f}".format),
    "cache, at most": (lambda row: row.cache_bytes, format_bytes),
    "s/block": (lambda row: row.seconds_per_block, "{:.3g}".format),
    **{metric.heading: (_drift(metric.key), metric.form) for metric in METRICS if metric.heading},
}


def table(rows: Sequence[Compared]) -> str:
    """A Markdown table with one line per entry, in order; means over the seeds."""
    lines = []
    for entry in dict.fromkeys(row.entry for row in rows):
        group = [row for row in rows if row.entry == entry]
        cells = [_mean_cell([value(row) for row in group], cell) for value, cell in TABLE_COLUMNS.values()]
        lines.append([entry.label, *cells])
    return markdown_table(["method", *TABLE_COLUMNS], lines)


def left_out_notes(left_out: Mapping[str, str]) -> list[str]:
    """Lines on methods that `all` asked for and that cannot be rendered."""
    return [f"left out: {label}: {reason}" for label, reason in left_out.items()]


def method_notes(rows: Sequence[Compared]) -> list[str]:
    """Per published method in a table: its paper, the weights it is meant for, and notes; and what guards did."""
    methods = [line for name in dict.fromkeys(row.entry.method for row in rows) for line in describe_method(name)]
    return methods + [f"guard: {row.entry.label}, seed {row.seed}: {line}" for row in rows for line in row.guards]


def grid(path: Path, rows: Sequence[Compared], **options: Any) -> VideoInfo:
    """Write the videos of the first seed side by side, with their labels, as one MP4."""
    tiles = [(row.entry.label, row.video) for row in rows if row.seed == rows[0].seed]
    return write_grid(path, tiles, **options)


def _mean_cell(values: Sequence[float | None], cell: Cell) -> str:
    known = [value for value in values if value is not None]
    return cell(sum(known) / len(known)) if known else "-"
