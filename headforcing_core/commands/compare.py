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
from ..files import claimed_folder, replacing
from ..render.comparison import (
    ALL,
    NOTE,
    Compared,
    Entry,
    entries_of,
    grid,
    left_out_notes,
    measured,
    method_notes,
    names_all,
    table,
)
from ..render.plan import RenderPlan
from ..render.resources import check_disk, in_turn
from ..report.learned.base import Panel
from ..versions import versions
from ..video.sheets import side_by_side
from .arguments import (
    Result,
    add_file_arguments,
    add_render_arguments,
    portable,
)
from .farm_arguments import add_farm_arguments, farm_of
from .kept import PATIENCE_SECONDS, check_roles, claimed_after, has_model, kept_model
from .loaded import LoadedModel
from .metrics import panel_of
from .parser import Commands
from .paths import READ, TEXT, PathType, folder_written
from .source import Source

RENDERED_FILES = ("*-seed*.mp4", "*-seed*.part.mp4")
COMPARED_FILES = ("grid.mp4", "picture.png", "comparison.md", "comparison.json", *RENDERED_FILES)
DEFAULT_METHODS = ("head_forcing", "self_forcing_window_21", "infinity_rope")


def add_parsers(command: Commands) -> None:
    """Add `compare` to the command line."""
    sub = command("compare", compare, "Render one timeline with several methods: videos side by side, one table.")
    sub.add_argument(
        "--methods",
        nargs="+",
        default=None,
        help=f"names, as of --method; {ALL}: every published one that the weights allow ({' '.join(DEFAULT_METHODS)})",
    )
    add_source_arguments(sub, folder_written(*COMPARED_FILES))


def add_source_arguments(sub: argparse.ArgumentParser, out: PathType, required: bool = True, demo: bool = True) -> None:
    """The model, the timeline and the folder `out` of a comparison; without `demo` the embedded model is no choice."""
    hidden = None if demo else argparse.SUPPRESS  # the option is read and refused with a sentence
    source = sub.add_mutually_exclusive_group(required=required)
    source.add_argument("--demo", action="store_true", help=hidden or "the embedded toy model")
    source.add_argument("--weights", type=READ, help="checkpoint, .safetensors or .pt; needs --prompts and --vae")
    default = "; default with --demo: its story" if demo else ""
    sub.add_argument("--prompts", type=TEXT, help=f"a timeline or one prompt, or @FILE{default}")
    sub.add_argument("--seconds", type=float, default=0.0, help="seconds; default: the timeline's length")
    sub.add_argument("--out", type=out, default=Path("output/compare"), help="folder (output/compare)")
    pixels = "with --demo: every pixel becomes a square of this side (6)"
    sub.add_argument("--scale", type=int, default=6, help=hidden or pixels)
    add_file_arguments(sub)
    add_render_arguments(sub)
    add_farm_arguments(sub)


def compare(args: argparse.Namespace) -> Result:
    """Render, measure, and write `grid.mp4`, `picture.png`, `comparison.md` and `.json` beside the videos."""
    with claimed_folder(args.out):
        labels = assets.COMPARED if args.demo and args.methods is None else {}
        names = ",".join(args.methods or labels or DEFAULT_METHODS)
        entries = [replace(entry, label=labels.get(entry.method, entry.label)) for entry in entries_of(names)]
        entries, left_out = fitting(args, entries) if names_all(names) else (entries, {})
        rows, about = run_entries(args, entries, [args.seed])
        made = grid(args.out / "grid.mp4", rows, metadata=grid_tags(rows, about))
        prompts = list(zip(about["starts_seconds"], about["prompts"], strict=True))
        videos = [(row.entry.label, row.video) for row in rows]
        picture = side_by_side(args.out / "picture.png", videos, prompts, about["seconds"])
        notes = method_notes(rows)
        found = {
            "about": about,
            "picture": str(picture),
            "grid": {
                "video": str(made.path),
                "pictures": made.video_frames,
                "width": made.width,
                "height": made.height,
            },
            "rows": [row.to_dict() for row in rows],
            "notes": notes,
            "left_out": left_out,
        }
        text = "\n".join([table(rows), "", NOTE, "", *notes, *left_out_notes(left_out)])
        return written(args.out, "comparison", text, found, [f"grid     {made.path}", f"picture  {picture}"])


