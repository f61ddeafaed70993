"""The command `flicker`: how much the wall in the demo's video changes from one video frame to the
next, as each of the two decoders draws it.

Camera and wall stand still, so a change is an error of the model or of the decoder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ...cli.arguments import Result
from ...cli.parser import WRITTEN
from ...headforcing_core.demo import assets
from ...headforcing_core.files import replacing
from ...headforcing_core.methods.registry import method_named
from ...headforcing_core.plan.describe import markdown_table
from ...headforcing_core.timeline.timeline import parse_timeline
from .detector import SATURATION
from .drawing import FLOOR
from .measurements import embedded_judge

SHADOW = 9  # pixels around the actor, in those of the 64-pixel frame, that its shadow can reach
CUT = 20.0  # of 255; a larger mean change of the wall is another scene
SEED = 0


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Measure how much the still wall of the demo's video changes between video frames."
    sub = command("flicker", flicker, text)
    sub.add_argument("--out", type=WRITTEN, help="JSON to write")


def flicker(args: argparse.Namespace) -> Result:
    """Print the flicker of both decoders."""
    torch.set_num_threads(1)
    found = measure(demo_latents())
    if args.out:
        with replacing(args.out) as partial:
            partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = [[name, f"{value:.2f}"] for name, value in found.items()]
    return Result([markdown_table(["decoder", "mean change, of 255"], rows)], found)


def demo_latents() -> Tensor:
    """Latents `[frames, 16, 8, 8]` of the demo's video."""
    judge = embedded_judge()
    story = parse_timeline(assets.DEMO_STORY, assets.DEMO_SECONDS)
    return judge.latents(judge.plan(method_named("head_forcing"), "profile", story, SEED))


def measure(latents: Tensor) -> dict[str, float]:
    """The mean change of what stands still, of 255, by the side of the decoder's frames."""
    decoder = assets.load_picture_decoder()
    small = decoder.autoencoder.decode(latents)
    still = still_wall(small)
    large = decoder.decode(latents)
    scene = changes(small, still) < CUT
    found = {}
    for video_frames in (small, large):
        change = changes(video_frames, still)[scene].mean()
        found[f"{video_frames.shape[1]} pixels"] = round(float(change), 3)
    return found


def changes(video_frames: Tensor, still: Tensor) -> Tensor:
    """Mean differences `[n - 1]`, of 255, of successive video frames `[n, h, w, 3]` where `still [n
    - 1, 64, 64]` is true."""
    size = video_frames.shape[1:3]
    mask = F.interpolate(still[:, None].float(), size=tuple(size))[:, 0]
    change = video_frames.diff(dim=0).abs().mean(-1) * mask
    return 255 * change.sum((1, 2)) / mask.sum((1, 2))


def still_wall(video_frames: Tensor) -> Tensor:
    """Where two successive video frames `[n, 64, 64, 3]` both show the wall, without the actor and
    its shadow, `[n - 1, 64, 64]`."""
    vivid = video_frames.amax(-1) - video_frames.amin(-1) > SATURATION
    near = F.max_pool2d(vivid[:, None].float(), 2 * SHADOW + 1, 1, SHADOW)[:, 0] > 0
    still = ~(near[1:] | near[:-1])
    still[:, int(FLOOR) :] = False
    return still
