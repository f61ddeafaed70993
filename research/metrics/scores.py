"""Scores of finished videos: the drift report's numbers and those of metrics with models; the
command `metrics`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...cli.arguments import Result
from ...cli.parser import READ, folder_read
from ...cli.values import pick_device
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.plan.describe import markdown_table
from ...headforcing_core.report.drift import DriftReport, read_frames, report_video
from ...headforcing_core.report.metrics import METRICS as DRIFT_METRICS
from ...headforcing_core.video.reader import open_video
from ..statistics import Numbers
from .base import Panel, VideoFacts
from .registry import METRICS, load_panel


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = (
        "Score finished videos with published models (DINO, CLIP, RAFT) beside the numbers of the "
        "drift report."
    )
    sub = command("metrics", score_videos, text)
    sub.add_argument(
        "videos", type=READ, nargs="+", metavar="VIDEO", help="to score; several are compared"
    )
    add_metric_arguments(sub, "--models", required=True)


def add_metric_arguments(sub: argparse.ArgumentParser, *names: str, required: bool = False) -> None:
    """Add the arguments of metrics that have models of their own; `names` are other ones for
    `--metric-models`.
    """
    models = folder_read("*", "*/*")
    text = "folder with their models, see research/metrics/METRICS.md; nothing is downloaded"
    sub.add_argument(
        "--metric-models", *names, type=models, required=required, metavar="FOLDER", help=text
    )
    text = f"which of them: {', '.join(METRICS)} (those that have their files in the folder)"
    sub.add_argument(
        "--metrics", choices=METRICS, nargs="+", default=(), metavar="METRIC", help=text
    )
    text = "LAION's linear head, if not in the folder"
    sub.add_argument("--aesthetic-head", type=READ, metavar="FILE", help=text)
    sub.add_argument(
        "--metric-device", default="auto", help="where they run: auto, cpu, cuda, mps (auto)"
    )


def panel_of(args: argparse.Namespace) -> Panel | None:
    """The metrics that the arguments of `add_metric_arguments` ask for, loaded once in a process;
    None for none.
    """
    folder: Path | None = args.metric_models
    if folder is None:
        if args.metrics:
            raise HeadForcingError("--metrics needs --metric-models FOLDER")
        if args.aesthetic_head:
            raise HeadForcingError("--aesthetic-head needs --metric-models FOLDER")
        return None
    if not folder.is_dir():
        raise HeadForcingError(f"--metric-models must name a folder, got {str(folder)!r}")
    device = str(pick_device(args.metric_device, "--metric-device"))
    return _panel(folder.absolute(), tuple(args.metrics), device, args.aesthetic_head)


@lru_cache(maxsize=1)
def _panel(folder: Path, names: tuple[str, ...], device: str, aesthetic_head: Path | None) -> Panel:
    return load_panel(folder, names, device, aesthetic_head)


@dataclass(frozen=True)
class VideoScores:
    """The numbers of one video: of its drift report, and of metrics with models, `whole` and of the
    first seconds.
    """

    report: DriftReport
    whole: Numbers
    first: Numbers

    def to_dict(self) -> dict[str, Any]:
        """The drift report for JSON, with the numbers of all metrics."""
        found = self.report.to_dict()
        found["whole"] = found["whole"] | self.whole
        found["first"] = found["first"] | self.first
        return found


def score_video(path: Path, panel: Panel | None, quiet: bool = True) -> VideoScores:
    """Measure a video file, with the metrics of a panel, too; raises HeadForcingError as
    `report_video`.
    """
    report = report_video(path)
    if panel is None:
        return VideoScores(report, {}, {})
    measurement = panel.begin(VideoFacts(report.fps, report.prompts), report.first_seconds)
    with open_video(path) as container:
        for video_frame in tqdm(
            read_frames(container, path.name), path.name, report.video_frames, disable=quiet
        ):
            measurement.add(video_frame)
    return VideoScores(report, measurement.numbers(), measurement.first_numbers())


def score_videos(args: argparse.Namespace) -> Result:
    """Score videos and print one table, a column for each of them."""
    panel = panel_of(args)
    assert panel is not None  # its folder is required
    scores = {str(path): score_video(path, panel, quiet=args.json) for path in args.videos}
    lines = [each.report.heading() for each in scores.values()]
    lines += ["", *_table(scores, panel), ""]
    lines += ["of the whole video (of its first 5 s); these are not VBench scores"]
    lines += [f"not measured: {sentence}" for sentence in panel.left_out]
    videos = {name: each.to_dict() for name, each in scores.items()}
    return Result(lines, {"videos": videos, "left_out": list(panel.left_out)})


def _table(scores: Mapping[str, VideoScores], panel: Panel) -> Sequence[str]:
    """A Markdown table with a row for each number that any video has."""
    rows = []
    for metric in panel.metrics:
        for column in metric.columns:
            if any(column.key in each.whole for each in scores.values()):
                cells = [
                    _cell(column.form, column.key, each.whole, each.first)
                    for each in scores.values()
                ]
                rows.append([column.name, *cells])
    for drift in DRIFT_METRICS:
        cells = [
            _cell(drift.form.format, drift.key, each.report.whole, each.report.first)
            for each in scores.values()
        ]
        rows.append([drift.name, *cells])
    return markdown_table(["metric", *scores], rows).splitlines()


def _cell(form: Callable[[float], str], key: str, whole: Numbers, first: Numbers) -> str:
    """A number of the whole video, and in brackets of its first seconds."""
    found = []
    for numbers in (whole, first):
        value = numbers.get(key)
        found.append("-" if value is None else form(value))
    return f"{found[0]} ({found[1]})"
