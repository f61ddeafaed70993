"""The second pre-registration: verdicts from measured videos, and what they need."""

import re

import pytest
from headforcing.research.rooms.returning import (
    BOTH,
    CEILING,
    CONTROL,
    FIRST,
    FLOOR,
    PRESET,
    ROWS,
    VIDEOS,
    table,
    verdicts_of,
)


def videos(**layouts) -> dict:
    """Videos of every row with layouts around a mean."""
    names = {"ceiling": CEILING, "floor": FLOOR, "preset": PRESET, "both": BOTH, "control": CONTROL}
    others = {
        "layout_by_chance": 0.0,
        "identity": 1.0,
        "outline": 0.8,
        "shape": 0.9,
        "moves": 1.0,
        "frames_a_head": 9.0,
    }
    return {
        names[row]: [others | {"layout": mean + 0.02 * (-1) ** n} for n in range(VIDEOS)]
        for row, mean in layouts.items()
    }


@pytest.mark.parametrize(
    ("layouts", "outcomes"),
    [
        ({"ceiling": 0.95, "floor": 0.03, "preset": 0.75, "both": 0.9, "control": 0.7}, ["supports", "supports"]),
        ({"ceiling": 0.95, "floor": 0.03, "preset": 0.60, "both": 0.7, "control": 0.7}, ["undecided", "refutes"]),
        ({"ceiling": 0.95, "floor": 0.03, "preset": 0.30, "both": 0.1, "control": 0.7}, ["refutes", "refutes"]),
        ({"ceiling": 0.50, "floor": 0.03, "preset": 0.45, "both": 0.4, "control": 0.1}, ["undecided", "undecided"]),
    ],
)
def test_verdicts_follow_the_rule_that_was_written_down(layouts, outcomes):
    assert [verdict.outcome for verdict in verdicts_of(videos(**layouts))] == outcomes


def test_few_videos_decide_nothing():
    few = {row: made[:19] for row, made in videos(ceiling=0.9, floor=0.0, preset=0.8, both=0.9, control=0.1).items()}
    assert {verdict.outcome for verdict in verdicts_of(few)} == {"undecided"}


def test_the_table_has_every_row_with_its_difference_from_the_floor():
    told = table(videos(ceiling=0.95, floor=0.05, preset=0.75, both=0.9, control=0.7))
    assert all(f"| {row} |" in told for row in ROWS) and "0.700 (0.700 to 0.700; 32)" in told


def test_the_page_was_written_for_these_numbers(repo_root):
    page = (repo_root / "research" / "evidence" / "PREREGISTRATION_2.md").read_text("utf-8")
    found = re.search(r"Videos ([\d,]+) to\s+([\d,]+)", page)
    assert [int(number.replace(",", "")) for number in found.groups()] == [FIRST, FIRST + VIDEOS - 1]
    assert all(f"| {row} |" in page for row in ROWS)
