"""The command `report`: drift metrics of a video file."""

from __future__ import annotations

import argparse

from tqdm import tqdm

from ..errors import HeadForcingError
from ..files import check_writable, replacing
from ..report.drift import report_video
from ..timeline.timeline import parse_timeline
from .arguments import Result, read_text
from .metrics import add_metric_arguments, panel_of
from .parser import Commands
from .paths import READ, TEXT, WRITTEN


def add_parsers(command: Commands) -> None:
    """Add `report` to the command line."""
    sub = command("report", report)
    sub.add_argument("video", type=READ)
    sub.add_argument("--plot", type=WRITTEN, help="PNG to write: the metrics as a plot")
    sub.add_argument("--theme", choices=["dark", "light"], default="light", help="of the plot (light)")
    sub.add_argument("--frames-per-block", type=int, help="latent frames; default: read from the file, else 3")
    sub.add_argument(
        "--prompts", type=TEXT, help="the timeline it was made with, or @FILE; default: read from the file"
    )
    add_metric_arguments(sub)


def report(args: argparse.Namespace) -> Result:
    """Measure a video file, and plot the metrics if `--plot` is given."""
    if args.plot is not None and args.plot.suffix != ".png":
        raise HeadForcingError(f"the name of the plot must end in .png, got {args.plot.name!r}")
    if args.frames_per_block is not None and args.frames_per_block < 1:
        raise HeadForcingError(f"--frames-per-block must be 1 or more, got {args.frames_per_block}")
    check_writable(args.plot)
    panel = panel_of(args)
    timeline = None if args.prompts is None else parse_timeline(read_text(args.prompts))
    prompts = None
    if timeline is not None:  # a time is rounded to a block with the file's own frame rate and block length
        starts = (start for start, _ in timeline.requested)
        prompts = [(start, segment.text) for start, segment in zip(starts, timeline.segments, strict=True)]
    # the delay keeps the bar from being printed before an error
    with tqdm(unit="frame", desc="measuring", disable=args.json, delay=1e-3) as bar:

        def on_progress(done: int, expected: int) -> None:
            bar.total = expected or None
            bar.update(done - bar.n)

        found = report_video(args.video, prompts, args.frames_per_block, on_progress, panel=panel)
    result = found.to_dict()
    text = found.text()
    if args.plot is not None:
        from ..report.drift_plot import drift_picture

        picture = drift_picture(found, args.theme)
        with replacing(args.plot) as temporary:
            picture.save(temporary)
        result["picture"], text = str(args.plot), f"{text}\nplot     {args.plot}"
    return {"text": text, "json": result}
