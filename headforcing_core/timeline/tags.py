"""Tags in front of a prompt: `[flush, re-anchor]`, `[seed 7]`, and refusals of those that are
misspelt. `switch.py` says what they mean.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ..errors import HeadForcingError
from .characters import plain
from .switch import MAX_SEED, SWITCHES, Switch

_TAG_WORDS = {  # what may follow each word of a tag
    **dict.fromkeys((*SWITCHES, "re-anchor", "cut"), ""),
    "recall": r"(?: \d{1,4})?",
    "new scene": "",
    "blend": r" \d{1,4}",
    "seed": r" \d{1,40}",
}
_DISSOLVE = r" \d{1,3}(?:[.,]\d{1,3})? ?(?:seconds?|secs?|s)"
_PLAIN_WORDS = {"keep going": "", "dissolve": _DISSOLVE}
_WORD = f"(?:{'|'.join(word + rest for word, rest in (_TAG_WORDS | _PLAIN_WORDS).items())})"
_MARK = r"(?P<mark>\*{1,3}|_{1,2}|`)?"  # of bold, italics or code
_FLAGS = re.ASCII | re.IGNORECASE
_TAG = re.compile(
    rf"{_MARK}(?P<open>\[) ?(?P<words>{_WORD}(?:(?:, ?| ){_WORD}){{0,7}}) ?\]", _FLAGS
)
CAN_BE_TAG = re.compile(r"[*_`＊＿｀]{0,3}[\[［【〔〖「『]")
_AFTER_TAG = re.compile(r" ?(?:[:|,.;。、]|[–—-](?= )) ?| ")
_OTHER_WORDS = ("speed",)  # as near to a tag's word as a typing error
_BRACKET = re.compile(rf"{_MARK}(?P<open>\[) ?(?P<words>[a-z][\w,:=#+. -]{{0,120}}?) ?\]", _FLAGS)
_QUOTES = "「『"  # around speech, though around a time they are brackets
# ratio of difflib: a letter more or less; "flash" and "blond" (0.8) are other words
_SAME_WORD = 0.85


@dataclass(frozen=True)
class Tag:
    """A tag in front of a prompt: the words in its brackets, and the text after it."""

    words: str
    rest: str


def match_tag(text: str) -> Tag | None:
    """The tag in front of a text; marks around it, and punctuation after it, are left
    out.
    """
    found = _match(_TAG, text)
    if found is None:
        return None
    rest = text[found.end() :]
    if found["mark"]:
        rest = rest.replace(found["mark"], "", 1)
    separator = _AFTER_TAG.match(plain(rest))
    return Tag(found["words"], rest[separator.end() :] if separator else rest)


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """A bracket in front of a text, also a full-width one, and not the quotation marks of some
    languages.
    """
    found = pattern.match(plain(text))
    if found is None or text[found.start("open")] in _QUOTES:
        return None
    return found


def parse_tag(tag: str, block_seconds: float) -> tuple[Switch | None, int | None]:
    """Switch and seed of the words in a tag's brackets."""
    words = re.findall(_WORD, tag.lower())
    kinds = [word for word in words if word in SWITCHES] + ["reset"] * words.count("keep going")
    recalls = _numbers(words, "recall")
    blends = _numbers(words, "blend")
    for word in words:
        if word.startswith("dissolve"):
            seconds = float(word.removeprefix("dissolve").replace(",", ".").rstrip(" second"))
            blends.append(max(1, round(seconds / block_seconds)))
    seeds = _numbers(words, "seed")
    new_scene = "new scene" in words
    if max(len(kinds), len(recalls), len(blends), len(seeds)) > 1 or (recalls and new_scene):
        raise HeadForcingError(
            f"[{tag}] is contradictory; write one of {', '.join(SWITCHES)}, at most one recall or "
            "new scene, one blend and one seed"
        )
    seed = next(iter(seeds), None)
    if seed is not None and seed > MAX_SEED:
        raise HeadForcingError(f"a seed is a whole number from 0 to {MAX_SEED}, got {seed}")
    if len(words) == len(seeds):
        return None, seed
    switch = Switch(
        kind=next(iter(kinds), "reset"),
        blend_blocks=next(iter(blends), 0),
        re_anchor="re-anchor" in words or "cut" in words,
        recall=next(iter(recalls), None),
        new_scene=new_scene,
    )
    return switch, seed


def _numbers(words: list[str], name: str) -> list[int]:
    """The number behind every word of a tag that begins with this name; 0 where it has none."""
    return [int(word.removeprefix(name) or 0) for word in words if word.startswith(name)]


def refuse_almost_tag(text: str) -> None:
    """Refuse a bracket that is no tag and all of whose words are nearly those of one; anything else
    belongs to the prompt.
    """
    bracket = _match(_BRACKET, text)
    if bracket is None:
        return
    names = (*_TAG_WORDS, "dissolve", *_OTHER_WORDS)
    for word in re.findall(r"(?<![^ ,:=#])[a-z][^ ,:=#]*", bracket["words"].lower()):
        near = difflib.get_close_matches(word, names, n=1, cutoff=_SAME_WORD)
        if not near or near[0][0] != word[0] or near[0] in _OTHER_WORDS:
            return
    raise HeadForcingError(
        f"{text[bracket.start('open') : bracket.end()]} is not a tag; tags are [cut], [recache], "
        "[flush], [keep going], [dissolve 1.5s], [blend 3], [recall 2], [new scene] and [seed 7]"
    )
