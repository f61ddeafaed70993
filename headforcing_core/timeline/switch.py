"""What happens where one prompt follows another: what the caches keep, and how the text goes over.

A switch is chosen for all prompts or written as a tag in front of one: `[recache] text`, `[flush, re-anchor] text`,
`[blend 3] text`. The cache carries it out: `RoleSwitching.apply_switch` where heads keep frames by role.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from torch import Tensor
from torch.nn import functional as F

from ..errors import HeadForcingError

SWITCHES = ("reset", "recache", "flush")
MAX_BLEND_BLOCKS = 16

_WORD = r"(?:reset|recache|flush|re-anchor|blend \d{1,4})"
_TAG = re.compile(rf"\[ ?({_WORD}(?:(?:, ?| ){_WORD}){{0,7}}) ?\] ?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Switch:
    """How a prompt takes over from the one before it.

    Attributes:
        kind: `reset` changes the cross-attention keys and values and leaves the past as it is; `recache` also writes
            the last blocks again under the new prompt (LongLive); `flush` also forgets all but the first frames and
            the last two (Infinity-RoPE).
        blend_blocks: over how many blocks the text embedding goes over; 0 changes it at once.
        re_anchor: a scene cut: the new scene's first frames take the place of the video's first ones.
    """

    kind: str = "reset"
    blend_blocks: int = 0
    re_anchor: bool = False

    def __post_init__(self) -> None:
        if self.kind not in SWITCHES:
            raise HeadForcingError(f"a prompt switch must be one of {', '.join(SWITCHES)}, got {self.kind!r}")
        if not 0 <= self.blend_blocks <= MAX_BLEND_BLOCKS:
            raise HeadForcingError(f"a blend takes 0 to {MAX_BLEND_BLOCKS} blocks, got {self.blend_blocks}")

    @property
    def changes_cache(self) -> bool:
        """Whether anything is done but change the prompt."""
        return self.kind != "reset" or self.re_anchor

    def __str__(self) -> str:
        """As it stands in a tag: `flush, re-anchor, blend 3`."""
        words = [self.kind] if self.kind != "reset" else []
        words += ["re-anchor"] if self.re_anchor else []
        words += [f"blend {self.blend_blocks}"] if self.blend_blocks else []
        return ", ".join(words or ["reset"])


RESET = Switch()


def read_tag(text: str) -> tuple[Switch | None, str]:
    """The switch that a tag in front of a folded text asks for, and the text behind it.

    Without a tag None and the whole text: a bracket with other words in it belongs to the prompt. A tag stands for
    itself, what it does not name is not done. Raises HeadForcingError for one that says two things at once.
    """
    found = _TAG.match(text)
    if found is None:
        return None, text
    words = re.findall(_WORD, found[1].lower())
    kinds = [word for word in words if word in SWITCHES]
    blends = [int(word.removeprefix("blend ")) for word in words if word.startswith("blend ")]
    if len(kinds) > 1 or len(blends) > 1:
        raise HeadForcingError(
            f"[{found[1]}] says two things at once; write one of {', '.join(SWITCHES)} and at most one blend"
        )
    switch = Switch(kinds[0] if kinds else "reset", blends[0] if blends else 0, "re-anchor" in words)
    return switch, text[found.end() :]


def write_tag(switch: Switch, text: str) -> str:
    """The text with the tag that `read_tag` needs to give both back; without one where there is nothing to say."""
    if switch == RESET and not _TAG.match(text):
        return text
    return f"[{switch}] {text}"


@dataclass(frozen=True)
class Blend:
    """A text embedding between those of two prompts; `weight` is the share of the second."""

    before: int
    after: int
    weight: float

    def of(self, embeds: Sequence[Tensor]) -> Tensor:
        """The blended embedding `[tokens, text_dim]`; the shorter one is padded with zero rows, as the model does."""
        old, new = embeds[self.before], embeds[self.after]
        tokens = max(len(old), len(new))
        padded = [F.pad(rows.float(), (0, 0, 0, tokens - len(rows))) for rows in (old, new)]
        return ((1 - self.weight) * padded[0] + self.weight * padded[1]).to(new.dtype)


class BlendedEmbeddings(Sequence[Tensor]):
    """The embeddings of all prompts, then those of all blends, which are made when they are asked for.

    One of umT5 takes 8 MB, and a blend is used for one block.
    """

    def __init__(self, embeds: Sequence[Tensor], blends: Sequence[Blend]):
        self.embeds, self.blends = embeds, blends

    def __len__(self) -> int:
        return len(self.embeds) + len(self.blends)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        known = len(self.embeds)
        return self.embeds[index] if index < known else self.blends[index - known].of(self.embeds)
