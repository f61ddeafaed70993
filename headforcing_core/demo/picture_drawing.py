"""Draws video frames of the world of rooms from their fields (`picture_fields`), at any size.

The same function draws the exact fields of a story, which is the renderer that the decoder is
trained and measured against, and the fields that the decoder predicts. Light and shadow are soft
and are computed at the size of the fields; only outlines are drawn at the size of the picture.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .picture_fields import COARSE, FLOOR, OUTLINES, PICTURE_HALF, PICTURE_KINDS, named

_CELL = 4  # pixels of the 64-pixel frame in a cell of the coarse fields
_BOARD = 2.0  # height of the skirting board above the floor
_SHADE = 0.18  # of the dark parts of a pattern, and how much lighter the others are
_WOOD = (0.74, 0.58, 0.33)
_PAINT = {
    "moon": ((0.07, 0.10, 0.24), (0.98, 0.93, 0.72)),
    "peak": ((0.15, 0.19, 0.32), (0.96, 0.83, 0.70)),
    "window": ((0.27, 0.19, 0.13), (0.78, 0.90, 0.97)),
    "tower": ((0.14, 0.15, 0.27), (0.94, 0.86, 0.72)),
    "waves": ((0.07, 0.21, 0.32), (0.86, 0.93, 0.92)),
    "target": ((0.20, 0.10, 0.12), (0.95, 0.89, 0.82)),
}
"""The dark and the bright colour of a kind of picture."""
_LIGHT = (-0.44, -0.60, 0.667)  # where the light comes from: left, above, in front


def draw(outlines: Tensor, others: Tensor, scale: int = 4, exact: Tensor | None = None) -> Tensor:
    """Video frames `[n, 3, h * scale, w * scale]` in 0..1.

    `outlines [n, 5, h, w]` and `others [n, 21, h / 4, w / 4]` are fields, `exact` the same outlines
    at the size of the frames where they are known. Without them the place and the kind of a picture
    are those on which its cells agree; of the actor nothing is guessed: it has the outline that was
    predicted.
    """
    size = (outlines.shape[-2] * scale, outlines.shape[-1] * scale)
    cells = named(others, COARSE)
    pixels = named(_resized(others, outlines.shape[-2:]), COARSE)
    at = named(outlines, OUTLINES)
    if exact is None:
        middle, kind = _hung(at["frame"], cells["hang"], cells["kind"])
        kind = _resized(kind, outlines.shape[-2:]).square()
        kind = kind / kind.sum(1, keepdim=True).clamp_min(0.05)
        clear = ((kind.amax(1, keepdim=True) - 0.45) / 0.2).clamp(0, 1)
        known = _box(_from_middle(middle, outlines.shape[-2:]))
        at["frame"] = torch.lerp(at["frame"], known, _agreed(at["frame"], known, clear))
    wall, strength = _lit_wall(at, pixels)
    shade, gloss, slope = _actor_light(at["actor"], pixels)
    rail = _towards_light(at["frame"])
    edges = named(_resized(outlines, size) if exact is None else exact, OUTLINES)
    body, mark = pixels["body"], pixels["mark"]
    wall, strength, shade, gloss, slope, rail, body, mark = _resized(
        torch.cat((wall, strength, shade, gloss, slope, rail, body, mark), 1), size
    ).split((3, 1, 1, 1, 1, 1, 3, 3), 1)
    if exact is None:
        kind = _resized(kind, size)
        place = _from_middle(middle, size)
        known = _box(place)
        sure = _agreed(edges["frame"], known, _resized(clear, size))
        light = _pictures_light(kind, place)
        edges["frame"] = torch.lerp(edges["frame"], known, sure)
        edges["light"] = torch.lerp(edges["light"], light, sure)
    else:
        kind = _resized(pixels["kind"], size)
    pixel = 1 / scale
    picture = _draw_wall(wall, edges["pattern"], strength, pixel)
    picture = _draw_floor(picture, wall, scale)
    picture = _draw_pictures(
        picture, edges["frame"], light=edges["light"], kind=kind, rail=rail, pixel=pixel
    )
    skin = torch.lerp(body, mark, (0.5 - edges["emblem"] / pixel).clamp(0, 1))
    groove = 1 - 0.16 * (1 - edges["emblem"].abs() / 0.3).clamp_min(0)
    edge = edges["actor"]
    bevel = 1 + 0.55 * slope * (1 + edge / 1.5).clamp(0, 1)
    skin = skin * (shade * groove * bevel * (1 - 0.10 * (1 + edge / 0.5).clamp(0, 1)))
    skin = skin + (1 - skin) * gloss
    return torch.lerp(picture, skin, (0.5 - edge / pixel).clamp(0, 1)).clamp(0, 1)


def _resized(fields: Tensor, size: tuple[int, ...]) -> Tensor:
    if fields.shape[-2:] == tuple(size):
        return fields
    return F.interpolate(fields, size=tuple(size), mode="bilinear", align_corners=False)


def _places(size: tuple[int, ...], like: Tensor) -> Tensor:
    """The middle of every pixel of a picture of this size in pixels of the 64-pixel frame, x and y,
    `[1, 2, h, w]`; `like` has the coarse cells of that frame."""
    rows = like.shape[-2] * _CELL / size[0]
    columns = like.shape[-1] * _CELL / size[1]
    y = (torch.arange(size[0], device=like.device) + 0.5) * rows
    x = (torch.arange(size[1], device=like.device) + 0.5) * columns
    return torch.stack((x[None].expand(len(y), -1), y[:, None].expand(-1, len(x))))[None]


def _hung(frame: Tensor, hang: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """The middle of the picture next to each cell `[n, 2, rows, columns]`, in whole pixels, and the
    odds of its kind `[n, 6, rows, columns]`: means over the cells around that mean the same
    picture."""
    weight = (1 - F.avg_pool2d(frame, _CELL) / 4).clamp(0.02, 1).square()
    middle = _places(hang.shape[-2:], hang) - hang * PICTURE_HALF
    votes = torch.cat((middle * weight, kind * weight, weight), 1)
    around = F.unfold(votes, 5, padding=2).view(*votes.shape[:2], 25, *votes.shape[2:])
    theirs = around[:, :2] / around[:, -1:].clamp_min(1e-6)
    agreed = votes
    for near in (4.0, 3.0):  # pixels
        same = (theirs - middle[:, :, None]).abs().amax(1, keepdim=True) < near
        agreed = (around * same).sum(2)
        agreed = agreed / agreed[:, -1:].clamp_min(1e-6)
        middle = agreed[:, :2]
    return (middle - 0.5).round() + 0.5, agreed[:, 2:-1]


def _from_middle(middle: Tensor, size: tuple[int, ...]) -> Tensor:
    """From the middle of each cell's picture to each pixel, right and down, `[n, 2, h, w]`."""
    large = F.interpolate(middle, size=tuple(size), mode="nearest")
    return _places(size, middle) - large


