"""The command `compare`: one timeline rendered with several methods, side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..demo import assets
from ..errors import HeadForcingError
from ..files import claimed_folder, replacing
from ..names import COMPARED_METHODS
from ..render.comparison import (
    NOTE,
    Compared,
    Entry,
    entries_of,
    grid,
    left_out_notes,
    method_notes,
    names_all,
    table,
)
from ..render.plan import RenderPlan
from ..versions import versions
from ..video.sheets import side_by_side
from .arguments import Result
from .compared_video import ComparedVideo, check_videos, compared_source, run_compared
from .farms import check_roles, farm_of
from .source import Source


def compare(args: argparse.Namespace) -> Result:
    """Render, measure, and write `grid.mp4`, `picture.png`, `comparison.md` and `.json` beside the videos."""
    with claimed_folder(args.out):
        labels = assets.COMPARED if args.demo and args.methods is None else {}
        names = ",".join(args.methods or labels or COMPARED_METHODS)
        entries = [replace(entry, label=labels.get(entry.method, entry.label)) for entry in entries_of(names)]
        entries, left_out = fitting(args, entries) if names_all(names) else (entries, {})
        rows, about = run_entries(args, entries, [args.seed])
        made = grid(args.out / "grid.mp4", rows, fps=about["fps"], metadata=grid_tags(rows, about))
        prompts = list(zip(about["starts_seconds"], about["prompts"], strict=True))
        videos = [(row.entry.label, row.video) for row in rows]
        picture = side_by_side(args.out / "picture.png", videos, prompts, about["seconds"])
        notes, size = method_notes(rows), {"width": made.width, "height": made.height}
        found = {
            "about": about,
            "picture": str(picture),
            "grid": {"video": str(made.path), "video_frames": made.video_frames, **size},
            "rows": [row.to_dict() for row in rows],
            "notes": notes,
            "left_out": left_out,
        }
        text = "\n".join([table(rows), "", NOTE, "", *notes, *left_out_notes(left_out)])
        return write_result(args.out, "comparison", text, found, [f"grid     {made.path}", f"picture  {picture}"])


def grid_tags(rows: Sequence[Compared], about: dict[str, Any]) -> dict[str, str]:
    """The metadata tag of a grid's file, in the format of other videos' tags."""
    labels, shared = [row.entry.label for row in rows if row.seed == rows[0].seed], dict(about)
    del shared["seeds"]
    return {"head_forcing": json.dumps({"methods": labels, "seed": rows[0].seed, **shared})}


def write_result(
    folder: Path, name: str, text: str, found: dict[str, Any], files: Sequence[str] = (), indent: int | None = 1
) -> Result:
    """Write a result to a folder as Markdown and JSON, and return it."""
    paths = [folder / f"{name}.md", folder / f"{name}.json"]
    for path, content in zip(paths, (text + "\n", json.dumps(found, indent=indent)), strict=True):
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return {"text": "\n".join([text, "", *files, *(f"table    {path}" for path in paths)]), "json": found}


def fitting(args: argparse.Namespace, entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, str]]:
    """The entries that can be rendered with these weights and arguments, in order, and why the others cannot."""
    source, elsewhere = compared_source(args), farm_of(args).remote
    fit, left_out = [], {}
    for entry in entries:
        try:
            video = ComparedVideo.of(source, entry, args.seed, args.out)
            video.source.check_needs(video.plan, video.path, elsewhere=elsewhere)
        except HeadForcingError as error:
            left_out[entry.label] = str(error).removeprefix(f"{entry.label}: ")
        else:
            fit.append(entry)
    if not fit:
        raise HeadForcingError(f"none of the methods can be rendered: {next(iter(left_out.values()))}")
    return fit, left_out


def run_entries(
    args: argparse.Namespace, entries: Sequence[Entry], seeds: Sequence[int]
) -> tuple[list[Compared], dict[str, Any]]:
    """Render every entry with every seed, one after another; returns the videos and what they have in common.

    All are checked before the first is rendered.
    """
    source = compared_source(args)
    videos = {v.path.stem: v for v in (ComparedVideo.of(source, e, s, args.out) for e in entries for s in seeds)}
    farm = farm_of(args)
    check_videos(list(videos.values()), farm)
    embeds = source.encode()
    renders = {name: (video.source.job(video.plan, embeds), video.source) for name, video in videos.items()}
    check_roles(renders, farm)
    encodes, rows = any(video.plan.restart_frames for video in videos.values()), {}
    with farm, tqdm(total=len(videos), unit="video", disable=args.json or not farm.parallel) as bar:
        shared = [farm.share(embed) for embed in embeds]
        jobs = {name: video.job(args, shared, farm, encodes) for name, video in videos.items()}
        for name, row in run_compared(jobs, {name: job.setup for name, (job, _) in renders.items()}, farm):
            rows[name] = row
            bar.set_postfix_str(name, refresh=False)
            bar.update()
    about = _about(args, source, next(iter(videos.values())).plan)
    return [rows[name] for name in videos], {"seeds": list(seeds), **about}


def _about(args: argparse.Namespace, source: Source, plan: RenderPlan) -> dict[str, Any]:
    """Metadata that all videos of a comparison share; `plan` is the plan of one of them."""
    clock = plan.timeline.clock
    return {
        "prompts": [segment.text for segment in plan.timeline.segments],
        "starts_seconds": [frame / clock.fps for frame in plan.start_video_frames],
        "seconds": plan.video_frames / clock.fps,
        "fps": clock.fps,
        "frames_per_block": clock.frames_per_block,
        "size": f"{plan.width}x{plan.height}",
        "weights": source.info.path.name,
        "fingerprint": source.info.fingerprint,
        "lora": None if args.lora is None else args.lora.name,
        "model_family": source.options.model_family,
        "profile": str(args.profile or "bundled"),
        "inexact": source.machine.inexact,
        "dtype": str(source.machine.dtype).removeprefix("torch."),
        "device": str(source.machine.device),
        "versions": versions(),
    }
