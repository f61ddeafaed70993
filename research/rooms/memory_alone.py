"""The command `memory`: what `evidence/PREREGISTRATION_3.md` says is measured, of rooms that come
back without scene recall.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.compare import write_result
from ...headforcing_core.commands.parser import folder_written
from ...headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from ...headforcing_core.methods.method import Method
from ...headforcing_core.methods.registry import method_named
from ..ablations import function_with_floor, with_rule
from ..statistics import Numbers, corrected, differences, mean_interval, values_of
from .judge import STORIES
from .measurements import embedded_judge, embedded_profile, measured_by, measured_rows
from .verdicts import Verdict, difference, means_table, verdict_table

FIRST = 105_000
VIDEOS = 64
STORY = "second_away_30"
ENOUGH = 32  # videos with a layout; in about a third the first visit shows no pictures
ROOM = 0.5  # between ceiling and floor, without which no endpoint has a verdict
CLEARLY = 0.2
NOT_WORSE = -0.1
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
QUOTA = "roles by quota"
FUNCTION = "roles by function"
SHUFFLED = "shuffled"
SCENES_QUOTA = "scenes, roles by quota"
SCENES_FUNCTION = "scenes, roles by function"


@dataclass(frozen=True)
class Row:
    """A row of the table: a method, the rule that names the roles, and whether each video has its
    own shuffle of them.
    """

    method: Method
    rule: str = "quota"
    shuffled: bool = False


ROWS = {
    CEILING: Row(PRESETS["self_forcing"]),
    QUOTA: Row(HeadForcing()),
    FUNCTION: Row(HeadForcing(), "function"),
    SHUFFLED: Row(HeadForcing(), "function", shuffled=True),
    SCENES_QUOTA: Row(HeadForcing(scenes="auto")),
    SCENES_FUNCTION: Row(HeadForcing(scenes="auto"), "function"),
    "longlive": Row(method_named("longlive")),
}


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command(
        "memory",
        memory,
        "Measure what the third pre-registration says about memory without scene recall.",
    )
    sub.add_argument(
        "--out",
        type=folder_written("measured.jsonl", "memory.*"),
        required=True,
        help="folder",
    )
    sub.add_argument(
        "--videos",
        type=int,
        default=VIDEOS,
        help=f"per row; the pre-registration says {VIDEOS}",
    )


def memory(args: argparse.Namespace) -> Result:
    """Measure what is missing, then write `memory.md` and `memory.json`."""
    judges = {
        "quota": embedded_judge(with_rule(embedded_profile(), "quota")),
        "function": embedded_judge(function_with_floor(embedded_profile())),
    }

    def measured(job: tuple[str, int]) -> Numbers:
        row, number = ROWS[job[0]], job[1]
        return judges[row.rule].measure_story(
            row.method,
            "shuffled" if row.shuffled else "profile",
            STORIES[STORY](number),
            number,
            shuffle=number,
        )

    videos = measured_rows(args, ROWS, STORY, FIRST, measured)
    verdicts = [verdict.to_dict() for verdict in verdicts_of(videos)]
    found = {"verdicts": verdicts, "rows": videos, "weights": measured_by()}
    return write_result(args.out, "memory", text=table(videos), found=found, indent=None)


def verdicts_of(videos: Mapping[str, Sequence[Numbers]]) -> list[Verdict]:
    """M1 to M3, each only if the ceiling is clearly above the floor, with Holm's correction."""
    layouts = {name: values_of(made, "layout") for name, made in videos.items()}
    room = mean_interval(differences(layouts[CEILING], layouts[QUOTA]))
    seen = room is not None and room.count >= ENOUGH and room.low > ROOM
    enough = ENOUGH if seen else math.inf
    compared = (
        ("M1", "memory alone brings the room back by function", FUNCTION, QUOTA, CLEARLY),
        ("M2", "it is these heads, not their numbers", FUNCTION, SHUFFLED, CLEARLY),
        ("M3", "with scenes, function is not worse", SCENES_FUNCTION, SCENES_QUOTA, NOT_WORSE),
    )
    return corrected(
        [
            difference(
                name,
                claim,
                values=differences(layouts[better], layouts[worse]),
                above=bound,
                below=bound,
                enough=enough,
            )
            for name, claim, better, worse, bound in compared
        ]
    )


def table(videos: Mapping[str, Sequence[Numbers]]) -> str:
    """The rows with their means and intervals, differences from the floor, and the verdicts."""
    means = means_table(videos, COLUMNS, dict.fromkeys(videos, QUOTA), "layout minus by quota")
    return "\n\n".join([means, verdict_table(verdicts_of(videos))])
