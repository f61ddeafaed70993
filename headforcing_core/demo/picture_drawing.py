"""Draws video frames of the world of rooms from their fields (`picture_fields`), at any size.

The same function draws the exact fields of a story, which is the renderer that the decoder is
trained and measured against, and the fields that the decoder predicts. Light and shadow are soft
and are computed at the size of the fields (`picture_shading`); only outlines are drawn at the size
of the picture. The layers are painted one over another: wall, floor, pictures, actor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .hung_pictures import HungPictures
from .picture_fields import (
    COARSE,
    FLOOR,
    OUTLINES,
    PICTURE_KINDS,
    Layers,
    inside,
    line,
    middles,
    named,
    resized,
    unit,
)
from .picture_shading import shading

Colour = tuple[float, float, float]
_BOARD = 2.0  # height of the skirting board above the floor
_SHADE = 0.18  # of the dark parts of a pattern, and how much lighter the others are
_FRAME_WIDTH = 1.05  # of the wood around a picture
_WOOD = (0.74, 0.58, 0.33)
_DARK = {
    "moon": (0.07, 0.10, 0.24),
    "peak": (0.15, 0.19, 0.32),
    "window": (0.27, 0.19, 0.13),
    "tower": (0.14, 0.15, 0.27),
    "waves": (0.07, 0.21, 0.32),
    "target": (0.20, 0.10, 0.12),
}
"""The colour of a kind of picture."""
_BRIGHT = {
    "moon": (0.98, 0.93, 0.72),
    "peak": (0.96, 0.83, 0.70),
    "window": (0.78, 0.90, 0.97),
    "tower": (0.94, 0.86, 0.72),
    "waves": (0.86, 0.93, 0.92),
    "target": (0.95, 0.89, 0.82),
}
"""The colour of its bright part."""


def draw(outlines: Tensor, others: Tensor, scale: int = 4, exact: Tensor | None = None) -> Tensor:
    """Video frames `[n, 3, h * scale, w * scale]` in 0..1.

    `outlines [n, 5, h, w]` and `others [n, 21, h / 4, w / 4]` are fields, `exact` the same outlines
    at the size of the frames where they are known. Without them the place and the kind of a picture
    are those on which its cells agree; of the actor nothing is guessed: it has the outline that was
    predicted.
    """
    height, width = outlines.shape[-2:]
    size = (height * scale, width * scale)
    at = named(outlines, OUTLINES)
    pixels = named(resized(others, (height, width)), COARSE)
    if exact is None:
        pictures = HungPictures.voted(at["frame"], named(others, COARSE))
        at = pictures.agreed(at)
        edges = pictures.agreed(named(resized(outlines, size), OUTLINES))
        kind = resized(pictures.kind, size)
    else:
        edges = named(exact, OUTLINES)
        kind = resized(pixels["kind"], size)
    lit = shading(at, pixels, size)
    pixel = 1 / scale
    picture = _wall(lit, edges["pattern"], pixel)
    picture = _floor(picture, lit["wall"], pixel)
    picture = _pictures(picture, lit, edges, kind=kind, pixel=pixel)
    return _actor(picture, lit, edges, pixel).clamp(0, 1)


def _wall(lit: Layers, pattern: Tensor, pixel: float) -> Tensor:
    side = (pattern * (2 / pixel)).clamp(-1, 1)  # of an edge of the pattern, dark or bright
    groove = 0.06 * line(pattern, 0.35)
    relief = _SHADE * side - groove
    return lit["wall"] * (1 + lit["strength"] * relief)


def _floor(picture: Tensor, wall: Tensor, pixel: float) -> Tensor:
    """The picture with skirting board and floor, from their top edge down."""
    top = min(int((FLOOR - _BOARD - 1) / pixel), picture.shape[2])
    rows = middles(picture.shape[2], picture)[top:, None]
    below = rows * pixel - FLOOR  # pixels below the floor's edge
    wall = wall[:, :, top:]

    shadow = 1 - 0.22 * line(below + 2.45, 0.5)
    above = picture[:, :, top:] * shadow

    board = 1.34 - 0.10 * (below + _BOARD)
    ridge = 0.22 * line(below + 1.75, 0.3)
    board = wall * (board + ridge)

    far = below.clamp_min(0)
    gleam = 0.50 + 0.20 * torch.exp(-far / 2.6)
    crack = 0.10 * line(far, 0.9)
    floor = wall * (gleam - crack)

    part = above.lerp(board, inside(-below - _BOARD, pixel))
    part = part.lerp(floor, inside(-below, pixel))
    return torch.cat((picture[:, :, :top], part), 2)


def _pictures(behind: Tensor, lit: Layers, edges: Layers, kind: Tensor, pixel: float) -> Tensor:
    """The picture with those that hang on the wall; `kind` are the odds of their kinds."""
    glass = _painted(_DARK, kind).lerp(_painted(_BRIGHT, kind), inside(-edges["light"], pixel))

    frame = edges["frame"]
    pane = frame + _FRAME_WIDTH  # the distance to the glass
    depth = 1.03 + 0.035 * pane.clamp(-5, 0)
    shadow = 1 - 0.35 * unit(1 + pane / 0.7)
    glass = glass * (depth.clamp(0.8, 1) * shadow)

    rim = line(frame + 0.5, 0.55)
    light = 0.80 + 0.42 * lit["rail"] + 0.32 * rim
    wood = behind.new_tensor(_WOOD)[:, None, None] * light

    hung = glass.lerp(wood, inside(-pane, pixel))
    return behind.lerp(hung, inside(frame, pixel))


def _painted(colours: dict[str, Colour], kind: Tensor) -> Tensor:
    """The mean of the colours of all kinds, by their odds."""
    paint = kind.new_tensor([colours[name] for name in PICTURE_KINDS])
    return torch.einsum("nkhw,kc->nchw", kind, paint)


def _actor(behind: Tensor, lit: Layers, edges: Layers, pixel: float) -> Tensor:
    edge = edges["actor"]
    emblem = edges["emblem"]
    skin = lit["body"].lerp(lit["mark"], inside(emblem, pixel))
    groove = 1 - 0.16 * line(emblem, 0.3)
    bevel = 1 + 0.55 * lit["slope"] * unit(1 + edge / 1.5)
    rim = 1 - 0.10 * unit(1 + edge / 0.5)
    light = lit["shade"] * groove * bevel * rim
    skin = skin * light
    skin = skin + (1 - skin) * lit["gloss"]
    return behind.lerp(skin, inside(edge, pixel))
