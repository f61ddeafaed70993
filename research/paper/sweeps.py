"""Sensitivity to the paper's parameters, on the embedded model: one story with each value of one of
them, all others as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...headforcing_core import page
from ...headforcing_core.errors import HeadForcingError, one_line
from ...headforcing_core.methods.head_forcing import HeadForcing
from ...headforcing_core.plan.describe import markdown_table
from ..rooms.measurements import complete
from ..rows import MethodRow
from ..statistics import Numbers, values_of
from .demo import DEMO_STORIES, FIRST, Demo
from .drawing import Curves, curves_panel
from .paper_tables import AWAY, HEAD_FORCING
from .tables import CODE, mean_text, row_key

STORY = AWAY
ANCHOR = 0.25
LOCAL = 0.20
PLAIN = HeadForcing()
LINES = {
    "layout": "room kept",
    "layout_just_left": "pictures of the room just left",
    "moves": "moves as told",
    "score": "score",
}


@dataclass(frozen=True)
class Sweep:
    """One parameter: its name in the paper, its default, the paper's values or ours, what the paper
    says, and which cache or which fractions of anchor and local heads a value is.
    """

    name: str
    default: float
    values: tuple[float, ...]
    said: str
    method: Callable[[float], HeadForcing] = lambda value: PLAIN
    fractions: Callable[[float], tuple[float, float]] = lambda value: (ANCHOR, LOCAL)


def _threshold(value: float) -> HeadForcing:
    return replace(PLAIN, episodic=replace(PLAIN.episodic, novelty_threshold=value))


def _entries(value: float) -> HeadForcing:
    return replace(PLAIN, memory=replace(PLAIN.memory, episodic_frames=int(value)))


def _fast(value: float) -> HeadForcing:
    return replace(PLAIN, memory=replace(PLAIN.memory, recent_frames=int(value)))


SWEEPS = {
    "alpha": Sweep(
        "alpha_anchor, percent of all heads",
        100 * ANCHOR,
        tuple(range(5, 50, 5)),
        "The paper: robust from 20 to 35 %; below 10 % too few anchors, above 40 % too few memory "
        "heads. Its values.",
        fractions=lambda value: (value / 100, LOCAL),
    ),
    "tau_local": Sweep(
        "tau_local, percent of all heads",
        100 * LOCAL,
        (5, 10, 20, 30, 40),
        "The paper: stable in a reasonable range; its sentence on small values is inverted. It "
        "does not name its values.",
        fractions=lambda value: (ANCHOR, value / 100),
    ),
    "tau_novel": Sweep(
        "tau_novel",
        PLAIN.episodic.novelty_threshold,
        (0.80, 0.85, 0.88, 0.90, 0.92, 0.95, 0.97, 0.99),
        "The paper: stable from 0.90 to 0.97; its sentences on larger and smaller values are "
        "inverted. Its values.",
        method=_threshold,
    ),
    "B_epi": Sweep(
        "B_epi, latent frames",
        PLAIN.memory.episodic_frames,
        (2, 3, 5, 8, 12),
        "The paper: stable in a reasonable range; too much may harm. It does not name its values.",
        method=_entries,
    ),
    "B_fast": Sweep(
        "B_fast, latent frames",
        PLAIN.memory.recent_frames or 0,
        (0, 1, 3, 6),
        "The paper: 1 harms motion, 3 is enough, 6 is worse again. Its values.",
        method=_fast,
    ),
}


@dataclass(frozen=True)
class Swept:
    """The numbers of the stories of every value, none for one that is refused, and why it is."""

    found: Sequence[Sequence[Numbers]]
    refused: Mapping[float, str]

    def table(self, name: str) -> str:
        """Means over the stories, a row for each value."""
        sweep = SWEEPS[name]
        cells = []
        for value, made in zip(sweep.values, self.found, strict=True):
            means = [mean_text(made, key) for key in LINES]
            mark = " (the paper's)" if value == sweep.default else ""
            cells.append([f"{value:g}{mark}", *means])
        return markdown_table([sweep.name, *LINES.values()], cells)


def swept(name: str, out: Path, videos: int, quiet: bool) -> Swept:
    """Measure all values of a parameter that the journal in a folder does not know."""
    sweep = SWEEPS[name]
    model = Demo()
    models = {value: _model(model, sweep, value) for value in sweep.values}
    refused = {}
    numbers = range(FIRST, FIRST + videos)
    jobs = {}
    for value in sweep.values:
        entry = _entry(sweep, value)
        looks = DEMO_STORIES[STORY](FIRST)
        try:
            models[value].plan(entry, looks, FIRST)
        except HeadForcingError as error:
            refused[value] = one_line(error)
            continue
        for number in numbers:
            jobs[_key(name, value, number)] = (value, number)

    def measure(job: tuple[float, int]) -> Numbers:
        value, number = job
        looks = DEMO_STORIES[STORY](number)
        made_by = models[value]
        plan = made_by.plan(_entry(sweep, value), looks, number)
        return made_by.numbers(made_by.video(plan, looks, number))

    known = complete(out / "measured.jsonl", jobs, measure, quiet, CODE)
    made = []
    for value in sweep.values:
        keys = [_key(name, value, number) for number in numbers]
        made.append([known[key] for key in keys if value not in refused])
    return Swept(made, refused)


def _key(name: str, value: float, number: int) -> str:
    """The name of one video in the journal; a default is the video of the tables."""
    if value == SWEEPS[name].default:
        return f"{row_key(STORY, HEAD_FORCING)}: {number}"
    return f"{STORY}: sweep, {name} {value:g}: {number}"


def _entry(sweep: Sweep, value: float) -> MethodRow:
    return MethodRow(f"{sweep.name} {value:g}", "sweep", given=sweep.method(value))


def _model(model: Demo, sweep: Sweep, value: float) -> Demo:
    anchor, local = sweep.fractions(value)
    if (anchor, local) == (ANCHOR, LOCAL):
        return model
    return model.with_fractions(anchor, local)


def sweep_panel(name: str, made: Swept) -> page.Panel:
    """The curves of one parameter."""
    sweep = SWEEPS[name]
    lines = {}
    for key, label in LINES.items():
        lines[label] = [values_of(each, key) for each in made.found]
    told = sweep.said
    if made.refused:
        told += f" Not made: {', '.join(f'{value:g}' for value in made.refused)}."
    curves = Curves(sweep.name, sweep.values, lines, marked=sweep.default, y=(-0.05, 1.05))
    return curves_panel(f"Sensitivity to {name}", told, curves)
