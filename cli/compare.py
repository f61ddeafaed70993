"""The command `compare`: one timeline rendered with several methods, side by side."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..headforcing_core.demo import assets
from ..headforcing_core.distributed.workers import Workers
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields, claimed, claimed_folder, replacing
from ..headforcing_core.names import COMPARED_METHODS, versions
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import about_story
from ..headforcing_core.plan.resources import Needs, check_disk
from ..headforcing_core.render.comparison import (
    ComparisonRow,
    Entry,
    entries_of,
    grid,
    measure_video,
    method_notes,
    names_all,
    plan_entries,
    report_text,
)
from ..headforcing_core.render.result import INEXACT
from ..headforcing_core.video.sheets import side_by_side
from .arguments import Result
from .source import Source
from .values import changed, portable
from .workers import Embeds, make_all, render_one, workers_of

# for one of several workers: names of one method share a run folder, which one at a time writes
TURN_SECONDS = 86400.0


def compare(args: Namespace) -> Result:
    """Render, measure, and write `grid.mp4`, `picture.png`, `comparison.md` and `.json` beside the
    videos.
    """
    renamed = assets.COMPARED if args.demo and args.methods is None else {}
    names = ",".join(args.methods or renamed or COMPARED_METHODS)
    entries = [
        replace(entry, label=renamed.get(entry.method_name, entry.label))
        for entry in entries_of(names)
    ]
    source = compared_source(args)
    source.note_unlike_training(source.request.timeline)
    workers = workers_of(args)
    with claimed_folder(args.out):
        videos, left_out = _plan_videos(
            source, entries, args, skip=names_all(names), elsewhere=workers.remote
        )
        rows = _render_all(videos, args, workers)
        about = _about(args, source, videos[0].plan)
        shown = [row.entry.label for row in rows]
        tags = {"methods": shown, "seed": args.seed, **about}
        del tags["seeds"]
        made = grid(
            args.out / "grid.mp4",
            rows,
            fps=about["fps"],
            metadata={"head_forcing": json.dumps(tags)},
        )
        prompts = list(zip(about["starts_seconds"], about["prompts"], strict=True))
        tiles = [(row.entry.label, row.video) for row in rows]
        picture = side_by_side(args.out / "picture.png", tiles, prompts, about["seconds"])
        found = {
            "about": about,
            "picture": str(picture),
            "grid": {
                "video": str(made.path),
                "video_frames": made.video_frames,
                "width": made.width,
                "height": made.height,
            },
            "rows": [row.to_dict() for row in rows],
            "notes": method_notes(rows),
            "left_out": left_out,
        }
        return write_result(
            args.out,
            "comparison",
            text=report_text(rows, left_out),
            found=found,
            files=[f"grid     {made.path}", f"picture  {picture}"],
        )


def _about(args: Namespace, source: Source, plan: RenderPlan) -> Fields:
    """Metadata that all videos of a comparison share; `plan` is the plan of one of them."""
    clock = plan.timeline.clock
    story = about_story(plan)
    return {
        "seeds": [args.seed],
        "prompts": story["prompts"],
        "starts_seconds": story["starts_seconds"],
        "seconds": plan.video_frames / clock.fps,
        "fps": clock.fps,
        "frames_per_block": clock.frames_per_block,
        "size": plan.size_text,
        "weights": source.info.path.name,
        "fingerprint": source.info.fingerprint,
        "lora": None if args.lora is None else args.lora.name,
        "model_family": source.request.options.model_family,
        "profile": str(args.profile or "bundled"),
        INEXACT: source.machine.approximations,
        "dtype": str(source.machine.dtype).removeprefix("torch."),
        "device": str(source.machine.device),
        "versions": versions(),
    }


def write_result(
    folder: Path,
    name: str,
    *,
    text: str,
    found: Fields,
    files: Sequence[str] = (),
    indent: int | None = 1,
) -> Result:
    """Write a result to a folder as Markdown and JSON, and return it."""
    lines = [text, "", *files]
    for suffix, content in ((".md", f"{text}\n"), (".json", json.dumps(found, indent=indent))):
        path = folder / f"{name}{suffix}"
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
        lines.append(f"table    {path}")
    return Result(lines, found)


def compared_source(args: Namespace) -> Source:
    """The source of all videos of a comparison: the model of `--weights` with its VAE, else the
    embedded one.
    """
    if args.weights is not None and (args.prompts is None or args.vae is None):
        raise HeadForcingError(
            "--weights needs --prompts, and --vae, the Wan 2.1 VAE, to make videos"
        )
    return Source.of(args)


@dataclass(frozen=True)
class ComparedVideo:
    """A planned video of a comparison; `source` has the options of its entry."""

    source: Source
    plan: RenderPlan
    entry: Entry
    path: Path

    @classmethod
    def of(cls, common: Source, entry: Entry, seed: int, folder: Path) -> ComparedVideo:
        """Plan an entry's video."""
        source = common.with_request(options=entry.options(common.request.options, seed))
        return cls(source, source.request.plan(), entry, folder / f"{entry.key}-seed{seed}.mp4")

    def job(
        self,
        args: Namespace,
        embeds: Embeds,
        workers: Workers,
        encodes: bool = False,
    ) -> ComparedJob:
        """The video as a job; `args` have its prompts and its length."""
        request = self.source.request
        given = changed(
            portable(args),
            out=self.path.parent,
            runs=request.runs,
            seed=request.options.seed,
            patience=0.0,
        )
        if workers.parallel:  # whose workers show no bars
            given = changed(portable(given), json=True, patience=TURN_SECONDS)
        return ComparedJob(given, self.entry, embeds, encodes)


