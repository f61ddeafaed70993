"""Fields that describe a video frame of the world of rooms, from which `picture_drawing` draws it
at any size.

A field is a smooth function of the place: the signed distance to an outline, in pixels of the
64-pixel frame and negative inside, or a colour, or a place. An outline drawn from a distance is
sharp at any size, although the distance itself is stored at 64x64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FARTHEST = {"pattern": 3.0, "frame": 3.0, "light": 2.0, "actor": 6.0, "emblem": 3.0}
"""The largest distance that is stored, in pixels, to each kind of outline: the edges of the wall's
pattern, the pictures' frames, the bright part of a picture, the actor and its emblem."""

OUTLINES = dict.fromkeys(FARTHEST, 1)
"""Channels of the signed distances, `[..., 5, 8h, 8w]`."""

STILL = {"wall": 3, "strength": 1, "body": 3, "mark": 3, "round": 1}
"""Channels, at a quarter of that size, of what is one for the four video frames of a latent frame:
colour of the wall, strength of its pattern, colours of the actor and its emblem, whether the actor
is a ball."""

MOVING = {"place": 2, "hang": 2, "kind": 6}
"""Channels, at a quarter of that size, of each video frame: the place in the actor's own
coordinates in radii, the place in those of the nearest picture in half widths, and the odds of its
kinds."""

COARSE = {**STILL, **MOVING}
PICTURE_KINDS = ("moon", "peak", "window", "tower", "waves", "target")
FLOOR = 54.0  # height of the floor's edge in the 64-pixel frame, the same in every room
CELL = 4  # pixels of the 64-pixel frame in a cell of the coarse fields
PICTURE_HALF = 6.5  # of a picture with its frame
Layers = dict[str, Tensor]  # `[n, channels, h, w]` each, by their names


def named(fields: Tensor, sizes: Mapping[str, int], dim: int = 1) -> Layers:
    """The channels of `fields` in dimension `dim`, by their names in `sizes`."""
    return dict(zip(sizes, fields.split(list(sizes.values()), dim), strict=True))


def resized(fields: Tensor, size: Sequence[int]) -> Tensor:
    """`fields [n, channels, h, w]` at this height and width."""
    if fields.shape[-2:] == tuple(size):
        return fields
    return F.interpolate(fields, size=tuple(size), mode="bilinear", align_corners=False)


def middles(count: int, like: Tensor) -> Tensor:
    """The middles of so many pixels side by side, on the device of `like`."""
    return torch.arange(count, device=like.device) + 0.5


def unit(values: Tensor) -> Tensor:
    """Clamped to 0..1."""
    return values.clamp(0, 1)


def inside(distance: Tensor, width: float) -> Tensor:
    """Cover by a shape whose edge is `width` pixels soft, from its signed distance."""
    return unit(0.5 - distance / width)


def line(distance: Tensor, width: float) -> Tensor:
    """A line along an outline, from 1 on it to 0 at `width` from it."""
    return (1 - distance.abs() / width).clamp_min(0)
