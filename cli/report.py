"""The commands that measure a video file, and that list, show and prune run folders."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path

from ..headforcing_core.errors import HeadForcingError, one_line
from ..headforcing_core.files import Fields, check_writable
from ..headforcing_core.page import save_plot
from ..headforcing_core.plan.describe import format_bytes
from ..headforcing_core.render.result import report_stored, report_text
from ..headforcing_core.report.drift import report_video
from ..headforcing_core.report.video_tags import read_tags
from ..headforcing_core.runs.stored import survey
from ..headforcing_core.runs.takes import disk_bytes, prune
from ..headforcing_core.timeline.clock import BlockClock
from ..headforcing_core.timeline.prompt import TimelineError
from ..headforcing_core.video.reader import open_video, video_stream
from ..headforcing_core.video.section import FrameTimes
from .arguments import Result
from .texts import read_text, translated
from .values import progress_bar


def report(args: Namespace) -> Result:
    """Measure a video file, and plot the metrics if `--plot` is given."""
    check_plot(args.plot)
    prompts = None if args.prompts is None else _prompts(args)
    with progress_bar("measuring", args.json, unit="frame") as on_progress:
        found = report_video(args.video, prompts, args.frames_per_block, on_progress)
    result = found.to_dict()
    lines = [found.text()]
    if args.plot is not None:
        from ..headforcing_core.report.drift_plot import drift_picture

        save_plot(args.plot, drift_picture(found, args.theme))
        result["picture"] = str(args.plot)
        lines.append(f"plot     {args.plot}")
    return Result(lines, result)


def _prompts(args: Namespace) -> list[tuple[float, str]]:
    """Start in seconds and text of each prompt of `--prompts`; one without times takes the length
    of the video.
    """
    text = read_text(args.prompts)
    with open_video(args.video) as container:
        stream = video_stream(container)
        fps = FrameTimes.of(args.video).fps
        tags = read_tags(container.metadata)
        seconds = stream.frames / fps
    clock = BlockClock(args.frames_per_block or tags.frames_per_block or 3, fps)
    pasted = translated(text, args.prompts, clock, seconds or None)
    try:
        timeline = pasted.timeline(seconds or None, clock=clock)
    except TimelineError:  # its times are of a longer video
        timeline = pasted.timeline(clock=clock)
    texts = [segment.text for segment in timeline.segments]
    return list(zip(timeline.requested, texts, strict=True))


def check_plot(path: Path | None) -> None:
    """Refuse a value of `--plot` that is no PNG, or cannot be written."""
    if path is not None and path.suffix != ".png":
        raise HeadForcingError(f"the name of the plot must end in .png, got {path.name!r}")
    check_writable(path)


def list_runs(args: Namespace) -> Result:
    """List stored videos, the last begun first."""
    videos, problems = survey(args.folder)
    found = []
    lines = []
    for video in videos:
        size = disk_bytes(video.folder)
        blocks = len(video.keys)
        done = video.finished
        first = one_line(video.about["prompts"][0])
        found.append({"name": video.name, "finished": done, "blocks": blocks, "bytes": size})
        lines.append(f"{video.name}  {done}/{blocks} blocks  {format_bytes(size)}  {first}")
    return _stored_result(args.folder, lines, "runs", found, problems=problems)


def list_run_takes(args: Namespace) -> Result:
    """Table of all takes, the last begun first."""
    takes, problems = survey(args.folder)
    found = []
    rows = [("take", "date", "length", "size", "name", "prompts")]
    for take in takes:
        size = one_line(take.size)
        story = one_line(take.story)
        rows.append((str(take.take.number), take.date, take.length, size, take.name, story))
        found.append(
            {
                "name": take.name,
                "take": take.take.number,
                "date": take.date,
                "seconds": round(take.seconds, 3),
                "finished_seconds": round(take.finished_seconds, 3),
                "blocks": len(take.keys),
                "finished": take.finished,
                "size": take.size,
                "seeds": take.about.get("seeds", []),
                "prompts": take.about["prompts"],
            }
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0  # the last column is not padded
    lines = []
    for row in rows if takes else ():
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    return _stored_result(args.folder, lines, "takes", found, problems=problems)


def show_run(args: Namespace) -> Result:
    """The run report of one stored video."""
    check_plot(args.plot)
    videos, problems = survey(args.folder)
    video = next((video for video in videos if args.name in (None, video.name)), None)
    if video is None:
        nothing = f"{args.folder} holds no video {args.name or ''!r}; `runs list` names them"
        raise HeadForcingError("; ".join([nothing, *problems]))
    report = report_stored(video)
    problems += video.reader.problems
    lines = [
        f"{video.name}: {video.finished} of {len(video.keys)} blocks",
        report_text(report, video.about),
        *_damage_lines(problems),
    ]
    result = {"name": video.name, **report.to_dict(), "problems": problems}
    if args.plot is not None:
        from ..headforcing_core.report.latents_plot import run_picture

        save_plot(args.plot, run_picture(report, args.theme, video.about.get("novelty_threshold")))
        lines.append(f"plot     {args.plot}")
        result["picture"] = str(args.plot)
    return Result(lines, result)


def prune_runs(args: Namespace) -> Result:
    """Remove old run folders; says what that freed, and which folders stayed and why."""
    if not (math.isfinite(args.keep_gb * 1e9) and args.keep_gb >= 0):
        raise HeadForcingError(
            f"--keep-gb must be 0 or more and a number of bytes, got {args.keep_gb}"
        )
    done = prune(args.folder, int(args.keep_gb * 1e9))
    removed = [folder.name for folder in done.removed]
    line = f"removed {len(removed)}, freed {format_bytes(done.freed)}"
    if removed:
        line += f": {', '.join(removed)}"
    lines = [line, *(f"stayed   {name}: {why}" for name, why in done.stayed.items())]
    found = {"removed": removed, "freed_bytes": done.freed, "stayed": done.stayed}
    return Result(lines, found, code=1 if done.failed else 0)


def _stored_result(
    folder: Path, lines: list[str], name: str, found: list[Fields], *, problems: list[str]
) -> Result:
    """The result of a command that lists stored videos."""
    lines = lines or [f"no runs in {folder}"]
    return Result([*lines, *_damage_lines(problems)], {name: found, "problems": problems})


def _damage_lines(problems: list[str]) -> list[str]:
    return [f"damaged  {problem}" for problem in problems]
