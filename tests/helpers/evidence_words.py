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
_NOT_ASKED = "Against the plain windows of 9 no difference in what the prompt says is significant"


class Stored:
    """A stored answer. The last row is also known as `Head Forcing`, whatever the paper calls it."""

    def __init__(self, name: str):
        self.answer: dict[str, Any] = json.loads((EVIDENCE / f"{name}.json").read_text("utf-8"))
        rows = self.answer["rows"]
        self.rows: dict[str, dict[str, Any]] = {row["label"]: row for row in rows} | {OURS: rows[-1]}

    def __call__(self, row: str, column: str) -> float:
        """A mean."""
        return self.rows[row]["means"][column]["mean"]

    def significant(self, row: str) -> set[str]:
        """Columns in which a row significantly differs from Head Forcing, each with the sign of the difference."""
        known = [item for item in self.rows[row]["difference_to_last"].items() if item[1] is not None]
        away = [(column, d["mean"]) for column, d in known if not d["low"] <= 0 <= d["high"]]
        return {f"{'+' if mean > 0 else '-'}{column}" for column, mean in away if not COLUMNS[column].planned}

    def span(self, rows: Iterable[str], column: str) -> str:
        values = [self(row, column) for row in rows]
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
        "admission": f"No difference between the two criteria is significant. {_plain_windows('admission')}",
        "compression": _compression(),
        "rope": _rope(),
    }


def _horizon() -> str:
    told = Stored("horizon")
    encoded = "rendered, through the autoencoder"
    return (
        f"Background, pattern, colour and number of shapes are right in {followed()} of the frames, the kind "
        "of shape "
        f"in {percent(told(OURS, 'early_shape'))}, with 8.54 frames a head, and in "
        f"{percent(told('all 21 frames', 'early_shape'))} with all 21. Shapes have "
        f"{told(OURS, 'early_area'):.0f} pixels; "
        f"rendered and through the autoencoder they have {told(encoded, 'early_area'):.0f}. The first two rows are the "
        f"detector's own accuracy: it names {percent(told('rendered', 'early_shape'), 2)} of the rendered shapes, and "
        f"{percent(told(encoded, 'early_shape'), 2)} after the autoencoder has had them, as it has a model's videos."
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
        f"colour error {told('all frames', 'colour_error'):.3f}), whose positions leave the trained range. A "
        "window of 21 "
        "does not, and neither does a plain short one. In the last quarter Head Forcing is in no column of what the "
        "prompt says significantly better or worse than a window of 21 or 9, with or without a sink. Its videos move "
        f"significantly less ({told(OURS, 'motion'):.2f} against {told(WINDOW, 'motion'):.2f} and "
        f"{told(SHORT, 'motion'):.2f}), and it "
        f"shows significantly fewer landmarks than a window of 9 ({told.against(OURS, SHORT, 'landmarks', 2)})."
    )


def _switches() -> str:
    told = Stored("switches")
    nearer = [told(OURS, "colour_error") - told(row, "colour_error") for row in (WINDOW, SHORT)]
    return (
        "yes, with every cache: in the block after a switch the background is right in every frame, the colour in "
        f"{percent(told('LongLive', 'switched_present'))} with LongLive and in all frames with the others. "
        "LongLive's KV recache, meant for weights that were trained with it, makes the kind of shape significantly "
        "worse on this model "
        f"({told.against('LongLive', OURS, 'shape', 3)}). Colours are significantly closer with the windows without a "
        "sink, by "
        f"{nearer[0]:.3f} and {nearer[1]:.3f}."
    )


def _revisits() -> str:
    told = Stored("revisits")
    without = told("no episodic memory", "remembered_far")
    return (
        f"Beyond a window's reach {told.span(told.rows, 'remembered_far')} of the landmarks are remembered, where "
        f"{told.span(told.rows, 'by_chance')} are chance, with episodic memory ({told(OURS, 'remembered_far'):.2f}) as "
        f"without ({without:.2f}). Within reach it is {told.span(told.rows, 'remembered_near')}; only the sink with a "
        f"window remembers significantly less than Head Forcing ({told.against(SUNK, OURS, 'remembered_near', 2)})."
    )


