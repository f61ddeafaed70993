"""Exact fields of a story of the world of rooms (`demo/picture_fields`), and the story drawn from
them at any size.

The same story as `scenes.render` draws at 64 pixels: the same walls, pictures, actor and emblem.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from ...headforcing_core.demo.hung_pictures import picture_light
from ...headforcing_core.demo.picture_drawing import draw
from ...headforcing_core.demo.picture_fields import (
    FARTHEST,
    OUTLINES,
    PICTURE_HALF,
    PICTURE_KINDS,
)
from ...headforcing_core.demo.words import Look
from .drawing import (
    EMBLEM_SIZE,
    FRAME_SIZE,
    HIDDEN_BELOW,
    Picture,
    Pose,
    distance_to,
    distance_to_emblem,
)
from .scenes import (
    BACKGROUNDS,
    COLOURS,
    Layout,
    Marking,
    blocks_of_frames,
    camera_path,
    looks_of_frames,
    poses,
)

CELLS = FRAME_SIZE // 4  # beside one another in the coarse fields
_FAR = 99.0
_DRAWN_TOGETHER = 8  # video frames


def exact_fields(
    looks: Sequence[Look],
    seed: int,
    frames: slice = slice(None),
    scale: int = 1,
    shift: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """Outlines `[n, 5, 64 * scale, 64 * scale]` and the other fields `[n, 21, 16, 16]` of a story's
    video frames `frames`.

    `shift [video frames, 2]` moves the actor by so many pixels to the right and down.
    """
    layouts = [Layout(seed, look.room) for look in looks]
    marking = Marking.draw(looks, seed)
    pose = poses(looks, seed)
    if shift is not None:
        pose = pose.moved(shift[:, 0], shift[:, 1])
    per_frame = looks_of_frames(looks)
    camera = camera_path(per_frame)
    blocks = blocks_of_frames(len(looks))
    wanted = range(len(per_frame))[frames]
    parts = []
    for (look, layout), group in groupby(wanted, lambda i: (per_frame[i], layouts[blocks[i]])):
        picked = list(group)
        view = camera[picked]
        hung = layout.between(int(view.min()), int(view.max()) + FRAME_SIZE)
        part = pose.part(picked[0], picked[-1] + 1)
        parts.append(
            (
                _outlines(look, hung, view=view, pose=part, emblem=marking.emblem, scale=scale),
                _others(look, layout, hung, view=view, pose=part, marking=marking),
            )
        )
    outlines = torch.from_numpy(np.concatenate([part for part, _ in parts]))
    others = torch.from_numpy(np.concatenate([part for _, part in parts]))
    if scale == 1:
        limit = torch.tensor([*FARTHEST.values()])[:, None, None]
        outlines = outlines.clamp(-limit, limit)
    return outlines, others


def render_large(
    looks: Sequence[Look], seed: int, frames: slice = slice(None), scale: int = 4
) -> Tensor:
    """A story's video frames `[n, 3, 64 * scale, 64 * scale]` in 0..1."""
    outlines, others = exact_fields(looks, seed, frames)
    fine, _ = exact_fields(looks, seed, frames, scale)
    parts = []
    for first in range(0, len(fine), _DRAWN_TOGETHER):
        some = slice(first, first + _DRAWN_TOGETHER)
        parts.append(draw(outlines[some], others[some], scale, fine[some]))
    return torch.cat(parts)


