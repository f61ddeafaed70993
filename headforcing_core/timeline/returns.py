"""The scene that each prompt of a story belongs to: a prompt that returns to an earlier scene is
one of that scene.

A pure function of the prompts up to each one, in English: a later prompt changes nothing before it.
A prompt returns

- where it has all words of an earlier one, or that one all of its words, and four fifths of both
  are common. Words in another form count as equal ("cooks", "cooking"), small words do not count.
  One word in place of another is another scene: "the red room" is not "the blue room";
- or where it says so, "back in the kitchen", "returns to the kitchen", "the kitchen again": an
  earlier prompt names that place, and the prompt before it does not.

Anything else is a new scene, or is asked for by a tag: `[recall 2]`, `[new scene]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from .characters import MARKS_OF_LETTERS, same_letters
from .switch import Switch
from .timeline import Timeline

_REMEMBERED = 4096  # prompts
COMMON_SHARE = 0.8  # of the words of two prompts that are one scene, by Dice's coefficient
_SMALL_WORDS = frozenset(
    "a an and are as at be been before by for from has have he her his in into is it its now of on "
    "onto or over she that the their them they this to under was were while who with again back "
    "once more return returns returned "
    "returning same still".split()
)
_LETTERS = rf"[\w{MARKS_OF_LETTERS}'-]+"
_NAME = rf"((?:{_LETTERS}\s+){{0,2}}?{_LETTERS})"
_WORD = re.compile(rf"[^\W_](?:[^\W_]|[{MARKS_OF_LETTERS}])*")
_PLACE = rf"(?:the|a|an|his|her|its|their|our|my|that|this)\s+(?:same\s+)?{_NAME}"
_NEXT = "and|as|at|by|from|in|of|on|once|that|to|under|where|which|while|who|with|again"
_END = rf"(?=\s*(?:[,.;:!?]|$)|\s+(?:{_NEXT})\b)"
_IN = r"(?:at|in|inside|on)"
# "back into" and "back to" inside a sentence say how somebody moves, "returns to his work" what he
# does
_BACK = re.compile(
    rf"(?:\b(?:back|again|once more),?\s+{_IN}|(?:^|[.!?]\s+)back\s+to)\s+{_PLACE}{_END}"
)
_RETURNS = re.compile(rf"\breturn(?:s|ed|ing)?\s+to\s+(?:the|that)\s+(?:same\s+)?{_NAME}{_END}")
_AGAIN = re.compile(rf"(?:^|[.!?]\s+|\b{_IN}\s+){_PLACE}\s+(?:again|once more)\b")


def with_returns(timeline: Timeline, most: int) -> Timeline:
    """The timeline in which every prompt that returns to an earlier scene recalls it, as if a tag
    had said so.

    A prompt that goes on with the scene before it is marked (`Switch.continues`), unless it cuts to
    new anchors. Tags overrule all of it. Only the last `most` scenes are returned to.
    """
    prompts = [timeline.spoken(segment) for segment in timeline.segments]
    segments = [timeline.segments[0]]
    scenes = [1]
    for number, segment in enumerate(timeline.segments[1:], 2):
        switch = segment.switch
        if not switch.new_scene and switch.recall is None:
            found = _scene_of(prompts, number - 1, scenes, most)
            if found is not None and found != scenes[-1]:
                switch = replace(switch, recall=found)
            elif found is not None and not switch.re_anchor:
                switch = replace(switch, continues=True)
        segments.append(replace(segment, switch=switch))
        scenes.append(scene_of(switch, scenes))
    return replace(timeline, segments=tuple(segments))


def scene_of(switch: Switch, scenes: Sequence[int]) -> int:
    """The scene of the next prompt, as the number of its first prompt; `scenes` are those of the
    prompts before.
    """
    if switch.continues:
        return scenes[-1]
    return scenes[switch.recall - 1] if switch.recall else len(scenes) + 1


def latest_scenes(scenes: Sequence[int], most: int) -> list[int]:
    """The `most` scenes that were visited last, the last one first; `scenes` are those of all
    prompts so far.
    """
    latest: list[int] = []
    for scene in reversed(scenes):
        if len(latest) == most:
            break
        if scene not in latest:
            latest.append(scene)
    return latest


def _scene_of(prompts: Sequence[str], index: int, scenes: Sequence[int], most: int) -> int | None:
    """The earlier scene that the prompt of this index is of by its words; None for a new one."""
    prompt = prompts[index]
    latest = latest_scenes(scenes, most)
    for scene in latest:
        if alike(prompt, prompts[scene - 1]):
            return scene
    for place in _named_places(prompt):
        if place[-1] in _words(prompts[index - 1]):
            continue  # the story has not left it
        for scene in latest[1:]:
            if set(place) <= set(_words(prompts[scene - 1])):
                return scene
    return None


# The prompts of a story that changes while it is rendered are compared again with each change.
@lru_cache(maxsize=_REMEMBERED)
def _named_places(prompt: str) -> list[tuple[str, ...]]:
    """The words of every place to which a prompt says that it returns."""
    lower = same_letters(prompt)
    names = [*_BACK.findall(lower), *_RETURNS.findall(lower), *_AGAIN.findall(lower)]
    return [words for words in map(_words, names) if words]


@lru_cache(maxsize=8 * _REMEMBERED)
def alike(one: str, other: str) -> bool:
    """Whether two prompts are of one scene by their words alone."""
    a = set(_words(one))
    b = set(_words(other))
    if not a or not b:
        return one.split() == other.split()
    return (a <= b or b <= a) and 2 * len(a & b) >= COMMON_SHARE * (len(a) + len(b))


@lru_cache(maxsize=_REMEMBERED)
def _words(text: str) -> tuple[str, ...]:
    """The words of a text without small ones and endings."""
    words = _WORD.findall(same_letters(text))
    return tuple(_stem(word) for word in words if word not in _SMALL_WORDS)


def _stem(word: str) -> str:
    """A word without its ending, if enough of it is left: "cook" for "cooks" and "cooking"."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