def _history() -> str:
    told = Stored("history")
    return (
        f"With absolute positions the loss of Head Forcing is {told.more(ABSOLUTE)} higher at the three levels, "
        "significantly at "
        "each. Shuffled roles are significantly worse than profiled ones at one level "
        f"({told.against(SHUFFLED, OURS, 'loss_0.625', 4)} at 0.625). Windows of 21 and of 9, the sink before a "
        "window, "
        "and memory heads alone predict significantly better than profiled roles at all three."
    )


def _history_base() -> str:
    told = Stored("history_base")
    return (
        f"The answer is the same: absolute positions cost {told.more(ABSOLUTE)}, shuffled roles are significantly "
        "worse at one "
        f"level ({told.against(SHUFFLED, OURS, 'loss_0.625', 4)} at 0.625), and windows and memory heads alone "
        "are significantly "
        "ahead at all three."
    )


def _components() -> str:
    told = Stored("components")
    a, b, c, d = list(told.rows)[2:6]
    shape = [f"{told(row, 'shape'):.3f}" for row in (a, b, c, d)]
    edges = [f"{told(row, 'edge_ratio'):.2f}" for row in (b, c, d)]
    return (
        f"From (A) to (D) the kind of shape is right in {shape[0]}, {shape[1]}, {shape[2]} and {shape[3]}: the first "
        "step lowers it. Significantly worse than (D) is (B) in the kind of shape, and (B) and (C) in block edges "
        f"({edges[0]} and {edges[1]} against {edges[2]}). (B) shows significantly more landmarks; (A), which holds 21 "
        f"frames, moves and flickers significantly more. {_NOT_ASKED}."
    )


def _roles() -> str:
    told = Stored("roles")
    return (
        "Random roles have the kind of shape right significantly more often "
        f"({told.against('Random Allocation', OURS, 'shape', 3)}). Random roles, uniform memory, and local with memory "
        "move and flicker significantly more; anchor with memory differs significantly in no column. Otherwise no "
        "difference between roles is significant: the paper's finding is not reproduced on this model, whose heads are "
        f"a continuum with weak anchors. {_NOT_ASKED} either."
    )


def _compression() -> str:
    return (
        f"Between the three only the colour error of random selection differs significantly, lower by {_lower():.4f}. "
        f"{_plain_windows('compression')}"
    )


def _plain_windows(question: str) -> str:
    told = Stored(question)
    return (
        "Of the plain windows of 9 the one without a sink has a colour error that is significantly lower "
        f"({told.against(SHORT, OURS, 'colour_error', 3)}), the one with a sink differs significantly in no column."
    )


def _lower() -> float:
    told = Stored("compression")
    return told(OURS, "colour_error") - told("Random selection", "colour_error")


def _rope() -> str:
    told, without = Stored("rope"), "w/o RoPE re-enc."
    return (
        "Without re-encoding block edges are significantly stronger "
        f"({told.against(without, OURS, 'edge_ratio', 2)}). The difference in the kind of shape "
        f"({told.against(without, OURS, 'shape', 3)}) is not significant in ten videos; those in the losses *After a "
        f"real past* are. {_NOT_ASKED}."
    )


def sentences_of_the_evidence_page() -> dict[str, str]:
    """What the table of the toy world in docs/evidence.md says."""
    horizon, length, revisits = Stored("horizon"), Stored("length"), Stored("revisits")
    others = [100 * revisits(row, "remembered_far") for row in list(revisits.rows)[:-2]]
    return {
        "followed": f"background, pattern, colour and count in {followed()} of frames, kind of shape in "
        f"{percent(horizon(OURS, 'early_shape'), 0)}",
        "drift": f"keeping every frame (kind of shape {length('all frames', 'shape'):.2f}, colour error "
        f"{length('all frames', 'colour_error'):.3f}); windows of 21 or 9 latent frames and Head Forcing do not "
        f"({length.span((WINDOW, SHORT, OURS), 'shape')}, {length(OURS, 'colour_error'):.3f})",
        "positions": f"without them the loss after a long real past is {Stored('history').more(ABSOLUTE)} higher",
        "roles": "while in videos shuffled roles have the kind of shape right significantly more often "
        f"({Stored('roles').against('Random Allocation', OURS, 'shape', 3)})",
        "compression": f"no significant difference but a colour error lower by {_lower():.4f} with random compression",
        "memory": f"no: {percent(revisits(OURS, 'remembered_far'), 0)} of landmarks, with "
        f"{percent(revisits(OURS, 'by_chance'), 0)} by chance; other caches {min(others):.0f} to "
        f"{percent(max(others) / 100, 0)}",
    }
