"""The paper's tables of methods and ablations, as entries of a comparison, and its table of cache budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..headforcing_core.methods.registry import method_policy
from ..headforcing_core.model.wan import WanConfig
from ..headforcing_core.render.cards import paper_heads
from ..headforcing_core.render.comparison import Entry
from ..headforcing_core.render.describe import markdown_table
from ..headforcing_core.render.plan import RenderPlan
from ..headforcing_core.rollout.schedule import schedule
from ..headforcing_core.timeline.timeline import parse_timeline

OURS = "head_forcing"


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        note: on rows that the paper does not define fully, or does not have.
        optional: whether rows that the weights do not allow are left out.
    """

    caption: str
    rows: tuple[Entry, ...]
    note: str = ""
    optional: bool = False


# methods that the paper does not compare with
_NEWER = (
    ("Rolling Sink", "rolling_sink"),
    ("MemRoPE", "memrope"),
    ("Reward Forcing", "reward_forcing"),
    ("Echo-Forcing", "echo_forcing"),
    ("Pyramid Forcing", "pyramid_forcing"),
)

PAPER_TABLES: dict[str, PaperTable] = {
    "components": PaperTable(
        "Component-wise ablation on 60 s generation",
        (
            Entry("(A) Baseline", "self_forcing_window_21"),
            Entry("(B) + HW", "no_episodic_memory", rope="absolute"),
            Entry("(C) + HM", "no_rope_reencoding"),
            Entry("(D) Ours", OURS),
        ),
        "HW = head-wise KV cache allocation, HM = hierarchical memory; (D) adds RoPE re-encoding. In (B) memory heads "
        "see a sliding window with as many frames as their hierarchical memory holds, so (B), (C) and (D) have the "
        "same budget.",
    ),
    "roles": PaperTable(
        "Detail validation of head-wise strategy",
        (
            Entry("Random Allocation", OURS, roles="shuffled"),
            Entry("Uniform Memory", "uniform_memory"),
            Entry("Local + Memory", OURS, roles="anchor_to_memory"),
            Entry("Anchor + Memory", OURS, roles="local_to_memory"),
            Entry("Head Forcing", OURS),
        ),
        "The paper gives all rows the same total budget. Here merged heads get the cache of a memory head as it is; "
        "the frame-slots of each row say what that makes.",
    ),
    "admission": PaperTable(
        "Ablation on episodic memory design. Top: admission criterion",
        (Entry("Uniform sampling", "uniform_admission"), Entry("Novelty-based (Ours)", OURS)),
    ),
    "compression": PaperTable(
        "Ablation on episodic memory design. Bottom: compression strategy upon overflow",
        (Entry("FIFO eviction", "fifo_eviction"), Entry("Random selection", "random_tokens"), Entry("Ours", OURS)),
    ),
    "rope": PaperTable(
        "Detailed ablation of RoPE re-encoding on 60 s single-prompt generation",
        (Entry("w/o RoPE re-enc.", "no_rope_reencoding"), Entry("w/ RoPE re-enc. (Ours)", OURS)),
    ),
    "methods": PaperTable(
        "Quantitative comparison on long video generation",
        (
            Entry("CausVid", "causvid"),
            Entry("Self Forcing", "self_forcing_window_21"),
            Entry("Rolling Forcing", "rolling_forcing"),
            Entry("LongLive", "longlive"),
            Entry("Infinity-RoPE", "infinity_rope"),
            Entry("Deep Forcing", "deep_forcing"),
            Entry("Head Forcing", OURS),
            *(Entry(label, method) for label, method in _NEWER),
        ),
        "The paper's rows, then newer methods, in no order of quality. All rows run on the weights given; the paper "
        "gives CausVid, Rolling Forcing and LongLive their own, and so does Reward Forcing.",
        optional=True,
    ),
}

BUDGET = "KV cache budget comparison"


@dataclass(frozen=True)
class Budget:
    """Frame-slots of one method with 30x12 heads: here, in the paper (None without one), and `why` they differ."""

    label: str
    method: str
    paper: int | None = None
    why: str = ""
    frame_slots: int = 0
    heads: int = 0


_BUDGETS = (
    Budget("Self Forcing", "self_forcing_window_21", 7560),
    Budget(
        "Deep Forcing",
        "deep_forcing",
        5760,
        "16 frames are the budget, which a compression leaves; in the authors' code the window fills up to 21 before "
        "the next one, and the queries of 4 frames, kept without values, take the room of 2",
    ),
    Budget(
        "Infinity-RoPE",
        "infinity_rope",
        2880,
        "the paper takes a window of 8 frames, the authors' code has one of 6, sink and current block included",
    ),
    Budget("LongLive", "longlive", 4320),
    Budget("Head Forcing", OURS, 3096),
    *(Budget(label, method) for label, method in _NEWER),
)


def budgets() -> list[Budget]:
    """The rows of the paper's table of budgets, from the cache shapes of a one-minute video."""
    config, minute = WanConfig(), parse_timeline("a minute", 60.0)
    profile, made = paper_heads(config), []
    for row in _BUDGETS:
        policy = method_policy(row.method)
        plan = RenderPlan.make(config, policy, schedule("self_forcing"), minute, 832, 480, profile=profile)
        made.append(replace(row, frame_slots=plan.shape.frame_slots, heads=config.num_layers * config.num_heads))
    return made


def budget_table(rows: list[Budget]) -> str:
    """A Markdown table, and a line for each number that differs from the paper's."""
    ours = next(row.frame_slots for row in rows if row.method == OURS)
    table = markdown_table(
        ["method", "frames a head", "frame-slots", "relative", "in the paper"],
        [
            [row.label, f"{row.frame_slots / row.heads:.3g}", f"{row.frame_slots:,}", f"{row.frame_slots / ours:.1%}"]
            + ["not in it" if row.paper is None else f"{row.paper:,}"]
            for row in rows
        ],
    )
    differing = [
        f"{row.label}: the paper counts {row.paper:,} ({row.paper / row.heads:.3g} a head), the cache of "
        f"`{row.method}` here takes {row.frame_slots:,}{f' ({row.why})' if row.why else ''}."
        for row in rows
        if row.paper is not None and row.frame_slots != row.paper
    ]
    return "\n".join([table, *([""] if differing else []), *differing])
