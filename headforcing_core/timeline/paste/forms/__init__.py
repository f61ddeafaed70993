"""The forms of a story that are translated. Each is a file with a reader, examples of what it reads
(with the seconds and words of their prompts in a video of 20 seconds) and of what it refuses (with
the line that it names).
"""

from __future__ import annotations

from collections.abc import Callable

from ...prompt import Prompt
from ..text import Text
from . import (
    audacity,
    bars,
    bracketed,
    bullets,
    counted_titles,
    json_prompts,
    microdvd,
    mpl2,
    names,
    numbered,
    parts,
    preambles,
    programs,
    scenes,
    screenplay,
    shots,
    subrip,
    substation,
    tables,
    timed_lines,
    titles,
    webvtt,
    whisper,
    words,
)

PROMPT_ALONE = "words"  # the form of a text that is one prompt
# a reader gives the prompts with their tags as words, None for a text of another form, and raises
# TimelineError for one that is nearly of its form
READERS: tuple[tuple[str, Callable[[Text], list[Prompt] | None]], ...] = (
    ("a table", audacity.read),
    ("a table", whisper.read),
    ("a table", tables.read),
    ("subtitles", webvtt.read),
    ("subtitles", subrip.read),
    ("subtitles", substation.read),
    ("subtitles", mpl2.read),
    ("subtitles", microdvd.read),
    ("times", bracketed.read),
    ("JSON", json_prompts.read),
    ("parts of the video", parts.read),
    ("a list", numbered.read),
    ("a list", bullets.read),
    ("a screenplay", screenplay.read),
    ("shots", shots.read),
    ("scenes", scenes.read),
    ("times", timed_lines.read),
    ("a list", counted_titles.read),
    ("schedules of other programs", programs.read),
    ("words above a list", preambles.read),
    ("names", names.read),
    ("titles", titles.read),
    ("prompts between bars", bars.read),
    (PROMPT_ALONE, words.read),
)


def read_form(text: Text) -> tuple[str, list[Prompt]]:
    """The name of the first form that claims a text, and its prompts with their tags as words."""
    for form, read in READERS:
        prompts = read(text)
        if prompts is not None:
            return form, prompts
    return PROMPT_ALONE, []
