"""What Rolling Forcing keeps of finished blocks, and which of them a pass attends to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attention import AttentionFunction, sdpa
from ..cache import CacheShape
from ..rope import RotaryEmbedding

if TYPE_CHECKING:
    from .base import MethodShape

# fixed numbers of the authors' code, there 24 and 21 latent frames
HELD_BLOCKS = 8
ATTENDED_BLOCKS = 7


class RollingCache:
    """Keys and values of finished blocks, alike in all heads: the first block of the video and the last seven.

    `begin(blocks)` before each pass, which then calls `write` and `attend` layer by layer; only a clean pass leaves
    something behind. Keys are held with spatial rotary embedding only, `k, v [heads, frames, s, head_dim]`: the first
    block, the anchor, moves along with the window, so its position changes from call to call.

    Args:
        shape: as for the other caches; its roles only count the layers and its policy is not used.
    """

    def __init__(
        self,
        shape: CacheShape | MethodShape,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
    ):
        self.shape, self.attention = shape, attention
        self.device = torch.device(device)
        self.rope = RotaryEmbedding(shape.head_dim, shape.rows, shape.columns, device)
        self.past: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in shape.roles]  # per layer, by block
        self._inside, self._clean = range(0), False
        self._positions: dict[int, int] = {}

    @property
    def held(self) -> list[int]:
        """The blocks that it holds."""
        return list(self.past[-1])

    @property
    def block(self) -> int:
        """How many blocks it has seen."""
        return max(self.held, default=-1) + 1

    @property
    def occupied(self) -> int:
        """Frame-slots in use by all heads together."""
        return len(self.held) * self.shape.frames_per_block * sum(map(len, self.shape.roles))

    @property
    def bytes(self) -> int:
        """Bytes held by all keys and values."""
        return sum(tensor.nbytes for past in self.past for pair in past.values() for tensor in pair)

    def begin(self, blocks: range, clean: bool = False) -> None:
        """Open a pass over these blocks; a clean one is over a single block and is kept."""
        self._inside, self._clean = blocks, clean
        self._positions = context(self.held, blocks, clean)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Take the pass's `k, v [tokens, heads, head_dim]`, without rotary embedding."""
        self._own = self.rope.rotate_spatial(self._by_head(k)), self._by_head(v)
        if self._clean:
            past = self.past[layer]
            if len(past) == HELD_BLOCKS:
                del past[list(past)[1]]
            past[self._inside.start] = self._own

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of `q [tokens, heads, head_dim]`, without rotary embedding, to the context and the pass itself."""
        pairs = [*(self.past[layer][block] for block in self._positions), self._own]
        k, v = (torch.cat(tensors, dim=1) for tensors in zip(*pairs, strict=True))
        k = self.rope.rotate_temporal(k, self._frames([*self._positions.values(), *self._inside]))
        q = self.rope.rotate_temporal(self.rope.rotate_spatial(self._by_head(q)), self._frames(self._inside))
        return self.attention(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2)).transpose(0, 1)

    def _frames(self, blocks: Sequence[int]) -> list[int]:
        count = self.shape.frames_per_block
        return [block * count + i for block in blocks for i in range(count)]

    def _by_head(self, x: Tensor) -> Tensor:
        """`[frames * s, heads, d]` -> `[heads, frames, s, d]`."""
        return x.unflatten(0, (-1, self.rope.frame_tokens)).permute(2, 0, 1, 3)


def context(held: Sequence[int], inside: range, clean: bool) -> dict[int, int]:
    """The held blocks that a pass over the blocks `inside` attends to, each with its position, in blocks.

    A window sees the anchor right before the last blocks that there is room for. A clean pass sees more, as in the
    authors' code: the anchor at position 0 and all that is held, and, when that is too much, no anchor.
    """
    if inside.start == 0:
        return {}  # the anchor itself is being made
    others = [block for block in held if 0 < block < inside.start]
    room = ATTENDED_BLOCKS - len(inside) - 1
    if clean:
        with_anchor = len(others) <= room
        others = others[max(0, len(others) - room - 1) :]
        return {0: 0, **{b: b for b in others}} if with_anchor else {b: b for b in others}
    working = others[max(0, len(others) - room) :]
    return {0: inside.start - len(working) - 1, **{block: block for block in working}}
