"""The command line: `headforcing demo | generate | profile | report | ...`; `headforcing --help` lists them all."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import HeadForcingError
from ..files import reason
from .arguments import asks_for_several
from .parser import Commands, Parser
from .streams import print_result, usable_streams

MODULES = {
    "demo": "render",
    "generate": "render",
    "encode": "stages",
    "decode": "stages",
    "batch": "batch",
    "inspect": "files",
    "profile": "profiles",
    "profiles": "profiles",
    "report": "report",
    "compare": "compare",
    "runs": "runs",
    "replay": "replay",
    "methods": "files",
    "budget": "files",
    "memory": "files",
    "convert": "files",
}
"""By command the module of this folder that has it, which is imported when it is asked for."""

RESEARCH = ("check-claim", "evaluate", "read-vbench", "rooms", "tables")
"""The commands of the folder `research` of a checkout."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input (one sentence on stderr), 130 interrupted."""
    words = sys.argv[1:] if argv is None else argv
    with usable_streams():
        if words and words[0] in RESEARCH:
            return _answer(2, f"error: this is a command of a checkout: python -m headforcing.research {words[0]}")
        try:
            args = _parser(words[0] if words else "").parse_args(words)
        except HeadForcingError as error:
            return _answer(2, f"error: {error}")
        under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if "gpus" in args and (under_torchrun or asks_for_several(args)):
            from .several import run_on_several

            return _answer(*run_on_several(args, words, _run, under_torchrun))
        return run_command(args)


def run_command(args: argparse.Namespace) -> int:
    """Run a parsed command, print its result or what went wrong, and return the exit code."""
    return _answer(*_run(args))


def _answer(code: int, text: str) -> int:
    if text and code in (0, 1):
        return print_result(text, code)
    if text:
        sys.stderr.write(f"{text}\n")
    return code


def _run(args: argparse.Namespace) -> tuple[int, str]:
    """The exit code of a command, and its result or what went wrong."""
    try:
        result = args.run(args)
    except HeadForcingError as error:
        return 2, f"error: {error}"
    except OSError as error:  # the file system refused something that no sentence was written for
        place = f"{error.filename}: " if error.filename is not None else ""
        return 2, f"error: {place}{reason(error)}"
    except (MemoryError, RuntimeError) as error:
        from ..devices import is_out_of_memory  # imports torch

        if not is_out_of_memory(error):
            raise
        return 2, "error: out of memory: close other programs, or choose a smaller size"
    except KeyboardInterrupt as stop:
        return 130, "; ".join(["interrupted", *map(str, stop.args)])
    return int(result.get("code", 0)), json.dumps(result["json"]) if args.json else result["text"]


def _parser(name: str = "") -> argparse.ArgumentParser:
    """The parser of one command, and of those in its module; for another name that of all commands."""
    parser = Parser(prog="headforcing", description="Minute-long videos from five-second models.")
    command = Commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    for module in [MODULES[name]] if name in MODULES else dict.fromkeys(MODULES.values()):
        import_module(f".{module}", __package__).add_parsers(command)
    return parser