def grid_tags(rows: Sequence[Compared], about: dict[str, Any]) -> dict[str, str]:
    """The metadata tag of a grid's file, in the format of other videos' tags."""
    labels, shared = [row.entry.label for row in rows if row.seed == rows[0].seed], dict(about)
    del shared["seeds"]
    return {"head_forcing": json.dumps({"methods": labels, "seed": rows[0].seed, **shared})}


def written(
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
    check_prompts(args)
    source = Source.demo(args) if args.demo else source_of_files(args, args.prompts)
    elsewhere = farm_of(args).remote
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
    check_prompts(args)
    source = compared_source(args, args.prompts)
    videos = {v.path.stem: v for v in (ComparedVideo.of(source, e, s, args.out) for e in entries for s in seeds)}
    farm = farm_of(args)
    check_videos(list(videos.values()), farm)
    rows = render_all(videos, source.encode(), args, farm)
    return rows, {"seeds": list(seeds), **_about(args, source, next(iter(videos.values())).plan)}


def render_all(
    videos: Mapping[str, ComparedVideo], embeds: Sequence[Tensor], args: argparse.Namespace, farm: Farm
) -> list[Compared]:
    """Render videos of one timeline, by name; the measurements in the same order."""
    jobs = {name: (video.source.job(video.plan, embeds), video.source) for name, video in videos.items()}
    check_roles(jobs, farm)
    encodes, rows = any(video.plan.restart_frames for video in videos.values()), {}
    with farm, tqdm(total=len(videos), unit="video", disable=args.json or not farm.parallel) as bar:
        shared = [farm.share(embed) for embed in embeds]
        todo = {name: video.job(args, args.prompts, shared, encodes, farm) for name, video in videos.items()}
        for name, row in run_compared(todo, {name: job.setup for name, (job, _) in jobs.items()}, farm):
            rows[name] = row
            bar.set_postfix_str(name, refresh=False)
            bar.update()
    return [rows[name] for name in videos]


def run_compared(
    jobs: Mapping[str, ComparedJob], setups: Mapping[str, str], farm: Farm
) -> Iterator[tuple[str, Compared]]:
    """Render jobs by name on a farm; `setups` are those of their run folders.

    Run folders are those of a render without a farm. Only one process at a time can write to one, so all videos of a
    setup are made by one worker, one after the other. Raises the error of the first video that fails, with its name,
    after those that its worker had made before.
    """
    turns: dict[str, dict[str, ComparedJob]] = {}
    for name, job in jobs.items():
        shares = farm.parallel and job.runs is not None
        turns.setdefault(setups[name] if shares else name, {})[name] = job
    for turn in farm.run(render_in_turn, {_turn_name(list(turn)): turn for turn in turns.values()}):
        for outcome in turn.get():
            yield outcome.name, outcome.get()


def _turn_name(names: Sequence[str]) -> str:
    """The name of a turn: that of its first video, which no other turn has."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def compared_source(args: argparse.Namespace, prompts: str | None) -> Source:
    """What all videos of a comparison have in common."""
    return Source.demo(args) if args.demo else source_of_files(args, prompts or "")


def check_prompts(args: argparse.Namespace) -> None:
    if not args.demo and args.prompts is None:
        raise HeadForcingError("--weights needs --prompts, and --vae, the Wan 2.1 VAE, to make videos")


def source_of_files(args: argparse.Namespace, prompts: str) -> Source:
    """The model of `--weights` with its VAE."""
    if args.vae is None:
        raise HeadForcingError("--weights needs --prompts, and --vae, the Wan 2.1 VAE, to make videos")
    return Source.of_files(args, prompts)


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
        source = replace(common, options=entry.options(common.options, seed))
        return cls(entry, source, entry.planned(source.plan), folder / f"{entry.key}-seed{seed}.mp4")

    def job(
        self,
        args: argparse.Namespace,
        prompts: str | None,
        embeds: Sequence[Shared[Tensor]],
        encodes: bool,
        farm: Farm,
    ) -> ComparedJob:
        """The video as a job; its source was made from `args`, may have another length, and has these `prompts`."""
        options, runs, folder = self.source.options, self.source.machine.runs, self.path.parent
        if farm.parallel:
            args = portable(args, prompts)
            args.json = True  # workers show no bars
            prompts, runs, folder = args.prompts, runs and runs.absolute(), folder.absolute()
        return ComparedJob(
            args,
            prompts,
            self.entry,
            options.seed,
            tuple(embeds),
            encodes,
            folder,
            runs,
            options.seconds,
            None if farm.parallel else self,
        )

    def render(
        self, loaded: LoadedModel, embeds: Sequence[Tensor], patience: float = 0.0, panel: Panel | None = None
    ) -> Compared:
        """Render and measure the video; with `--runs` its finished blocks are reused."""
        source = self.source
        plan = source.job(self.plan, embeds).recall_roles(source.plan)
        with claimed_after(patience, self.path):  # `generate --out` may name a file in a comparison's folder
            result = loaded.render(replace(source.job(plan, embeds), patience=patience), self.path)
        return measured(self.entry, source.options.seed, plan, source.machine.dtype, result, panel=panel)


@dataclass(frozen=True)
class ComparedJob:
    """A video of a comparison as a worker gets it.

    Attributes:
        encodes: whether any video of the comparison needs the VAE's encoder.
        folder, runs: of the video and of its finished blocks.
        seconds: its length, 0 for that of the timeline.
        video: where the worker is this process; others look at their own machine.
    """

    args: argparse.Namespace
    prompts: str | None
    entry: Entry
    seed: int
    embeds: tuple[Shared[Tensor], ...]
    encodes: bool
    folder: Path
    runs: Path | None
    seconds: float
    video: ComparedVideo | None


def planned_video(job: ComparedJob) -> ComparedVideo:
    """The video of a job, planned on the machine that makes it."""
    if job.video is not None:
        return job.video
    source = compared_source(job.args, job.prompts)
    options, machine = replace(source.options, seconds=job.seconds), replace(source.machine, runs=job.runs)
    source = replace(source, options=options, machine=machine)
    if job.prompts is not None:
        source = source.with_prompts(job.prompts)
    return ComparedVideo.of(source, job.entry, job.seed, job.folder)


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


def render_compared(job: ComparedJob) -> Compared:
    """Render and measure one video of a comparison."""
    video, embeds = planned_video(job), [shared.get() for shared in job.embeds]
    panel, patience = panel_of(job.args), 0.0
    if job.video is None:
        loaded = has_model(video.source, encodes=job.encodes)
        video.source.check_needs(video.plan, video.path, loaded=loaded)
        patience = PATIENCE_SECONDS
    return video.render(kept_model(video.source, encodes=job.encodes), embeds, patience, panel)


def check_videos(videos: Sequence[ComparedVideo], farm: Farm) -> None:
    """Check all videos, and the disk space they need together, before anything is loaded."""
    needs = [video.source.check_needs(video.plan, video.path, elsewhere=farm.remote) for video in videos]
    check_disk(in_turn(needs), videos[0].source.machine.runs, videos[0].path.parent)


def _about(args: argparse.Namespace, source: Source, plan: RenderPlan) -> dict[str, Any]:
    """Metadata that all videos of a comparison share; `plan` is the plan of one of them."""
    clock = plan.timeline.clock
    return {
        "prompts": [segment.text for segment in plan.timeline.segments],
        "starts_seconds": [frame / clock.fps for frame in plan.start_video_frames],
        "seconds": plan.video_frames / clock.fps,
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
