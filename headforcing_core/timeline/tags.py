"""Tags in front of a prompt: `[flush, re-anchor]`, `[seed 7]`, and refusals of those that are
misspelt. `switch.py` says what they mean.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ..errors import HeadForcingError
from .characters import plain
from .switch import MAX_SEED, MOST_ALIKE, SWITCHES, Switch

_SETS = {  # what the words of a tag set; each once
    **dict.fromkeys((*SWITCHES, "keep going"), "kind"),
    **dict.fromkeys(("re-anchor", "cut"), "re-anchor"),
    **dict.fromkeys(("recall", "new scene"), "scene"),
    **dict.fromkeys(("blend", "dissolve"), "blend"),
    "seed": "seed",
}
_NUMBERS = {  # what follows a word
    "recall": r"(?: \d{1,4})?",
    "blend": r" \d{1,4}",
    "dissolve": r" \d{1,3}(?:[.,]\d{1,3})? ?(?:seconds?|secs?|s)",
    "seed": r" \d{1,40}",
}
_WORD = f"(?:{'|'.join(word + _NUMBERS.get(word, '') for word in _SETS)})"
_WORD_AND_NUMBER = re.compile(rf"({'|'.join(_SETS)})(?: ([\d.,]*\d))?", re.ASCII)
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
MAX_TAGS = 8  # in front of a prompt


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
    given: dict[str, tuple[str, str]] = {}  # the word that sets something, and its number
    for word, number in _WORD_AND_NUMBER.findall(tag.lower()):
        if _SETS[word] in given:
            raise HeadForcingError(
                f"[{tag}] is contradictory; write one of {', '.join(SWITCHES)}, at most one cut, "
                "one recall or new scene, one blend and one seed"
            )
        given[_SETS[word]] = (word, number)
    seed = None
    if "seed" in given:
        seed = int(given["seed"][1])
        if seed > MAX_SEED:
            raise HeadForcingError(f"a seed is a whole number from 0 to {MAX_SEED}, got {seed}")
        if len(given) == 1:
            return None, seed
    kind, _ = given.get("kind", ("reset", ""))
    scene, recalled = given.get("scene", ("", ""))
    blend, length = given.get("blend", ("blend", "0"))
    if blend == "dissolve":
        blocks = max(1, round(float(length.replace(",", ".")) / block_seconds))
    else:
        blocks = int(length)
    switch = Switch(
        kind.replace("keep going", "reset"),
        blend_blocks=blocks,
        re_anchor="re-anchor" in given,
        recall=int(recalled or MOST_ALIKE) if scene == "recall" else None,
        new_scene=scene == "new scene",
    )
    return switch, seed


def refuse_almost_tag(text: str) -> None:
    """Refuse a bracket that is no tag and all of whose words are nearly those of one; anything else
    belongs to the prompt.
    """
    bracket = _match(_BRACKET, text)
    if bracket is None:
        return
    names = (*_SETS, *_OTHER_WORDS)
    for word in re.findall(r"(?<![^ ,:=#])(?!s\b)[a-z][^ ,:=#]*", bracket["words"].lower()):
        near = difflib.get_close_matches(word, names, n=1, cutoff=_SAME_WORD)
        if not near or near[0][0] != word[0] or near[0] in _OTHER_WORDS:
            return
    raise HeadForcingError(
        f"{text[bracket.start('open') : bracket.end()]} is not a tag; tags are [cut], [recache], "
        "[flush], [keep going], [dissolve 1.5s], [blend 3], [recall 2], [new scene] and [seed 7]"
    )


def read_tag(text: str, block_seconds: float) -> tuple[Switch | None, int | None, str]:
    """The switch and the seed of the tags in front of a one-line text, None for what they do not
    name, and the rest; a dissolve is rounded to blocks of `block_seconds`.

    A bracket with other words belongs to the prompt. Raises HeadForcingError for two kinds, blends
    or seeds, and for a misspelt tag.
    """
    if CAN_BE_TAG.match(text) is None:
        return None, None, text
    words: list[str] = []
    tag = match_tag(text)
    while tag is not None and len(words) < MAX_TAGS:
        words.append(tag.words)
        text = tag.rest
        tag = match_tag(text)
    refuse_almost_tag(text)
    switch, seed = parse_tag(", ".join(words), block_seconds) if words else (None, None)
    return switch, seed, text
