"""docs/memory.md says what the commands print."""

from pathlib import Path

from headforcing.headforcing_core.commands.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")


def test_the_tables_of_cards_are_those_of_the_command(capsys):
    assert main(["memory"]) == 0
    assert capsys.readouterr().out.strip() in PAGE
