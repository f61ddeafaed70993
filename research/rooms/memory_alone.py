"""The commands `memory` and `memory4`: what `evidence/PREREGISTRATION_3.md` and
`evidence/PREREGISTRATION_4.md` say is measured, of rooms that come back without scene recall.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...cli.arguments import Result
from ...cli.compare import write_result
from ...cli.parser import folder_written
from ...headforcing_core.cache.roles import EpisodicPolicy, RolePolicy
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from ...headforcing_core.methods.method import Method
from ...headforcing_core.methods.registry import method_named
from ..ablations import function_with_floor, with_rule
from ..statistics import Numbers, corrected, differences, mean_interval, values_of
from .judge import STORIES
from .measurements import embedded_judge, embedded_profile, measured_by, measured_rows
from .verdicts import Verdict, difference, means_table, verdict_table

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
WITH_FLOOR = "roles by function, with the floor"

RULES: dict[str, Callable[[HeadProfile], HeadProfile]] = {
    "quota": partial(with_rule, rule="quota"),
    "function": partial(with_rule, rule="function"),
    "floor": function_with_floor,
}
"""The roles that a rule gives."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a method, the rule of `RULES` that names the roles, and whether each
    video has its own shuffle of them.
    """

    method: Method
    rule: str = "quota"
    shuffled: bool = False


@dataclass(frozen=True)
class Endpoint:
    """A claim on the layout of one row minus that of another: it is above a bound."""

    name: str
    claim: str
    row: str
    minus: str
    bound: float = CLEARLY


@dataclass(frozen=True)
class Registration:
    """What a page says is measured: rows on `VIDEOS` videos from number `first` on.

    `command` names the command and its files, `order` says which pre-registration it is.
    """

    command: str
    order: str
    first: int
    rows: Mapping[str, Row]
    endpoints: tuple[Endpoint, ...]


THIRD = Registration(
    "memory",
    "third",
    first=105_000,
    rows={
        CEILING: Row(PRESETS["self_forcing"]),
        QUOTA: Row(HeadForcing()),
        FUNCTION: Row(HeadForcing(), "floor"),
        SHUFFLED: Row(HeadForcing(), "floor", shuffled=True),
        SCENES_QUOTA: Row(HeadForcing(scenes="auto")),
        SCENES_FUNCTION: Row(HeadForcing(scenes="auto"), "floor"),
        "longlive": Row(method_named("longlive")),
    },
    endpoints=(
        Endpoint("M1", "memory alone brings the room back by function", FUNCTION, QUOTA),
        Endpoint("M2", "it is these heads, not their numbers", FUNCTION, SHUFFLED),
        Endpoint(
            "M3",
            "with scenes, function is not worse",
            SCENES_FUNCTION,
            SCENES_QUOTA,
            bound=NOT_WORSE,
        ),
    ),
)
FOURTH = Registration(
    "memory4",
    "fourth",
    first=125_000,
    rows={
        CEILING: Row(PRESETS["self_forcing"]),
        QUOTA: Row(HeadForcing()),
        FUNCTION: Row(HeadForcing(), "function"),
        WITH_FLOOR: Row(HeadForcing(), "floor"),
        "pinned first entry": Row(HeadForcing(episodic=EpisodicPolicy(pin_first=True)), "function"),
        "memory heads with sinks": Row(
            HeadForcing(memory=RolePolicy(sink_frames=3, recent_frames=3, episodic_frames=5)),
            "function",
        ),
        "memory heads with more entries": Row(
            HeadForcing(memory=RolePolicy(recent_frames=3, episodic_frames=8)), "function"
        ),
    },
    endpoints=(
        Endpoint("N1", "without the floor it is not worse", FUNCTION, WITH_FLOOR, bound=NOT_WORSE),
        Endpoint("N2", "memory alone brings the room back by function", FUNCTION, QUOTA),
    ),
)


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    for registration in (THIRD, FOURTH):
        sub = command(
            registration.command,
            partial(memory, registration),
            f"Measure what the {registration.order} pre-registration says about memory without "
            "scene recall.",
        )
        sub.add_argument(
            "--out",
            type=folder_written("measured.jsonl", f"{registration.command}.*"),
            required=True,
            help="folder",
        )
        sub.add_argument(
            "--videos",
            type=int,
            default=VIDEOS,
            help=f"per row; the pre-registration says {VIDEOS}",
        )


def memory(registration: Registration, args: argparse.Namespace) -> Result:
    """Measure what is missing, then write a page and a JSON file of the command's name."""
    videos = measured_rows(
        args, registration.rows, STORY, registration.first, measured_of(registration)
    )
    verdicts = [verdict.to_dict() for verdict in verdicts_of(registration, videos)]
    found = {"verdicts": verdicts, "rows": videos, "weights": measured_by()}
    text = table(registration, videos)
    return write_result(args.out, registration.command, text=text, found=found, indent=None)


def measured_of(registration: Registration) -> Callable[[tuple[str, int]], Numbers]:
    """A function that makes and measures the video of a row and a number."""
    used = {row.rule for row in registration.rows.values()}
    judges = {rule: embedded_judge(RULES[rule](embedded_profile())) for rule in used}

    def measured(job: tuple[str, int]) -> Numbers:
        row, number = registration.rows[job[0]], job[1]
        return judges[row.rule].measure_story(
            row.method,
            "shuffled" if row.shuffled else "profile",
            STORIES[STORY](number),
            number,
            shuffle=number,
        )

    return measured


def verdicts_of(
    registration: Registration, videos: Mapping[str, Sequence[Numbers]]
) -> list[Verdict]:
    """The endpoints, each only if the ceiling is clearly above the floor, with Holm's
    correction.
    """
    layouts = {name: values_of(made, "layout") for name, made in videos.items()}
    room = mean_interval(differences(layouts[CEILING], layouts[QUOTA]))
    seen = room is not None and room.count >= ENOUGH and room.low > ROOM
    enough = ENOUGH if seen else math.inf
    return corrected(
        [
            difference(
                endpoint.name,
                endpoint.claim,
                values=differences(layouts[endpoint.row], layouts[endpoint.minus]),
                above=endpoint.bound,
                below=endpoint.bound,
                enough=enough,
            )
            for endpoint in registration.endpoints
        ]
    )


def table(registration: Registration, videos: Mapping[str, Sequence[Numbers]]) -> str:
    """The rows with their means and intervals, differences from the floor, and the verdicts."""
    means = means_table(videos, COLUMNS, dict.fromkeys(videos, QUOTA), "layout minus by quota")
    return "\n\n".join([means, verdict_table(verdicts_of(registration, videos))])
