"""The arguments of what a video begins with."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import HeadForcingError
from ..render.options import RenderOptions
from ..render.start import DEFAULT_START_SECONDS, Start, image_frames
from ..video.section import PARTS
from .paths import READ


def add_start_arguments(sub: argparse.ArgumentParser) -> Any:
    """Add what a video can begin with; returns the group of which only one can be given."""
    start = sub.add_mutually_exclusive_group()
    start.add_argument(
        "--start-image",
        type=READ,
        metavar="FILE",
        help="image that the video begins with, for framewise models, LongLive 2.0 and Self Gradient Forcing; cropped "
        "around the middle and scaled to the size",
    )
    start.add_argument(
        "--start-video", type=READ, metavar="FILE", help="video of any size and frame rate to go on from, without sound"
    )
    sub.add_argument("--start-part", choices=PARTS, help="which part of --start-video is taken (last)")
    sub.add_argument(
        "--start-seconds",
        type=float,
        help=f"how much of it is taken at most, in whole blocks ({DEFAULT_START_SECONDS:g})",
    )
    return start


def chosen_start(args: argparse.Namespace, options: RenderOptions) -> Start | None:
    """The video frames of `--start-image` or `--start-video`, None if neither is given or the command has neither."""
    image, video, part, seconds = (vars(args).get(f"start_{name}") for name in ("image", "video", "part", "seconds"))
    size = options.width, options.height
    if video is None and (part is not None or seconds is not None):
        raise HeadForcingError("--start-part and --start-seconds choose a section of --start-video FILE; give one")
    if image is not None:
        instead = "give a short video with --start-video"
        frames = image_frames(options.cache_policy, options.schedule, options.model_family, instead)
        return Start.image_file(image, size, frames)
    if video is None:
        return None
    seconds = DEFAULT_START_SECONDS if seconds is None else seconds
    schedule = options.schedule
    return Start.video(video, size, seconds, part or "last", schedule.frames_per_block, fps=schedule.latents.fps)
