"""Questions about the method, each answered by a table of methods on the same prompts and noise (`answers.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..headforcing_core.cache.policy import CachePolicy, RolePolicy
from ..headforcing_core.render.comparison import Entry
from ..headforcing_core.report.learned import registry
from ..headforcing_core.report.metrics import METRICS
from . import vbench


@dataclass(frozen=True)
class Rendered:
    """A row without a model: the truth, drawn from the prompts, `encoded` and decoded by the autoencoder or not."""

    label: str
    encoded: bool


SHUFFLES = 20


@dataclass(frozen=True)
class Shuffles:
    """A row of several shuffles of the head roles, each measured on all videos, so that the two are told apart."""

    entry: Entry
    count: int = SHUFFLES

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def entries(self) -> list[Entry]:
        return [replace(self.entry, shuffle=shuffle) for shuffle in range(self.count)]


Row = Entry | Rendered | Shuffles


@dataclass(frozen=True)
class Question:
    """One table.

    Attributes:
        asks: the question, or the caption of the paper's table.
        story: the kind of videos: `one_prompt` or `six_prompts`, or a story of the world of rooms.
        rows: methods; the others are compared with the last one.
        columns: keys of the metrics, see `COLUMNS`; those of `QUESTIONS` follow from what is measured.
        note: below the table.
    """

    asks: str
    story: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ()
    note: str = ""

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


OURS = Entry("Head Forcing", "head_forcing")
NEWER = (
    Entry("Rolling Sink", "rolling_sink"),
    Entry("MemRoPE", "memrope"),
    Entry("Reward Forcing", "reward_forcing"),
    Entry("Echo-Forcing", "echo_forcing"),
    Entry("Pyramid Forcing", "pyramid_forcing"),
)
"""Methods that the paper does not compare with."""
COMPONENTS = (
    Entry("(A) Baseline", "self_forcing_window_21"),
    Entry("(B) + HW", "no_episodic_memory", rope="absolute"),
    Entry("(C) + HM", "no_rope_reencoding"),
    Entry("(D) Ours", "head_forcing"),
)
"""The paper's Table 4."""
HEAD_WISE = (
    Entry("Random Allocation", "head_forcing", roles="shuffled"),
    Entry("Uniform Memory", "uniform_memory"),
    Entry("Local + Memory", "head_forcing", roles="anchor_to_memory"),
    Entry("Anchor + Memory", "head_forcing", roles="local_to_memory"),
)
"""The rows of its Table 5 besides Head Forcing."""
_WINDOW_21 = Entry("window of 21", "self_forcing_window_21")
_SHORT = (window(9), window(9, sink=3))  # plain windows, about as large as Head Forcing's cache

QUESTIONS: dict[str, Question] = {
    "length": Question(
        "Does a window of 21 frames drift over a minute? Do head-wise caches, or plain short windows, stop it?",
        "one_prompt",
        (Entry("all frames", "self_forcing"), _WINDOW_21, window(21, sink=3), *_SHORT, OURS),
    ),
    "switches": Question(
        "Six prompts in a minute: is each new one shown in the block where it begins?",
        "six_prompts",
        (_WINDOW_21, *_SHORT, Entry("LongLive", "longlive"), OURS),
    ),
    "components": Question(
        "Component-wise ablation on 60 s generation",
        "one_prompt",
        (*_SHORT, *COMPONENTS),
        note="HW = head-wise KV cache allocation, HM = hierarchical memory; (D) adds RoPE re-encoding. In (B) memory "
        "heads see a sliding window with as many frames as their hierarchical memory holds, so (B), (C) and (D) have "
        "the same budget.",
    ),
    "roles": Question(
        "Detail validation of head-wise strategy",
        "one_prompt",
        (*_SHORT, Shuffles(HEAD_WISE[0]), *HEAD_WISE[1:], OURS),
        note="The paper gives all rows the same total budget. Here merged heads get the cache of a memory head as it "
        "is, so the rows that merge roles hold more than Head Forcing.",
    ),
    "admission": Question(
        "Ablation on episodic memory design. Top: admission criterion",
        "six_prompts",
        (*_SHORT, Entry("Uniform sampling", "uniform_admission"), Entry("Novelty-based (Ours)", "head_forcing")),
    ),
    "compression": Question(
        "Ablation on episodic memory design. Bottom: compression strategy upon overflow",
        "six_prompts",
        (
            *_SHORT,
            Entry("FIFO eviction", "fifo_eviction"),
            Entry("Random selection", "random_tokens"),
            Entry("Ours", "head_forcing"),
        ),
    ),
    "rope": Question(
        "Detailed ablation of RoPE re-encoding on 60 s single-prompt generation",
        "one_prompt",
        (
            *_SHORT,
            Entry("w/o RoPE re-enc.", "no_rope_reencoding"),
            Entry("w/ RoPE re-enc. (Ours)", "head_forcing"),
        ),
    ),
    "methods": Question(
        "Quantitative comparison on long video generation",
        "one_prompt",
        (
            *_SHORT,
            Entry("CausVid", "causvid"),
            Entry("Self Forcing", "self_forcing_window_21"),
            Entry("Rolling Forcing", "rolling_forcing"),
            Entry("LongLive", "longlive"),
            Entry("Infinity-RoPE", "infinity_rope"),
            Entry("Deep Forcing", "deep_forcing"),
            *NEWER,
            OURS,
        ),
        note="The paper's rows, then newer methods, in no order of quality. All rows run on the weights given; the "
        "paper gives CausVid, Rolling Forcing and LongLive their own, and so does Reward Forcing.",
    ),
}
"""Questions about real weights, which `evaluate` answers: two of our own, and the paper's tables."""


def renders_of(row: Row) -> list[Entry]:
    """Entries that are rendered for a row: as many as it has shuffles, and nothing where it has no model."""
    if isinstance(row, Shuffles):
        return row.entries
    return [] if isinstance(row, Rendered) else [row]
