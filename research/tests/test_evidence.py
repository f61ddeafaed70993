"""The pages of evidence say what the stored measurements say, and a sample of them can be made
again.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.hashing import file_hash
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.names import DEMO_AUTOENCODER, DEMO_PICTURE_DECODER
from headforcing.research.rooms import accuracy, memory_alone, references, returning
from headforcing.research.rooms.answers import Answer
from headforcing.research.rooms.judge import STORIES, RoomsJudge
from headforcing.research.rooms.measure import jobs
from headforcing.research.rooms.measurements import embedded_judge, measured_files
from headforcing.research.rooms.tables import OURS, ROOMS_TABLES
from headforcing.research.rooms.verdicts import (
    gate,
    secondary,
    verdict_table,
    verdicts_of,
)
from headforcing.research.statistics import differences, mean_interval, values_of
from headforcing.research.training import gate as rooms_gate
from headforcing.research.training.train import STAGES
from stored_answers import read_answer

EVIDENCE = Path(__file__).parents[1] / "evidence"
ROOMS = EVIDENCE / "rooms"
PAGE = EVIDENCE.parents[1] / "docs" / "evidence.md"
SAMPLE = 5  # videos that are made again; means of fewer are not normal, as many values are 0 or 1
STORIES_AGAIN = 2  # of every gap of the gate


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOMS / f"{name}.json").read_text("utf-8"))
    return found


def text(page: Path) -> str:
    return page.read_text("utf-8")


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    return {name: read_answer(table, stored(name)) for name, table in ROOMS_TABLES.items()}


@pytest.fixture(scope="module")
def effects() -> dict[str, dict[str, Any]]:
    return {name: stored(f"{name}.gate") for name in ("base", "student")}


@pytest.fixture(scope="module")
def judge() -> RoomsJudge:
    torch.set_num_threads(1)
    return embedded_judge()


def rounded(found: Any) -> Any:
    """With nine digits: machines differ in the last bit of a sum."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [rounded(value) for value in found]
    return round(found, 9) if isinstance(found, float) else found


@pytest.mark.parametrize("name", ROOMS_TABLES)
def test_a_table_follows_from_its_measurements(name: str, answers: dict[str, Answer]):
    found = stored(name)
    counted = rounded(answers[name].to_dict())
    assert counted == {key: rounded(found[key]) for key in counted}
    assert answers[name].text() == text(ROOMS / f"{name}.md").rstrip()
    videos = {len(row["videos"]["layout"]) for row in found["rows"] if row["videos"]}
    assert videos == {64}, "as many as were written down before"


def test_the_verdicts_follow_from_the_tables(
    answers: dict[str, Answer], effects: dict[str, dict[str, Any]]
):
    told = stored("verdicts")
    verdicts = [
        gate(effects["student"]["memory"], effects["base"]["memory"]),
        *verdicts_of(answers),
    ]
    assert rounded([verdict.to_dict() for verdict in verdicts]) == rounded(told["verdicts"])
    assert secondary(answers, effects["student"]["effects"]["0"]) == told["secondary"]
    assert {stored(name)["weights"] for name in ROOMS_TABLES} == {told["weights"]}, (
        "of the same weights and code"
    )
    assert told["files"] == measured_files()
    for page in (ROOMS / "verdicts.md", PAGE):
        assert verdict_table(verdicts) in text(page), page.name


def test_rooms_that_come_back_are_those_of_the_second_pre_registration():
    page = text(EVIDENCE / "PREREGISTRATION_2.md")
    numbers = re.search(r"Videos ([\d,]+) to\s+([\d,]+)", page).groups()
    assert [int(n.replace(",", "")) for n in numbers] == [
        returning.FIRST,
        returning.FIRST + returning.VIDEOS - 1,
    ]
    assert all(f"| {row} |" in page for row in returning.ROWS)
    made = {row: stored("returns")["rows"][row] for row in returning.ROWS}
    assert {len(videos) for videos in made.values()} == {returning.VIDEOS}
    assert text(ROOMS / "returns.md").strip() == returning.table(made).strip()
    assert verdict_table(returning.verdicts_of(made)) in text(PAGE)


def test_rooms_that_come_back_were_measured_again_with_the_same_verdicts():
    made = stored("returns_again")["rows"]
    assert {row: len(videos) for row, videos in made.items()} == dict.fromkeys(
        returning.ROWS, returning.VIDEOS
    )
    assert text(ROOMS / "returns_again.md").strip() == returning.table(made).strip()
    outcomes = [verdict.outcome for verdict in returning.verdicts_of(made)]
    first = returning.verdicts_of(stored("returns")["rows"])
    assert outcomes == [verdict.outcome for verdict in first] == ["supports", "undecided"]
    for videos in made.values():
        just_left = mean_interval(values_of(videos, "layout_just_left"))
        assert just_left.count > 20 and just_left.mean < 0.1


