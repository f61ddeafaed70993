"""The command line: `headforcing demo | generate | profile | report | ...`; `headforcing --help` lists them all."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import HeadForcingError
from ..files import reason
from ..render.cards import CARDS
from ..rollout.schedule import SCHEDULES
from . import batch, check_claim, compare, evaluate, files, profiles, render, report, rooms, runs, stages, vbench
from .arguments import DTYPES, Parser, asks_for_several


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input (one sentence on stderr), 130 interrupted."""
    args = _parser().parse_args(argv)
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if "gpus" in args and (under_torchrun or asks_for_several(args)):
        from .several import run_on_several

        code, text = run_on_several(args, sys.argv[1:] if argv is None else argv, _run, under_torchrun)
    else:
        code, text = _run(args)
    if text:
        (sys.stdout if code in (0, 1) else sys.stderr).write(text + "\n")
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
    except KeyboardInterrupt as stop:
        return 130, "; ".join(["interrupted", *map(str, stop.args)])
    return int(result.get("code", 0)), json.dumps(result["json"]) if args.json else result["text"]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="headforcing", description="Minute-long videos from five-second models.")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, parent: Any = subcommands) -> argparse.ArgumentParser:
        sub = parent.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object, for programs")
        return sub

    def group(name: str, text: str) -> Any:
        parent = subcommands.add_parser(name, help=text, description=text)
        return parent.add_subparsers(required=True, metavar="COMMAND")

    render.add_parsers(command)
    stages.add_parsers(command)
    batch.add_parsers(command)

    sub = command("inspect", files.inspect, "Describe a checkpoint or head profile, and the cache it needs.")
    sub.add_argument("file", type=Path)
    sub.add_argument("--num-heads", type=int)

    profiles.add_parsers(command, group)
    report.add_parsers(command)
    compare.add_parsers(command)
    evaluate.add_parsers(command)
    rooms.add_parsers(command)
    vbench.add_parsers(command)
    check_claim.add_parsers(command)
    runs.add_parsers(command, group)

    sub = command("budget", files.budget, "Size of the 1.3B model's KV cache by method and length.")
    sub.add_argument("--size", default="832x480", help="WIDTHxHEIGHT in pixels (832x480)")
    sub.add_argument("--seconds", type=float, nargs="+", default=[60.0, 300.0])

    sub = command("memory", files.memory, "What a minute of the 1.3B model takes, how it fits on a card; by estimate.")
    sub.add_argument("--cards", type=float, nargs="+", default=list(CARDS), help="memory of cards in GiB")
    sub.add_argument("--sizes", nargs="+", default=["832x480", "480x832"], help="WIDTHxHEIGHT in pixels")

    sub = command("convert", files.convert, "Write one bf16 copy of a checkpoint as .safetensors with metadata.")
    sub.add_argument("file", type=Path)
    sub.add_argument("out", type=Path, help="new .safetensors file")
    sub.add_argument("--weights", default="auto", help="which copy: auto, generator_ema, generator (auto)")
    sub.add_argument("--lora", type=Path, help="LoRA to merge")
    sub.add_argument("--lora-strength", type=float, default=1.0)
    sub.add_argument("--num-heads", type=int)
    sub.add_argument("--frames-per-block", type=int, help="recorded in the file: 3 chunkwise, 1 framewise")
    sub.add_argument("--model-family", choices=SCHEDULES, help="recorded in the file, for --model-family auto")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16")
    return parser
