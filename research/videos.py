"""Videos of real weights: planned, kept with their scores beside them, made and scored in any
process.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..cli.compare import ComparedJob, ComparedVideo, compared_source, render_compared
from ..cli.texts import read_text
from ..cli.values import changed
from ..headforcing_core.distributed.workers import Shared, Workers
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import replacing
from ..headforcing_core.hashing import SHORT, digest, file_hash
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.plan.resources import Needs, check_disk
from ..headforcing_core.timeline.paste.paste import read_any
from . import vbench
from .metrics.base import Panel
from .metrics.models import Models
from .metrics.registry import METRICS
from .metrics.scores import panel_of, score_video
from .rows import MethodRow, Row, renders_of
from .statistics import Numbers

Note = dict[str, Any]
"""What lies beside a finished video: its hash `file`, what it was `made_from`, its `numbers`,
stamps of `metrics`.
"""
MAX_VIDEOS = 10_000  # of a row


@dataclass(frozen=True)
class ScoredVideo:
    """One video: of a row, on a story, with the number of its prompts and noise."""

    row: str
    story: str
    number: int
    text: str
    args: argparse.Namespace
    video: ComparedVideo

    @property
    def name(self) -> str:
        """The name of the video, which rows of the same entry share."""
        return f"{self.story}, {self.video.path.stem}"

    @property
    def prompt(self) -> str:
        """All its prompts in one text."""
        return " ".join(segment.text for segment in self.video.plan.timeline.segments)

    @property
    def made_from(self) -> dict[str, str]:
        """Everything that the video depends on, by names that a person understands."""
        source = self.video.source
        entry = self.video.entry
        asked = source.request.options
        assert isinstance(entry, MethodRow)
        options = {field.name: getattr(asked, field.name) for field in fields(asked)}
        files: dict[str, Path | None] = {
            name: getattr(self.args, name, None) for name in ("text_encoder", "embeddings", "vae")
        }
        profile = options.pop("profile")
        options.pop("given_method")
        options["method"] = options.pop("method_name")  # as older notes have it
        options.pop("state_seconds")
        return {
            "weights": source.info.fingerprint,
            **{
                name: f"{path.name}, {path.stat().st_size} bytes" if path else ""
                for name, path in files.items()
            },
            "profile": digest(profile.roles) if isinstance(profile, HeadProfile) else "",
            "prompts": self.text,
            "row": entry.key if entry.given is None else f"{entry.key}: {entry.given}",
            "dtype": str(source.machine.dtype),
            "decoder": str(getattr(self.args, "decoder", None)),
            **{name: str(value) for name, value in options.items()},
        }

    def note(self) -> Note | None:
        """The note of the finished video, None without one; HeadForcingError if it was made from
        something else.
        """
        note = _note_of(self.video.path)
        wanted = self.made_from
        if note is None or note["made_from"] == wanted:
            return note
        other = next(key for key in wanted if note["made_from"].get(key) != wanted[key])
        raise HeadForcingError(
            f"{self.video.path} was made with other {other.replace('_', ' ')}: choose another "
            "--out, or remove this folder"
        )


def plan_videos(
    args: argparse.Namespace, rows: Mapping[str, Row], stories: Mapping[str, Sequence[str]]
) -> tuple[list[ScoredVideo], dict[str, str]]:
    """Plan all videos of the rows; returns them, and why rows are left out that cannot be
    planned.
    """
    planned: list[ScoredVideo] = []
    left_out: dict[str, str] = {}
    for story, texts in stories.items():
        folder = args.out / "videos" / story
        runs = (args.runs or args.out / "runs") / story
        common = compared_source(changed(args, prompts=texts[0]))
        arguments = common.request.options.timeline_arguments
        timelines = [read_any(read_text(text), **arguments) for text in texts[1:]]
        sources = [common, *(common.with_request(timeline=timeline) for timeline in timelines)]
        for name, row in rows.items():
            try:
                for entry in renders_of(row):
                    for number, (source, text) in enumerate(zip(sources, texts, strict=True)):
                        video = ComparedVideo.of(source, entry, args.seed + number, folder)
                        # of two videos in one folder of runs, one would be refused
                        own = video.source.with_request(runs=runs / video.path.stem)
                        video = replace(video, source=own)
                        planned.append(
                            ScoredVideo(
                                name, story, number=number, text=text, args=args, video=video
                            )
                        )
            except HeadForcingError as error:
                left_out[name] = str(error)
    return [each for each in planned if each.row not in left_out], left_out


def load_metrics(args: argparse.Namespace) -> tuple[Panel | None, dict[str, str]]:
    """The metrics with models, loaded here so that a damaged file is found now, and stamps of their
    files by name.
    """
    panel = panel_of(changed(args, metric_device="cpu") if args.farm else args)
    if panel is None:
        return None, {}
    models = Models(args.metric_models, aesthetic_head=args.aesthetic_head)
    hash_of = cache(file_hash)
    stamps = {}
    for metric in panel.metrics:
        hashes = [hash_of(models.file(needed)) for needed in metric.needs]
        stamps[metric.name] = digest(hashes)[:SHORT]
    return panel, stamps


def _note_of(path: Path) -> Note | None:
    """The note beside a video that is finished and as it was written; None for any other."""
    try:
        note: Note = json.loads(path.with_suffix(".json").read_text("utf-8"))
        whole = note["file"] == file_hash(path) and {"made_from", "numbers", "metrics"} <= set(note)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return note if whole else None


@dataclass(frozen=True)
class ScoreJob:
    """A video to make, or only to score, as a worker gets it; `metrics` as those of `Scores`."""

    compared: ComparedJob
    made_from: dict[str, str]
    metrics: dict[str, str]
    runs: Path | None  # removed when the video is finished


def make_and_score(job: ScoreJob) -> Numbers:
    """Make one video, or take it as it was made, and score it; to be called in any process."""
    video = job.compared.planned()
    panel = panel_of(job.compared.args)
    note = _note_of(video.path)
    if note is not None and note["made_from"] == job.made_from:
        numbers = note["numbers"]
        metrics = {**note["metrics"], **job.metrics}
    else:
        numbers = render_compared(job.compared).drift
        metrics = job.metrics
    scores = score_video(video.path, panel)
    numbers = numbers | scores.report.whole | scores.whole
    told = {
        "made_from": job.made_from,
        "file": file_hash(video.path),
        "metrics": metrics,
        "numbers": numbers,
    }
    with replacing(video.path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")
    if job.runs is not None:
        shutil.rmtree(job.runs, ignore_errors=True)
    return numbers


class Scores:
    """The numbers of all videos, those of earlier runs included, without those of metrics that are
    not asked for.

    Args:
        metrics: the metrics with models, and the stamps of their files, see `load_metrics`. A video
            that was scored with other files is scored again.
    """

    def __init__(self, videos: Sequence[ScoredVideo], metrics: Mapping[str, str]):
        self.videos = list(videos)
        self.metrics = dict(metrics)
        unasked: set[str] = set()
        for name, metric in METRICS.items():
            if name not in metrics:
                unasked |= {column.key for column in metric.columns}
        notes = {each.name: note for each in self.videos if (note := each.note()) is not None}
        self.made = set(notes)
        self.known: dict[str, Numbers] = {}
        for name, note in notes.items():
            if self.metrics.items() <= note["metrics"].items():
                numbers = note["numbers"]
                self.known[name] = {key: numbers[key] for key in numbers if key not in unasked}

    @property
    def todo(self) -> list[ScoredVideo]:
        return [each for each in self.videos if each.name not in self.known]

    @property
    def unmade(self) -> list[ScoredVideo]:
        return [each for each in self.videos if each.name not in self.made]

    @property
    def progress(self) -> str:
        return (
            f"{len(self.known)} of {len({each.name for each in self.videos})} videos are finished"
        )

    def leave_out_unfit(self, workers: Workers) -> tuple[dict[str, str], Needs | None]:
        """Leave out rows whose videos cannot be made; returns why, and the needs of all others that
        are to be made.

        One video of each row and story is checked, as all have one size. Finished blocks of one
        video at a time stay, unless `--runs` names a folder for them.
        """
        left_out: dict[str, str] = {}
        found: dict[tuple[str, str, str], Needs] = {}
        for each in self.unmade:
            video = each.video
            key = (each.row, each.story, each.video.entry.key)
            if each.row not in left_out and key not in found:
                try:
                    found[key] = video.source.check_needs(
                        video.plan, video.path, elsewhere=workers.remote
                    )
                except HeadForcingError as error:
                    left_out[each.row] = str(error)
        self.videos = [each for each in self.videos if each.row not in left_out]
        needs = [need for (row, *_), need in found.items() if row not in left_out]
        unmade = self.unmade
        if not unmade:
            return left_out, None
        args = unmade[0].args
        kept = 1 if unmade[0].args.runs is None else len(unmade)
        run_folder = max(need.run_folder for need in needs)
        video_file = max(need.video for need in needs)
        together = replace(
            max(needs, key=lambda need: need.memory),
            run_folder=kept * run_folder,
            state=sum(need.state for need in needs),
            video=len(unmade) * video_file,
        )
        check_disk([together], args.runs or args.out, args.out)
        return left_out, together

    def complete(self, workers: Workers, quiet: bool) -> None:
        """Make and score what is missing; raises HeadForcingError at the end if a video failed."""
        todo = self.todo
        failed = []
        if not todo:
            return
        embeds = _encoded(self.unmade)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # workers on this machine need the room of the encoder
        try:
            with (
                workers,
                tqdm(total=len({each.name for each in todo}), unit="video", disable=quiet) as bar,
            ):
                shared = {text: workers.share(embed) for text, embed in embeds.items()}
                jobs = {each.name: self._job(each, shared, workers) for each in todo}
                for outcome in workers.run(make_and_score, jobs):
                    if outcome.error is None:
                        self.known[outcome.name] = outcome.get()
                    else:
                        failed.append(outcome)
                    bar.update()
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(
                *stop.args, f"{self.progress}, the same command goes on"
            ) from stop
        try:
            for outcome in failed:
                outcome.get()
        except HeadForcingError as error:
            raise HeadForcingError(
                f"{error} ({self.progress}, the same command goes on)"
            ) from error

    def _job(
        self, each: ScoredVideo, shared: Mapping[str, Shared[Tensor]], workers: Workers
    ) -> ScoreJob:
        texts = [] if each.name in self.made else each.video.source.request.timeline.texts
        embeds = {text: shared[text] for text in texts}
        compared = each.video.job(changed(each.args, prompts=each.text), embeds, workers)
        runs = each.video.source.request.runs if each.args.runs is None else None
        return ScoreJob(compared, each.made_from, self.metrics, runs and runs.absolute())

    def add_vbench(self, story: str) -> str:
        """Take up what VBench and VBench-Long have measured of a story's videos, and return the
        lines that measure them.
        """
        mine = [each for each in self.videos if each.story == story]
        folder = mine[0].video.path.parent
        results = vbench.read_results(folder)
        for each in mine:
            self.known[each.name] = self.known[each.name] | results.get(each.video.path.name, {})
        line = vbench.command(folder, {each.video.path.name: each.prompt for each in mine})
        return (
            f"for VBench-Long, which the paper has, then repeat this command:\n"
            f"{vbench.long_command(folder)}\nthe same for VBench, of whole videos:\n{line}"
        )

    def by_entry(self, story: str) -> dict[str, list[ScoredVideo]]:
        """The videos of a story by the key of their entry, in the order of their numbers, each
        once.
        """
        found: dict[str, dict[str, ScoredVideo]] = {}
        for each in self.videos:
            if each.story == story:
                found.setdefault(each.video.entry.key, {})[each.name] = each
        return {key: list(videos.values()) for key, videos in found.items()}


def _encoded(videos: Sequence[ScoredVideo]) -> dict[str, Tensor]:
    """The embedding of every text of the videos."""
    stories = [each.video.source.request.timeline for each in videos]
    texts = list(dict.fromkeys(chain(*(story.texts for story in stories))))
    if not texts:
        return {}
    return {text: embed.cpu() for text, embed in videos[0].video.source.encode(texts).items()}
