"""Questions about the method, each answered by a table of methods on the same prompts and noise (`answers.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..cache.policy import CachePolicy, RolePolicy
from ..metrics import registry, vbench
from .comparison import Entry
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
        story: the kind of videos: `one_prompt`, `still`, `mixed`, `six_prompts`, `there_and_back`, or `history`.
        rows: methods; the others are compared with the last one.
        columns: keys of the metrics, see `COLUMNS`.
        note: below the table of the toy world.
        primary: the column whose differences answer the question; the others describe. Empty where something else
            than a column of this table decides.
        real_note: below the table of real weights, which has other columns.
    """

    asks: str
    story: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    note: str = ""
    primary: str = "shape"
    real_note: str = ""


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
COLUMNS |= {key: Column(metric.name, metric.form) for key, metric in (registry.COLUMNS | vbench.COLUMNS).items()}
COLUMNS["early_area"] = Column("pixels of shape", _plain(0))
COLUMNS |= {
    "layout": Column("layout", _plain(2)),
    "layout_by_chance": Column("layout by chance", _plain(2)),
    "identity": Column("marking", _plain(2)),
    "identity_by_chance": Column("marking by chance", _plain(2)),
    "outline": Column("overlap with the outline", _plain(2)),
    "moves": Column("word of the motion", _plain(2)),
    "place_error": Column("error of the actor's place one block ahead, pixels", _plain(2)),
}
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
_TRUTH = (Rendered("rendered", encoded=False), Rendered("rendered, through the autoencoder", encoded=True))
_INSIDE = (
    *_TRUTH,
    Entry("all 21 frames", "self_forcing"),
    _OURS,
)


def _paper(name: str, story: str, columns: Sequence[str]) -> Question:
    """A table of the paper, after two plain windows of 9 frames, about Head Forcing's cache size on this model."""
    table = PAPER_TABLES[name]
    rows = [Shuffles(row) if row.roles == "shuffled" else row for row in table.rows]
    return Question(table.caption, story, (*_TRUTH, *_SHORT, *rows), tuple(columns), table.note, real_note=table.note)


_MERGED = (
    "The paper gives all rows the same total budget. Here merged heads get the cache of a memory head as it is, "
    "so the rows that merge roles hold more than Head Forcing"
)
QUESTIONS: dict[str, Question] = {
    "horizon": Question(
        "Does the model do what prompts say, inside the 21 latent frames it was trained on?",
        "mixed",
        _INSIDE,
        INSIDE,
        primary="early_shape",
    ),
    "still": Question(
        "The same before a camera that stands still, the only one that the first checkpoint knows.",
        "still",
        _INSIDE,
        INSIDE,
        primary="early_shape",
    ),
    "length": Question(
        "Does a window of 21 frames drift over a minute? Do head-wise caches, or plain short windows, stop it?",
        "one_prompt",
        (*_TRUTH, Entry("all frames", "self_forcing"), _WINDOW_21, window(21, sink=3), *_SHORT, _OURS),
        ("frames_a_head", "early_present", "early_colour_error", *DRIFTING[1:]),
        "Last quarter of a minute, unless it says first 5 s.",
    ),
    "revisits": Question(
        "The camera pans away for 5.8 s and back: which landmarks, that no prompt names, are in their places again?",
        "there_and_back",
        (
            *_TRUTH,
            _WINDOW_21,
            *_SHORT,
            Entry("no episodic memory", "no_episodic_memory"),
            Entry("uniform admission", "uniform_admission"),
            _OURS,
        ),
        REMEMBERING,
        "Short: 15 latent frames or less between two visits, within reach of every window. Long: 24 or more.",
        "remembered_far",
    ),
    "switches": Question(
        "Six prompts in a minute: is each new one shown in the block where it begins?",
        "six_prompts",
        (*_TRUTH, _WINDOW_21, *_SHORT, Entry("LongLive", "longlive"), _OURS),
        SWITCHING,
        primary="switched_present",
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
            Shuffles(Entry("Head Forcing, shuffled roles", "head_forcing", roles="shuffled")),
            Entry("Head Forcing, all heads memory", "uniform_memory"),
            _OURS,
        ),
        ("frames_a_head", "loss_0.625", "loss_0.8333", "loss_0.9375"),
        "Squared error of the flow at three noise levels, 42 blocks of rendered video as the past. The truth has none.",
        "loss_0.9375",
    ),
    "components": _paper("components", "one_prompt", DRIFTING),
    "roles": replace(
        _paper("roles", "one_prompt", DRIFTING), note=f"{_MERGED}: see frames a head.", real_note=f"{_MERGED}."
    ),
    "admission": _paper("admission", "six_prompts", SWITCHING),
    "compression": _paper("compression", "six_prompts", SWITCHING),
    "rope": _paper("rope", "one_prompt", DRIFTING),
}


def with_shuffles(question: Question, count: int) -> Question:
    """The question with so many shuffles in its rows of shuffles."""
    rows = [replace(row, count=count) if isinstance(row, Shuffles) else row for row in question.rows]
    return replace(question, rows=tuple(rows))


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
