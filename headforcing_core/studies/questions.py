"""Questions about the method, each answered by a table of methods on the same prompts and noise, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..cache.policy import CachePolicy, RolePolicy
from .comparison import Entry
from .intervals import Interval, difference_interval, mean_interval
from .markdown import markdown_table
from .paper_tables import PAPER_TABLES

Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Rendered:
    """A row without a model: ground truth, drawn by the toy world from the prompts and judged by the same detector.

    It measures the detector's accuracy, the upper bound for a model.

    Attributes:
        encoded: whether the video is encoded and decoded by the autoencoder, like a model's videos.
    """

    label: str
    encoded: bool


Row = Entry | Rendered
Measure = Callable[[Row, int], Numbers]
"""Measures a row's video of the given number; returns its metrics."""


@dataclass(frozen=True)
class Question:
    """One table.

    Attributes:
        asks: the question, or the caption of the paper's table.
        story: the kind of videos: `one_prompt`, `still`, `mixed`, `six_prompts`, `there_and_back`, or `history`.
        rows: methods; the others are compared with the last one.
        columns: keys of the metrics, see `COLUMNS`.
    """

    asks: str
    story: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Column:
    heading: str
    form: Callable[[float], str]
    planned: bool = False  # computed from the plan, the same for all videos: no interval, never bold


def _plain(digits: int) -> Callable[[float], str]:
    return f"{{:.{digits}f}}".format


COLUMNS: dict[str, Column] = {
    "frames_a_head": Column("frames a head", "{:.3g}".format, planned=True),
    "background": Column("background", _plain(3)),
    "pattern": Column("pattern", _plain(3)),
    "present": Column("shape and colour", _plain(3)),
    "shape": Column("kind of shape", _plain(3)),
    "single": Column("one shape", _plain(3)),
    "colour_error": Column("colour error", _plain(3)),
    "early_present": Column("shape and colour, first 5 s", _plain(3)),
    "early_colour_error": Column("colour error, first 5 s", _plain(3)),
    "switched_present": Column("colour after a switch", _plain(3)),
    "switched_background": Column("background after a switch", _plain(3)),
    "landmarks": Column("landmarks", _plain(2)),
    "remembered_near": Column("remembered, short", _plain(2)),
    "remembered_far": Column("remembered, long", _plain(2)),
    "by_chance": Column("by chance", _plain(2)),
    **{f"loss_{level}": Column(f"loss at {level}", _plain(4)) for level in (0.625, 0.8333, 0.9375)},
    "flicker": Column("flicker", _plain(4)),
    "edge_ratio": Column("block edges", _plain(2)),
    "motion": Column("motion", _plain(2)),
    "longest_freeze_seconds": Column("longest freeze, s", _plain(1)),
    "sharpness_ratio": Column("sharpness, end/start", _plain(2)),
    "saturation_slope_per_minute": Column("saturation, a minute", "{:+.1%}".format),
}
COLUMNS |= {f"early_{key}": COLUMNS[key] for key in ("background", "pattern", "shape", "single", "landmarks")}
COLUMNS["early_area"] = Column("pixels of shape", _plain(0))
FOLLOWING = ("background", "pattern", "present", "shape", "single")
INSIDE = ("frames_a_head", *(f"early_{column}" for column in (*FOLLOWING, "colour_error", "area", "landmarks")))
DRIFTING = (
    "frames_a_head",
    "present",
    "shape",
    "single",
    "colour_error",
    "landmarks",
    "sharpness_ratio",
    "motion",
    "flicker",
    "edge_ratio",
)
SWITCHING = ("frames_a_head", "switched_present", "switched_background", "present", "shape", "colour_error")
REMEMBERING = ("frames_a_head", "remembered_near", "remembered_far", "by_chance", "landmarks", "present")
UNJUDGED = ("flicker", "edge_ratio", "motion", "longest_freeze_seconds", "sharpness_ratio")
"""Metrics that need no ground truth."""


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
_INSIDE = (
    Rendered("rendered", encoded=False),
    Rendered("rendered, through the autoencoder", encoded=True),
    Entry("all 21 frames", "self_forcing"),
    _OURS,
)


def _paper(name: str, story: str, columns: Sequence[str], note: str = "") -> Question:
    """A table of the paper, after two plain windows of 9 frames, about Head Forcing's cache size on this model."""
    table = PAPER_TABLES[name]
    return Question(table.caption, story, (*_SHORT, *table.rows), tuple(columns), note or table.note)


