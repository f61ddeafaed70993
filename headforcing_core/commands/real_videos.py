"""Videos of real weights that a question compares: planned, checked, rendered and measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..errors import HeadForcingError
from ..farm.farm import Farm
from ..head_profiles.prompts import PROFILING_PROMPTS
from ..studies.answers import measured_rows
from ..studies.comparison import Entry
from ..studies.questions import UNJUDGED, Measure, Numbers, Question, Rendered
from .arguments import read_text
from .compare import ComparedVideo, check_videos, run_compared, source_of_files
from .kept import check_roles
from .metrics import keys_of, panel_of

ANY_WORLD = ("one_prompt", "six_prompts")  # stories that do not need the toy world


class RealVideos:
    """Videos of real weights, written to the folder, with the metrics that need no ground truth."""

    def __init__(self, args: argparse.Namespace, questions: dict[str, Question], farm: Farm):
        self._args, self._farm = args, farm
        stories = {question.story for question in questions.values()}
        if strange := stories.difference(ANY_WORLD):
            unfit = next(name for name, question in questions.items() if question.story in strange)
            raise HeadForcingError(f"the question {unfit!r} can only be asked about the toy world: give --demo")
        if len(stories) > 1:
            raise HeadForcingError(
                "ask about one prompt and about six prompts in two commands, each with its --prompts"
            )
        panel = panel_of(args)
        self._stories = story_texts(args.prompts, stories.pop(), args.videos)
        self._common = source_of_files(args, self._stories[0])
        sources = [self._common, *map(self._common.with_prompts, self._stories[1:])]
        rows = dict.fromkeys(row for question in questions.values() for row in measured_rows(question, args.videos))
        self._videos = {
            (entry, number): ComparedVideo.of(source, entry, args.seed + number, args.out)
            for entry in rows
            if isinstance(entry, Entry)
            for number, source in enumerate(sources)
        }
        check_videos(list(self._videos.values()), farm)
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
        self._modelled = keys_of(panel, prompts)

    def suited(self, question: Question) -> Question:
        rows = [row for row in question.rows if not isinstance(row, Rendered)]  # nobody knows the truth
        return replace(question, rows=tuple(rows), columns=UNJUDGED + self._modelled, primary="motion")

    def made(self) -> list[tuple[Entry, ComparedVideo]]:
        """The videos of all rows in the order of their numbers."""
        return [(entry, video) for (entry, _), video in self._videos.items()]

    def measure(self, story: str, rows: Sequence[Entry | Rendered], on_video: Callable[[], Any]) -> Measure:
        """Make all videos of the rows; returns how to look each of them up."""
        wanted = {self._videos[key].path.stem: key for key in self._videos if key[0] in rows}
        shared = {text: self._farm.share(embed) for text, embed in self._embeds.items()}
        jobs, found = {}, {}
        for name, (entry, number) in wanted.items():
            video = self._videos[entry, number]
            embeds = [shared[text] for text in video.source.texts]
            jobs[name] = video.job(self._args, self._stories[number], embeds, False, self._farm)
        for name, made in run_compared(jobs, self._setups, self._farm):
            found[wanted[name]] = {key: made.drift.get(key) for key in UNJUDGED + self._modelled}
            on_video()

        def measured(entry: Entry | Rendered, number: int) -> Numbers:
            assert isinstance(entry, Entry)  # only the toy world can be rendered, see `ANY_WORLD`
            return found[entry, number]

        return measured

    def _embeds_of(self, video: ComparedVideo) -> list[Tensor]:
        return [self._embeds[text] for text in video.source.texts]


def story_texts(given: str | None, story: str, count: int) -> list[str]:
    """One timeline for each video: lines of one prompt, or lines of JSON such as `{"prompts": ["...", "..."]}`."""
    if given is None and story == "one_prompt":
        lines = list(PROFILING_PROMPTS)
    elif given is None:
        raise HeadForcingError('--prompts must name a file with a line {"prompts": [six texts]} for each video')
    else:
        lines = [line for line in read_text(given).splitlines() if line.strip()]
    if len(lines) < count:
        raise HeadForcingError(f"--videos asks for {count} videos, but there are prompts for {len(lines)}")
    for line in lines[:count] if story == "six_prompts" else ():
        try:
            prompts = json.loads(line)["prompts"]
        except (ValueError, KeyError, TypeError):
            prompts = None
        if not isinstance(prompts, list) or len(prompts) < 2:
            raise HeadForcingError(f'each line must be JSON like {{"prompts": ["...", "..."]}}, got {line[:60]!r}')
    return lines[:count]
