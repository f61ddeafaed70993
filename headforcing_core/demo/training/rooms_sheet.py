"""A contact sheet of clips of the world of rooms, one row each: rendered, or through an autoencoder.

python -m headforcing.headforcing_core.demo.training.rooms_sheet --out sheet.png [--autoencoder FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ...files import replacing
from ..rooms_autoencoder import load_rooms_autoencoder
from .rooms_data import training_clip

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--columns", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0, help="number of the first clip")
    parser.add_argument("--autoencoder", type=Path, help="show each clip also through it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    autoencoder = load_rooms_autoencoder(args.autoencoder) if args.autoencoder else None
    videos = []
    for seed in range(args.seed, args.seed + args.clips):
        videos.append(training_clip(seed).video_frames)
        if autoencoder:
            videos.append(autoencoder.decode(autoencoder.encode(videos[-1])))
    with replacing(args.out) as partial:
        sheet(videos, args.columns).save(partial, format="PNG")


if __name__ == "__main__":
    main()
