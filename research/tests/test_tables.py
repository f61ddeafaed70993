"""The command `table`: the paper's tables in its layout, its numbers, and the embedded model's."""

import json
from pathlib import Path

import pytest
from headforcing.research.__main__ import main
from headforcing.research.claims import tables
from headforcing.research.claims.paper_numbers import COLUMNS, REPORTED
from headforcing.research.claims.paper_tables import TABLES
from headforcing.research.rooms.judge import STORIES

STORED = Path(__file__).parents[1] / "evidence" / "paper"


@pytest.mark.parametrize("number", TABLES)
def test_every_row_has_a_number_in_every_column_of_the_paper(number):
    table = TABLES[number]
    for row in table.rows:
        values = [float(value) for value in row.paper.split()]
        assert len(values) == len(table.columns), row.label
        assert (row.entry is None) == bool(row.missing), row.label
    assert table.rows[-1].label in (
        "Head Forcing",
        "(D) Ours",
        "Ours",
        "w/ re-encoding",
        "Key cosine",
    )


def test_the_tables_have_the_figures_that_check_claim_compares_with():
    seen = 0
    for each in REPORTED:
        number = each.table.removeprefix("Table ")
        column = COLUMNS[each.column].heading
        table = TABLES[number]
        if column not in table.columns:
            continue
        place = table.columns.index(column)
        found = {float(row.paper.split()[place]) for row in table.rows}
        assert {each.value, each.ours} <= found, each
        seen += 1
    assert seen > 45


def test_a_table_is_made_from_stories_and_found_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tables, "STORY", "twelve_blocks")
    assert "twelve_blocks" in STORIES
    command = ["table", "S2", "--videos", "1", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)["S2"]
    without, ours = found["rows"].values()
    assert (
        without["paper"]["Dynamic Degree"] == "39.09"
        and ours["here"]["frames_a_head"][:4] == "8.54"
    )
    assert without["videos"][0] != ours["videos"][0], "positions change a video"
    journal = tmp_path / "out" / "measured.jsonl"
    stamp = journal.stat().st_mtime_ns
    assert main(["table", "S2", "--videos", "1", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "| w/o re-encoding | 39.09 | 98.54 |" in text and "here: room kept" in text
    assert journal.read_text("utf-8").count("\n") == 2 and journal.stat().st_mtime_ns >= stamp


@pytest.mark.parametrize(("number", "needs"), tables.NOT_HERE.items())
def test_a_table_that_nothing_here_measures_says_what_it_needs(number, needs, tmp_path, capsys):
    assert main(["table", number, "--out", str(tmp_path / "out")]) == 0
    assert needs in capsys.readouterr().out


def test_the_stored_tables_are_what_the_command_writes():
    for number, table in TABLES.items():
        data = json.loads((STORED / f"table_{number}.json").read_text("utf-8"))
        known = {
            row.entry.key: data["rows"][row.label]["videos"]
            for row in table.rows
            if row.entry is not None
        }
        text, _ = tables.text_of(table, known, data["stories"])
        assert (STORED / f"table_{number}.md").read_text("utf-8") == text + "\n"
