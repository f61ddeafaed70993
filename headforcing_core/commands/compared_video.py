"""The videos of a comparison: planned, rendered and measured, in this process or by the workers of a farm."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ..distributed.farm import Farm, Outcome, Shared
from ..errors import HeadForcingError
from ..files import claimed
from ..render.comparison import Compared, Entry, measured
from ..render.plan import RenderPlan
from ..render.resources import check_disk, in_turn
from ..report.learned.base import Panel
from .farms import PATIENCE_SECONDS, has_model, kept_model
from .loaded import LoadedModel
from .report import panel_of
from .source import Source
from .values import changed, portable


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
        source = replace(common, options=entry.options(common.options, seed))
        return cls(entry, source, entry.planned(source.plan), folder / f"{entry.key}-seed{seed}.mp4")

    def job(
        self, args: argparse.Namespace, embeds: Sequence[Shared[Tensor]], farm: Farm, encodes: bool = False
    ) -> ComparedJob:
        """The video as a job; `args` have its prompts and its length, `encodes` as in `ComparedJob`."""
        given = changed(args, out=self.path.parent, runs=self.source.machine.runs)
        if farm.parallel:
            given = changed(portable(given), json=True)  # workers show no bars
        seed = self.source.options.seed
        return ComparedJob(given, self.entry, seed, tuple(embeds), encodes, None if farm.parallel else self)

    def render(
        self, loaded: LoadedModel, embeds: Sequence[Tensor], patience: float = 0.0, panel: Panel | None = None
    ) -> Compared:
        """Render and measure the video; with `--runs` its finished blocks are reused."""
        source, job = self.source, self.source.job_with_found_roles(self.plan, embeds)
        with claimed(self.path, patience=patience):  # `generate --out` may name a file in a comparison's folder
            result = loaded.render(replace(job, patience=patience), self.path)
        return measured(self.entry, source.options.seed, job.plan, source.machine.dtype, result, panel=panel)


@dataclass(frozen=True)
class ComparedJob:
    """A video of a comparison as a worker gets it.

    Attributes:
        args: of this video: its prompts and length, its folder as `out`, that of its finished blocks as `runs`.
        encodes: whether any video of the comparison needs the VAE's encoder.
        video: where the worker is this process; others look at their own machine.
    """

    args: argparse.Namespace
    entry: Entry
    seed: int
    embeds: tuple[Shared[Tensor], ...]
    encodes: bool
    video: ComparedVideo | None


def planned_video(job: ComparedJob) -> ComparedVideo:
    """The video of a job, planned on the machine that makes it."""
    return job.video or ComparedVideo.of(compared_source(job.args), job.entry, job.seed, job.args.out)


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


def render_compared(job: ComparedJob) -> Compared:
    """Render and measure one video of a comparison."""
    video, embeds, panel = planned_video(job), [shared.get() for shared in job.embeds], panel_of(job.args)
    patience = 0.0
    if job.video is None:
        loaded = has_model(video.source, encodes=job.encodes)
        video.source.check_needs(video.plan, video.path, loaded=loaded)
        patience = PATIENCE_SECONDS
    return video.render(kept_model(video.source, encodes=job.encodes), embeds, patience, panel)


def check_videos(videos: Sequence[ComparedVideo], farm: Farm) -> None:
    """Check all videos, and the disk space they need together, before anything is loaded."""
    needs = [video.source.check_needs(video.plan, video.path, elsewhere=farm.remote) for video in videos]
    check_disk(in_turn(needs), videos[0].source.machine.runs, videos[0].path.parent)
