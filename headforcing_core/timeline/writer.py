"""Prompts at blocks to timeline text: the inverse of the parser, for an editor that keeps the text as what is stored.

    0:00.000 A red fox trots through a forest
    0:20.062 [recache] The fox stops at a lake
    0:40 The fox sleeps

Unlike `format_timeline`, which writes a finished timeline, this keeps what is not in one: which prompts have a tag of
their own, and that the shared prompt is written elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import HeadForcingError
from .clock import MAX_SECONDS, BlockClock, cut_to_millisecond, format_time
from .grammar import SEPARATORS, TimelineError, check_no_time, fold, read_prompts
from .switch import RESET, Switch, put_tag, read_tag
from .timeline import Timeline

_TIME_OF_DAY = re.compile(r"[ap]\.?m\b", re.ASCII | re.IGNORECASE)  # "0:10 pm" is no time of a timeline


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt as it is written, and the 0-based block it begins at.

    Attributes:
        switch, seed: None without a tag.
        asked: the time that was written for it, in seconds; None for none.
    """

    text: str
    start_block: int
    switch: Switch | None = None
    seed: int | None = None
    asked: float | None = field(default=None, compare=False)


def place_prompts(text: str, timeline: Timeline) -> list[PlacedPrompt]:
    """The prompts of a text with the blocks of the timeline that was parsed from it."""
    read = read_prompts(text, timeline.clock)
    segments = timeline.segments
    pairs = zip(read, segments, strict=True)
    return [PlacedPrompt(p.text, s.start_block, p.switch, p.seed, p.start) for p, s in pairs]


def write_timeline(
    prompts: Sequence[PlacedPrompt], clock: BlockClock, end: float | None = None, default: Switch = RESET
) -> str:
    """Prompts as text, one `m:ss.mmm [tag] prompt` per line; parsing it gives the same prompts at the same blocks.

    Args:
        prompts: in order; white space in their texts becomes single spaces.
        clock: the blocks; a time is that of the block's first video frame, or the one asked for where that is the
            time of the same block.
        end: written after the last prompt's start, in seconds, for a text that sets the length of its video.
        default: the switch of prompts without a tag. It is written as a tag where a text would be read as one.

    Raises TimelineError for an empty prompt, for one whose words can only be read as the seed of its tag, and for
    blocks that are out of order or after the longest video.
    """
    lines: list[str] = []
    last_block = clock.blocks_for(MAX_SECONDS)
    free = 0  # the first block that no prompt above begins at
    for number, prompt in enumerate(prompts, 1):
        text, block = fold(prompt.text), prompt.start_block
        if not text:
            raise TimelineError(f"prompt {number} is empty; write its text or remove it", number)
        check_no_time(text, number)
        if block != 0 if number == 1 else not free <= block <= last_block:
            raise TimelineError(f"prompt {number} cannot begin at block {block!r:.20}; blocks go up from 0", number)
        free = block + 1
        time = _time(prompt, clock)
        if end is not None and number == len(prompts):
            time += f"-{format_time(end)}"
        tagged = _tag(text, prompt, default if number > 1 else RESET)
        if tagged is None:
            raise TimelineError(f"prompt {number} begins with a tag; remove it and set the seed instead", number)
        # a dash would not do: a time after it is the end of a range
        guard = ":" if tagged[0] in SEPARATORS or _TIME_OF_DAY.match(tagged) else ""
        lines.append(f"{time}{guard} {tagged}")
    if not lines:
        raise TimelineError("the timeline is empty; write at least one prompt")
    return "\n".join(lines)


def _time(prompt: PlacedPrompt, clock: BlockClock) -> str:
    """The time of a prompt: as it was asked for, `0:10`, where it has not been moved; else `0:10.312`."""
    if prompt.asked is not None and 0 <= prompt.asked <= MAX_SECONDS:
        asked = cut_to_millisecond(prompt.asked)
        if (clock.block_at(asked) if prompt.start_block else asked) == prompt.start_block:
            return format_time(asked).rstrip("0").removesuffix(".")
    return format_time(clock.start_seconds(prompt.start_block))


def _tag(text: str, prompt: PlacedPrompt, default: Switch) -> str | None:
    """The text with the prompt's tag; None where no tag keeps the text's beginning from being read as one, too."""
    for switch in (prompt.switch,) if prompt.switch else (None, default):
        tagged = put_tag(switch, prompt.seed, text)
        try:
            if read_tag(tagged) == (switch, prompt.seed, text):
                return tagged
        except HeadForcingError:  # it is read as a misspelt tag
            continue
    return None
