"""The command `compare`: one timeline rendered with several methods, side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from ..demo import assets
from ..distributed.farm import Farm, Outcome, Shared
from ..errors import HeadForcingError
from ..files import claimed, claimed_folder, replacing
from ..names import COMPARED_METHODS, versions
from ..render.comparison import (
    Compared,
    Entry,
    entries_of,
    grid,
    measured,
    method_notes,
    names_all,
    plan_entries,
    report_text,
)
from ..render.plan import RenderPlan
from ..render.resources import Needs, check_disk, in_turn
from ..video.sheets import side_by_side
from .arguments import Result
from .farms import PATIENCE_SECONDS, check_roles, farm_of, render_one
from .source import Source
from .values import changed, portable


def compare(args: argparse.Namespace) -> Result:
    """Render, measure, and write `grid.mp4`, `picture.png`, `comparison.md` and `.json` beside the videos."""
    labels = assets.COMPARED if args.demo and args.methods is None else {}
    names = ",".join(args.methods or labels or COMPARED_METHODS)
    entries = [replace(entry, label=labels.get(entry.method, entry.label)) for entry in entries_of(names)]
    source, farm = compared_source(args), farm_of(args)
    with claimed_folder(args.out):
        videos, left_out = plan_videos(source, entries, args, farm, skip=names_all(names))
        rows = _render_all(source, videos, args, farm)
        about = _about(args, source, videos[0].plan)
        shown = [row.entry.label for row in rows]
        shared = {name: value for name, value in about.items() if name != "seeds"}
        tags = {"head_forcing": json.dumps({"methods": shown, "seed": args.seed, **shared})}
        made = grid(args.out / "grid.mp4", rows, fps=about["fps"], metadata=tags)
        prompts = list(zip(about["starts_seconds"], about["prompts"], strict=True))
        tiles = list(zip(shown, (row.video for row in rows), strict=True))
        picture = side_by_side(args.out / "picture.png", tiles, prompts, about["seconds"])
        notes, size = method_notes(rows), {"width": made.width, "height": made.height}
        found = {
            "about": about,
            "picture": str(picture),
            "grid": {"video": str(made.path), "video_frames": made.video_frames, **size},
            "rows": [row.to_dict() for row in rows],
            "notes": notes,
            "left_out": left_out,
        }
        return write_result(
            args.out, "comparison", report_text(rows, left_out), found, [f"grid     {made.path}", f"picture  {picture}"]
        )


def _about(args: argparse.Namespace, source: Source, plan: RenderPlan) -> dict[str, Any]:
    """Metadata that all videos of a comparison share; `plan` is the plan of one of them."""
    clock = plan.timeline.clock
    return {
        "seeds": [args.seed],
        "prompts": [segment.text for segment in plan.timeline.segments],
        "starts_seconds": [frame / clock.fps for frame in plan.start_video_frames],
        "seconds": plan.video_frames / clock.fps,
        "fps": clock.fps,
        "frames_per_block": clock.frames_per_block,
        "size": f"{plan.width}x{plan.height}",
        "weights": source.info.path.name,
        "fingerprint": source.info.fingerprint,
        "lora": None if args.lora is None else args.lora.name,
        "model_family": source.request.options.model_family,
        "profile": str(args.profile or "bundled"),
        "inexact": source.machine.inexact,
        "dtype": str(source.machine.dtype).removeprefix("torch."),
        "device": str(source.machine.device),
        "versions": versions(),
    }


def write_result(
    folder: Path, name: str, text: str, found: dict[str, Any], files: Sequence[str] = (), indent: int | None = 1
) -> Result:
    """Write a result to a folder as Markdown and JSON, and return it."""
    paths = [folder / f"{name}.md", folder / f"{name}.json"]
    for path, content in zip(paths, (text + "\n", json.dumps(found, indent=indent)), strict=True):
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return {"text": "\n".join([text, "", *files, *(f"table    {path}" for path in paths)]), "json": found}


def compared_source(args: argparse.Namespace) -> Source:
    """The source of all videos of a comparison: the model of `--weights` with its VAE, else the embedded one."""
    if args.weights is not None and (args.prompts is None or args.vae is None):
        raise HeadForcingError("--weights needs --prompts, and --vae, the Wan 2.1 VAE, to make videos")
    return Source.of(args)


@dataclass(frozen=True)
class ComparedVideo:
    """A planned video of a comparison; `source` has the options of its entry."""

    entry: Entry
    source: Source
    plan: RenderPlan
    path: Path

    @classmethod
    def of(cls, common: Source, entry: Entry, seed: int, folder: Path) -> ComparedVideo:
        """Plan an entry's video."""
        source = common.with_request(options=entry.options(common.request.options, seed))
        return cls(entry, source, entry.planned(source.request.plan), folder / f"{entry.key}-seed{seed}.mp4")

    def job(
        self, args: argparse.Namespace, embeds: Mapping[str, Shared[Tensor]], farm: Farm, encodes: bool = False
    ) -> ComparedJob:
        """The video as a job; `args` have its prompts and its length."""
        given = changed(args, out=self.path.parent, runs=self.source.request.runs)
        if farm.parallel:
            given = changed(portable(given), json=True)  # workers show no bars
        seed = self.source.request.options.seed
        return ComparedJob(
            given, self.entry, seed, embeds=embeds, encodes=encodes, video=None if farm.parallel else self
        )


