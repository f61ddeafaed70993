"""The tables of `evidence/PREREGISTRATION.md`: rows, stories and numbers of videos, as they were
written down.
"""

from __future__ import annotations

from dataclasses import replace

from ...headforcing_core.cache.roles import RolePolicy
from ...headforcing_core.methods.head_forcing import HeadForcing
from ..ablations import EvenMemory, GivenFrames, RandomAdmission
from ..rows import MethodRow, Rendered, Row, Shuffles
from .answers import Question

VIDEOS = 64
OURS = "Head Forcing"
NO_MEMORY = "no episodic memory"
EVEN = "uniform memory, same frame-slots"
SHUFFLED = "Head Forcing, shuffled roles"
ABSOLUTE = "Head Forcing, absolute positions"
BY_FUNCTION = "Head Forcing, roles by function"
UNIFORM = "uniform admission"
FIFO = "first in, first out"
RANDOM = "random admission"
ABLATED = {
    "local": "local heads see their own block alone",
    "anchor": "anchor heads without first frames",
    "memory": "memory heads without the middle",
}
COLUMNS = (
    "frames_a_head",
    "layout",
    "layout_by_chance",
    "layout_just_left",
    "identity",
    "identity_by_chance",
    "background",
    "pattern",
    "shape",
    "single",
    "outline",
    "moves",
    "camera",
)

NOTE = (
    "Layout, and layout by chance: on the first three blocks after a room comes back. Marking, and "
    "marking by chance: the last quarter, at least 18 latent frames. The rest but the size: the "
    "last quarter."
)
AHEAD = (
    "Place and loss: of every block after the first, predicted from the rendered ones before it; "
    "for rendered rows the error of the place is the detector's."
)
SAME_NUMBERS = (
    "The tables h1_45, h1_90 and h1_180 have videos of the same numbers, with the same actors, "
    "rooms and layouts, and are therefore not independent of each other."
)
_POLICY = HeadForcing()
_WITHOUT = {  # Head Forcing with the heads of one role ablated
    "local": replace(_POLICY, local=RolePolicy(recent_frames=0)),
    "anchor": replace(_POLICY, anchor=replace(_POLICY.anchor, sink_frames=0)),
    "memory": replace(_POLICY, memory=replace(_POLICY.memory, episodic_frames=0)),
}
_TRUTH = (
    Rendered("rendered", encoded=False),
    Rendered("rendered, through the autoencoder", encoded=True),
)


def window(frames: int, sink: int = 0) -> MethodRow:
    """One cache for all heads: `sink` first frames and the last ones, `frames` in total with the
    current block of 3.

    Temporal indices count from 0 in the context, as in Head Forcing.
    """
    method = HeadForcing.uniform(
        RolePolicy(sink_frames=sink, recent_frames=frames - sink - 3), "contiguous"
    )
    label = f"window of {frames}" if not sink else f"sink {sink} + window of {frames - sink}"
    return MethodRow(f"{label}, re-encoded", f"window_{frames}_sink_{sink}", given=method)


def _table(
    asks: str,
    story: str,
    first: int,
    *rows: Row,
    all_frames: bool = False,
    note: str = "",
) -> Question:
    """A table with the rows that all of them have, and some of its own, before Head Forcing."""
    shared: tuple[Row, ...] = (
        *_TRUTH,
        *([MethodRow("all frames", "self_forcing")] if all_frames else []),
        window(9),
        window(21),
        window(9, sink=3),
        Shuffles(MethodRow(SHUFFLED, "head_forcing", roles="shuffled")),
        MethodRow(EVEN, "even_memory", given=EvenMemory()),
        MethodRow(
            "given the frames of the last visit",
            "given_frames",
            given=GivenFrames(),
        ),
        MethodRow(NO_MEMORY, "no_episodic_memory"),
    )
    columns = (*COLUMNS, "place_error", "loss_0.9375") if all_frames else COLUMNS
    notes = " ".join(filter(None, (NOTE, AHEAD if all_frames else "", note)))
    every = (*shared, *rows, MethodRow(OURS, "head_forcing"))
    return Question(
        asks,
        story,
        rows=every,
        columns=columns,
        note=notes,
        first=first,
        ahead=all_frames,
    )


def _away(blocks: int) -> Question:
    asks = f"A room is left for {3 * blocks} latent frames and comes back: does it look as before?"
    return _table(asks, f"away_{blocks}", 80_000, note=SAME_NUMBERS)


ROOMS_TABLES: dict[str, Question] = {
    "h1_45": _away(15),
    "h1_90": _away(30),
    "h2_h5": _table(
        "A room is left for 45 latent frames: do roles and positions matter?",
        "away_15",
        81_000,
        MethodRow(ABSOLUTE, "no_rope_reencoding"),
        MethodRow(BY_FUNCTION, "head_forcing", roles="function"),
    ),
    "h3": _table(
        "Are heads what they are called? The heads of one role are ablated at a time, inside the "
        "trained length.",
        "twelve_blocks",
        82_000,
        *(
            MethodRow(label, f"without_{role}", given=_WITHOUT[role])
            for role, label in ABLATED.items()
        ),
        all_frames=True,
    ),
    "h4": _table(
        "Eight rooms, more than there are entries, and each again: which rule of admission keeps "
        "them?",
        "eight_rooms",
        83_000,
        MethodRow(UNIFORM, "uniform_admission"),
        MethodRow(FIFO, "fifo_eviction"),
        MethodRow(RANDOM, "random_admission", given=RandomAdmission()),
    ),
    "h1_180": _away(60),
}
"""By name, in the order in which they are measured."""
