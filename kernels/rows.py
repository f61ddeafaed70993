"""Tiles of rows in a kernel: the places of their numbers in a buffer, which of these exist, and
their values.
"""

from __future__ import annotations

from .language import kernel, tl


@kernel
def tile_mask(row, rows, channel, channels):
    """The mask `[row, channel]` of a tile: true within so many rows and channels."""
    return (row < rows)[:, None] & (channel < channels)[None, :]


@kernel
def tile_places(row, channel, width):
    """Places `[row, channel]` of a tile in a buffer whose rows are `width` numbers apart."""
    return row.to(tl.int64)[:, None] * width + channel[None, :]


@kernel
def load_float(place, mask):
    """Load numbers as float32; 0 where there are none."""
    return tl.load(place, mask=mask, other=0.0).to(tl.float32)
