"""Tags in front of a prompt: `[flush, re-anchor]`, `[seed 7]`, and refusals of those that are
misspelt. `switch.py` says what they mean.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ..errors import HeadForcingError
from .headings import plain
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
# words that need a number, and the one that a message suggests
_NUMBERS = {"blend": "3", "seed": "1", "dissolve": "1s"}
_OTHER_WORDS = ("speed",)  # as near to a tag's word as a typing error
_BRACKET = re.compile(rf"{_MARK}(?P<open>\[) ?(?P<words>[a-z][\w,:=#+. -]{{0,120}}?) ?\]", _FLAGS)
_QUOTES = "「『"  # around speech, though around a time they are brackets
_COMMA = re.compile(r"(dissolve \d{1,3}),(?=\d)")
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
    """Refuse a bracket all of whose words are nearly those of a tag; anything else belongs to the
    prompt.
    """
    bracket = _match(_BRACKET, text)
    if bracket is None:
        return
    words: list[str] = []
    misspelt = False
    names = (*_TAG_WORDS, "dissolve", *_OTHER_WORDS)
    for given in re.findall(r"[^ ,:=#]+", _COMMA.sub(r"\1.", bracket["words"].lower())):
        if not given[0].isalpha():  # a number
            if words and words[-1] in _NUMBERS:
                words[-1] += _number_of(words[-1], given)
            continue
        near = difflib.get_close_matches(given, names, n=1, cutoff=_SAME_WORD)
        if not near or near[0][0] != given[0] or near[0] in _OTHER_WORDS:
            return
        word = near[0]
        if word != given or word in ("seed", "dissolve"):  # a whole tag with one is read before
            misspelt = True
        number = re.search(r"\d+$", given)
        if number is not None and word in _NUMBERS:
            word += _number_of(word, number[0])
        words.append(word)
    if misspelt:
        meant = ", ".join(
            f"{word} {_NUMBERS[word]}" if word in _NUMBERS else word for word in words
        )
        raise HeadForcingError(
            f"{text[bracket.start('open') : bracket.end()]} is not a tag; did you mean [{meant}]?"
        )


def _number_of(word: str, given: str) -> str:
    """A number as it follows a word of a tag, with the blank between; "" for another one."""
    if word == "dissolve":
        seconds = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)(?:seconds?|secs?|s)?", given)
        return f" {seconds[1]}s" if seconds else ""
    return f" {given}" if given.isdigit() else ""
