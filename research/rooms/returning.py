"""The command `returns`: what `evidence/PREREGISTRATION_2.md` says is measured, of rooms that come
back.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...cli.arguments import Result
from ...cli.compare import write_result
from ...cli.parser import folder_written
from ...headforcing_core.cache.roles import RolePolicy
from ...headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from ..ablations import function_with_floor, with_rule
from ..statistics import Numbers, corrected, differences, mean_interval, values_of
from .judge import STORIES
from .measurements import embedded_judge, embedded_profile, measured_by, measured_rows
from .verdicts import (
    SUPPORTS,
    UNDECIDED,
    Verdict,
    difference,
    interval_text,
    means_table,
    verdict_table,
)

FIRST = 85_000
VIDEOS = 32
STORY = "second_away_30"
ENOUGH = 20  # videos with a layout; in about a third the first visit shows no pictures
ABOVE = 0.5
AT_LEAST = 0.7
CLEARLY = 0.05
COLUMNS = (
    "frames_a_head",
    "layout",
    "layout_by_chance",
    "layout_just_left",
    "identity",
    "outline",
    "shape",
    "moves",
)

CEILING = "all frames"
FLOOR = "Head Forcing"
PRESET = "scenes, roles by quota"
BOTH = "scenes, roles by function"
CONTROL = "scenes without roles"


ROWS: dict[str, tuple[HeadForcing, str]] = {
    CEILING: (PRESETS["self_forcing"], "quota"),
    FLOOR: (HeadForcing(), "quota"),
    PRESET: (HeadForcing(scenes="auto"), "quota"),
    BOTH: (HeadForcing(scenes="auto"), "function"),
    CONTROL: (
        replace(HeadForcing.uniform(RolePolicy(3, 3), "contiguous"), scenes="auto"),
        "quota",
    ),
}
"""Of each row the cache, and the rule of the roles."""


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command(
        "returns",
        returns,
        "Measure what the second pre-registration says about rooms that come back.",
    )
    sub.add_argument(
        "--out",
        type=folder_written("measured.jsonl", "returns.*"),
        required=True,
        help="folder",
    )
    sub.add_argument(
        "--videos",
        type=int,
        default=VIDEOS,
        help=f"per row; the pre-registration says {VIDEOS}",
    )


def returns(args: argparse.Namespace) -> Result:
    """Measure what is missing, then write `returns.md` and `returns.json`."""
    judges = {
        "quota": embedded_judge(with_rule(embedded_profile(), "quota")),
        "function": embedded_judge(function_with_floor(embedded_profile())),
    }

    def measured(job: tuple[str, int]) -> Numbers:
        (method, rule), number = ROWS[job[0]], job[1]
        return judges[rule].measure_story(method, "profile", STORIES[STORY](number), number)

    videos = measured_rows(args, ROWS, STORY, FIRST, measured)
    verdicts = [verdict.to_dict() for verdict in verdicts_of(videos)]
    found = {"verdicts": verdicts, "rows": videos, "weights": measured_by()}
    return write_result(args.out, "returns", text=table(videos), found=found, indent=None)


def verdicts_of(videos: Mapping[str, Sequence[Numbers]]) -> list[Verdict]:
    """R1 and R2, each only where the ceiling is clearly above the floor, with Holm's correction
    over both.
    """
    layouts = {row: values_of(made, "layout") for row, made in videos.items()}
    room = mean_interval(differences(layouts[CEILING], layouts[FLOOR]))
    kept = mean_interval(layouts[PRESET])
    enough = ENOUGH if room is not None and room.count >= ENOUGH and room.low > ABOVE else math.inf
    gain = differences(layouts[PRESET], layouts[FLOOR])
    lead = differences(layouts[BOTH], layouts[CONTROL])
    brings = difference(
        "R1",
        "a scene's own frames bring its room back",
        values=gain,
        above=ABOVE,
        below=ABOVE,
        enough=enough,
    )
    if brings.outcome == SUPPORTS and (kept is None or kept.mean < AT_LEAST):
        brings = replace(brings, outcome=UNDECIDED)
    matter = difference(
        "R2",
        "roles matter once scenes come back",
        values=lead,
        above=CLEARLY,
        below=CLEARLY,
        enough=enough,
    )
    return corrected([brings, matter])


def table(videos: Mapping[str, Sequence[Numbers]]) -> str:
    """The rows with their means and intervals, differences from the floor, and the verdicts."""
    means = means_table(videos, COLUMNS, dict.fromkeys(videos, FLOOR), "layout minus Head Forcing")
    room = differences(values_of(videos[BOTH], "layout"), values_of(videos[PRESET], "layout"))
    beside = (
        "Beside: layout, roles by function minus by quota, both with scenes: "
        f"{interval_text(mean_interval(room))}."
    )
    return "\n\n".join([means, verdict_table(verdicts_of(videos)), beside])
