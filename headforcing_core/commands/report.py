"""The command `report`: drift metrics of a video file."""

from __future__ import annotations

import argparse

from tqdm import tqdm

from ..errors import HeadForcingError
from ..report.drift import report_video
from ..timeline.timeline import parse_timeline
from .arguments import Result
from .metrics import panel_of
from .values import check_plot, read_text, save_plot


def report(args: argparse.Namespace) -> Result:
    """Measure a video file, and plot the metrics if `--plot` is given."""
    if args.frames_per_block is not None and args.frames_per_block < 1:
        raise HeadForcingError(f"--frames-per-block must be 1 or more, got {args.frames_per_block}")
    check_plot(args.plot)
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

        save_plot(args.plot, drift_picture(found, args.theme))
        result["picture"], text = str(args.plot), f"{text}\nplot     {args.plot}"
    return {"text": text, "json": result}