@pytest.mark.parametrize(
    ("registration", "number"), [(memory_alone.THIRD, 3), (memory_alone.FOURTH, 4)]
)
def test_a_registration_of_memory_without_scenes_is_that_of_its_page(registration, number):
    page = text(EVIDENCE / f"PREREGISTRATION_{number}.md")
    numbers = re.search(r"Videos ([\d,]+) to\s+([\d,]+)", page).groups()
    first = registration.first
    assert [int(n.replace(",", "")) for n in numbers] == [first, first + memory_alone.VIDEOS - 1]
    assert all(f"| {row} |" in page for row in registration.rows)
    assert all(f"| {endpoint.name} |" in page for endpoint in registration.endpoints)
    assert f"research {registration.command} --out" in page


def test_memory_without_scenes_is_what_the_third_pre_registration_measured():
    made = {row: stored("memory")["rows"][row] for row in memory_alone.THIRD.rows}
    assert {len(videos) for videos in made.values()} == {memory_alone.VIDEOS}
    assert text(ROOMS / "memory.md").strip() == memory_alone.table(memory_alone.THIRD, made).strip()
    verdicts = memory_alone.verdicts_of(memory_alone.THIRD, made)
    assert verdict_table(verdicts) in text(PAGE)
    assert [verdict.outcome for verdict in verdicts] == ["supports", "undecided", "supports"]
    means = {row: mean_interval(values_of(videos, "layout")) for row, videos in made.items()}
    told = {"roles by function": "0.70", "roles by quota": "0.04", "all frames": "0.89"}
    for row, number in {**told, "shuffled": "0.46", "longlive": "0.70"}.items():
        assert f"{means[row].mean:.2f}" == number and number in text(PAGE)


def test_the_rule_without_its_floor_is_what_the_fourth_pre_registration_measured():
    made = {row: stored("memory4")["rows"][row] for row in memory_alone.FOURTH.rows}
    assert {len(videos) for videos in made.values()} == {memory_alone.VIDEOS}
    table = memory_alone.table(memory_alone.FOURTH, made)
    assert text(ROOMS / "memory4.md").strip() == table.strip()
    verdicts = memory_alone.verdicts_of(memory_alone.FOURTH, made)
    assert verdict_table(verdicts) in text(PAGE)
    assert [verdict.outcome for verdict in verdicts] == ["supports", "supports"]
    told = text(PAGE).partition("The floor was taken out")[2].partition("###")[0]
    layouts = {row: values_of(videos, "layout") for row, videos in made.items()}
    for row, found in layouts.items():
        shown = told if row not in (memory_alone.CEILING, memory_alone.QUOTA) else text(PAGE)
        assert f"{mean_interval(found).mean:.2f}" in shown, row
    for row in list(layouts)[4:]:
        apart = mean_interval(differences(layouts[row], layouts[memory_alone.FUNCTION]))
        assert apart.low < 0 < apart.high, "the page says that it does not differ"


def test_rooms_shown_as_a_picture_are_those_of_the_page_and_can_be_made_again(
    judge: RoomsJudge,
):
    shown = json.loads(text(EVIDENCE / "references.json"))["rows"]
    assert references.table(shown) == text(EVIDENCE / "references.md").rstrip()
    assert {len(made) for made in shown.values()} == {references.VIDEOS} == {16}
    page = text(PAGE).partition("### Rooms shown as a picture")[2]
    told = [(references.NONE, "layout"), (references.RIGHT, "layout")]
    for row, column in [
        *told,
        (references.WRONG, "layout"),
        (references.WRONG, "wrong layout"),
    ]:
        videos = shown[f"{row}, roles by quota"]
        assert f"{mean_interval(values_of(videos, column)).mean:.2f}" in page
        if row != references.NONE:
            made = references.measure(judge, references.FIRST, row, "quota")
            assert made[column] == pytest.approx(videos[0][column], abs=0.1)


