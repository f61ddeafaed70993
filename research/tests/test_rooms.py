"""The command `rooms`: it goes on where it stopped, and refuses what was not measured alike; files
of all commands.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from headforcing.cli.parser import Parser, subcommands
from headforcing.research.__main__ import COMMANDS, main
from headforcing.research.rooms import measure as rooms
from headforcing.research.rooms import measurements, tables
from headforcing.research.rows import Shuffles
from headforcing.research.training import gate as rooms_gate
from path_arguments import commands, undeclared
from stored_answers import read_answer
from tiny_files import SAND, TEAL, tiny_judge


def test_every_argument_that_names_files_is_declared_and_what_is_read_is_not_written_over(
    tmp_path, capsys
):
    parser = Parser(prog="research")
    adder = subcommands(parser)
    for module in COMMANDS:
        module.add_parsers(adder)
    found = {name: undeclared(command) for name, command in commands(parser)}
    assert len(found) >= len(COMMANDS) and not any(found.values()), found
    (tmp_path / "base.safetensors").write_bytes(b"kept")
    base = str(tmp_path / "base.safetensors")
    assert main(["gate", base, "--autoencoder", "none", "--out", base]) == 2
    assert "--out would write over" in capsys.readouterr().err


def call(out, *more):
    return main(["rooms", "--out", str(out), "--json", "--tables", "h3", *more])


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Two shuffles instead of 20, of tables that all modules share."""
    for name, table in tables.ROOMS_TABLES.items():
        rows = tuple(
            replace(row, count=2) if isinstance(row, Shuffles) else row for row in table.rows
        )
        monkeypatch.setitem(tables.ROOMS_TABLES, name, replace(table, rows=rows))


@pytest.fixture
def counted(monkeypatch):
    """Measurements that cost nothing, and how many there were."""
    made = []

    def measured(judge, job):
        made.append(job.key)
        layout = random.Random(job.key).uniform(0.1, 0.3) + 0.6 * (
            not job.row.label.startswith("memory heads")
        )
        unmarked = job.number % 2 and job.row.label.startswith("Head Forcing")
        numbers = {
            "layout": layout,
            "identity": None if unmarked else 1.0,
            "identity_by_chance": 0.0,
        }
        return numbers | {"place_error": 2.0}

    monkeypatch.setattr(rooms, "measured", measured)
    return made


def test_the_command_goes_on_where_it_stopped(tmp_path, counted, capsys, monkeypatch):
    assert call(tmp_path, "--videos", "2") == 0 and len(counted) == 2 * 15
    journal = tmp_path / "measured.jsonl"
    journal.write_text(journal.read_text() + '{"video": "cut o')
    assert call(tmp_path, "--videos", "3") == 0 and len(counted) == len(set(counted)) == 3 * 15
    stored = json.loads((tmp_path / "h3.json").read_text())
    rows = {row["label"]: row for row in stored["rows"]}
    assert all(len(row["videos"]["layout"]) == 3 for row in rows.values())
    assert [len(part["layout"]) for part in rows["Head Forcing, shuffled roles"]["shuffles"]] == [
        3,
        3,
    ]
    told = [
        rows[row]["videos"]["identity"]
        for row in ("Head Forcing", "window of 9, re-encoded", "rendered")
    ]
    assert told == [[1.0, None, 1.0], [1.0, None, 1.0], [1.0, 1.0, 1.0]], (
        "left out of all rows of a model"
    )
    again = read_answer(tables.ROOMS_TABLES["h3"], stored)
    assert again.text() == (tmp_path / "h3.md").read_text().rstrip()
    assert {**again.to_dict(), "weights": stored["weights"]} == stored, (
        "means of shuffles are not rounded"
    )
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert [verdict["name"] for verdict in verdicts] == [
        "H0",
        "H1",
        "H2",
        "H3",
        "H4",
        "H5",
    ]
    outcomes = [verdict["outcome"] for verdict in verdicts[:4]]
    assert outcomes == ["supports", "not measured", "not measured", "undecided"]
    page = (tmp_path / "verdicts.md").read_text()
    assert "gaps of 1 to 3 frames: +" in page and "| memory heads | +0.000" in page
    assert call(tmp_path, "--videos", "3", "--tables", "h4") == 0
    again = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert again[3] == verdicts[3] and again[4]["outcome"] == "undecided", (
        "of all that was measured"
    )
    with monkeypatch.context() as patch:
        patch.setattr(measurements, "MEASURED_BY", (rooms_gate, *measurements.MEASURED_BY[1:]))
        assert call(tmp_path, "--videos", "3") == 2
    assert "another model, autoencoder or head profile, or by other code" in capsys.readouterr().err
    monkeypatch.setattr(
        rooms,
        "measured_files",
        lambda: {"model": "another", "autoencoder": "another"},
    )
    assert call(tmp_path, "--videos", "3") == 2
    assert "student.gate.json was not measured on the embedded model" in capsys.readouterr().err


@pytest.mark.slow
def test_a_table_of_real_videos(tmp_path, monkeypatch):
    """An untrained model, one short story: every row of H2 is measured, and nothing is decided."""
    monkeypatch.setitem(rooms.STORIES, "away_15", lambda number: (TEAL, SAND, TEAL))
    monkeypatch.setattr(rooms, "embedded_judge", lambda: tiny_judge(tmp_path))
    assert call(tmp_path, "--tables", "h2_h5", "--videos", "1") == 0
    table = (tmp_path / "h2_h5.md").read_text()
    assert all(f"| {row.label} |" in table for row in tables.ROOMS_TABLES["h2_h5"].rows)
    assert "| – | – | – | – |" not in table and "sure" not in table
