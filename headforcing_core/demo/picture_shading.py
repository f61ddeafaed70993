"""Light and shadow of the world of rooms, computed at the size of the fields and resized."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .picture_fields import FLOOR, Layers, inside, middles, named, resized, unit

SHADING = {
    "wall": 3,
    "strength": 1,
    "shade": 1,
    "gloss": 1,
    "slope": 1,
    "rail": 1,
    "body": 3,
    "mark": 3,
}
"""Channels of what `shading` computes: the wall with light and shadows, the strength of its
pattern, light, gloss and bevel of the actor, light on the pictures' frames, colours of the actor
and its emblem."""
# where the light comes from: left, above, in front
_LIGHT_X = -0.44
_LIGHT_Y = -0.60
_LIGHT_Z = 0.667


def shading(at: Layers, pixels: Layers, size: tuple[int, int]) -> Layers:
    """The layers of `SHADING`, each `[n, channels, *size]`.

    `at` are the outlines and `pixels` the other fields by their names, all `[n, channels, h, w]`.
    """
    layers = {
        "wall": _lit_wall(at, pixels["wall"]),
        "strength": unit(pixels["strength"]) * _patterned(at["pattern"]),
        **_actor_light(at["actor"], pixels["place"], pixels["round"]),
        "rail": _towards_light(at["frame"]),
        "body": pixels["body"],
        "mark": pixels["mark"],
    }
    together = torch.cat([layers[name] for name in SHADING], 1)
    return named(resized(together, size), SHADING)


def _lit_wall(at: Layers, colour: Tensor) -> Tensor:
    """Colour of wall and floor with the lamp's light and all shadows `[n, 3, h, w]`."""
    actor = at["actor"]
    height, width = actor.shape[-2:]
    y = middles(height, actor)[:, None] / height
    x = middles(width, actor) / width
    beside_lamp = (x - 0.42).square()
    below_lamp = (y - 0.18).square()
    lamp = 1.16 - 0.34 * (1.1 * beside_lamp + 0.75 * below_lamp)
    lamp = lamp * (1.05 - 0.10 * y)

    below = y * height - FLOOR  # pixels below the floor's edge
    on_wall = inside(below, 2)
    of_actor = _soft(_moved(actor, 2, 3), 5.0)
    of_frames = _soft(_moved(at["frame"], 1, 1), 3.0)
    on_floor = _shadow_below(actor, y, below)
    light = 1 - 0.42 * on_wall * of_actor
    light = light * (1 - 0.38 * on_wall * of_frames)
    light = light * (1 - 0.62 * (1 - on_wall) * on_floor)
    return colour * (lamp * light)


def _shadow_below(actor: Tensor, y: Tensor, below: Tensor) -> Tensor:
    """The actor's shadow on the floor, in the column below it, the lighter the higher it is."""
    fall = 0.05 * actor.shape[-2] * y
    covered = _soft(actor, 1.5).clamp_min(1e-4).log()
    column = (covered + fall).cummax(2).values - fall
    wide = F.pad(column.exp(), (3, 3, 0, 0), mode="replicate")
    distance = (below - 4.0) / 3.2
    return F.avg_pool2d(wide, (1, 7), 1) * torch.exp(-distance.square())


def _patterned(pattern: Tensor) -> Tensor:
    """Cover by a pattern, 0 to 1: it is drawn where its distance is far from zero nearby, so that a
    plain wall is plain."""
    farthest = F.max_pool2d(pattern.abs(), 9, 1, 4)
    clear = unit((farthest - 1.1) / 0.9)
    return F.avg_pool2d(F.pad(clear, (2, 2, 2, 2), mode="replicate"), 5, 1)


def _actor_light(actor: Tensor, place: Tensor, ball: Tensor) -> Layers:
    """Light on the actor, its gloss, and how much its bevel looks to the light: of a ball, or of a
    plate with a bevelled edge."""
    body = inside(actor, 3)
    u, v = _fitted(place, body).split(1, 1)
    weight = body.clamp_min(0.001)
    ball = unit(_sum(ball * weight) / _sum(weight))

    far = u.square() + v.square()
    front = (1 - far).clamp_min(0.02).sqrt()  # of a ball's surface
    facing = _LIGHT_X * u + _LIGHT_Y * v + _LIGHT_Z * front
    of_ball = 0.58 + 0.52 * facing.clamp_min(-0.25)
    of_ball = of_ball - 0.10 * (far - 0.75).clamp(0, 0.4)
    slant = 0.5 * u + 0.75 * v
    of_plate = 0.95 - 0.13 * slant.clamp(-1.2, 1.2)

    spot = _spot(u + 0.36, v + 0.42, 0.035)
    glow = _spot(u + 0.30, v + 0.36, 0.35)
    gloss = 0.75 * spot * ball
    gloss = gloss + 0.16 * glow * (1 - 0.3 * ball)
    return {
        "shade": of_plate.lerp(of_ball, ball),
        "gloss": gloss,
        "slope": _towards_light(actor) * (1 - ball),
    }


def _spot(right: Tensor, down: Tensor, width: float) -> Tensor:
    """A spot of light, from the place relative to its middle."""
    return torch.exp(-(right.square() + down.square()) / width)


def _sum(values: Tensor) -> Tensor:
    """Sum over each video frame, `[n, channels, 1, 1]`."""
    return values.sum((2, 3), keepdim=True)


def _fitted(place: Tensor, weight: Tensor) -> Tensor:
    """The actor's own coordinates `[n, 2, h, w]` as the one movement, turn and size that fit them
    best where the weight is."""
    height, width = place.shape[-2:]
    y = middles(height, place)[:, None] / 8
    x = middles(width, place) / 8
    weight = weight / _sum(weight).clamp_min(1e-4)

    def mean(values: Tensor) -> Tensor:
        return _sum(values * weight)

    right = x - mean(x)
    down = y - mean(y)
    middle = mean(place)
    u, v = (place - middle).split(1, 1)
    spread = mean(right.square() + down.square()).clamp_min(1e-3)
    along = mean(right * u + down * v) / spread
    across = mean(down * u - right * v) / spread
    fitted_u = along * right + across * down
    fitted_v = along * down - across * right
    return torch.cat((fitted_u, fitted_v), 1) + middle


def _soft(distance: Tensor, width: float) -> Tensor:
    """Cover by a shape, smooth where it begins and ends."""
    t = inside(distance, width)
    return t * t * (3 - 2 * t)


def _moved(field: Tensor, right: int, down: int) -> Tensor:
    """Moved by whole pixels; the edge is repeated."""
    return F.pad(field, (right, -right, down, -down), mode="replicate")


def _towards_light(distance: Tensor) -> Tensor:
    """Light on an edge that slopes down as the distance falls, from its derivatives."""
    right = (_moved(distance, -1, 0) - _moved(distance, 1, 0)) / 2
    down = (_moved(distance, 0, -1) - _moved(distance, 0, 1)) / 2
    return right * _LIGHT_X + down * _LIGHT_Y
