"""The slots of a group of heads, moved, merged and pooled over all layers at once by the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...kernels.merge import merge_frames
from ...kernels.move import move_frames
from ...kernels.pool import pooled_keys
from ..devices import upload
from ..model.rope import RotaryEmbedding

_MOST_TABLES = 64  # kept; the same few moves come again after every block


@dataclass(frozen=True)
class SlotKernels:
    """Places of a group's heads in one pair of buffers over all layers, and launches that act on all of them.

    Attributes:
        k, v: `[rows, head_dim]`, all slots of all layers.
        first_rows: per layer, the row of each head's first slot.
    """

    k: Tensor
    v: Tensor
    first_rows: Sequence[Sequence[int]]
    rope: RotaryEmbedding
    _tables: dict[tuple[tuple[int, ...], ...], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, buffers: Sequence[Tensor], slots: Sequence[Tensor], rope: RotaryEmbedding) -> SlotKernels:
        """Kernels for a group: `slots [heads, slots, s, head_dim]` of keys, per layer, view the first buffer."""
        first_rows = [
            [(x.storage_offset() + head * x.stride(0)) // x.shape[-1] for head in range(len(x))] for x in slots
        ]
        return cls(buffers[0], buffers[1], first_rows, rope)

    @property
    def usable(self) -> bool:
        """Whether all of the kernels work on this device and dtype; otherwise the group loops over the layers."""
        place = self.k.device, self.k.dtype
        return all(operation.usable(*place) for operation in (move_frames, merge_frames, pooled_keys))

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Carry out `(from slot, to slot, difference of temporal indices)` one after another in every head."""
        if moves and len(self._rows):
            rotations, zero = self.rope.differences(max(abs(by) for _, _, by in moves))
            table = self._table(tuple((source, target, zero + by) for source, target, by in moves))
            move_frames(self.k, self.v, self.k, self.v, table, rotations, self.rope.frame_tokens)

    def merge(self, i: int, j: int, difference: int, kept: Sequence[Tensor | None]) -> None:
        """Merge slot `j`, re-rotated by `difference`, into slot `i`; `kept` are the tokens of both, one row per layer.

        None stands for a layer without heads of this group.
        """
        if not self._rows:
            return
        rotations, zero = self.rope.differences(abs(difference))
        s = self.rope.frame_tokens
        merges = [
            (row + i * s, row + j * s, row + i * s, zero, zero + difference, layer)
            for layer, rows in enumerate(self.first_rows)
            for row in rows
        ]
        unused = torch.zeros(s, dtype=torch.int32, device=self.k.device)
        tokens = torch.stack([unused if row is None else row.to(unused) for row in kept])
        merge_frames(self.k, self.v, self._on_device(merges), tokens, rotations)

    def pooled(self, slot: int, index: int) -> Tensor:
        """The mean key of a slot without its rotation by `index`, `[heads of all layers, head_dim]` float32."""
        if not self._rows:
            return torch.empty(0, self.k.shape[1], device=self.k.device)
        rotations, zero = self.rope.differences(abs(index))
        frames = [(row + slot * self.rope.frame_tokens, zero - index) for row in self._rows]
        return pooled_keys(self.k, self._on_device(frames), rotations, self.rope.frame_tokens)

    @property
    def _rows(self) -> list[int]:
        return [row for rows in self.first_rows for row in rows]

    def _table(self, steps: tuple[tuple[int, int, int], ...]) -> Tensor:
        """The same steps for every head, `[heads, steps, 3]`; kept, because they come again after every block."""
        if steps not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            s = self.rope.frame_tokens
            rows = [[(row + a * s, row + b * s, rotation) for a, b, rotation in steps] for row in self._rows]
            self._tables[steps] = self._on_device(rows)
        return self._tables[steps]

    def _on_device(self, rows: Sequence[Sequence[object]]) -> Tensor:
        return upload(torch.tensor(rows, dtype=torch.int32), self.k.device)
