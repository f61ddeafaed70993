"""The command `report`: drift metrics of a video file; and the arguments of metrics with models of their own."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from ..errors import HeadForcingError
from ..report.drift import report_video
from ..report.learned.base import Panel
from ..report.learned.registry import load_panel
from ..timeline.timeline import parse_timeline
from .arguments import Result
from .values import Kept, check_plot, pick_device, read_text, save_plot

_panels = Kept()


def panel_of(args: argparse.Namespace, device_name: str | None = None) -> Panel | None:
    """The metrics that the arguments ask for, loaded once in a process; None if they ask for none.

    `device_name` replaces that of the arguments.
    """
    given = vars(args)
    folder: Path | None = given.get("metric_models")
    if folder is None:
        for name in ("metrics", "aesthetic_head"):
            if given.get(name):
                raise HeadForcingError(f"--{name.replace('_', '-')} needs --metric-models FOLDER")
        return None
    if not folder.is_dir():
        raise HeadForcingError(f"--metric-models must name a folder, got {str(folder)!r}")
    device = pick_device(device_name or args.metric_device, "--metric-device")
    chosen = folder, args.metrics, device, args.aesthetic_head
    return _panels.get((folder.absolute(), *map(str, chosen)), lambda: load_panel(*chosen))


def report(args: argparse.Namespace) -> Result:
    """Measure a video file, and plot the metrics if `--plot` is given."""
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
