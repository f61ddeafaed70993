"""A text in any form that is known, translated into the written form of `grammar.py`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..clock import BlockClock, cut_to_millisecond, plain_time, short_time
from ..grammar import LATE_SECONDS, Written, finished, has_time, heading_before, read_story
from ..prompt import Prompt, TimelineError
from ..tags import match_tag
from ..timeline import SECONDS_PER_PROMPT, Timeline, check_size, lay_out_story
from .forms import PROMPT_ALONE, read_form
from .text import Text


@dataclass(frozen=True)
class Pasted:
    """A story in the written form.

    Attributes:
        text: the story.
        story: what was read of it.
        form: of the text that it was translated from; "" for one in the written form.
        lines: the 1-based line of that text for each line of the story; None for the whole text.
    """

    text: str
    story: Written
    form: str = ""
    lines: tuple[int | None, ...] = ()

    @property
    def is_translated(self) -> bool:
        """Whether the text was in another form, and not a prompt alone."""
        return self.form not in ("", PROMPT_ALONE)

    @property
    def sentence(self) -> str:
        """Line that says what was translated: "read as 6 prompts from subtitles; 0:00 to 1:12"."""
        prompts = self.story.prompts
        number = f"{len(prompts)} prompts" if len(prompts) > 1 else "one prompt"
        sentence = f"read as {number}{self.form and ' from '}{self.form}"
        last = prompts[-1]
        until = last.end or last.start
        if not until:
            return sentence
        return f"{sentence}; {plain_time(prompts[0].start or 0.0)} to {plain_time(until)}"

    def timeline(self, seconds: float | None = None, **options: Any) -> Timeline:
        """The timeline of the story; arguments and errors as of `lay_out_story`, with the line of
        the text that was translated.
        """
        try:
            return lay_out_story(self.story, seconds, **options)
        except TimelineError as error:
            if not self.form or error.line is None:
                raise
            raise TimelineError(error.sentence, self.lines[error.line - 1]) from None


def paste(text: str, clock: BlockClock | None = None, seconds: float | None = None) -> Pasted:
    """Translate a text into the written form; one in that form stays as it is.

    Args:
        clock: of the model, for schedules that count frames.
        seconds: length of the video, for schedules that count in parts of it.

    Raises TimelineError, with the line, for a text that is no story.
    """
    clock = clock or BlockClock()
    check_size(text)
    with suppress(TimelineError):
        return Pasted(text, read_story(text, clock))
    source = Text(text, clock, seconds)
    form, prompts = read_form(source)
    finished(prompts, clock)  # raises for what cannot be rendered
    written = _in_times(prompts, seconds)
    lines = [_written(prompt, number) for number, prompt in enumerate(written, 1)]
    sources = [prompt.line for prompt in prompts]
    if source.shared:
        lines.insert(0, f"[shared] {source.shared}")
        sources.insert(0, 1)
    translated = "\n".join(lines)
    story = read_story(translated, clock)
    return Pasted(translated, story, form, tuple(sources))


def read_any(
    text: str, seconds: float | None = None, clock: BlockClock | None = None, **options: Any
) -> Timeline:
    """The timeline of a text in any form; arguments and errors as of `lay_out_story`."""
    clock = clock or BlockClock()
    return paste(text, clock, seconds).timeline(seconds, clock=clock, **options)


def _in_times(prompts: Sequence[Prompt], seconds: float | None) -> list[Prompt]:
    """The prompts with times, if some have some or their words could be taken for times: then
    prompts without times get the equal shares that they have.
    """
    first, *others = prompts
    if all(prompt.start is None for prompt in prompts):
        if others and not any(has_time(prompt.text, timed=False) for prompt in prompts):
            return list(prompts)
        length = seconds or SECONDS_PER_PROMPT * len(prompts)
        return [
            replace(prompt, start=cut_to_millisecond(number * length / len(prompts)))
            for number, prompt in enumerate(prompts)
        ]
    for prompt in others:
        if prompt.start is None:
            raise TimelineError(
                "this scene has no time but others do; give every scene a time, or none",
                prompt.line,
            )
    start = first.start or 0.0
    end = first.end
    if start >= LATE_SECONDS and end is None:  # else it is a ratio or a time of day
        end = others[0].start if others else start + SECONDS_PER_PROMPT
    return [replace(first, start=start, end=end), *others]


def _written(prompt: Prompt, number: int) -> str:
    """The line of a prompt; `number` is that of a scene without a time."""
    words = _with_plain_tag(prompt.text)
    if prompt.start is None:
        return f"Scene {number}: {words}"
    times = short_time(prompt.start)
    if prompt.end is None:
        return heading_before(words, times) + words
    times += f"-{short_time(prompt.end)}"
    heading = heading_before(words, times)
    return (heading if heading.startswith("[") else f"[{times}] ") + words


def _with_plain_tag(text: str) -> str:
    """A prompt with its tags as one, in plain brackets."""
    words: list[str] = []
    rest = text
    while (tag := match_tag(rest)) is not None:
        words.append(tag.words.lower())
        rest = tag.rest
    if not words:
        return text
    plain = f"[{', '.join(words)}] {rest}"
    found = match_tag(plain)
    keeps = found is not None and found.rest == rest
    return plain if keeps else f"[{', '.join(words)}]: {rest}"
