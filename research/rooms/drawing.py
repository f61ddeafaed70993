"""Drawing of the world of rooms: walls with pictures on them, and an actor with an emblem, on whole
clips at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

FRAME_SIZE = 64
FLOOR = 54  # first row of the floor, below a light skirting board of two rows
PICTURE_SIZE = 13
EMBLEM_SIZE = 0.5  # radius of an emblem, of that of a ball
HIDDEN_BELOW = math.cos(0.3 * math.pi)  # of the emblem's turn: it is seen on 30 % of each round
SHADE = 0.18  # of the dark parts of a pattern, and how much lighter the others are
_SQUARE = 0.88
_TRIANGLE = 0.72
_STAR_TIP = 1.42
_STAR_VALLEY = 0.66
_CROSS_ARM = 1.25
_CROSS_WIDTH = 0.46
_PATCH = 46  # pixels round the actor that it and its shadow can cover
_STEPS = np.arange(FRAME_SIZE, dtype=np.float32) + 0.5

EMBLEMS = ("disc", "ring", "bar", "plus", "stripes")
PICTURES = ("moon", "peak", "window", "tower", "waves", "target")


@dataclass(frozen=True)
class Picture:
    """A picture on a wall, by the pixel of its centre; x counts from the left edge of what the
    camera shows at 0.
    """

    kind: str
    x: int
    y: int


@dataclass(frozen=True)
class Pose:
    """The actor in every video frame, arrays `[n]`."""

    x: np.ndarray  # of the centre, in pixels, as y
    y: np.ndarray
    tilt: np.ndarray  # in radians, as turn
    turn: np.ndarray  # by which the emblem has turned away from the camera
    blur: np.ndarray  # width in pixels of the emblem's edges
    radius: float  # of a ball; other shapes have about the same area

    def moved(self, right: np.ndarray, down: np.ndarray) -> Pose:
        """The same, `[n]` pixels further to the right and down."""
        return replace(self, x=self.x + right, y=self.y + down)

    def part(self, start: int, stop: int) -> Pose:
        cut = slice(start, stop)
        return Pose(
            self.x[cut],
            self.y[cut],
            tilt=self.tilt[cut],
            turn=self.turn[cut],
            blur=self.blur[cut],
            radius=self.radius,
        )


def distance_to(
    shape: str,
    dx: np.ndarray,
    dy: np.ndarray,
    tilt: np.ndarray,
    radius: np.ndarray | float,
) -> np.ndarray:
    """Signed distance in pixels to a shape's outline, negative inside; `dx, dy` from its centre,
    tilt in radians.
    """
    if shape == "ball":
        return np.hypot(dx, dy) - radius
    x = np.cos(tilt) * dx + np.sin(tilt) * dy
    y = np.cos(tilt) * dy - np.sin(tilt) * dx
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - _SQUARE * radius
    if shape == "cross":
        long = np.maximum(np.abs(x), np.abs(y))
        short = np.minimum(np.abs(x), np.abs(y))
        return np.maximum(long - _CROSS_ARM * radius, short - _CROSS_WIDTH * radius)
    if shape == "triangle":  # one side below, two to the upper left and right
        return np.maximum(y, math.sqrt(0.75) * np.abs(x) - 0.5 * y) - _TRIANGLE * radius
    # a star: fold all ten half-rays onto one, whose outline is the straight line from a tip to a
    # valley
    wedge = 2 * math.pi / 5
    angle = (np.arctan2(x, -y) + wedge / 2) % wedge - wedge / 2
    length = np.hypot(x, y)
    along = length * np.cos(angle)
    across = length * np.abs(np.sin(angle))
    valley = _STAR_VALLEY * math.cos(wedge / 2), _STAR_VALLEY * math.sin(wedge / 2)
    edge = valley[0] - _STAR_TIP, valley[1]
    return ((along - _STAR_TIP * radius) * edge[1] - across * edge[0]) / math.hypot(*edge)


def distance_to_emblem(emblem: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Signed distance to the outline of an emblem of radius 1, negative inside."""
    if emblem == "disc":
        return np.hypot(x, y) - 0.85
    if emblem == "ring":
        return np.abs(np.hypot(x, y) - 0.72) - 0.26
    if emblem == "bar":
        return np.maximum(np.abs(y) - 0.34, np.abs(x) - 1)
    if emblem == "plus":
        long = np.maximum(np.abs(x), np.abs(y))
        short = np.minimum(np.abs(x), np.abs(y))
        return np.maximum(short - 0.3, long - 1)
    return np.maximum(np.abs(np.abs(x) - 0.6) - 0.28, np.abs(y) - 1)  # two upright stripes