@dataclass(frozen=True)
class ComparedJob:
    """A video of a comparison as a worker gets it; `video` only where the worker is this process.

    `args` have its prompts and length, and its folders; `encodes` as for `render_one`.
    """

    args: argparse.Namespace
    entry: Entry
    seed: int
    embeds: Mapping[str, Shared[Tensor]]
    encodes: bool
    video: ComparedVideo | None


def plan_videos(
    source: Source, entries: Sequence[Entry], args: argparse.Namespace, farm: Farm, skip: bool = False
) -> tuple[list[ComparedVideo], dict[str, str]]:
    """Plan and check the videos of all entries; returns them and, with `skip`, why others are left out."""

    def plan_one(entry: Entry) -> tuple[ComparedVideo, Needs]:
        video = ComparedVideo.of(source, entry, args.seed, args.out)
        return video, video.source.check_needs(video.plan, video.path, elsewhere=farm.remote)

    planned, left_out = plan_entries(entries, plan_one, skip)
    check_disk(in_turn([needs for _, needs in planned]), source.request.runs, args.out)
    return [video for video, _ in planned], left_out


def _render_all(
    source: Source, videos: Sequence[ComparedVideo], args: argparse.Namespace, farm: Farm
) -> list[Compared]:
    """Render and measure all videos."""
    embeds = source.encode()
    renders = {video.path.stem: video.source.job(video.plan, embeds) for video in videos}
    check_roles(renders, farm)
    encodes, rows = any(video.plan.restart_frames for video in videos), {}
    with farm, tqdm(total=len(videos), unit="video", disable=args.json or not farm.parallel) as bar:
        shared = {text: farm.share(embed) for text, embed in embeds.items()}
        jobs = {video.path.stem: video.job(args, shared, farm, encodes) for video in videos}
        for name, row in run_compared(jobs, {name: job.setup for name, job in renders.items()}, farm):
            rows[name] = row
            bar.set_postfix_str(name, refresh=False)
            bar.update()
    return [rows[name] for name in jobs]


def run_compared(
    jobs: Mapping[str, ComparedJob], setups: Mapping[str, str], farm: Farm
) -> Iterator[tuple[str, Compared]]:
    """Render jobs by name on a farm; `setups` are those of their run folders.

    Only one process at a time can write to a run folder, so all videos of a setup are made by one worker. Raises the
    error of the first video that fails, with its name, after those that its worker had made before.
    """
    turns: dict[str, dict[str, ComparedJob]] = {}
    for name, job in jobs.items():
        shares = farm.parallel and job.args.runs is not None
        turns.setdefault(setups[name] if shares else name, {})[name] = job
    named = {
        next(iter(turn)) + (f" and {len(turn) - 1} more" if len(turn) > 1 else ""): turn for turn in turns.values()
    }
    for turn in farm.run(render_in_turn, named):
        for outcome in turn.get():
            yield outcome.name, outcome.get()


def render_in_turn(jobs: Mapping[str, ComparedJob]) -> list[Outcome[Compared]]:
    """Render and measure some videos of a comparison, one after the other until one fails; in any process.

    An error that nobody expected is not caught: a farm reports it with its traceback.
    """
    made: list[Outcome[Compared]] = []
    for name, job in jobs.items():
        try:
            made.append(Outcome(name, render_compared(job)))
        except (HeadForcingError, OSError) as error:
            return [*made, Outcome(name, error=error)]
    return made


def planned_video(job: ComparedJob) -> ComparedVideo:
    """The video of a job, planned on the machine that makes it."""
    return job.video or ComparedVideo.of(compared_source(job.args), job.entry, job.seed, job.args.out)


def render_compared(job: ComparedJob) -> Compared:
    """Render and measure one video of a comparison; with `--runs` finished blocks are reused."""
    video, patience = planned_video(job), 0.0 if job.video else PATIENCE_SECONDS
    with claimed(video.path, patience=patience):  # `generate --out` may name a file in a comparison's folder
        render, result = render_one(
            video.source, video.plan, job.embeds, video.path, encodes=job.encodes, patience=patience
        )
    return measured(video.entry, render.plan, video.source.machine.dtype, result)
