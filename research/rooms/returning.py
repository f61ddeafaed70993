"""The command `returns`: what `evidence/PREREGISTRATION_2.md` says is measured, of rooms that come back."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ...headforcing_core.cache import head_cache, policy, roles
from ...headforcing_core.cache import scenes as cached_scenes
from ...headforcing_core.cache.policy import PRESETS, CachePolicy, RolePolicy
from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.compare import write_result
from ...headforcing_core.commands.paths import folder_written
from ...headforcing_core.demo import assets
from ...headforcing_core.files import claimed
from ...headforcing_core.hashing import digest, file_hash
from ...headforcing_core.head_profiles import rules
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.head_profiles.rules import with_rule
from ...headforcing_core.render.describe import markdown_table
from ...headforcing_core.timeline import returns as told_returns
from ..statistics import Interval, Numbers, Values, differences, mean_interval, values_of
from .judge import STORIES, RoomsJudge
from .measure import Known, Trained, measured_on, measuring_code, mend, profile_of, read_journals
from .verdicts import REFUTES, SUPPORTS, UNDECIDED, UNMEASURED, Verdict, corrected, p_against, told, verdict_table

FIRST, VIDEOS, STORY = 85_000, 32, "second_away_30"
ENOUGH = 20  # videos with a layout; in about a third the first visit shows no pictures
MEASURED_BY = (head_cache, policy, roles, cached_scenes, rules, told_returns)
ABOVE, AT_LEAST, CLEARLY = 0.5, 0.7, 0.05
COLUMNS = ("layout", "layout_by_chance", "identity", "outline", "shape", "moves")

CEILING, FLOOR = "all frames", "Head Forcing"
PRESET, BOTH = "scenes, roles by quota", "scenes, roles by function"
CONTROL = "scenes without roles"


@dataclass(frozen=True)
class ReturnsRow:
    """A row: a cache, and the rule of the roles."""

    policy: CachePolicy
    rule: str = "quota"


ROWS: dict[str, ReturnsRow] = {
    CEILING: ReturnsRow(PRESETS["self_forcing"]),
    FLOOR: ReturnsRow(CachePolicy()),
    PRESET: ReturnsRow(CachePolicy(scenes="auto")),
    BOTH: ReturnsRow(CachePolicy(scenes="auto"), "function"),
    CONTROL: ReturnsRow(replace(CachePolicy.uniform(RolePolicy(3, 3), "contiguous"), scenes="auto")),
}


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `returns` to the command line."""
    sub = command("returns", returns, "Measure what the second pre-registration says about rooms that come back.")
    sub.add_argument("--out", type=folder_written("measured.jsonl", "returns.*"), required=True, help="folder")
    sub.add_argument("--videos", type=int, default=VIDEOS, help=f"per row; the pre-registration says {VIDEOS}")


def returns(args: argparse.Namespace) -> Result:
    """Measure what is missing, then write `returns.md` and `returns.json`."""
    trained = Trained(assets.model_path(), assets.autoencoder_path())
    profile = profile_of(None, trained)
    code = [*measuring_code(), *(file_hash(Path(str(module.__file__))) for module in MEASURED_BY)]
    weights = digest(measured_on(trained, profile), code)
    journal, numbers = args.out / "measured.jsonl", range(FIRST, FIRST + args.videos)
    with claimed(journal):
        mend(journal)
        known = read_journals(args.out, weights)
        torch.set_num_threads(1)
        _measure(profile, trained, numbers, known, journal, weights, args.json)
    videos = {row: [known[_key(row, number)] for number in numbers] for row in ROWS}
    found = {"verdicts": [verdict.to_dict() for verdict in verdicts_of(videos)], "rows": videos, "weights": weights}
    return write_result(args.out, "returns", table(videos), found, indent=None)


