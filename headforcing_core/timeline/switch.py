"""Prompt switches: what the KV caches keep when the prompt changes, and how text embeddings are
interpolated.

A switch is chosen for all prompts or written as a tag in front of one: `[recache] text`, `[flush,
re-anchor] text`, `[blend 3] text`. In plain words `[cut]` is `[re-anchor]`, `[keep going]` is
`[reset]`, and `[dissolve 1.5s]` a blend of as many blocks as last about so long. The same tag can
set the seed of the noise from its prompt on: `[seed 7] text`, `[recache, seed 7] text`. The cache
executes a switch: `Cache.apply_switch`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import HeadForcingError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor

SWITCHES = ("reset", "recache", "flush")
MAX_BLEND_BLOCKS = 16
MAX_SEED = 2**64 - 1

_TAG_WORDS = {  # what may follow each word of a tag
    **dict.fromkeys((*SWITCHES, "re-anchor", "cut"), ""),
    "recall": r"(?: \d{1,4})?",
    "new scene": "",
    "blend": r" \d{1,4}",
    "seed": r" \d{1,40}",
}
_PLAIN_WORDS = {"keep going": "", "dissolve": r" \d{1,3}(?:\.\d{1,3})? ?s"}
_WORD = f"(?:{'|'.join(word + rest for word, rest in (_TAG_WORDS | _PLAIN_WORDS).items())})"
_TAG = re.compile(rf"\[ ?({_WORD}(?:(?:, ?| ){_WORD}){{0,7}}) ?\] ?", re.ASCII | re.IGNORECASE)
# words that need a number, and the one that a message suggests
_NUMBERS = {"blend": "3", "seed": "1"}
_OTHER_WORDS = ("speed",)  # as near to a tag's word as a typing error
_SEED_ALONE = re.compile(r"seed \d{1,40}", re.ASCII | re.IGNORECASE)
_BRACKET = re.compile(r"\[ ?([a-z][\w,:=#+. -]{0,120}?) ?\]", re.ASCII | re.IGNORECASE)
# ratio of difflib: a letter more or less; "flash" and "blond" (0.8) are other words
_SAME_WORD = 0.85


@dataclass(frozen=True)
class Switch:
    """A change from one prompt to the next.

    Attributes:
        kind: `reset` replaces the cross-attention keys and values and keeps the KV cache; `recache`
            also recomputes the cached keys and values of the last blocks with the new prompt (KV
            recache of LongLive); `flush` instead drops all latent frames but the first ones and the
            last two from the cache (KV flush of Infinity-RoPE).
        blend_blocks: number of blocks over which the text embedding is interpolated.
        re_anchor: a scene cut: the first latent frames of the new scene replace the attention sink.
        recall: number of an earlier prompt, from 1, whose scene comes back; 0 for the most alike
            one.
        new_scene: the prompt begins a new scene, whatever its words are.
        continues: the prompt is one more of the scene before it, see `returns.with_returns`; no tag
            says so.

    Raises HeadForcingError for an unknown kind and for `blend_blocks` out of range.
    """

    kind: str = "reset"
    blend_blocks: int = 0
    re_anchor: bool = False
    recall: int | None = None
    new_scene: bool = False
    continues: bool = False

    def __post_init__(self) -> None:
        if self.kind not in SWITCHES:
            raise unknown_name("switch", self.kind, SWITCHES)
        if not 0 <= self.blend_blocks <= MAX_BLEND_BLOCKS:
            raise HeadForcingError(
                f"a blend takes 0 to {MAX_BLEND_BLOCKS} blocks, got {self.blend_blocks}"
            )

    @property
    def changes_cache(self) -> bool:
        """Whether the switch changes the KV cache and not only the prompt."""
        return self.kind != "reset" or self.re_anchor or self.recall is not None

    def __str__(self) -> str:
        """The content of its tag: `flush, re-anchor, blend 3`."""
        words = []
        if self.kind != "reset":
            words.append(self.kind)
        if self.re_anchor:
            words.append("re-anchor")
        if self.recall is not None:
            words.append(f"recall {self.recall}" if self.recall else "recall")
        if self.new_scene:
            words.append("new scene")
        if self.blend_blocks:
            words.append(f"blend {self.blend_blocks}")
        return ", ".join(words) or "reset"


RESET = Switch()


def read_tag(text: str, block_seconds: float) -> tuple[Switch | None, int | None, str]:
    """The switch and the seed of the tag in front of a one-line text, None for what it does not
    name, and the rest; a dissolve is rounded to blocks of `block_seconds`.

    A bracket with other words belongs to the prompt. A tag of a seed alone may stand beside one of
    a switch. Raises HeadForcingError for two kinds, blends or seeds, and for a misspelt tag.
    """
    tag = _TAG.match(text)
    if tag is None:
        _refuse_almost_tag(text)
        return None, None, text
    switch, seed = _parse_tag(tag[1], block_seconds)
    end = tag.end()
    beside = _TAG.match(text, end)
    if beside is None:
        if switch is None:
            _refuse_almost_tag(text[end:])
    elif switch is None and not has_seed(beside[0]):
        switch = _parse_tag(beside[1], block_seconds)[0]
        end = beside.end()
    elif switch not in (None, RESET) and seed is None and _SEED_ALONE.fullmatch(beside[1]):
        # not after [reset], where all is text: see `editor`
        _, seed = _parse_tag(beside[1], block_seconds)
        end = beside.end()
    return switch, seed, text[end:]


def has_seed(text: str) -> bool:
    """Whether the tag in front of a text names a seed."""
    tag = _TAG.match(text)
    return tag is not None and "seed" in tag[1].lower()


def _parse_tag(tag: str, block_seconds: float) -> tuple[Switch | None, int | None]:
    """Switch and seed of the words in a tag's brackets."""
    words = re.findall(_WORD, tag.lower())
    kinds = [word for word in words if word in SWITCHES] + ["reset"] * words.count("keep going")
    recalls = _numbers(words, "recall")
    blends = _numbers(words, "blend")
    for word in words:
        if word.startswith("dissolve"):
            seconds = float(word.removeprefix("dissolve").removesuffix("s"))
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


