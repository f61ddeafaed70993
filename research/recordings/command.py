"""The command `replay`: a recorded case, rendered again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from safetensors.torch import save

from ...cli.arguments import Result
from ...cli.parser import WRITTEN, folder_read
from ...cli.values import pick_device
from ...headforcing_core import names
from ...headforcing_core.files import claimed, replacing
from .replay import Case, replay


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("replay", replay_case, "Run a recorded case again and write its latents.")
    sub.add_argument(
        "case", type=folder_read("*.json", "*.safetensors"), help="folder with config.json"
    )
    sub.add_argument("--run", dest="run_name", required=True, help="name of the run in config.json")
    sub.add_argument(
        "--out", type=WRITTEN, required=True, help="safetensors file to write, tensor `latents`"
    )
    sub.add_argument("--events", type=WRITTEN, help="JSON file for the memory events")
    sub.add_argument("--device", default="cpu", help="auto, cpu, cuda, mps (cpu)")
    sub.add_argument("--attention", choices=("auto", *names.BACKENDS, "reference"), default="auto")


def replay_case(args: argparse.Namespace) -> Result:
    """Write the latents of a recorded run, and its memory events."""
    with claimed(args.out, args.events):
        done = replay(
            Case.open(args.case), args.run_name, str(pick_device(args.device)), args.attention
        )
        with replacing(args.out) as temporary:
            temporary.write_bytes(save({"latents": done.latents.contiguous()}))
        if args.events is not None:
            events = {
                "memory_events": done.memory_events,
                "final_episodic_sources": done.final_episodic_sources,
            }
            with replacing(args.events) as temporary:
                temporary.write_text(json.dumps(events, indent=1), encoding="utf-8")
    summary = {
        "latents": str(args.out),
        "frames": len(done.latents),
        "memory_events": done.memory_events,
    }
    return Result([f"{len(done.latents)} latent frames in {args.out}"], summary)
