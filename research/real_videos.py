"""Videos of real weights that a question compares: planned, checked, rendered and measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..headforcing_core.commands.arguments import changed
from ..headforcing_core.commands.compared_video import ComparedVideo, check_videos, compared_source, run_compared
from ..headforcing_core.commands.kept import check_roles
from ..headforcing_core.commands.metrics import panel_of
from ..headforcing_core.commands.source import Source
from ..headforcing_core.distributed.farm import Farm
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.render.comparison import Entry, left_out_notes
from ..headforcing_core.report.learned import registry
from ..headforcing_core.report.learned.base import MeasuredVideo, Panel
from .prompts import prompts_of, stories_of
from .questions import UNJUDGED, Measure, Question, Rendered, Row, measured_rows
from .statistics import Numbers


class RealVideos:
    """Videos of real weights, written to the folder, with the metrics that need no ground truth."""

    def __init__(self, args: argparse.Namespace, questions: dict[str, Question], farm: Farm):
        self._args, self._farm = args, farm
        stories = {question.story for question in questions.values()}
        if len(stories) > 1:
            raise HeadForcingError(
                "ask about one prompt and about six prompts in two commands, each with its --prompts"
            )
        panel = panel_of(args)
        self._stories = story_texts(args.prompts, stories.pop(), args.videos)
        self._common = compared_source(changed(args, prompts=self._stories[0]))
        sources = [self._common, *map(self._common.with_prompts, self._stories[1:])]
        self._videos: dict[tuple[Entry, int], ComparedVideo] = {}
        self._left_out: dict[Entry, str] = {}
        self._plan(questions, sources)
        check_videos([video for _, video in self.made()], farm)
        texts = list(dict.fromkeys(text for source in sources for text in source.texts))
        self._embeds = dict(zip(texts, self._common.encode(texts), strict=True))
        jobs = {
            video.path.stem: (video.source.job(video.plan, self._embeds_of(video)), video.source)
            for video in self._videos.values()
        }
        check_roles(jobs, farm)
        self._setups = {name: job.setup for name, (job, _) in jobs.items()}
        self.fingerprint = self._common.info.fingerprint
        prompts = max(len(video.plan.timeline.segments) for video in self._videos.values())
        self._modelled = () if panel is None else numbers_of(panel, prompts)
        self._found: dict[str, Numbers] = {}  # by the stem of the video's path: several questions may have it

    def _plan(self, questions: dict[str, Question], sources: Sequence[Source]) -> None:
        """Plan the videos of all rows that fit; all videos of a row have one size, so that one of each is checked."""
        args = self._args
        for name, question in questions.items():
            last = question.rows[-1]
            for row in measured_rows(question):
                if (row, 0) in self._videos or row in self._left_out:
                    continue
                try:
                    made = [ComparedVideo.of(each, row, args.seed + i, args.out) for i, each in enumerate(sources)]
                    made[0].source.check_needs(made[0].plan, made[0].path, elsewhere=self._farm.remote)
                except HeadForcingError as error:
                    if row == last:  # with which all rows are compared
                        raise
                    self._left_out[row] = str(error).removeprefix(f"{row.label}: ")
                else:
                    self._videos |= {(row, number): video for number, video in enumerate(made)}
            if len(self._fitting(question)) == 1:
                label, why = next(iter(self._told_left_out(question).items()))
                raise HeadForcingError(f"no row of {name!r} besides {last.label} fits; {label}: {why}")

    def _fitting(self, question: Question) -> list[Row]:
        """The rows that can be made."""
        without = self._told_left_out(question)
        return [row for row in question.rows if row.label not in without]

    def _told_left_out(self, question: Question) -> dict[str, str]:
        """Reasons why rows of a question are not made, by their labels."""
        return {row.label: self._left_out[row] for row in measured_rows(question) if row in self._left_out}

    def suited(self, question: Question) -> Question:
        """The question without rows that do not fit, and with the columns that are measured.

        Only scores of texts say whether prompts are followed; no number says which video is the better one.
        """
        answers = question.story == "six_prompts" and "text_score" in self._modelled
        note = "\n".join(filter(None, [question.note, *left_out_notes(self._told_left_out(question))]))
        return replace(
            question,
            rows=tuple(self._fitting(question)),
            columns=UNJUDGED + self._modelled,
            primary="text_score" if answers else "",
            note=note,
        )

    def made(self) -> list[tuple[Entry, ComparedVideo]]:
        """The videos of all rows in the order of their numbers, each once, whatever its labels are."""
        found: dict[Path, tuple[Entry, ComparedVideo]] = {}
        for (entry, _), video in self._videos.items():
            found.setdefault(video.path, (entry, video))
        return list(found.values())

    def measure(self, rows: Sequence[Entry], on_video: Callable[[], Any]) -> Measure:
        """Make the videos of the rows that no other question has made; returns how to look each of them up."""
        wanted = {video.path.stem: key for key, video in self._videos.items() if key[0] in rows}
        shared = {text: self._farm.share(embed) for text, embed in self._embeds.items()}
        jobs = {}
        for name, (entry, number) in wanted.items():
            if name in self._found:
                on_video()
                continue
            video = self._videos[entry, number]
            embeds = [shared[text] for text in video.source.texts]
            jobs[name] = video.job(changed(self._args, prompts=self._stories[number]), embeds, self._farm)
        for name, made in run_compared(jobs, self._setups, self._farm):
            self._found[name] = {key: made.drift.get(key) for key in UNJUDGED + self._modelled}
            on_video()

        def measured(entry: Entry | Rendered, number: int) -> Numbers:
            assert isinstance(entry, Entry)  # of real weights nobody knows the truth
            return self._found[self._videos[entry, number].path.stem]

        return measured

    def _embeds_of(self, video: ComparedVideo) -> list[Tensor]:
        return [self._embeds[text] for text in video.source.texts]


def numbers_of(panel: Panel, prompts: int) -> tuple[str, ...]:
    """The keys of the numbers that videos with up to so many prompts have, those that tables have columns for."""
    video = MeasuredVideo(1.0, [(float(start), "") for start in range(prompts)])
    return tuple(key for key in panel.begin(video).numbers() if key in registry.COLUMNS)


def story_texts(given: str | None, story: str, count: int) -> list[str]:
    """One timeline for each video: lines of one prompt, or lines of JSON."""
    if story == "one_prompt":
        return prompts_of(given, count)
    if given is None:
        raise HeadForcingError('--prompts must name a file with a line {"prompts": [six texts]} for each video')
    return stories_of(given, count, "--prompts")
