"""The prompt timeline: the prompts of a story to the prompt of each block.

`parse_timeline` reads the written form (`grammar.py`). A text without times lasts 10 s per prompt.
Times have millisecond resolution and are moved to the nearest block start.

A tag in front of a prompt selects the kind of prompt switch (`switch.py`), and a seed in it
re-rolls: from that prompt's first block on, until the next tag with a seed, noise is drawn with
this seed in place of the render's. The blocks before keep their noise, and finished ones are
reused.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import HeadForcingError
from .characters import fold
from .clock import (
    MAX_SECONDS,
    BlockClock,
    cut_to_millisecond,
    format_time,
    is_finite,
    short_time,
)
from .grammar import ESCAPED, Written, read_story
from .likeness import telling_texts
from .prompt import Prompt, TimelineError
from .references import named_in, spoken
from .switch import RESET, Switch
from .tags import match_tag
from .wording import check_words

SECONDS_PER_PROMPT = 10.0
MAX_TEXT_BYTES = 1 << 20
MAX_SHARED_CHARACTERS = 4_000  # the shared prompt is repeated in every segment


@dataclass(frozen=True)
class Segment:
    """One prompt, its blocks (`end_block` exclusive) and the switch from the prompt before it.

    `seed`, from 0 to 2**64 - 1, is that of the noise from this prompt on; None goes on with the one
    before it.
    """

    text: str
    start_block: int
    end_block: int
    switch: Switch = RESET
    seed: int | None = None

    @property
    def blended_blocks(self) -> int:
        """Number of first blocks with an interpolated text embedding; the last block always has the
        prompt alone.
        """
        return min(self.switch.blend_blocks, self.end_block - self.start_block - 1)


@dataclass(frozen=True)
class Timeline:
    """The prompts of one video, without gaps: segment k ends where segment k + 1 starts."""

    segments: tuple[Segment, ...]  # at least one
    clock: BlockClock
    seconds: float  # requested length; the blocks last at least as long
    requested: tuple[float, ...]  # start of each segment, before it is moved to a block
    shot_prefix: str = ""  # as of `rollout.schedule.Schedule`
    # as for `rollout.rows.Script`; empty if no prompt recalls
    alike: Mapping[str, str] = field(default_factory=dict)
    # names of the pictures that prompts can hold, see `references.py`
    references: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        """Number of blocks of the whole video."""
        return self.segments[-1].end_block

    @property
    def recalls(self) -> bool:
        """Whether a prompt brings the scene of an earlier one back."""
        return any(segment.switch.recall is not None for segment in self.segments)

    def spoken(self, segment: Segment) -> str:
        """The text of a prompt as it is encoded: its pictures' names without their sign."""
        return spoken(segment.text) if self.references else segment.text

    def pictures(self, segment: Segment) -> tuple[str, ...]:
        """The pictures that a prompt names."""
        return named_in(segment.text, self.references) if self.references else ()

    @property
    def texts(self) -> list[str]:
        """The texts to encode, each once: the prompts, their texts for likeness, those of first
        blocks of new shots.
        """
        prompts = [self.spoken(segment) for segment in self.segments]
        alike = [self.alike[prompt] for prompt in prompts if prompt in self.alike]
        first_texts = [self.first_text(segment) for segment in self.segments]
        return list(dict.fromkeys([*prompts, *alike, *first_texts]))

    def first_text(self, segment: Segment) -> str:
        """The text of a segment's first block."""
        text = self.spoken(segment)
        if segment.switch.re_anchor and not segment.blended_blocks:
            text = self.shot_prefix + text
        return text

    def prompt_index(self, block: int) -> int:
        """Index of the segment of a 0-based block."""
        starts = [segment.start_block for segment in self.segments]
        return bisect.bisect_right(starts, block) - 1

    def on(self, clock: BlockClock) -> Timeline:
        """The same prompts at the nearest blocks of another clock; raises TimelineError where two
        fall on one.
        """
        if clock == self.clock:
            return self
        prompts = [Prompt("", start=start, token=short_time(start)) for start in self.requested]
        blocks, length = _snap(prompts, self.requested, self.seconds, clock)
        ends = [*blocks[1:], length]
        segments = tuple(
            replace(segment, start_block=block, end_block=end)
            for segment, block, end in zip(self.segments, blocks, ends, strict=True)
        )
        return replace(self, segments=segments, clock=clock)

    def table(self, video_frames_before: int = 0) -> str:
        """Table of the requested and the actual start of each prompt; frames count from the video
        that is continued.
        """
        clock = self.clock
        rows = [("no.", "asked", "starts", "frame", "block", "switch", "seed", "prompt")]
        notes = []
        for number, segment in enumerate(self.segments, 1):
            block = segment.start_block
            row = (
                str(number),
                format_time(self.requested[number - 1]),
                format_time(clock.start_seconds(block)),
                str(video_frames_before + clock.video_frames(block)),
                str(block),
                "-" if number == 1 else str(segment.switch),
                "" if segment.seed is None else str(segment.seed),
                segment.text,
            )
            rows.append(row)
            blended = segment.blended_blocks
            if blended:
                alone = video_frames_before + clock.video_frames(block + blended)
                notes.append(
                    f"Prompt {number} is blended in over {blended} blocks and used alone from "
                    f"frame {alone} on."
                )
        held = clock.start_seconds(self.blocks)
        notes.append(
            f"Asked for {self.seconds:g} s: {self.blocks} blocks hold {held:g} s, the video is cut "
            "to length."
        )
        first = self.requested[0]
        if first > 0:
            notes.append(
                f"The first prompt was asked for at {short_time(first)} and starts at 0:00."
            )
        left_out = []
        if all(segment.switch == RESET for segment in self.segments):
            left_out.append("switch")
        if all(segment.seed is None for segment in self.segments):
            left_out.append("seed")
        return "\n".join([*_lines(rows, left_out), *notes])


