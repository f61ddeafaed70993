"""The sentences that the pages say about the stored measurements, with the figures taken from the files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headforcing.headforcing_core.studies.questions import COLUMNS

EVIDENCE = Path(__file__).parents[1] / "evidence"
LOSSES = ("loss_0.625", "loss_0.8333", "loss_0.9375")
OURS, WINDOW, SHORT = "Head Forcing", "window of 21", "window of 9, re-encoded"
SUNK, SUNK_LONG = "sink 3 + window of 6, re-encoded", "sink 3 + window of 18, re-encoded"
ALL_MEMORY, SHUFFLED = "Head Forcing, all heads memory", "Head Forcing, shuffled roles"
ABSOLUTE = "Head Forcing, absolute positions"
TRUTH, ENCODED = "rendered", "rendered, through the autoencoder"
_NOT_ASKED = "Against the plain windows of 9 no cell of what the prompt says is marked"


def rounded(found: Any) -> Any:
    """An answer with nine digits: machines differ in the last bit of a sum."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [rounded(value) for value in found]
    return round(found, 9) if isinstance(found, float) else found


class Stored:
    """A stored answer. The last row is also known as `Head Forcing`, whatever the paper calls it."""

    def __init__(self, name: str):
        self.answer: dict[str, Any] = json.loads((EVIDENCE / f"{name}.json").read_text("utf-8"))
        rows = self.answer["rows"]
        self.rows: dict[str, dict[str, Any]] = {row["label"]: row for row in rows} | {OURS: rows[-1]}

    def __call__(self, row: str, column: str) -> float:
        """A mean."""
        return self.rows[row]["means"][column]["mean"]

    def clear(self, row: str) -> set[str]:
        """Marked columns of a row, each with the sign of the difference to Head Forcing."""
        return {f"{'+' if d['mean'] > 0 else '-'}{column}" for column, d in self._compared(row) if d["clear"]}

    def sure(self) -> set[tuple[str, str]]:
        """Rows and columns that are called sure."""
        return {(row, column) for row in self.rows for column, d in self._compared(row) if d["sure"]}

    def _compared(self, row: str) -> list[tuple[str, dict[str, Any]]]:
        known = self.rows[row]["difference_to_last"].items()
        return [(column, d) for column, d in known if d is not None and not COLUMNS[column].planned]

    def truth(self, column: str, digits: int) -> str:
        return f"rendered {self(TRUTH, column):.{digits}f}, through the autoencoder {self(ENCODED, column):.{digits}f}"

    def span(self, rows: Iterable[str], column: str) -> str:
        values = [self(row, column) for row in rows if row not in (TRUTH, ENCODED)]
        return f"{min(values):.2f} to {max(values):.2f}"

    def against(self, row: str, other: str, column: str, digits: int) -> str:
        return f"{self(row, column):.{digits}f} against {self(other, column):.{digits}f}"

    def more(self, row: str) -> str:
        """By how many percent a row's losses are above Head Forcing's, at each noise level."""
        low, middle, high = (f"{100 * (self(row, level) / self(OURS, level) - 1):.0f}" for level in LOSSES)
        return f"{low}, {middle} and {high} %"


def percent(part: float, digits: int = 1) -> str:
    return f"{100 * part:.{digits}f} %"


def followed() -> str:
    parts = [Stored("horizon")(OURS, f"early_{column}") for column in ("background", "pattern", "present", "single")]
    return f"{100 * min(parts):.1f} to {percent(max(parts), 0)}"


def sentences() -> dict[str, str]:
    """What `evidence/README.md` says below its tables, by question."""
    return {
        "horizon": _horizon(),
        "still": _still(),
        "length": _length(),
        "switches": _switches(),
        "revisits": _revisits(),
        "history": _history(),
        "history_base": _history_base(),
        "components": _components(),
        "roles": _roles(),
        "admission": f"No cell of the two criteria is marked. {_plain_windows('admission')}",
        "compression": _compression(),
        "rope": _rope(),
    }


def _horizon() -> str:
    told = Stored("horizon")
    return (
        f"Background, pattern, colour and number of shapes are right in {followed()} of the frames, the kind "
        "of shape "
        f"in {percent(told(OURS, 'early_shape'))}, with 8.54 frames a head, and in "
        f"{percent(told('all 21 frames', 'early_shape'))} with all 21. Shapes have "
        f"{told(OURS, 'early_area'):.0f} pixels; "
        f"rendered and through the autoencoder they have {told(ENCODED, 'early_area'):.0f}. The first two rows are the "
        f"detector's own accuracy: it names {percent(told('rendered', 'early_shape'), 2)} of the rendered shapes, and "
        f"{percent(told(ENCODED, 'early_shape'), 2)} after the autoencoder has had them, as it has a model's videos."
    )


