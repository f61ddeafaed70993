"""The commands `table`, `figure` and `paper`: every table and figure of the paper, at the smallest
size on an untrained model, and what lies in the evidence.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headforcing.research import profiling
from headforcing.research.__main__ import main
from headforcing.research.paper import (
    attention,
    command,
    demo,
    figures,
    fixed_tables,
)
from headforcing.research.paper.figures import FIGURES
from headforcing.research.paper.fixed_tables import FIXED_TABLES
from headforcing.research.paper.paper_tables import TABLES
from PIL import Image
from tiny_files import NAVY, SAND, TEAL, tiny_judge

STORED = Path(__file__).parents[1] / "evidence" / "paper"
PAPER = Path(__file__).parents[3] / "shared" / "head_forcing_paper.tex"
LAST = {
    "Head Forcing",
    "(D) Ours",
    "Ours",
    "w/ re-encoding",
    "Key cosine",
    "Pruning in Local Heads",
}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """An untrained model with two heads in two layers, and stories of four blocks."""
    judge = tiny_judge(tmp_path)
    for module in (demo,):
        monkeypatch.setattr(module, "embedded_judge", lambda: judge)
    away = lambda number: (TEAL, SAND, NAVY, TEAL)  # noqa: E731
    for story in ("away_15", "away_30", "twelve_blocks"):
        monkeypatch.setitem(demo.DEMO_STORIES, story, away)
    for story in ("one_prompt", "five_minutes"):
        monkeypatch.setitem(demo.DEMO_STORIES, story, lambda number: (TEAL,) * 4)
    monkeypatch.setattr(figures, "LATE", range(2, 4))
    monkeypatch.setattr(figures, "LENGTHS", (1.0, 3.0))
    monkeypatch.setattr(figures, "MAPS", 2)
    monkeypatch.setattr(attention, "BLOCK", 3)
    monkeypatch.setattr(profiling, "SECONDS", (3.0,))
    monkeypatch.setattr(fixed_tables, "STEPS", (3, 4))
    monkeypatch.setattr(fixed_tables, "PROMPTS", 2)
    return judge


def test_one_command_makes_every_table_and_figure_and_finds_them_again(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["paper", "--demo", "--videos", "1", "--out", str(out), "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["tables"]) == [*TABLES, *FIXED_TABLES]
    assert list(found["figures"]) == list(FIGURES)
    for number in found["tables"]:
        assert (out / f"table_{number}.md").read_text("utf-8").startswith(f"# Table {number}")
    for number, each in FIGURES.items():
        text = (out / f"figure_{number}.md").read_text("utf-8")
        assert each.needs in text
        picture = out / f"figure_{number}.png"
        assert picture.exists() == (each.draw is not None)
        if each.draw is not None:
            assert Image.open(picture).width == 900 and picture.stat().st_size > 2_000
    assert (out / "README.md").read_text("utf-8") == command.page()
    journal = (out / "measured.jsonl").read_text("utf-8")
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["tables"] == found["tables"]
    assert (out / "measured.jsonl").read_text("utf-8") == journal, "nothing is measured twice"


@pytest.mark.parametrize("number", TABLES)
def test_every_row_has_a_number_in_every_column_of_the_paper(number):
    table = TABLES[number]
    for row in table.rows:
        values = [float(value) for value in row.paper.split()]
        assert len(values) in (0, len(table.columns)), row.label
        assert (row.entry is None) == bool(row.missing), row.label
    assert table.rows[-1].label in LAST
    keys = [row.entry.key for row in table.rows if row.entry is not None]
    assert len(set(keys)) == len(keys)
