"""Prompt switches: what the KV caches keep when the prompt changes, and how text embeddings are
interpolated.

A switch is chosen for all prompts or written as a tag in front of one: `[recache] text`, `[flush,
re-anchor] text`, `[blend 3] text`. In plain words `[cut]` is `[re-anchor]`, `[keep going]` is
`[reset]`, and `[dissolve 1.5s]` a blend of as many blocks as last about so long. The same tag can
set the seed of the noise from its prompt on: `[seed 7] text`, `[recache, seed 7] text`. The cache
executes a switch: `Cache.apply_switch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import HeadForcingError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor

SWITCHES = ("reset", "recache", "flush")
MAX_BLEND_BLOCKS = 16
MOST_ALIKE = 0  # in place of a prompt's number: the scene of the most similar one
MAX_SEED = 2**64 - 1


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
        recall: number of an earlier prompt, from 1, whose scene comes back, or `MOST_ALIKE`.
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


def tag_of(switch: Switch | None, seed: int | None) -> str | None:
    """The words in the brackets of a tag: `flush, seed 7`; None for neither a switch nor a seed."""
    words = []
    if switch is not None:
        words.append(str(switch))
    if seed is not None:
        words.append(f"seed {seed}")
    return ", ".join(words) or None


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
