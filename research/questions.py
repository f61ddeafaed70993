"""Questions about the method, each answered by a table of methods on the same prompts and noise (`answers.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..headforcing_core.cache.policy import CachePolicy, RolePolicy
from ..headforcing_core.render.comparison import Entry
from ..headforcing_core.report.learned import registry
from ..headforcing_core.report.metrics import METRICS
from . import vbench
from .paper_tables import PAPER_TABLES
from .statistics import Numbers


@dataclass(frozen=True)
class Rendered:
    """A row without a model: ground truth, drawn from the prompts and judged by the same detector.

    It measures the detector's accuracy, the upper bound for a model.

    Attributes:
        encoded: whether the video is encoded and decoded by the autoencoder, like a model's videos.
    """

    label: str
    encoded: bool


SHUFFLES = 20


@dataclass(frozen=True)
class Shuffles:
    """A row of several shuffles of the head roles, each measured on all videos.

    With a shuffle of its own for every video the two could not be told apart.
    """

    entry: Entry
    count: int = SHUFFLES

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def entries(self) -> list[Entry]:
        return [replace(self.entry, shuffle=shuffle) for shuffle in range(self.count)]


Row = Entry | Rendered | Shuffles
Measure = Callable[[Entry | Rendered, int], Numbers]
"""Measures a row's video of the given number; returns its metrics."""


@dataclass(frozen=True)
class Question:
    """One table.

    Attributes:
        asks: the question, or the caption of the paper's table.
        story: the kind of videos: `one_prompt` or `six_prompts`, or a story of the world of rooms.
        rows: methods; the others are compared with the last one.
        columns: keys of the metrics, see `COLUMNS`; those of `QUESTIONS` follow from what is measured.
        note: below the table.
        primary: the column whose differences answer the question; the others describe. Empty where something else
            than a column of this table decides.
    """

    asks: str
    story: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ()
    note: str = ""
    primary: str = ""

    @property
    def entries(self) -> list[Entry]:
        """All that is rendered, a row of shuffles as one for each."""
        return [entry for row in self.rows for entry in renders_of(row)]

    def with_shuffles(self, count: int) -> Question:
        """The question with so many shuffles in its rows of shuffles."""
        rows = [replace(row, count=count) if isinstance(row, Shuffles) else row for row in self.rows]
        return replace(self, rows=tuple(rows))


@dataclass(frozen=True)
class Column:
    heading: str
    form: Callable[[float], str]
    planned: bool = False  # computed from the plan, the same for all videos: no interval, never bold


_OF_ROOMS = (  # key, heading, digits
    ("layout", "layout", 2),
    ("layout_by_chance", "layout by chance", 2),
    ("identity", "marking", 2),
    ("identity_by_chance", "marking by chance", 2),
    ("background", "background", 3),
    ("pattern", "pattern", 3),
    ("shape", "kind of shape", 3),
    ("single", "one shape", 3),
    ("outline", "overlap with the outline", 2),
    ("moves", "word of the motion", 2),
    ("camera", "word of the camera", 2),
    ("place_error", "error of the actor's place one block ahead, pixels", 2),
    ("loss_0.9375", "loss at 0.9375", 4),
)
COLUMNS = {"frames_a_head": Column("frames a head", "{:.3g}".format, planned=True)}
COLUMNS |= {key: Column(heading, f"{{:.{digits}f}}".format) for key, heading, digits in _OF_ROOMS}
COLUMNS |= {key: Column(metric.name, metric.form) for key, metric in (registry.COLUMNS | vbench.COLUMNS).items()}
UNJUDGED = ("flicker", "edge_ratio", "motion", "longest_freeze_seconds", "sharpness_ratio")
"""Metrics that need no ground truth."""
COLUMNS |= {metric.key: Column(metric.heading, metric.form) for metric in METRICS if metric.key in UNJUDGED}


def window(frames: int, sink: int = 0) -> Entry:
    """One cache for all heads: `sink` first frames and the last ones, `frames` in total with the current block of 3.

    Temporal indices count from 0 in the context, as in Head Forcing. Without a sink this gives the same result as
    indices in the video, because attention depends only on differences of indices.
    """
    policy = CachePolicy.uniform(RolePolicy(sink_frames=sink, recent_frames=frames - sink - 3), "contiguous")
    label = f"window of {frames}" if not sink else f"sink {sink} + window of {frames - sink}"
    return Entry(f"{label}, re-encoded", f"window_{frames}_sink_{sink}", given=policy)


_OURS = Entry("Head Forcing", "head_forcing")
_WINDOW_21 = Entry("window of 21", "self_forcing_window_21")
_SHORT = (window(9), window(9, sink=3))


def _paper(name: str, story: str) -> Question:
    """A table of the paper, after two plain windows of 9 frames, about Head Forcing's cache size."""
    table = PAPER_TABLES[name]
    rows = [Shuffles(row) if row.roles == "shuffled" else row for row in table.rows]
    return Question(table.caption, story, (*_SHORT, *rows), note=table.note)


QUESTIONS: dict[str, Question] = {
    "length": Question(
        "Does a window of 21 frames drift over a minute? Do head-wise caches, or plain short windows, stop it?",
        "one_prompt",
        (Entry("all frames", "self_forcing"), _WINDOW_21, window(21, sink=3), *_SHORT, _OURS),
    ),
    "switches": Question(
        "Six prompts in a minute: is each new one shown in the block where it begins?",
        "six_prompts",
        (_WINDOW_21, *_SHORT, Entry("LongLive", "longlive"), _OURS),
    ),
    "components": _paper("components", "one_prompt"),
    "roles": replace(
        _paper("roles", "one_prompt"),
        note="The paper gives all rows the same total budget. Here merged heads get the cache of a memory head as it "
        "is, so the rows that merge roles hold more than Head Forcing.",
    ),
    "admission": _paper("admission", "six_prompts"),
    "compression": _paper("compression", "six_prompts"),
    "rope": _paper("rope", "one_prompt"),
}
"""Questions about real weights, which `evaluate` answers."""


def renders_of(row: Row) -> list[Entry]:
    """Entries that are rendered for a row: as many as it has shuffles, and nothing where it has no model."""
    if isinstance(row, Shuffles):
        return row.entries
    return [] if isinstance(row, Rendered) else [row]


def sharing(question: Question) -> str:
    """A sentence that names the other questions with the same videos; empty if there are none."""
    told = []
    for name, other in QUESTIONS.items():
        if other.story == question.story and other.asks != question.asks:
            count = sum(any(_same_videos(row, mine) for mine in question.rows) for row in other.rows)
            told += [f"{name} ({count} rows)"] if count else []
    if not told:
        return ""
    return (
        f"The same videos are rows of other tables, which are therefore not independent of this one: {', '.join(told)}."
    )


def _same_videos(row: Row, other: Row) -> bool:
    if isinstance(row, Entry) and isinstance(other, Entry):
        return (row.policy, row.roles) == (other.policy, other.roles)
    return row == other