@pytest.mark.slow
def test_the_gate_was_measured_on_the_files_that_ship_and_finds_the_same_again(judge, effects):
    shipped = {
        "weights": file_hash(assets.model_path()),
        "autoencoder": file_hash(DEMO_AUTOENCODER),
    }
    assert {key: effects["student"][key] for key in shipped} == shipped
    assert effects["base"]["autoencoder"] == shipped["autoencoder"]
    for found in effects.values():
        assert found["memory"] == pytest.approx(rooms_gate.memory(found["effects"]), abs=1e-9)
    for away, values in rooms_gate.measure(
        judge.backbone, judge.autoencoder, STORIES_AGAIN
    ).items():
        assert values == pytest.approx(
            effects["student"]["effects"][away][: len(values)], abs=0.02
        ), away


def test_nothing_but_a_verdict_is_called_sure():
    """Outside tables and the sentences that say what the word means; the rule is in
    `Verdict.sure`.
    """
    sure = {verdict["name"] for verdict in stored("verdicts")["verdicts"] if verdict["sure"]}
    for page in (EVIDENCE / "README.md", PAGE):
        prose = " ".join(line for line in text(page).splitlines() if not line.startswith("|"))
        for sentence in re.split(r"(?<=[.:]) ", prose):
            if re.search(r"\b(sure|surely|significan\w*)\b", sentence) and "*Sure*" not in sentence:
                assert (named := set(re.findall(r"\bH\d\b", sentence))) and named <= sure, sentence


def test_the_page_names_every_table_and_the_repository_stays_light():
    page = text(EVIDENCE / "README.md")
    assert all(f"`{name}.md`" in page for name in ROOMS_TABLES)
    assert f"{len({job.key for job in jobs(ROOMS_TABLES, 64)}):,} videos" in page
    weights = (assets.model_path(), DEMO_AUTOENCODER, DEMO_PICTURE_DECODER)
    assert sum(path.stat().st_size for path in weights) < 16_000_000
    evidence = (path for path in EVIDENCE.rglob("*") if path.is_file() and path.suffix != ".jsonl")
    assert sum(path.stat().st_size for path in evidence) < 3_000_000


def test_the_training_took_what_is_said(repo_root: Path):
    page = text(repo_root / "research" / "training" / "TRAINING.md")
    entries = [json.loads(line) for line in text(ROOMS / "journal.jsonl").splitlines()]
    for stage in STAGES:
        mine = [entry for entry in entries if entry["stage"] == stage]
        paces = sorted(entry["seconds_a_step"] for entry in mine if entry["seconds_a_step"])
        pace = paces[len(paces) // 2]
        steps = mine[-1]["step"]
        assert f"| {stage} | {steps:,} | {pace:.2g} s | {steps * pace / 60:.0f} min |" in page


@pytest.mark.slow
@pytest.mark.parametrize("label", [OURS, "rendered, through the autoencoder"])
def test_a_sample_comes_out_again_within_the_stored_intervals(label: str, judge: RoomsJudge):
    """Of the first stored videos, inside the trained length; within the interval of a mean of so
    many videos.

    Machines may differ in the last bits, which a rollout can turn into other pixels.
    """
    table = ROOMS_TABLES["h3"]
    row = next(row for row in stored("h3")["rows"] if row["label"] == label)
    made = []
    for number in table.numbers(SAMPLE):
        looks = STORIES[table.story](number)
        if label == OURS:
            made.append(
                judge.measure_story(
                    method_named("head_forcing"),
                    "profile",
                    looks,
                    number,
                    ahead=True,
                )
            )
        else:
            made.append(judge.measure_truth(looks, number, encoded=True, ahead=True))
    # the first tables were measured before there was a column of the room just left
    columns = set(table.columns)
    if not any(row["videos"]["layout_just_left"]):
        columns.remove("layout_just_left")
    for column in columns:
        before = mean_interval(row["videos"][column][:SAMPLE])
        after = mean_interval([video.get(column) for video in made])
        assert (before is None) == (after is None), column
        if before and after:
            assert after.mean == pytest.approx(before.mean, abs=0.05 + 0.1 * abs(before.mean)), (
                column
            )
            whole = row["means"][column]
            wide = (whole["high"] - whole["mean"]) * math.sqrt(whole["count"] / after.count)
            assert after.mean == pytest.approx(whole["mean"], abs=wide + 0.01), column


@pytest.mark.slow
def test_the_detector_is_as_accurate_as_is_said():
    """Three clips again, with and without the autoencoder, and what the stored ones say
    together.
    """
    told = stored("accuracy")
    few = 3
    made = accuracy.measure(few)
    for column, found in made.items():
        for name, values in found.items():
            assert values == pytest.approx(told[column][name][:few], abs=0.02), (
                column,
                name,
            )
    assert accuracy.table(told) in text(EVIDENCE / "README.md")
