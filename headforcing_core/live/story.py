"""The story of a video without a fixed end: each prompt is written when it is given."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import HeadForcingError
from ..timeline.characters import fold
from ..timeline.clock import BlockClock, cut_to_millisecond, format_time
from ..timeline.editor import PlacedPrompt, write_timeline
from ..timeline.grammar import MAX_SEGMENTS, read_story
from ..timeline.switch import MOST_ALIKE
from ..timeline.tags import match_tag, read_tag
from ..timeline.timeline import MAX_TEXT_BYTES, Segment, Timeline

# reads a text in the written form, of this length in seconds or, with None, of its own
Read = Callable[[str, float | None], Timeline]
_CHOICE = 4  # blocks of which one near a beat is chosen
_ANY = PlacedPrompt("a", 0)  # before a prompt that is read or written alone


@dataclass(frozen=True)
class Beats:
    """Regular beats of the sound of a story: the seconds between two, and the second of one."""

    every: float
    first: float

    def nearest_block(self, earliest: int, clock: BlockClock) -> int:
        """Of the next blocks from this one on the one whose beginning is nearest to a beat."""
        blocks = range(earliest, earliest + _CHOICE)
        return min(blocks, key=lambda block: self._distance(clock.start_seconds(block)))

    def _distance(self, second: float) -> float:
        """Seconds to the nearest beat, rounded, so that of equally near blocks the first is
        taken.
        """
        beats = (second - self.first) / self.every
        return round(abs(beats - round(beats)) * self.every, 3)


@dataclass(frozen=True)
class Said:
    """A prompt as a person gives it.

    Attributes:
        words: may begin with tags. Empty: those of the prompt that is recalled, else those of the
            prompt that is shown, with another seed.
        tag: how it follows, the words of a tag: `cut`, `dissolve 1.5s`; empty for the default.
        recall: the number of an earlier prompt, from 1, whose scene comes back.
        beats: on which it begins, as near as blocks come; None for the next block.
    """

    words: str = ""
    tag: str = ""
    recall: int | None = None
    beats: Beats | None = None


@dataclass(frozen=True)
class GrowingStory:
    """A story that prompts are added to. Only the new prompt is read, not the story again.

    Attributes:
        prompts: as they are written.
        lines: of the prompts, in the written form, each written once.
        shared: the words of every prompt.
        timeline: of the text, on the blocks of the video.
        read: reads another text with the arguments of this one.
    """

    prompts: tuple[PlacedPrompt, ...]
    lines: tuple[str, ...]
    shared: str
    timeline: Timeline
    read: Read

    @classmethod
    def of(
        cls, text: str, whole: Timeline, read: Read, *, clock: BlockClock, seconds: float = 0.0
    ) -> GrowingStory:
        """A story in the written form, which was read as the timeline `whole`.

        Args:
            clock: that of the video.
            seconds: length of the story at least; the last prompt goes on until then.
        """
        timeline = whole.on(clock)
        written = read_story(text, whole.clock)
        prompts = []
        for prompt, segment, asked in zip(
            written.prompts, timeline.segments, timeline.requested, strict=True
        ):
            if segment.switch.recall == MOST_ALIKE:
                raise HeadForcingError(
                    "[recall] without a number depends on all prompts of a story, and more will "
                    "follow; write the number of the prompt, [recall 2]"
                )
            placed = PlacedPrompt(
                prompt.text, segment.start_block, prompt.switch, prompt.seed, asked=asked
            )
            prompts.append(placed)
        lines = write_timeline(prompts, clock).split("\n")
        # no scene is told by likeness
        timeline = replace(timeline, alike={})
        story = cls(tuple(prompts), tuple(lines), written.shared, timeline, read)
        return story.lengthened(seconds) if timeline.seconds < seconds else story

    @property
    def text(self) -> str:
        """The story in the written form, without its length."""
        heading = [f"[shared] {self.shared}"] if self.shared else []
        return "\n".join([*heading, *self.lines])

    @property
    def text_with_length(self) -> str:
        """The same with the end of the video behind the last time."""
        timeline = self.timeline
        return write_timeline(self.prompts, timeline.clock, timeline.seconds, self.shared)

    def shown(self, block: int) -> int:
        """The index of the prompt of a block."""
        return self.timeline.prompt_index(block)

    def free_block(self, begun: int) -> int:
        """The first block at which a prompt can begin if `begun` blocks have begun: not the first
        of the story, and not one of a dissolve that has begun.
        """
        block = max(1, begun)
        segment = self.timeline.segments[self.shown(block - 1)]
        blended = segment.blended_blocks
        return max(block, segment.start_block + blended + 1) if blended else block

    def with_prompt(self, said: Said, block: int) -> GrowingStory:
        """The story with a prompt that begins at a block, one of `free_block` or later, in place of
        one that would begin there. Prompts after it stay.
        """
        timeline = self.timeline
        if block >= timeline.blocks:
            end = format_time(timeline.seconds)
            raise HeadForcingError(f"the video ends at {end}, no prompt can begin before")
        index = self.shown(block - 1) + 1  # of the new prompt
        after = index  # the first one that stays behind it
        if index < len(self.prompts) and self.prompts[index].start_block == block:
            after += 1
        placed = self._placed(said, index, block)
        last = timeline.blocks
        if after < len(self.prompts):
            last = timeline.segments[after].start_block
        segment = replace(self._read(placed), start_block=block, end_block=last)
        before = replace(timeline.segments[index - 1], end_block=block)
        line = _line(placed, timeline.clock)
        story = replace(
            self,
            prompts=(*self.prompts[:index], placed, *self.prompts[after:]),
            lines=(*self.lines[:index], line, *self.lines[after:]),
            timeline=replace(
                timeline,
                segments=(
                    *timeline.segments[: index - 1],
                    before,
                    segment,
                    *timeline.segments[after:],
                ),
                requested=(
                    *timeline.requested[:index],
                    cut_to_millisecond(timeline.clock.start_seconds(block)),
                    *timeline.requested[after:],
                ),
            ),
        )
        if len(story.prompts) > MAX_SEGMENTS or len(story.text.encode()) > MAX_TEXT_BYTES:
            raise HeadForcingError(
                f"a story has at most {MAX_SEGMENTS} prompts and 1 MB of text, and this one is "
                "full; stop the video and begin another"
            )
        return story if after > index else story._with_later_recalls(index)

    def _with_later_recalls(self, index: int) -> GrowingStory:
        """The story in which prompts behind the new one of this index recall what they did
        before.
        """
        prompts = list(self.prompts)
        lines = list(self.lines)
        segments = list(self.timeline.segments)
        for later in range(index + 1, len(prompts)):
            prompt = prompts[later]
            switch = segments[later].switch
            if switch.recall is None or switch.recall <= index:
                continue
            switch = replace(switch, recall=switch.recall + 1)
            segments[later] = replace(segments[later], switch=switch)
            prompts[later] = replace(prompt, switch=switch)
            lines[later] = _line(prompts[later], self.timeline.clock)
        timeline = replace(self.timeline, segments=tuple(segments))
        return replace(self, prompts=tuple(prompts), lines=tuple(lines), timeline=timeline)

    def lengthened(self, seconds: float) -> GrowingStory:
        """The story with another end, behind the one that it has."""
        timeline = self.timeline
        blocks = timeline.clock.blocks_for(seconds)
        last = replace(timeline.segments[-1], end_block=blocks)
        segments = (*timeline.segments[:-1], last)
        return replace(self, timeline=replace(timeline, segments=segments, seconds=seconds))

    def cut(self, block: int) -> GrowingStory:
        """The story that ends before a block."""
        timeline = self.timeline
        count = self.shown(block - 1) + 1
        last = replace(timeline.segments[count - 1], end_block=block)
        shorter = replace(
            timeline,
            segments=(*timeline.segments[: count - 1], last),
            requested=timeline.requested[:count],
            seconds=cut_to_millisecond(timeline.clock.start_seconds(block)),
        )
        return replace(
            self, prompts=self.prompts[:count], lines=self.lines[:count], timeline=shorter
        )

    def _placed(self, said: Said, index: int, block: int) -> PlacedPrompt:
        """The prompt as it is written at this index."""
        words = fold(said.words)
        tags = [said.tag] if said.tag else []
        if said.tag and _tag_alone(said.tag) is None:
            raise HeadForcingError(
                f"{said.tag[:40]!r} is no tag; write cut, dissolve 1.5s, or another one of the "
                "page on stories"
            )
        if said.recall is not None:
            tags.append(f"recall {said.recall}")
        if not words and said.recall is not None:
            self._check_recall(said.recall, index)
            words = self.prompts[said.recall - 1].text
        elif not words:
            words = self.prompts[index - 1].text
            tags.append(f"seed {random.randrange(1, 10**6)}")
        if tags:
            words = f"[{', '.join(tags)}] {words}"
        switch, seed, text = read_tag(words, self.timeline.clock.block_seconds)
        if switch is not None and switch.recall is not None:
            self._check_recall(switch.recall, index)
        return PlacedPrompt(text, block, switch, seed)

    def _check_recall(self, number: int, index: int) -> None:
        if not 1 <= number <= index:
            raise HeadForcingError(
                f"the scenes of prompts 1 to {index} can come back, got [recall {number}]"
            )

    def _read(self, placed: PlacedPrompt) -> Segment:
        """The prompt as a model reads it; its blocks are those of another story."""
        switch = placed.switch
        alone = replace(placed, start_block=1)
        if switch is not None and switch.recall is not None:  # its number is that of this story
            alone = replace(alone, switch=replace(switch, recall=None))
        clock = self.timeline.clock
        text = write_timeline([_ANY, alone], clock, shared=self.shared)
        segment = self.read(text, None).segments[1]
        return replace(segment, switch=switch or segment.switch)


def _tag_alone(words: str) -> str | None:
    """The words of a tag; None if they are none, or more."""
    tag = match_tag(f"[{words}] a")
    return words if tag is not None and (tag.words, tag.rest) == (words, "a") else None


def _line(prompt: PlacedPrompt, clock: BlockClock) -> str:
    """The line of a prompt in the written form."""
    before = [_ANY] if prompt.start_block else []
    return write_timeline([*before, prompt], clock).split("\n")[-1]
