"""The command that measures how a video changes over its length."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from ..drift.report import report_video
from ..errors import HeadForcingError
from ..files import check_writable, replacing
from ..timeline.timeline import parse_timeline
from .arguments import Result, read_text


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `report` to the command line."""
    sub = command("report", report, "Flicker, seams, drift, freezing and repetition of a video; no VBench scores.")
    sub.add_argument("video", type=Path)
    sub.add_argument("--plot", type=Path, help="PNG to write: the same as a picture")
    sub.add_argument("--theme", choices=["dark", "light"], default="light", help="of the picture (light)")
    sub.add_argument("--frames-per-block", type=int, help="latent frames; default: what the file says, else 3")
    sub.add_argument("--prompts", help="the timeline it was made with, or @FILE; default: what the file says")


def report(args: argparse.Namespace) -> Result:
    """Measure a video file; draw what was found."""
    if args.plot is not None and args.plot.suffix != ".png":
        raise HeadForcingError(f"the picture to write must end in .png, got {args.plot.name!r}")
    if args.frames_per_block is not None and args.frames_per_block < 1:
        raise HeadForcingError(f"--frames-per-block must be 1 or more, got {args.frames_per_block}")
    check_writable(args.plot)
    timeline = None if args.prompts is None else parse_timeline(read_text(args.prompts))
    prompts = None
    if timeline is not None:  # the file's own pictures a second and blocks decide where a time falls
        starts = (start for start, _ in timeline.requested)
        prompts = [(start, segment.text) for start, segment in zip(starts, timeline.segments, strict=True)]
    with tqdm(unit="picture", desc="measuring", disable=args.json, delay=1e-3) as bar:  # none before an error

        def on_progress(done: int, expected: int) -> None:
            bar.total = expected or None
            bar.update(done - bar.n)

        found = report_video(args.video, prompts, args.frames_per_block, on_progress)
    result = found.to_dict()
    text = found.text()
    if args.plot is not None:
        from ..plots.drift import drift_picture

        picture = drift_picture(found, args.theme)
        with replacing(args.plot) as temporary:
            picture.save(temporary)
        result["picture"], text = str(args.plot), f"{text}\npicture  {args.plot}"
    return {"text": text, "json": result}