def _still() -> str:
    ours, first = Stored("still"), Stored("still_first")
    parts = {
        "shape and colour": ("present", 3),
        "one shape": ("single", 3),
        "kind of shape": ("shape", 3),
        "colour error": ("colour_error", 3),
        "landmarks": ("landmarks", 2),
    }
    listed = ", ".join(
        f"{name} {ours(OURS, f'early_{key}'):.{digits}f} against {first(OURS, f'early_{key}'):.{digits}f}"
        for name, (key, digits) in parts.items()
    )
    alike = f"background {_both('background')}, pattern {_both('pattern')}"
    return f"The intervals of the shipped weights and of the first do not meet: {listed}. Similar are {alike}."


def _both(column: str) -> str:
    parts = [Stored(name)(OURS, f"early_{column}") for name in ("still", "still_first")]
    return f"{parts[0]:.3f} and {parts[1]:.3f}"


def _length() -> str:
    told = Stored("length")
    return (
        f"only the cache that keeps every frame drifts on this model (kind of shape {told('all frames', 'shape'):.2f}, "
        f"colour error {told('all frames', 'colour_error'):.3f}), whose positions leave the trained range. A window of "
        "21 does not, and neither does a plain short one: in the last quarter none of their cells of what the prompt "
        f"says is marked. Head Forcing moves less ({told(OURS, 'motion'):.2f} against {told(WINDOW, 'motion'):.2f} and "
        f"{told(SHORT, 'motion'):.2f}), which is nearer to the truth ({told.truth('motion', 2)}); landmarks tell "
        "no two windows apart. What all of them do worse than the truth: block edges "
        f"({told(OURS, 'edge_ratio'):.2f}; {told.truth('edge_ratio', 2)}) and the kind of shape."
    )


def _switches() -> str:
    told = Stored("switches")
    nearer = [told(OURS, "colour_error") - told(row, "colour_error") for row in (WINDOW, SHORT)]
    return (
        "yes, with every cache: in the block after a switch the background is right in every frame, the colour in "
        f"{percent(told('LongLive', 'switched_present'))} with LongLive and in all frames with the others. LongLive's "
        "KV recache is meant for weights that were trained with it; ten videos do not tell its kind of shape from Head "
        f"Forcing's ({told.against('LongLive', OURS, 'shape', 3)}, not marked). Colours are closer with the windows "
        f"without a sink, by {nearer[0]:.3f} and {nearer[1]:.3f}."
    )


def _revisits() -> str:
    told = Stored("revisits")
    without = told("no episodic memory", "remembered_far")
    return (
        f"Beyond a window's reach {told.span(told.rows, 'remembered_far')} of the landmarks are remembered, where "
        f"{told.span(told.rows, 'by_chance')} are chance, with episodic memory ({told(OURS, 'remembered_far'):.2f}) as "
        f"without ({without:.2f}); of the truth it is {told(TRUTH, 'remembered_far'):.2f}, through the autoencoder "
        f"{told(ENCODED, 'remembered_far'):.2f}. Within reach it is {told.span(told.rows, 'remembered_near')}, and no "
        "cell of either column is marked, the sink's neither."
    )


def _history() -> str:
    told = Stored("history")
    return (
        f"With absolute positions the loss of Head Forcing is {told.more(ABSOLUTE)} higher at the three levels, marked "
        f"at each. {_shuffled(told)} Windows of 21 and of 9, the sink before a window, and memory heads alone predict "
        "better than profiled roles at all three, marked at each."
    )


def _shuffled(told: Stored) -> str:
    """Where the profile lies among the shuffles: how many of them have a lower loss, and their mean."""
    below = [told.rows[SHUFFLED]["difference_to_last"][level] for level in LOSSES]
    ranks = ", ".join(str(d["below"]) for d in below)
    means = ", ".join(f"{told(SHUFFLED, level):.4f}" for level in LOSSES)
    return (
        f"Of {below[0]['of']} shuffles of the roles, each on all ten videos, {ranks} have a lower loss than the "
        f"profile at the three levels; their means are {means}, the profile's "
        f"{', '.join(f'{told(OURS, level):.4f}' for level in LOSSES)}."
    )


def _history_base() -> str:
    told = Stored("history_base")
    return (
        f"The answer is the same: absolute positions cost {told.more(ABSOLUTE)}, and windows and memory heads alone "
        "are ahead at all three, marked at each. Its shuffles are not in the file: they were one for each video, which "
        "cannot be told from the video."
    )


