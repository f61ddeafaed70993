"""Texts of videos of real weights: files, or prompts of this pack that no head profile is measured on."""

from __future__ import annotations

import json
from pathlib import Path

from ..headforcing_core.commands.values import read_text
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.timeline.grammar import split_prompts

RESERVED_PROMPTS = tuple(Path(__file__).with_name("prompts.txt").read_text("utf-8").splitlines())
"""Prompts that no head profile is measured on."""


def prompts_of(given: str | None, count: int) -> list[str]:
    """A prompt for each video: the lines of a text or of @FILE, or `RESERVED_PROMPTS`."""
    lines = RESERVED_PROMPTS if given is None else split_prompts(read_text(given))
    if len(lines) < count:
        raise HeadForcingError(f"--videos asks for {count} videos, but there are prompts for {len(lines)}")
    return [f"\n{line}" if line.startswith("@") else line for line in lines[:count]]  # a line never names a file


def stories_of(given: str, count: int, option: str, texts: int | None = None) -> list[str]:
    """A story for each video, a line of JSON with so many `texts` or at least two: `{"prompts": ["...", "..."]}`."""
    lines = split_prompts(read_text(given))
    if len(lines) < count:
        raise HeadForcingError(f"{option} must have a line for each of {count} videos, but there are {len(lines)}")
    for number, line in enumerate(lines[:count], 1):
        try:
            found = json.loads(line)["prompts"]
        except (ValueError, KeyError, TypeError):
            found = None
        strings = isinstance(found, list) and all(isinstance(text, str) and text.strip() for text in found)
        if not strings or (len(found) < 2 if texts is None else len(found) != texts):
            raise HeadForcingError(
                f'{option} must have {texts or "two or more"} texts in each line, as {{"prompts": ["...", "..."]}}; '
                f"line {number} is {line[:60]!r}"
            )
    return list(lines[:count])