def _measure(
    profile: HeadProfile, trained: Trained, numbers: range, known: Known, journal: Path, weights: str, quiet: bool
) -> None:
    """Measure the videos that are not known yet, all rows of one video after the other, into the journal."""
    judges = {
        rule: RoomsJudge(trained.weights, trained.autoencoder, with_rule(profile, rule)) for rule in rules.RULES[:2]
    }
    todo = [(row, number) for number in numbers for row in ROWS if _key(row, number) not in known]
    with journal.open("a", encoding="utf-8") as file:
        for row, number in tqdm(todo, unit="video", disable=quiet):
            cache, looks = ROWS[row], STORIES[STORY](number)
            found = judges[cache.rule].measure_story(cache.policy, "profile", looks, number)
            rounded = {name: None if value is None else round(value, 5) for name, value in found.items()}
            known[_key(row, number)] = rounded
            line = {"video": _key(row, number), "weights": weights, "numbers": rounded}
            file.write(json.dumps(line) + "\n")
            file.flush()


def _key(row: str, number: int) -> str:
    return f"{row}: {number}: {digest(repr((ROWS[row], STORY)))[:8]}"


# ------------------------------------------------------------------------------------------------ tables and verdicts


def verdicts_of(videos: Mapping[str, Sequence[Numbers]]) -> list[Verdict]:
    """R1 and R2, each only where the ceiling is clearly above the floor, with Holm's correction over both."""
    layouts = {row: values_of(made, "layout") for row, made in videos.items()}
    room = mean_interval(differences(layouts[CEILING], layouts[FLOOR]))
    decides = room is not None and room.count >= ENOUGH and room.low > ABOVE
    kept = mean_interval(layouts[PRESET])
    enough_kept = kept is not None and kept.mean >= AT_LEAST
    gain, lead = (differences(layouts[a], layouts[b]) for a, b in ((PRESET, FLOOR), (BOTH, CONTROL)))
    claims = (
        ("R1", "a scene's own frames bring its room back", gain, ABOVE, ABOVE, enough_kept),
        ("R2", "roles matter once scenes come back", lead, CLEARLY, CLEARLY, True),
    )
    return corrected([_verdict(*claim, decides) for claim in claims])


def _verdict(name: str, claim: str, values: Values, above: float, below: float, also: bool, decides: bool) -> Verdict:
    interval = mean_interval(values)
    if interval is None:
        return Verdict(name, claim, UNMEASURED, "no values")
    outcome = UNDECIDED
    if decides and interval.count >= ENOUGH:
        outcome = SUPPORTS if interval.low > above and also else REFUTES if interval.high < below else UNDECIDED
    p = p_against(values, below if outcome == REFUTES else above)
    return Verdict(name, claim, outcome, told(interval), p, numbers=asdict(interval))


def table(videos: Mapping[str, Sequence[Numbers]]) -> str:
    """The rows with their means and intervals, differences from the floor, and the verdicts."""
    lines = []
    for row, made in videos.items():
        size = next((f"{video['frames_a_head']:.2f}" for video in made if video["frames_a_head"] is not None), "–")
        gain = mean_interval(differences(values_of(made, "layout"), values_of(videos[FLOOR], "layout")))
        cells = [_shown(mean_interval(values_of(made, column))) for column in COLUMNS]
        lines.append([row, size, *cells, "–" if row == FLOOR else _shown(gain)])
    headings = ["", "frames a head", *(column.replace("_", " ") for column in COLUMNS), "layout minus Head Forcing"]
    room = [differences(values_of(videos[BOTH], "layout"), values_of(videos[PRESET], "layout"))]
    beside = f"Beside: layout, roles by function minus by quota, both with scenes: {_shown(mean_interval(room[0]))}."
    return "\n\n".join([markdown_table(headings, lines), verdict_table(verdicts_of(videos)), beside])


def _shown(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    return f"{interval.mean:.3f} ({interval.low:.3f} to {interval.high:.3f}; {interval.count})"


def rows_of(found: Mapping[str, Any]) -> dict[str, list[Numbers]]:
    """The videos of every row, from the JSON that `returns` writes."""
    return {row: list(found["rows"][row]) for row in ROWS}
