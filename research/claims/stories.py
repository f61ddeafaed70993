"""The texts of `check-claim`'s videos, and which row is made with which of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...cli.texts import read_text
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import replacing
from ...headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from ...headforcing_core.timeline.characters import split_prompts
from ...headforcing_core.weights.umt5 import load_embeddings
from ..rows import Row
from ..videos import ScoredVideo, plan_videos
from .claims import ADDED_ROWS, OURS
from .paper_numbers import ONE_PROMPT, RETURN, SIX_PROMPTS

STORY_TEXTS = 6
FIRST_VISIT = 1
BETWEEN = 2
SECOND_VISIT = 3  # of a story that returns, numbers of its prompts from 0
TAGGED = "echo"  # the row whose method brings a scene back where a tag says so
RESERVED_PROMPTS = tuple(Path(__file__).with_name("prompts.txt").read_text("utf-8").splitlines())
"""Prompts that no head profile is measured on."""


def prompts_of(given: str | None, count: int) -> list[str]:
    """A prompt for each video: the lines of a text or of @FILE, or `RESERVED_PROMPTS`."""
    lines = RESERVED_PROMPTS if given is None else split_prompts(read_text(given))
    if len(lines) < count:
        raise HeadForcingError(
            f"--videos asks for {count} videos, but there are prompts for {len(lines)}"
        )
    # a line never names a file
    return [f"\n{line}" if line.startswith("@") else line for line in lines[:count]]


def stories_of(given: str, count: int) -> list[str]:
    """A story for each video, a line of JSON with `STORY_TEXTS` texts that no head profile is
    measured on.
    """
    lines = split_prompts(read_text(given))
    if len(lines) < count:
        raise HeadForcingError(
            f"--stories must have a line for each of {count} videos, but there are {len(lines)}"
        )
    for number, line in enumerate(lines[:count], 1):
        try:
            found = json.loads(line)["prompts"]
        except (ValueError, KeyError, TypeError):
            found = None
        strings = isinstance(found, list) and all(
            isinstance(text, str) and text.strip() for text in found
        )
        if not strings or len(found) != STORY_TEXTS:
            raise HeadForcingError(
                f"--stories must have {STORY_TEXTS} texts in each line, as "
                '{"prompts": ["...", "..."]}; '
                f"line {number} is {line[:60]!r}"
            )
        if used := next((text for text in found if text.strip() in PROFILING_PROMPTS), None):
            raise HeadForcingError(
                f"the head profile is measured on {used[:60]!r}: give other texts in line {number} "
                "of --stories"
            )
    return list(lines[:count])


def texts_of(args: argparse.Namespace, returns: bool = False) -> dict[str, list[str]]:
    """The prompts of each kind of videos. Raises HeadForcingError if a head profile is measured on
    one of them.
    """
    found = {ONE_PROMPT: prompts_of(args.prompts, args.videos)}
    if used := next((text for text in found[ONE_PROMPT] if text in PROFILING_PROMPTS), None):
        raise HeadForcingError(
            f"the head profile is measured on the prompt {used[:60]!r}: give others with --prompts"
        )
    if returns:
        found[RETURN] = return_stories(found[ONE_PROMPT])
    if args.stories is not None:
        found[SIX_PROMPTS] = stories_of(args.stories, args.videos)
    args.prompts = None  # of which each video has its own
    return found


def return_stories(prompts: Sequence[str]) -> list[str]:
    """A story that returns for each of three different prompts or more, as JSON: an opening, then
    A, B and A again.

    A is the prompt itself, B and the opening are the next two. Without the opening A would begin
    the video, whose first
    frames anchor heads always hold: to see A again would then take no episodic memory.
    """
    texts = [" ".join(prompt.split()) for prompt in prompts]
    if len(set(texts)) < max(3, len(texts)):
        raise HeadForcingError(
            "stories that return take 3 or more --videos with different --prompts: give them, or "
            "leave scenes and echo out of --rows"
        )
    around = [
        (text, texts[i - len(texts) + 1], texts[i - len(texts) + 2]) for i, text in enumerate(texts)
    ]
    return [
        json.dumps({"prompts": [opening, a, b, a]}, ensure_ascii=False) for a, b, opening in around
    ]


def with_recall(story: str) -> str:
    """The story whose return is asked for by a tag."""
    texts = json.loads(story)["prompts"]
    texts[SECOND_VISIT] = f"[recall {FIRST_VISIT + 1}] {texts[SECOND_VISIT]}"
    return json.dumps({"prompts": texts}, ensure_ascii=False)


def check_embeddings(path: Path, texts: Iterable[str], lacking_file: Path) -> None:
    """Raise HeadForcingError, and write the texts to a file, where a file of embeddings lacks
    some.
    """
    wanted = list(dict.fromkeys(texts))
    stored = load_embeddings(path)
    lacking = [text for text in wanted if text not in stored]
    if not lacking:
        return
    with replacing(lacking_file) as temporary:
        temporary.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    raise HeadForcingError(
        f"{path.name} lacks the embeddings of {len(lacking)} of {len(wanted)} texts, the first is "
        f"{lacking[0][:60]!r}; encode all of them with `headforcing encode --prompts "
        f"@{lacking_file}`"
    )


def plan_claims(
    args: argparse.Namespace, rows: Mapping[str, Row], stories: Mapping[str, Sequence[str]]
) -> tuple[list[ScoredVideo], dict[str, str]]:
    """Plan all videos, as `plan_videos`: the paper's rows on its kinds of videos, and on stories
    that return the rows that are asked for memory. The same noise belongs to a number in all
    rows."""
    papers = {name: row for name, row in rows.items() if name not in ADDED_ROWS}
    asked = [
        (
            papers,
            {kind: texts for kind, texts in stories.items() if kind != RETURN}
            if len(papers) > 1
            else {},
        )
    ]
    if RETURN in stories:
        plain = {
            name: row
            for name, row in rows.items()
            if name in (OURS, "A", *ADDED_ROWS) and name != TAGGED
        }
        tagged = {name: row for name, row in rows.items() if name == TAGGED}
        asked += [
            (plain, {RETURN: stories[RETURN]}),
            (tagged, {RETURN: list(map(with_recall, stories[RETURN]))}),
        ]
    planned: list[ScoredVideo] = []
    left_out: dict[str, str] = {}
    for mine, texts in asked:
        videos, why = plan_videos(args, mine, texts)
        planned = planned + videos
        left_out = left_out | why
    return [each for each in planned if each.row not in left_out], left_out
