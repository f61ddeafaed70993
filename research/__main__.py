"""`python -m headforcing.research COMMAND`: the commands of research; `--help` lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..cli.cli import run_command, usable_streams
from ..cli.parser import Parser, subcommands
from ..headforcing_core.errors import HeadForcingError
from . import distances, profiling, real_heads
from .claims import check_claim
from .metrics import scores
from .paper import command as paper
from .paper import figures, tables
from .recordings import command as recordings
from .rooms import accuracy, flicker, measure, memory_alone, references, returning
from .training import gate, train

COMMANDS = (
    train,
    gate,
    accuracy,
    flicker,
    measure,
    returning,
    memory_alone,
    references,
    profiling,
    distances,
    real_heads,
    check_claim,
    tables,
    figures,
    paper,
    scores,
    recordings,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes as those of `headforcing`."""
    parser = Parser(
        prog="python -m headforcing.research", description="Training, measurements and claims."
    )
    command = subcommands(parser)
    for module in COMMANDS:
        module.add_parsers(command)
    with usable_streams():
        try:
            args = parser.parse_args(argv)
        except HeadForcingError as error:  # a file that is both read and written
            sys.stderr.write(f"error: {error}\n")
            return 2
        return run_command(args)


if __name__ == "__main__":
    sys.exit(main())
