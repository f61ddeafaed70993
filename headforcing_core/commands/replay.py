"""The command `replay`."""

from __future__ import annotations

import argparse
import json

from safetensors.torch import save

from ..files import check_writable, claimed, replacing
from ..recorded.replay import Case, replay
from .arguments import Result


def replay_case(args: argparse.Namespace) -> Result:
    """Write the latents of a recorded run, and its memory events."""
    check_writable(args.out)
    check_writable(args.events)
    with claimed(args.out, args.events):
        done = replay(Case.open(args.case), args.run_name, args.device, args.attention)
        with replacing(args.out) as temporary:
            temporary.write_bytes(save({"latents": done.latents.contiguous()}))
        if args.events is not None:
            events = {"memory_events": done.memory_events, "final_episodic_sources": done.final_episodic_sources}
            with replacing(args.events) as temporary:
                temporary.write_text(json.dumps(events, indent=1), encoding="utf-8")
    summary = {"latents": str(args.out), "frames": len(done.latents), "memory_events": done.memory_events}
    return {"text": f"{len(done.latents)} latent frames in {args.out}", "json": summary}