def _lines(rows: Sequence[tuple[str, ...]], left_out: Sequence[str]) -> list[str]:
    """A line per row, with all columns but the last as wide as their longest cell, and without
    columns of these headings.
    """
    *columns, texts = zip(*rows, strict=True)
    cells = []
    for column in columns:
        if column[0] not in left_out:
            width = max(map(len, column))
            cells.append([cell.rjust(width) for cell in column])
    return list(map("  ".join, zip(*cells, texts, strict=True)))


def parse_timeline(
    text: str,
    seconds: float | None = None,
    clock: BlockClock | None = None,
    shared_prompt: str = "",
    switch: Switch = RESET,
    references: Sequence[str] = (),
    shot_prefix: str = "",
) -> Timeline:
    """Read a story in the written form and assign its prompts to blocks; arguments and errors as of
    `lay_out_story`. `paste.read_any` also reads other forms.
    """
    check_size(text)
    clock = clock or BlockClock()
    return lay_out_story(
        read_story(text, clock),
        seconds,
        clock=clock,
        shared_prompt=shared_prompt,
        switch=switch,
        references=references,
        shot_prefix=shot_prefix,
    )


def lay_out_story(
    story: Written,
    seconds: float | None = None,
    *,
    clock: BlockClock,
    shared_prompt: str = "",
    switch: Switch = RESET,
    references: Sequence[str] = (),
    shot_prefix: str = "",
) -> Timeline:
    """Assign the prompts of a story to blocks.

    Args:
        seconds: length of the video; prompts without times get equal shares of it.
        clock: defines the blocks; by default 3 latent frames per block at 16 fps.
        shared_prompt: prepended to every prompt, before the story's own `[shared]` words.
        switch: for prompts without a tag, except the first, which follows none.
        references: names of pictures; another name after `@` is refused where there are any.
        shot_prefix: see `Timeline`.

    In a gap between times the previous prompt continues; the first prompt always starts at 0.
    Raises TimelineError with the line number, where the error is in one line.
    """
    if not isinstance(shared_prompt, str):
        raise TimelineError("the timeline and the shared prompt must be text")
    if seconds is not None:
        seconds = _checked_length(seconds)

    prompts = story.prompts
    shared = ""
    if shared_prompt or story.shared:
        shared = _shared_words(shared_prompt, story.shared)
    asked, length = _asked_times(prompts, seconds)
    # the text that a model reads: `\{` and `\}` are braces
    texts = [ESCAPED.sub(r"\1", prompt.text) for prompt in prompts]
    if shared:
        texts = [_join(shared, text) for text in texts]
    if references:
        _check_pictures(prompts, texts, references)
    starts, blocks = _snap(prompts, asked, length, clock)
    ends = [*starts[1:], blocks]
    seeds = [prompt.seed for prompt in prompts]
    switches = _switches(prompts, switch)
    segments = map(Segment, texts, starts, ends, switches, seeds)
    timeline = Timeline(
        tuple(segments),
        clock,
        length,
        tuple(asked),
        shot_prefix=shot_prefix,
        references=tuple(references),
    )
    if not [switch for switch in switches if switch.recall is not None]:
        return timeline
    # of the whole story: a render that ends before tells scenes apart by the same words
    prompts_read = [timeline.spoken(segment) for segment in timeline.segments]
    return replace(
        timeline, alike=dict(zip(prompts_read, telling_texts(prompts_read), strict=True))
    )


def check_size(text: str) -> None:
    """Refuse what is no text, and a text that is too long."""
    if not isinstance(text, str):
        raise TimelineError("the timeline and the shared prompt must be text")
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise TimelineError("the timeline is longer than 1 MB; split it into several videos")