def tag_of(switch: Switch | None, seed: int | None) -> str | None:
    """The words in the brackets of a tag: `flush, seed 7`; None for neither a switch nor a seed."""
    words = []
    if switch is not None:
        words.append(str(switch))
    if seed is not None:
        words.append(f"seed {seed}")
    return ", ".join(words) or None


def _refuse_almost_tag(text: str) -> None:
    """Refuse a bracket all of whose words are nearly those of a tag; anything else belongs to the
    prompt.
    """
    bracket = _BRACKET.match(text)
    if bracket is None:
        return
    words: list[str] = []
    misspelt = False
    for given in re.findall(r"[^ ,:=#]+", bracket[1].lower()):
        if not given[0].isalpha():  # a number
            if words and words[-1] in _NUMBERS and given.isdigit():
                words[-1] += f" {given}"
            continue
        near = difflib.get_close_matches(
            given, (*_TAG_WORDS, *_OTHER_WORDS), n=1, cutoff=_SAME_WORD
        )
        if not near or near[0][0] != given[0] or near[0] in _OTHER_WORDS:
            return
        word = near[0]
        if word != given or given == "seed":  # a whole tag with a seed is read before
            misspelt = True
        number = re.search(r"\d+$", given)
        if number is not None and word in _NUMBERS:
            word += f" {number[0]}"
        words.append(word)
    if misspelt:
        meant = ", ".join(
            f"{word} {_NUMBERS[word]}" if word in _NUMBERS else word for word in words
        )
        raise HeadForcingError(
            f"{text[: text.index(']') + 1]} is not a tag; did you mean [{meant}]?"
        )


@dataclass(frozen=True)
class Blend:
    """Linear interpolation of the text embeddings of two prompts; `weight` is that of the
    second.
    """

    before: str
    after: str
    weight: float

    def interpolate(self, embeds: Mapping[str, Tensor]) -> Tensor:
        """The interpolated embedding `[tokens, text_dim]`; the shorter one is padded with zeros, as
        in the model.
        """
        from torch.nn import functional as F

        old = embeds[self.before]
        new = embeds[self.after]
        tokens = max(len(old), len(new))
        padded = [F.pad(rows.float(), (0, 0, 0, tokens - len(rows))) for rows in (old, new)]
        return ((1 - self.weight) * padded[0] + self.weight * padded[1]).to(new.dtype)
