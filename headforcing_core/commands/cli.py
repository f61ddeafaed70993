"""The command line: `headforcing demo | generate | profile | report | ...`; `headforcing --help` lists them all."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..errors import HeadForcingError
from ..files import reason
from .parser import Commands, Parser
from .streams import print_result, usable_streams

COMMANDS = {
    "demo": ("render", "Render a one-minute, six-prompt video with the embedded toy model; no download."),
    "generate": ("render", "Render a video from Self Forcing weights (or a relative) and prompts."),
    "encode": ("stages", "Write the embeddings of prompts, which `generate --embeddings` reads."),
    "decode": ("stages", "Decode a stored run, finished or not, or latents of `generate --latents`, to an MP4."),
    "batch": ("batch", "Render many videos, named in a file; the same command goes on where it stopped."),
    "inspect": ("files", "Describe a checkpoint or head profile, and the cache it needs."),
    "methods": ("files", "All methods, with their options and defaults for --set."),
    "budget": ("files", "Size of the 1.3B model's KV cache by method and length."),
    "memory": ("files", "What a minute of the 1.3B model takes, how it fits on a card; by estimate."),
    "convert": ("files", "Write one bf16 copy of a checkpoint as .safetensors with metadata."),
    "profile": ("profiles", "Measure what every attention head attends to and save a head profile."),
    "profiles": ("profiles", "Merge, compare, describe and plot head profiles."),
    "report": ("report", "Measure flicker, seams, drift, freezes and repetition of a video; not VBench."),
    "compare": ("compare", "Render one timeline with several methods: videos side by side, one table."),
    "runs": ("runs", "List, show and prune run folders."),
    "replay": ("replay", "Run a recorded case again and write its latents (parity, bug reports)."),
}
"""By command the module of this folder that has it, imported when it is asked for, and what `--help` says."""

RESEARCH = ("check-claim", "evaluate", "read-vbench", "rooms", "tables")
"""The commands of the folder `research` of a checkout."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input (one sentence on stderr), 130 interrupted."""
    words = sys.argv[1:] if argv is None else argv
    with usable_streams():
        if words and words[0] in RESEARCH:
            return _answer(2, f"error: this is a command of a checkout: python -m headforcing.research {words[0]}")
        try:
            if not words or words[0] not in COMMANDS:
                _overview().parse_args(words)  # ends with help or an error
            args = _parser(words[0]).parse_args(words)
        except HeadForcingError as error:
            return _answer(2, f"error: {error}")
        under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
        if "gpus" in args:
            from .arguments import asks_for_several  # imports torch

            if under_torchrun or asks_for_several(args):
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


def _overview() -> argparse.ArgumentParser:
    """A parser that knows the names of all commands and imports none of them."""
    parser, subcommands = _empty_parser()
    for name, (_, text) in COMMANDS.items():
        subcommands.add_parser(name, help=text, add_help=False)
    return parser


def _parser(name: str = "") -> argparse.ArgumentParser:
    """The parser of one command, and of those in its module; for another name that of all commands."""
    parser, subcommands = _empty_parser()
    command = Commands(subcommands, {name: text for name, (_, text) in COMMANDS.items()})
    modules = dict.fromkeys(module for module, _ in COMMANDS.values())
    for module in [COMMANDS[name][0]] if name in COMMANDS else modules:
        import_module(f".{module}", __package__).add_parsers(command)
    return parser


def _empty_parser() -> tuple[argparse.ArgumentParser, Any]:
    parser = Parser(prog="headforcing", description="Minute-long videos from five-second models.")
    return parser, parser.add_subparsers(required=True, metavar="COMMAND")
