"""The groups of heads in the buffers of a `HeadCache`: their views, their parts of a layer, and
tables of their rows for a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..devices import kept_tables, upload
from ..model.attention import Spans
from .head_group import HeadGroup
from .roles import RolePolicy
from .shape import CacheShape


def views(buffer: Tensor, shape: CacheShape) -> tuple[list[Tensor], dict[RolePolicy, list[Tensor]]]:
    """Views of a buffer: per layer `[slots, s, head_dim]` of all its heads, and by policy and layer
    `[heads, slots, s, head_dim]`."""
    slots = buffer.view(-1, shape.frame_tokens, shape.head_dim)
    layers: list[Tensor] = []
    groups: dict[RolePolicy, list[Tensor]] = {policy: [] for policy in shape.groups}
    end = 0
    for layer in range(shape.layers):
        first = end
        for policy, heads in shape.groups.items():
            start = end
            end += len(heads[layer]) * shape.slots[policy]
            groups[policy].append(
                slots[start:end].unflatten(0, (len(heads[layer]), shape.slots[policy]))
            )
        layers.append(slots[first:end])
    return layers, groups


def parts(groups: Sequence[HeadGroup], layer: int, x: Tensor) -> list[tuple[HeadGroup, Tensor]]:
    """Every group that has heads in a layer, with its part of `x [heads, ...]`, whose heads are in
    the order of the buffers.
    """
    split = x.split([group.sizes[layer] for group in groups])
    return [(group, part) for group, part in zip(groups, split, strict=True) if group.sizes[layer]]


@kept_tables
def block_tables(
    spans: Spans,
    starts: tuple[tuple[int, int], ...],
    places: tuple[int, ...],
    tokens: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Index tables of `kernels.write.write_block` for a layer: `slot_row, q_row, first_rotation
    [heads]`, int32.

    Args:
        starts: for each span, the row within a head at which the current block begins, and the
            temporal index of the block's first frame.
        places: per head of the model, its place in the order of the spans.
        tokens: number of tokens of the block.
    """
    rows = []
    for span, (row, index) in zip(spans, starts, strict=True):
        for head in range(span.heads):
            rows.append((span.first + head * span.room + row, index))
    table = []
    for place in places:
        row, index = rows[place]
        table.append((row, place * tokens, index))
    slot_row, q_row, first_rotation = upload(
        torch.tensor(table, dtype=torch.int32).T.contiguous(), device
    ).unbind(0)
    return slot_row, q_row, first_rotation
