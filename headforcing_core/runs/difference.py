"""The first scene in which a stored video differs from an earlier one, as a list says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..files import Fields

LEAST_WORDS = 2  # that are said of a prompt, so that an adjective has its noun


@dataclass(frozen=True)
class Difference:
    """A difference of a scene, the first one of a story.

    Attributes:
        scene: its number from 1; of the last scene for `end`.
        what: its words, the second at which it begins, the seed from it on, the way in which it
            follows the scene before; or the story ends with an earlier scene.
        words: of the scene, those that the earlier one does not have at this place.
    """

    scene: int
    what: Literal["words", "start", "seed", "switch", "end"]
    words: str = ""


def difference(about: Fields, earlier: Fields) -> Difference | None:
    """The first difference between the stories of two videos, by their notes (`RenderJob.about`);
    None between equal ones.
    """
    prompts = about["prompts"]
    before = earlier["prompts"]
    for place, prompt in enumerate(prompts):
        number = place + 1
        if place >= len(before):
            return Difference(number, "words", prompt)
        if prompt != before[place]:
            return Difference(number, "words", own_words(prompt, before[place]))
        if _differs("starts_seconds", about, earlier, place):
            return Difference(number, "start")
        if _differs("seeds", about, earlier, place):
            return Difference(number, "seed")
        if _differs("switches", about, earlier, place):
            return Difference(number, "switch")
    return Difference(len(prompts), "end") if len(prompts) < len(before) else None


def _differs(name: str, about: Fields, earlier: Fields, place: int) -> bool:
    """Whether two notes have other values of a scene; older notes lack some."""
    values = about.get(name, ())
    others = earlier.get(name, ())
    return place < min(len(values), len(others)) and values[place] != others[place]


def own_words(text: str, other: str) -> str:
    """The words of a text from the first to the last that another one does not have there, and
    those after them, up to `LEAST_WORDS`.
    """
    words = text.split()
    others = other.split()
    most = min(len(words), len(others))
    same = 0
    while same < most and words[same] == others[same]:
        same += 1
    alike = 0  # at the end
    while alike < most - same and words[-1 - alike] == others[-1 - alike]:
        alike += 1
    end = max(len(words) - alike, same + LEAST_WORDS)
    begin = min(same, len(words) - LEAST_WORDS)
    return " ".join(words[max(begin, 0) : end])