@lru_cache(maxsize=len(PICTURES))
def picture(kind: str) -> np.ndarray:
    """A picture in its frame, `[13, 13, 3]`; nearly grey, so that only the actor has strong
    colours.
    """
    middle = PICTURE_SIZE // 2
    y, x = np.mgrid[-middle : middle + 1, -middle : middle + 1].astype(np.float32)
    if kind == "moon":
        bright = np.clip(3.4 - np.hypot(x, y), 0, 1)
    elif kind == "peak":
        bright = np.clip(1.5 * np.abs(x) - y - 3.5, 0, 1)
    elif kind == "window":
        bright = np.clip(np.minimum(np.abs(x), np.abs(y)) - 0.5, 0, 1)
    elif kind == "tower":
        bright = np.clip(2.1 - np.abs(x), 0, 1)
    elif kind == "waves":
        bright = ((y + 6) // 2 % 2 == 0).astype(np.float32)
    else:
        bright = np.clip(np.abs(np.hypot(x, y) - 3.0) - 0.7, 0, 1)
    dark = np.array((0.10, 0.12, 0.19))
    light = np.array((0.93, 0.92, 0.85))
    inside = dark + (light - dark) * bright[..., None]
    frame = np.maximum(np.abs(x), np.abs(y)) == middle
    return np.where(frame[..., None], np.array((0.60, 0.50, 0.34)), inside).astype(np.float32)


def wall_light(pattern: str, columns: np.ndarray) -> np.ndarray:
    """Brightness of a wall without pictures, `[64, columns]`, floor included; `columns` in pixels
    from the place 0.
    """
    x = columns[None].astype(np.float32)
    y = _STEPS[:, None]
    if pattern == "checkerboard":
        light = 1 + SHADE * np.where((x // 16 + y // 16) % 2 == 0, 1.0, -1.0)
    elif pattern == "striped":
        light = 1 + SHADE * np.where(x // 8 % 2 == 0, 1.0, -1.0) + 0 * y
    else:
        light = 1 + 0 * x * y
    light = light * (1.08 - 0.16 * y / FLOOR)
    return np.where(y > FLOOR, 0.5, np.where(y > FLOOR - 2, 1.3, light))


def draw_wall(
    colour: Sequence[float],
    pattern: str,
    pictures: Sequence[Picture],
    camera: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The wall in every video frame `[n, 64, 64, 3]` and its cover by pictures `[n, 64, 64]`; of
    one if the camera, in whole pixels, does not move."""
    moves = bool((camera != camera[0]).any())
    left = int(camera.min())
    columns = np.arange(left, int(camera.max()) + FRAME_SIZE)
    wide = wall_light(pattern, columns + 0.5)[..., None] * np.array(colour, np.float32)
    cover = np.zeros(wide.shape[:2], np.float32)
    half = PICTURE_SIZE // 2
    for item in pictures:
        first = item.x - half - left
        low = max(first, 0)
        high = min(first + PICTURE_SIZE, len(columns))
        if low < high:
            place = slice(item.y - half, item.y + half + 1), slice(low, high)
            shade = (
                slice(item.y - half + 1, item.y + half + 2),
                slice(min(low + 1, high), min(high + 1, len(columns))),
            )
            wide[shade] *= 0.75  # a shadow, one pixel to the right and below
            wide[place] = picture(item.kind)[:, low - first : high - first]
            cover[place] = 1
    shown = (camera if moves else camera[:1])[:, None] - left + np.arange(FRAME_SIZE)
    return np.moveaxis(wide[:, shown], 1, 0).clip(0, 1).astype(np.float32), np.moveaxis(
        cover[:, shown], 1, 0
    )


def draw_actor(
    wall: np.ndarray,
    pose: Pose,
    shape: str,
    colour: Sequence[float],
    emblem: str,
    mark: Sequence[float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Video frames `[n, 64, 64, 3]` with the actor and its shadow on the wall, the cover by the
    actor `[n, 64, 64]`, and how much of the emblem faces the camera, `[n]` from 0 to 1."""
    count = len(pose.x)
    video_frames = np.broadcast_to(wall, (count, *wall.shape[1:])).copy()
    cover_map = np.zeros((count, FRAME_SIZE, FRAME_SIZE), np.float32)
    left = np.clip(np.round(pose.x).astype(int) - _PATCH // 2, 0, FRAME_SIZE - _PATCH)[:, None]
    top = np.clip(np.round(pose.y).astype(int) - _PATCH // 2, 0, FRAME_SIZE - _PATCH)[:, None]
    rows = (top + np.arange(_PATCH))[:, :, None]
    columns = (left + np.arange(_PATCH))[:, None]
    which = np.arange(count)[:, None, None]
    x = pose.x.astype(np.float32)[:, None, None]
    y = pose.y.astype(np.float32)[:, None, None]
    tilt = pose.tilt.astype(np.float32)[:, None, None]
    dx = columns.astype(np.float32) + 0.5 - x
    dy = rows.astype(np.float32) + 0.5 - y
    patch = video_frames[which, rows, columns]
    shadow = np.clip(
        0.5 - distance_to(shape, dx - 2.2, dy=dy - 2.8, tilt=tilt, radius=pose.radius) / 1.6,
        0,
        1,
    )
    patch *= 1 - 0.4 * shadow[..., None]
    cover = np.clip(0.5 - distance_to(shape, dx, dy=dy, tilt=tilt, radius=pose.radius), 0, 1)
    shine = np.exp(
        -((dx + pose.radius * 0.3) ** 2 + (dy + pose.radius * 0.35) ** 2) / (pose.radius**2 * 0.5)
    )
    alpha, facing = _emblem_cover(pose, emblem, dx=dx, dy=dy, tilt=tilt)
    body = (
        np.array(colour, np.float32) * (1 - alpha[..., None])
        + np.array(mark, np.float32) * alpha[..., None]
    )
    body *= (0.86 + 0.22 * shine)[..., None]
    patch += (body.clip(0, 1) - patch) * cover[..., None]
    video_frames[which, rows, columns] = patch
    cover_map[which, rows, columns] = cover
    return video_frames, cover_map, facing


def _emblem_cover(
    pose: Pose, emblem: str, dx: np.ndarray, dy: np.ndarray, tilt: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cover of the patch by the emblem, which turns with the actor about the upright axis, and how
    much it faces us.
    """
    towards = np.cos(pose.turn)
    sideways = np.sin(pose.turn)
    facing = np.clip((towards - HIDDEN_BELOW) / 0.1, 0, 1)
    size = EMBLEM_SIZE * pose.radius
    x = np.cos(tilt) * dx + np.sin(tilt) * dy
    y = np.cos(tilt) * dy - np.sin(tilt) * dx
    shift = (0.6 * pose.radius * sideways).astype(np.float32)[:, None, None]
    narrow = towards.clip(0.3).astype(np.float32)[:, None, None]
    distance = distance_to_emblem(emblem, (x - shift) / (narrow * size), y / size) * size
    sharp = np.clip(0.5 - distance / pose.blur[:, None, None], 0, 1)
    return (sharp * facing[:, None, None]).astype(np.float32), facing
