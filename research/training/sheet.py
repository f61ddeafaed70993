"""A contact sheet of clips of the world of rooms, one row each: rendered, or through an autoencoder."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor

from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.parser import count
from ...headforcing_core.commands.paths import READ, WRITTEN
from ...headforcing_core.demo.rooms_autoencoder import load_rooms_autoencoder
from ...headforcing_core.files import replacing
from .data import training_clip

SCALE = 2


def sheet(videos: Sequence[Tensor], columns: int) -> Image.Image:
    """Evenly spaced video frames of each video in a row."""
    rows = []
    for video_frames in videos:
        chosen = torch.linspace(0, len(video_frames) - 1, columns).round().long()
        rows.append(torch.cat(list(video_frames[chosen]), 1))
    pixels = (torch.cat(rows) * 255).round().byte().numpy()
    image = Image.fromarray(pixels)
    return image.resize((image.width * SCALE, image.height * SCALE), Image.Resampling.NEAREST)


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `sheet` to the commands."""
    sub = command("sheet", write_sheet, "Draw clips of the world of rooms, one row each.")
    sub.add_argument("--out", type=WRITTEN, required=True, help="PNG to write")
    sub.add_argument("--clips", type=count, default=8)
    sub.add_argument("--columns", type=count, default=12)
    sub.add_argument("--seed", type=int, default=0, help="number of the first clip")
    sub.add_argument("--autoencoder", type=READ, help="show each clip also through it")


def write_sheet(args: argparse.Namespace) -> Result:
    """Write a contact sheet of clips."""
    torch.set_num_threads(1)
    autoencoder = load_rooms_autoencoder(args.autoencoder) if args.autoencoder else None
    videos = []
    for seed in range(args.seed, args.seed + args.clips):
        videos.append(training_clip(seed).video_frames)
        if autoencoder:
            videos.append(autoencoder.decode(autoencoder.encode(videos[-1])))
    with replacing(args.out) as partial:
        sheet(videos, args.columns).save(partial, format="PNG")
    return {"text": f"sheet    {args.out}", "json": {"sheet": str(args.out)}}