def _grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Middles of pixels, x `[1, 1, size]` and y `[1, size, 1]`, in those of the 64-pixel frame."""
    middles = (np.arange(size, dtype=np.float32) + 0.5) * (FRAME_SIZE / size)
    return middles[None, None, :], middles[None, :, None]


def _upright(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, None, None]


def _outlines(
    look: Look,
    hung: Sequence[Picture],
    view: np.ndarray,
    pose: Pose,
    emblem: str,
    scale: int,
) -> np.ndarray:
    size = FRAME_SIZE * scale
    x, y = _grid(size)
    along = x + _upright(view)  # the wall
    shape = (len(view), size, size)
    frame = np.full(shape, _FAR, np.float32)
    light = np.full(shape, -FARTHEST["light"], np.float32)
    for item in hung:
        right, down = _from_middle(item, along, y)
        box = np.maximum(np.abs(right), np.abs(down)) - PICTURE_HALF
        bright = picture_light(item.kind, torch.from_numpy(right), torch.from_numpy(down)).numpy()
        light = np.where(box < np.minimum(frame, 1.0), bright, light)
        frame = np.minimum(frame, box)
    tilt = _upright(pose.tilt)
    dx, dy = x - _upright(pose.x), y - _upright(pose.y)
    fields = {
        "pattern": _pattern(look.pattern, along, y),
        "frame": frame,
        "light": light,
        "actor": distance_to(look.shape, dx, dy, tilt=tilt, radius=pose.radius),
        "emblem": _emblem(pose, emblem, dx=dx, dy=dy, tilt=tilt),
    }
    return np.stack([np.broadcast_to(fields[name], shape) for name in OUTLINES], 1).astype("f4")


def _pattern(pattern: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Signed distance to the next edge of a wall's pattern, negative where it is dark."""
    if pattern == "checkerboard":
        near = np.minimum(8 - np.abs(x % 16 - 8), 8 - np.abs(y % 16 - 8))
        return np.where((x // 16 + y // 16) % 2 == 0, near, -near)
    if pattern == "striped":
        near = 4 - np.abs(x % 8 - 4)
        return np.where(x // 8 % 2 == 0, near, -near) + 0 * y
    return 0 * x * y


def _emblem(
    pose: Pose, emblem: str, dx: np.ndarray, dy: np.ndarray, tilt: np.ndarray
) -> np.ndarray:
    """As `drawing.draw_actor` shows it; it opens as it turns to the camera."""
    towards = _upright(np.cos(pose.turn))
    size = EMBLEM_SIZE * pose.radius
    x = np.cos(tilt) * dx + np.sin(tilt) * dy - 0.6 * pose.radius * _upright(np.sin(pose.turn))
    y = np.cos(tilt) * dy - np.sin(tilt) * dx
    facing = np.clip((towards - HIDDEN_BELOW) / 0.1, 0, 1)
    distance = distance_to_emblem(emblem, x / (towards.clip(0.3) * size), y / size) * size
    return distance + 4.0 * (1 - facing)


def _others(
    look: Look,
    layout: Layout,
    hung: Sequence[Picture],
    view: np.ndarray,
    pose: Pose,
    marking: Marking,
) -> np.ndarray:
    x, y = _grid(CELLS)
    along = x + _upright(view)
    wall = np.array(BACKGROUNDS[look.background]) * layout.tint
    values = (
        *wall,
        float(look.pattern != "plain"),
        *COLOURS[look.colour],
        *COLOURS[marking.colour],
        float(look.shape == "ball"),
    )
    still = np.array(values, np.float32)[None, :, None, None]
    right = (x - _upright(pose.x)) / pose.radius
    down = (y - _upright(pose.y)) / pose.radius
    tilt = _upright(pose.tilt)
    place = np.stack(
        (np.cos(tilt) * right + np.sin(tilt) * down, np.cos(tilt) * down - np.sin(tilt) * right), 1
    )
    count = (len(view), CELLS, CELLS)
    nearest = np.full(count, _FAR, np.float32)
    hang = np.full((len(view), 2, CELLS, CELLS), 2.0, np.float32)
    kind = np.zeros((len(view), len(PICTURE_KINDS), CELLS, CELLS), np.float32)
    for item in hung:
        at = np.stack(np.broadcast_arrays(*_from_middle(item, along, y)), 1)
        box = np.abs(at).max(1)
        closer = (box < nearest)[:, None]
        nearest = np.minimum(nearest, box)
        hang = np.where(closer, at / PICTURE_HALF, hang)
        one = np.array([name == item.kind for name in PICTURE_KINDS], np.float32)
        kind = np.where(closer, one[:, None, None], kind)
    fields = (
        np.broadcast_to(still, (len(view), still.shape[1], CELLS, CELLS)),
        place.clip(-1.6, 1.6),
        hang.clip(-2, 2),
        kind,
    )
    return np.concatenate(fields, 1).astype(np.float32)


def _from_middle(item: Picture, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x - (item.x + 0.5), y - (item.y + 0.5)
