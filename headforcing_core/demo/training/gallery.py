"""A picture of what the embedded model makes: one row per prompt, made by the sampler that the pack ships.

python -m headforcing.headforcing_core.demo.gallery --out gallery.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from ...files import replacing
from ...methods.registry import method_policy
from ...timeline.timeline import parse_timeline
from ...video.contact_sheet import fitted, font
from ..judge import Judge

PROMPTS = (
    "a red ball bouncing on a teal floor",
    "a yellow star gliding on a navy checkerboard",
    "a cyan ring circling on a maroon stripes",
    "a pink square bouncing on a olive floor",
    "a green triangle gliding on a black checkerboard",
    "a orange ball gliding on a brown stripes panning right",
)
SECONDS, COLUMNS, SCALE = 15.0, 10, 2
MARGIN, GAP, TITLE = 16, 4, 24
BACKGROUND, BRIGHT = (24, 26, 31), (240, 240, 244)


def gallery(judge: Judge, seed: int) -> Image.Image:
    """Evenly spaced pictures of 15 seconds, three times the trained length, of each prompt."""
    side = 64 * SCALE
    row_height = TITLE + side + GAP
    size = 2 * MARGIN + COLUMNS * (side + GAP) - GAP, 2 * MARGIN + len(PROMPTS) * row_height
    sheet = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for row, prompt in enumerate(PROMPTS):
        plan = judge.plan(method_policy("head_forcing"), "profile", parse_timeline(prompt, SECONDS), seed)
        video_frames = judge.autoencoder.decode(judge.latents(plan, seed))
        top = MARGIN + row * row_height
        draw.text((MARGIN, top), fitted(prompt, 15, size[0] - 2 * MARGIN), BRIGHT, font(15))
        chosen = torch.linspace(0, len(video_frames) - 1, COLUMNS).round().long()
        for column, picture in enumerate((video_frames[chosen] * 255).round().byte().numpy()):
            tile = Image.fromarray(picture).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (MARGIN + column * (side + GAP), top + TITLE))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with replacing(args.out) as partial:
        gallery(Judge(), args.seed).save(partial, format="PNG")


if __name__ == "__main__":
    main()
