"""Where the heads of the current block go: small tables for the kernel that writes them, made once per layout."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .attention import Spans
from .upload import upload


@lru_cache(maxsize=512)  # the layers of two blocks: they change while contexts grow
def block_tables(
    spans: Spans, starts: tuple[tuple[int, int], ...], places: tuple[int, ...], tokens: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Where `write_block` puts a layer's heads, in the model's order: `slot_row, q_row, first_turn [heads]` int32.

    Args:
        starts: for each span, the row within a head where the current block begins, and its first temporal index.
        places: of every head of the model in the order of the spans.
        tokens: of the block.
    """
    rows = [
        (span.first + head * span.room + row, index)
        for span, (row, index) in zip(spans, starts, strict=True)
        for head in range(span.heads)
    ]
    table = torch.tensor([[rows[place][0], place * tokens, rows[place][1]] for place in places], dtype=torch.int32)
    slot_row, q_row, first_turn = upload(table.T.contiguous(), device).unbind(0)
    return slot_row, q_row, first_turn