def _box(place: Tensor) -> Tensor:
    """Signed distance to the frame of each cell's picture."""
    return place.abs().amax(1, keepdim=True) - PICTURE_HALF


def _agreed(predicted: Tensor, known: Tensor, clear: Tensor) -> Tensor:
    """Trust in the known distance to a frame, by the predicted one: 0 to 1."""
    apart = (known - predicted.clamp(-3, 3)).abs()
    apart = torch.where(known < 2.5, apart, (2.5 - predicted).clamp(0, 9))
    return clear * ((2.2 - apart) / 0.8).clamp(0, 1)


def _pictures_light(kind: Tensor, place: Tensor) -> Tensor:
    """Signed distance to the bright part of each pixel's picture, positive inside."""
    x, y = place.split(1, 1)
    total = torch.zeros_like(x)
    for index, name in enumerate(PICTURE_KINDS):
        total = total + kind[:, index : index + 1] * picture_light(name, x, y)
    return total


def picture_light(kind: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance to the bright part of a picture, positive inside; `x, y` from its middle."""
    if kind == "moon":
        return 2.9 - torch.hypot(x, y)
    if kind == "peak":
        return (1.5 * x.abs() - y - 4) / math.hypot(1.5, 1)
    if kind == "window":
        return torch.minimum(x.abs(), y.abs()) - 1.0
    if kind == "tower":
        return 1.6 - x.abs() + 0 * y
    if kind == "waves":
        wave = torch.remainder(y + 0.35 * torch.sin(1.15 * x) + 7.5, 4)
        return 1 - (wave - 2).abs()
    return (torch.hypot(x, y) - 3.0).abs() - 1.2


def _cover(distance: Tensor, width: float) -> Tensor:
    """Cover by a shape whose edge is `width` pixels soft, from its signed distance."""
    t = (0.5 - distance / width).clamp(0, 1)
    return t * t * (3 - 2 * t)


def _moved(field: Tensor, right: int, down: int) -> Tensor:
    """Moved by whole pixels; the edge is repeated."""
    wide = F.pad(field, (right, 0, down, 0), mode="replicate")
    return wide[..., : field.shape[-2], : field.shape[-1]]


def _towards_light(distance: Tensor) -> Tensor:
    """Light on an edge that slopes down as the distance falls, from its derivatives."""
    wide = F.pad(distance, (1, 1, 1, 1), mode="replicate")
    right = (wide[..., 1:-1, 2:] - wide[..., 1:-1, :-2]) / 2
    down = (wide[..., 2:, 1:-1] - wide[..., :-2, 1:-1]) / 2
    return right * _LIGHT[0] + down * _LIGHT[1]


def _lit_wall(at: dict[str, Tensor], pixels: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Colour of the wall with the lamp's light and all shadows `[n, 3, h, w]`, and the strength of
    its pattern `[n, 1, h, w]`."""
    actor = at["actor"]
    height, width = actor.shape[-2:]
    y = (torch.arange(height, device=actor.device)[:, None] + 0.5) / height
    x = (torch.arange(width, device=actor.device) + 0.5) / width
    lamp = 1.16 - 0.34 * (1.1 * (x - 0.42).square() + 0.75 * (y - 0.18).square())
    lamp = lamp * (1.05 - 0.10 * y)
    below = y * height - FLOOR  # pixels below the floor's edge
    on_wall = (0.5 - below / 2).clamp(0, 1)
    shadows = (1 - 0.42 * on_wall * _cover(_moved(actor, 2, 3), 5.0)) * (
        1 - 0.38 * on_wall * _cover(_moved(at["frame"], 1, 1), 3.0)
    )
    # on the floor below the actor, the lighter the higher it is
    fall = 0.05 * height * y
    column = (_cover(actor, 1.5).clamp_min(1e-4).log() + fall).cummax(2).values - fall
    contact = F.avg_pool2d(F.pad(column.exp(), (3, 3, 0, 0), mode="replicate"), (1, 7), 1)
    contact = contact * torch.exp(-((below - 4.0) / 3.2).square())
    shadows = shadows * (1 - 0.62 * (1 - on_wall) * contact)
    # a pattern is drawn where its distance is far from zero nearby, so that a plain wall is plain
    clear = ((F.max_pool2d(at["pattern"].abs(), 9, 1, 4) - 1.1) / 0.9).clamp(0, 1)
    clear = F.avg_pool2d(F.pad(clear, (2, 2, 2, 2), mode="replicate"), 5, 1)
    return pixels["wall"] * (lamp * shadows), pixels["strength"].clamp(0, 1) * clear


def _actor_light(actor: Tensor, pixels: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Light on the actor, its gloss, and how much its bevel looks to the light, each `[n, 1, h,
    w]`: of a ball, or of a plate with a bevelled edge."""
    place = _fitted(pixels["place"], (0.5 - actor / 3).clamp(0, 1))
    u, v = place.split(1, 1)
    body = (0.5 - actor / 3).clamp(0.001, 1)
    ball = (pixels["round"] * body).sum((2, 3), keepdim=True) / body.sum((2, 3), keepdim=True)
    ball = ball.clamp(0, 1)
    far = u.square() + v.square()
    facing = u * _LIGHT[0] + v * _LIGHT[1] + (1 - far).clamp_min(0.02).sqrt() * _LIGHT[2]
    of_ball = 0.58 + 0.52 * facing.clamp_min(-0.25) - 0.10 * (far - 0.75).clamp(0, 0.4)
    of_plate = 0.95 - 0.13 * (0.5 * u + 0.75 * v).clamp(-1.2, 1.2)
    spot = torch.exp(-((u + 0.36).square() + (v + 0.42).square()) / 0.035)
    glow = torch.exp(-((u + 0.30).square() + (v + 0.36).square()) / 0.35)
    gloss = 0.75 * spot * ball + 0.16 * glow * (1 - 0.3 * ball)
    return torch.lerp(of_plate, of_ball, ball), gloss, _towards_light(actor) * (1 - ball)


def _fitted(place: Tensor, weight: Tensor) -> Tensor:
    """The actor's own coordinates `[n, 2, h, w]` as the one movement, turn and size that fit them
    best where the weight is."""
    height, width = place.shape[-2:]
    y = (torch.arange(height, device=place.device)[:, None] + 0.5) / 8
    x = (torch.arange(width, device=place.device) + 0.5) / 8
    weight = weight / weight.sum((-2, -1), keepdim=True).clamp_min(1e-4)

    def mean(values: Tensor) -> Tensor:
        return (values * weight).sum((-2, -1), keepdim=True)

    u, v = place.split(1, 1)
    right, down = x - mean(x), y - mean(y)
    mean_u, mean_v = mean(u), mean(v)
    spread = mean(right.square() + down.square()).clamp_min(1e-3)
    along = mean(right * (u - mean_u) + down * (v - mean_v)) / spread
    turned = mean(down * (u - mean_u) - right * (v - mean_v)) / spread
    return torch.cat(
        (along * right + turned * down + mean_u, along * down - turned * right + mean_v), 1
    )


def _draw_wall(wall: Tensor, pattern: Tensor, strength: Tensor, pixel: float) -> Tensor:
    step = (pattern * (2 / pixel)).clamp(-1, 1)
    groove = (1 - pattern.abs() / 0.35).clamp_min(0)
    return wall * (1 + strength * (_SHADE * step - 0.06 * groove))


def _draw_floor(picture: Tensor, wall: Tensor, scale: int) -> Tensor:
    """Skirting board and floor, from their top edge down."""
    top = min(int((FLOOR - _BOARD - 1) * scale), picture.shape[2])
    rows = torch.arange(top, picture.shape[2], device=picture.device)
    below = ((rows + 0.5) / scale - FLOOR)[:, None]
    wall = wall[:, :, top:]
    edge = 1 - 0.22 * (1 - (below + 2.45).abs() / 0.5).clamp_min(0)
    board = 1.34 - 0.10 * (below + 2) + 0.22 * (1 - (below + 1.75).abs() / 0.3).clamp_min(0)
    gleam = 0.50 + 0.20 * torch.exp(-below.clamp_min(0) / 2.6)
    gleam = gleam - 0.10 * (1 - below.clamp_min(0) / 0.9).clamp_min(0)
    part = torch.lerp(
        picture[:, :, top:] * edge, wall * board, (0.5 + (below + _BOARD) * scale).clamp(0, 1)
    )
    part = torch.lerp(part, wall * gleam, (0.5 + below * scale).clamp(0, 1))
    return torch.cat((picture[:, :, :top], part), 2)


def _draw_pictures(
    behind: Tensor, frame: Tensor, light: Tensor, kind: Tensor, rail: Tensor, pixel: float
) -> Tensor:
    paint = behind.new_tensor([_PAINT[name] for name in PICTURE_KINDS])
    dark = torch.einsum("nkhw,kc->nchw", kind, paint[:, 0])
    bright = torch.einsum("nkhw,kc->nchw", kind, paint[:, 1])
    inside = frame + 1.05
    glass = torch.lerp(dark, bright, (0.5 + light / pixel).clamp(0, 1))
    depth = (1.03 + 0.035 * inside.clamp(-5, 0)).clamp(0.8, 1.0)
    glass = glass * (depth * (1 - 0.35 * (1 + inside / 0.7).clamp(0, 1)))
    rim = (1 - (frame + 0.5).abs() / 0.55).clamp_min(0)
    wood = behind.new_tensor(_WOOD)[:, None, None] * (0.80 + 0.42 * rail + 0.32 * rim)
    hung = torch.lerp(glass, wood, (0.5 + inside / pixel).clamp(0, 1))
    return torch.lerp(behind, hung, (0.5 - frame / pixel).clamp(0, 1))
