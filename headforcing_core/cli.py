"""The command line: `headforcing demo | generate | profile | report | ...`; `headforcing --help` lists them all."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import commands, profile_commands, report_command, run_commands
from .arguments import DTYPES, FOUND_PROFILES
from .attention import ATTENTION_HELP, BACKENDS
from .demo import word_hash
from .errors import HeadForcingError
from .methods.registry import method_names
from .policy import ROLE_ARRANGEMENTS
from .profile import bundled_profiles
from .schedule import SCHEDULES
from .switching import SWITCHES


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input (one sentence on stderr), 130 interrupted."""
    args = _parser().parse_args(argv)
    try:
        result = args.run(args)
    except HeadForcingError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    if args.json:
        sys.stdout.write(json.dumps(result["json"]) + "\n")
    else:
        sys.stdout.write(result["text"] + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headforcing", description="Minute-long video from five-second models.")
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, parent: Any = subcommands) -> argparse.ArgumentParser:
        sub = parent.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object, for programs")
        return sub

    def group(name: str, text: str) -> Any:
        parent = subcommands.add_parser(name, help=text, description=text)
        return parent.add_subparsers(required=True, metavar="COMMAND")

    sub = command("demo", commands.demo, "A one-minute, three-prompt video with the embedded toy model; no download.")
    sub.add_argument("--out", type=Path, default=Path("output"), help="folder for demo.mp4 and demo.png (output)")
    sub.add_argument("--prompts", help="a timeline in the toy world's words, or @FILE; " + word_hash.HELP)
    sub.add_argument("--seconds", type=float, default=0.0, help="length; default: the story's 60")
    sub.add_argument("--scale", type=int, default=6, help="every pixel becomes a square of this side (6: 384x384)")
    _add_common(sub)

    sub = command("generate", commands.generate, "A video from Self Forcing weights (or a relative) and prompts.")
    sub.add_argument("--weights", type=Path, required=True, help="checkpoint, .safetensors or .pt")
    sub.add_argument("--lora", type=Path, help="LoRA to merge, such as LongLive's")
    sub.add_argument("--prompts", required=True, help="a timeline or one prompt, or @FILE")
    sub.add_argument("--seconds", type=float, default=0.0, help="length; default: the timeline's")
    sub.add_argument("--size", default="832x480", help="WIDTHxHEIGHT in pixels (832x480)")
    sub.add_argument("--text-encoder", type=Path, help="umT5-xxl encoder, ComfyUI's or the original file")
    sub.add_argument("--embeddings", type=Path, help="precomputed prompt embeddings instead of a text encoder")
    sub.add_argument("--vae", type=Path, help="Wan 2.1 VAE; needed for --out")
    sub.add_argument("--out", type=Path, help="MP4 to write")
    sub.add_argument("--latents", type=Path, help="latents to write (.safetensors)")
    sub.add_argument("--start-latents", type=Path, help="latents of a video to go on from")
    sub.add_argument("--num-heads", type=int, help="only for models whose heads are not 128 wide")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16", help="compute dtype (bf16)")
    _add_common(sub)

    sub = command("replay", commands.replay, "Run a recorded case again and write its latents (parity, bug reports).")
    sub.add_argument("case", type=Path, help="folder with config.json")
    sub.add_argument("--run", dest="run_name", required=True, help="name of the run in config.json")
    sub.add_argument("--out", type=Path, required=True, help="safetensors file to write, tensor `latents`")
    sub.add_argument("--events", type=Path, help="JSON file for the memory events")
    sub.add_argument("--device", default="cpu")
    sub.add_argument("--attention", default="auto", choices=["auto", *BACKENDS, "reference"], help=ATTENTION_HELP)

    sub = command("inspect", commands.inspect, "Say what a checkpoint or head profile is and what it needs.")
    sub.add_argument("file", type=Path)
    sub.add_argument("--num-heads", type=int)

    profile_commands.add_parsers(command, group)
    report_command.add_parsers(command)
    run_commands.add_parsers(command, group)

    sub = command("budget", commands.budget, "Size of the 1.3B model's KV cache by method and length.")
    sub.add_argument("--size", default="832x480", help="WIDTHxHEIGHT in pixels (832x480)")
    sub.add_argument("--seconds", type=float, nargs="+", default=[60.0, 300.0])

    sub = command("convert", commands.convert, "One bf16 copy of a checkpoint as .safetensors with metadata.")
    sub.add_argument("file", type=Path)
    sub.add_argument("out", type=Path, help="new .safetensors file")
    sub.add_argument("--weights", default="auto", help="which copy: auto, generator_ema, generator (auto)")
    sub.add_argument("--lora", type=Path, help="LoRA to merge")
    sub.add_argument("--lora-strength", type=float, default=1.0)
    sub.add_argument("--num-heads", type=int)
    sub.add_argument("--frames-per-block", type=int, help="recorded in the file: 3 chunkwise, 1 framewise")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16")
    return parser


def _add_common(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument(
        "--switch",
        choices=SWITCHES,
        default="reset",
        help="how a prompt takes over: reset leaves the past as it is, recache reads the last blocks again under the "
        "new prompt, flush keeps the first and the last two frames; a tag before a prompt, such as [flush], says "
        "otherwise for that one (reset)",
    )
    sub.add_argument("--blend-blocks", type=int, default=0, help="blocks over which the text goes over; tag: [blend 3]")
    sub.add_argument(
        "--re-anchor",
        action="store_true",
        help="a new prompt's first frames take the place of the video's first; tag: [re-anchor]",
    )
    sub.add_argument(
        "--profile",
        help=f"head profile: a file, {', '.join(bundled_profiles())}, or auto, which finds the roles in the first "
        "seconds and keeps them for the next run; default: the bundled one that fits, else auto",
    )
    sub.add_argument("--found-profiles", type=Path, default=FOUND_PROFILES, help="folder for found profiles")
    sub.add_argument("--method", choices=method_names(), default="head_forcing")
    sub.add_argument("--roles", choices=ROLE_ARRANGEMENTS, default="profile")
    sub.add_argument("--model-family", choices=SCHEDULES, default="self_forcing", help="noise levels, block, profile")
    sub.add_argument("--sigmas", default="", help="other noise levels, '1, 0.9375, 0.8333, 0.625'")
    sub.add_argument("--episodic-frames", type=int, default=5)
    sub.add_argument("--recent-frames", type=int, default=3)
    sub.add_argument("--novelty-threshold", type=float, default=0.95)
    sub.add_argument("--update-interval", type=int, default=3)
    sub.add_argument("--runs", type=Path, help="folder for finished blocks: the same render goes on where it stopped")
    sub.add_argument("--state-seconds", type=float, default=300.0, help="how often the cache is stored there; 0 never")
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto)")
    sub.add_argument("--attention", default="auto", choices=["auto", *BACKENDS], help=ATTENTION_HELP)