def _switches(prompts: Sequence[Prompt], default: Switch) -> list[Switch]:
    """The switch before each prompt: its tag, else the default; none before the first.

    Raises TimelineError for a prompt that recalls one that is not before it.
    """
    switches = [RESET]
    for index, prompt in enumerate(prompts[1:], 1):
        switch = prompt.switch or default
        if switch.recall is not None and switch.recall > index:
            raise TimelineError(
                f"prompt {index + 1} can recall the scenes of prompts 1 to {index}, got [recall "
                f"{switch.recall}]",
                prompt.line,
            )
        switches.append(switch)
    return switches


def _check_pictures(prompts: list[Prompt], texts: list[str], references: Sequence[str]) -> None:
    """Refuse a name of a picture that is none of `references`."""
    for prompt, text in zip(prompts, texts, strict=True):
        try:
            named_in(text, references)
        except HeadForcingError as error:
            raise TimelineError(str(error), prompt.line) from None


def _shared_words(widget: str, own: str) -> str:
    """The words before every prompt: those of the widget, then the text's own. Raises
    TimelineError.
    """
    if len(widget) + len(own) > MAX_SHARED_CHARACTERS:
        raise TimelineError(
            f"the shared prompt must have at most {MAX_SHARED_CHARACTERS} characters; shorten it"
        )
    shared = fold(widget)
    for words in filter(None, (shared, own)):
        check_words(words)
        if match_tag(words) is not None:
            raise TimelineError(
                "a tag belongs in front of one prompt of the timeline; remove it from the shared "
                "prompt"
            )
    return _join(shared, own) if own else shared


def _join(shared: str, text: str) -> str:
    if not shared:
        return text
    if shared[-1] not in ".,;:!?…。，！？、":
        shared += ","
    return f"{shared} {text}"


def _asked_times(prompts: list[Prompt], seconds: float | None) -> tuple[list[float], float]:
    """The start of every prompt and the length of the video, in seconds, before they are moved to
    blocks; prompts without times get equal shares.
    """
    count = len(prompts)
    if not [prompt for prompt in prompts if prompt.start is not None]:
        length = seconds or _checked_length(SECONDS_PER_PROMPT * count)
        return [cut_to_millisecond(index * length / count) for index in range(count)], length
    asked = _asked_starts(prompts, seconds)
    end = prompts[-1].end or asked[-1] + SECONDS_PER_PROMPT
    return asked, seconds or _checked_length(end)


def _asked_starts(prompts: list[Prompt], seconds: float | None) -> list[float]:
    """The start of every prompt in seconds; raises TimelineError for times that are missing or do
    not follow one another.
    """
    starts: list[float] = []
    for index, prompt in enumerate(prompts):
        start = 0.0 if prompt.start is None and index == 0 else prompt.start
        if start is None:
            raise TimelineError(
                "this scene has no time but others do; give every scene a time, or none",
                prompt.line,
            )
        if prompt.end is not None and prompt.end <= start:
            raise TimelineError(f"{prompt.token!r} ends before it starts", prompt.line)
        end_above = prompts[index - 1].end or 0.0
        if starts and (start <= starts[-1] or start < end_above):
            above = short_time(end_above or starts[-1])
            raise TimelineError(
                f"{short_time(start)} does not come after {above} of the prompt above", prompt.line
            )
        late = prompt.end or start
        if seconds is not None and (late > seconds or start == seconds):
            place = "after the end" if late > seconds else "the end"
            raise TimelineError(
                f"{short_time(late)} is {place} of the video ({seconds} s)", prompt.line
            )
        starts.append(start)
    return starts


def _snap(
    prompts: Sequence[Prompt], asked: Sequence[float], total: float, clock: BlockClock
) -> tuple[list[int], int]:
    """First block of every prompt in a video of `total` seconds, the nearest one to the start that
    was asked for, 0 for the first prompt; and the number of the video's blocks.
    """
    blocks = clock.blocks_for(total)
    starts = [0]
    for prompt, start in zip(prompts[1:], asked[1:], strict=True):
        block = clock.block_at(start)
        if starts[-1] < block < blocks:
            starts.append(block)
            continue
        if prompt.start is None:
            reason = (
                f"{len(prompts)} prompts do not fit into {total:g} s, each needs a block of its own"
            )
        elif block >= blocks:
            reason = f"{prompt.token} is too close to the end of the video ({total} s)"
        else:
            reason = f"{prompt.token} falls on the same block as the prompt above, move it later"
        line = prompt.line if prompt.start else None
        raise TimelineError(f"{reason}; blocks last {clock.block_seconds:g} s", line)
    return starts, blocks


def _checked_length(seconds: float) -> float:
    if not is_finite(seconds) or not 0.001 <= seconds <= MAX_SECONDS:
        raise TimelineError(
            f"the video must last above 0 and at most {MAX_SECONDS:.0f} seconds, got "
            f"{seconds!r:.40}"
        )
    return cut_to_millisecond(float(seconds))