@dataclass(frozen=True)
class ComparedJob:
    """A video of a comparison as a worker gets it.

    `args` have its prompts and length, its folders and seed, and `patience` as for `render_one`, as
    `encodes`.
    """

    args: Namespace
    entry: Entry
    embeds: Embeds
    encodes: bool

    def planned(self) -> ComparedVideo:
        """The video, planned on the machine that makes it."""
        args = self.args
        return ComparedVideo.of(compared_source(args), self.entry, args.seed, args.out)


def _plan_videos(
    source: Source,
    entries: Sequence[Entry],
    args: Namespace,
    *,
    skip: bool,
    elsewhere: bool,
) -> tuple[list[ComparedVideo], dict[str, str]]:
    """Plan and check the videos of all entries; returns them and, with `skip`, why others are left
    out.
    """

    def plan_one(entry: Entry) -> tuple[ComparedVideo, Needs]:
        video = ComparedVideo.of(source, entry, args.seed, args.out)
        return video, video.source.check_needs(video.plan, video.path, elsewhere=elsewhere)

    planned, left_out = plan_entries(entries, plan_one, skip)
    check_disk([needs for _, needs in planned], source.request.runs, args.out)
    return [video for video, _ in planned], left_out


def _render_all(
    videos: Sequence[ComparedVideo], args: Namespace, workers: Workers
) -> list[ComparisonRow]:
    """Render and measure all videos; raises the error of the first that fails, with its name."""
    encodes = any(video.plan.vae_use for video in videos)
    planned = {video.path.stem: video for video in videos}
    outcomes = make_all(
        workers,
        render_compared,
        {name: video.source for name, video in planned.items()},
        lambda name, embeds: planned[name].job(args, embeds, workers, encodes),
        quiet=args.json,
    )
    rows = {outcome.name: outcome.get() for outcome in outcomes}
    return [rows[name] for name in planned]


def render_compared(job: ComparedJob) -> ComparisonRow:
    """Render and measure one video of a comparison; with `--runs` finished blocks are reused."""
    video = job.planned()
    # `generate --out` may name a file in a comparison's folder
    patience = job.args.patience
    with claimed(video.path, patience=patience):
        result = render_one(
            video.source, job.embeds, video.path, encodes=job.encodes, patience=patience
        )
    return measure_video(video.entry, result.plan, video.source.machine.dtype, result)
