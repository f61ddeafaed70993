"""Files that the commands of research read and write."""

from pathlib import Path

import pytest
from headforcing.headforcing_core.commands.parser import Parser, subcommands
from headforcing.research.__main__ import COMMANDS, main
from path_arguments import commands, undeclared


def test_every_argument_that_names_files_is_declared_as_read_or_written() -> None:
    parser = Parser(prog="research")
    adder = subcommands(parser)
    for module in COMMANDS:
        module.add_parsers(adder)
    found = {name: undeclared(command) for name, command in commands(parser)}
    assert len(found) >= len(COMMANDS) and not any(found.values()), found


def test_what_is_read_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "base.safetensors"
    weights.write_bytes(b"kept")
    assert main(["gate", str(weights), "--autoencoder", "none", "--out", str(weights)]) == 2
    assert "--out would write over" in capsys.readouterr().err and weights.read_bytes() == b"kept"