def _components() -> str:
    told = Stored("components")
    a, b, c, d = list(told.rows)[4:8]
    shape = [f"{told(row, 'shape'):.3f}" for row in (a, b, c, d)]
    edges = [f"{told(row, 'edge_ratio'):.2f}" for row in (b, c, d)]
    return (
        f"From (A) to (D) the kind of shape is right in {shape[0]}, {shape[1]}, {shape[2]} and {shape[3]}, of which no "
        f"cell is marked. (B) and (C) have stronger block edges than (D) ({edges[0]} and {edges[1]} against "
        f"{edges[2]}; {told.truth('edge_ratio', 2)}); (A), which holds 21 frames, moves more "
        f"({told.against(a, d, 'motion', 2)}; {told.truth('motion', 2)}). {_NOT_ASKED}. What the components are for, "
        "roles and memory, cannot be tested on this model."
    )


def _roles() -> str:
    told, length = Stored("roles"), Stored("length").answer
    each = length["minutes"] / sum(len(row["videos"]) for row in length["rows"])
    return (
        f"{_NOT_ASKED}, nor is one of merged roles. Uniform memory, and local with memory move more than Head Forcing "
        f"({told('Uniform Memory', 'motion'):.2f} and {told('Local + Memory', 'motion'):.2f} against "
        f"{told(OURS, 'motion'):.2f}; {told.truth('motion', 2)}); anchor with memory has no marked cell. *Random "
        f"Allocation* is empty: 20 shuffles on ten videos of a minute take {20 * 10 * each:.0f} minutes of a core "
        "(`--shuffles 20` makes them), and one shuffle for each video, as it was before, cannot be told from the "
        "video; *After a real past* has 20. Whether roles matter cannot be tested on this model, whose heads are a "
        "continuum with weak anchors and whose world asks neither for the first frames nor for a memory."
    )


def _compression() -> str:
    return (
        f"Between the three only the colour error of random selection is marked, lower by {_lower():.4f}. "
        f"{_plain_windows('compression')}"
    )


def _plain_windows(question: str) -> str:
    told = Stored(question)
    return (
        "Of the plain windows of 9 the one without a sink has a lower colour error "
        f"({told.against(SHORT, OURS, 'colour_error', 3)}; {told.truth('colour_error', 3)}), the one with a sink has "
        "no marked cell."
    )


def _lower() -> float:
    told = Stored("compression")
    return told(OURS, "colour_error") - told("Random selection", "colour_error")


def _rope() -> str:
    told, without = Stored("rope"), "w/o RoPE re-enc."
    return (
        f"Without re-encoding block edges are stronger ({told.against(without, OURS, 'edge_ratio', 2)}; "
        f"{told.truth('edge_ratio', 2)}), which is marked. The difference in the kind of shape "
        f"({told.against(without, OURS, 'shape', 3)}) is not; those in the losses *After a real past* are. "
        f"{_NOT_ASKED}."
    )


def sentences_of_the_evidence_page() -> dict[str, str]:
    """What the table of the toy world in docs/evidence.md says."""
    horizon, length, revisits = Stored("horizon"), Stored("length"), Stored("revisits")
    others = [100 * revisits(row, "remembered_far") for row in list(revisits.rows)[2:-2]]
    below = [Stored("history").rows[SHUFFLED]["difference_to_last"][level]["below"] for level in LOSSES]
    return {
        "followed": f"background, pattern, colour and count in {followed()} of frames, kind of shape in "
        f"{percent(horizon(OURS, 'early_shape'), 0)}",
        "drift": f"keeping every frame (kind of shape {length('all frames', 'shape'):.2f}, colour error "
        f"{length('all frames', 'colour_error'):.3f}); windows of 21 or 9 latent frames and Head Forcing do not "
        f"({length.span((WINDOW, SHORT, OURS), 'shape')}, {length(OURS, 'colour_error'):.3f})",
        "worse": f"block edges {length(OURS, 'edge_ratio'):.2f} ({length.truth('edge_ratio', 2)}), motion "
        f"{length(OURS, 'motion'):.2f} ({length.truth('motion', 2)})",
        "positions": f"without them the loss after a long real past is {Stored('history').more(ABSOLUTE)} higher",
        "roles": f"{below[0]}, {below[1]} and {below[2]} of 20 shuffles have a lower loss than the profile at the "
        "three levels",
        "compression": f"no cell is marked but a colour error lower by {_lower():.4f} with random compression",
        "memory": f"{percent(revisits(OURS, 'remembered_far'), 0)} of landmarks, with "
        f"{percent(revisits(OURS, 'by_chance'), 0)} by chance; other caches {min(others):.0f} to "
        f"{percent(max(others) / 100, 0)}; the truth {percent(revisits(TRUTH, 'remembered_far'), 0)}",
    }