QUESTIONS: dict[str, Question] = {
    "horizon": Question(
        "Does the model do what prompts say, inside the 21 latent frames it was trained on?", "mixed", _INSIDE, INSIDE
    ),
    "still": Question(
        "The same before a camera that stands still, the only one that the first checkpoint knows.",
        "still",
        _INSIDE,
        INSIDE,
    ),
    "length": Question(
        "Does a window of 21 frames drift over a minute? Do head-wise caches, or plain short windows, stop it?",
        "one_prompt",
        (Entry("all frames", "self_forcing"), _WINDOW_21, window(21, sink=3), *_SHORT, _OURS),
        ("frames_a_head", "early_present", "early_colour_error", *DRIFTING[1:]),
        "Last quarter of a minute, unless it says first 5 s.",
    ),
    "revisits": Question(
        "The camera pans away for 5.8 s and back: which landmarks, that no prompt names, are in their places again?",
        "there_and_back",
        (
            _WINDOW_21,
            *_SHORT,
            Entry("no episodic memory", "no_episodic_memory"),
            Entry("uniform admission", "uniform_admission"),
            _OURS,
        ),
        REMEMBERING,
        "Short: 15 latent frames or less between two visits, within reach of every window. Long: 24 or more.",
    ),
    "switches": Question(
        "Six prompts in a minute: is each new one shown in the block where it begins?",
        "six_prompts",
        (_WINDOW_21, *_SHORT, Entry("LongLive", "longlive"), _OURS),
        SWITCHING,
    ),
    "history": Question(
        "How well is the next block predicted after a long real past?",
        "history",
        (
            Entry("all frames", "self_forcing"),
            Entry("sink 1 + window of 20", "self_forcing_sink"),
            _WINDOW_21,
            *_SHORT,
            Entry("Head Forcing, absolute positions", "no_rope_reencoding"),
            Entry("Head Forcing, shuffled roles", "head_forcing", roles="shuffled"),
            Entry("Head Forcing, all heads memory", "uniform_memory"),
            _OURS,
        ),
        ("frames_a_head", "loss_0.625", "loss_0.8333", "loss_0.9375"),
        "Squared error of the flow at three noise levels, 42 blocks of rendered video as the past.",
    ),
    "components": _paper("components", "one_prompt", DRIFTING),
    "roles": _paper(
        "roles",
        "one_prompt",
        DRIFTING,
        "The paper gives all rows the same total budget. Here merged heads get the cache of a memory head as it is, "
        "so the rows that merge roles hold more than Head Forcing: see frames a head.",
    ),
    "admission": _paper("admission", "six_prompts", SWITCHING),
    "compression": _paper("compression", "six_prompts", SWITCHING),
    "rope": _paper("rope", "one_prompt", DRIFTING),
}


@dataclass(frozen=True)
class Answer:
    """The metrics of every row's videos, `numbers[row][video]`, with rows in the order of `question.rows`."""

    question: Question
    numbers: tuple[tuple[Numbers, ...], ...]

    def interval(self, row: int, column: str) -> Interval | None:
        return mean_interval([video.get(column) for video in self.numbers[row]])

    def difference(self, row: int, column: str) -> Interval | None:
        """The paired difference to the last row."""
        values, others = ([video.get(column) for video in self.numbers[i]] for i in (row, -1))
        return difference_interval(values, others)

    def table(self) -> str:
        """A Markdown table of means with 95 % intervals; bold if the paired difference to the last row excludes 0."""
        columns = [c for c in self.question.columns if any(self.interval(i, c) for i in range(len(self.numbers)))]
        lines = [
            [row.label, *(self._cell(i, column) for column in columns)] for i, row in enumerate(self.question.rows)
        ]
        table = markdown_table(["", *(COLUMNS[column].heading for column in columns)], lines)
        videos = len(self.numbers[0])
        about = f"Means of {videos} videos with 95 % bootstrap intervals. Bold: the same prompts and noise differ from "
        return "\n".join([table, "", f"{about}the last row's beyond chance (95 % interval of the paired difference)."])

    def _cell(self, row: int, column: str) -> str:
        interval, form = self.interval(row, column), COLUMNS[column].form
        if interval is None:
            return "–"
        if COLUMNS[column].planned:
            return form(interval.mean)
        difference = self.difference(row, column)
        significant = row < len(self.numbers) - 1 and difference is not None and difference.excludes(0)
        mean = f"**{form(interval.mean)}**" if significant else form(interval.mean)
        return f"{mean} ({form(interval.low)} to {form(interval.high)})"

    def to_dict(self) -> dict[str, Any]:
        """JSON: means, intervals, and the metrics of every video."""
        question = self.question
        rows = [
            {
                "label": row.label,
                "means": {c: _asdict(self.interval(i, c)) for c in question.columns},
                "difference_to_last": {c: _asdict(self.difference(i, c)) for c in question.columns},
                "videos": [{c: _rounded(video.get(c)) for c in question.columns} for video in self.numbers[i]],
            }
            for i, row in enumerate(question.rows)
        ]
        return {"asks": question.asks, "story": question.story, "note": question.note, "rows": rows}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)


def _asdict(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


def answer(question: Question, videos: int, measure: Measure) -> Answer:
    """Measure `videos` videos of every row; video `i` has the same prompts and noise in all rows."""
    rows = [tuple(measure(row, i) for i in range(videos)) for row in question.rows]
    return Answer(question, tuple(rows))
