"""docs/memory.md says what the commands print."""

from pathlib import Path

from headforcing.headforcing_core.commands.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")


def test_the_table_of_cards_is_that_of_the_command(capsys):
    assert main(["memory"]) == 0
    cards = capsys.readouterr().out.partition("| card |")[2].rstrip()
    assert len(cards.splitlines()) == 8 and f"| card |{cards}" in PAGE
