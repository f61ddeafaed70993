"""The world of rooms, a procedural renderer whose stories need a memory.

A prompt such as `a red ball bouncing in the navy checkerboard room` names an actor and a room by
its wall. Three things
it does not say, and a model has to keep in mind:

- the *layout* of a room, different in every video: which three of six kinds of picture hang where,
and the wall's tint;
- the *marking* of the actor, an emblem in a second colour, which is hidden most of the time after
the first block;
- speed, phase and turning of the actor, which follow from the last frames.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise

import numpy as np
import torch
from torch import Tensor

from ...headforcing_core.demo.words import Look
from ...headforcing_core.timeline.clock import BlockClock
from .drawing import (
    EMBLEMS,
    FRAME_SIZE,
    PICTURES,
    Picture,
    Pose,
    draw_actor,
    draw_wall,
)

# per video frame, so that a latent frame (four video frames) moves by exactly one latent pixel
PAN_PIXELS = 2
CLOCK = BlockClock()
COLOURS = {
    "red": (0.92, 0.14, 0.14),
    "green": (0.15, 0.80, 0.22),
    "blue": (0.20, 0.38, 1.00),
    "yellow": (0.98, 0.90, 0.15),
    "orange": (1.00, 0.55, 0.05),
    "purple": (0.66, 0.25, 0.95),
    "cyan": (0.15, 0.88, 0.95),
    "pink": (1.00, 0.42, 0.70),
}
BACKGROUNDS = {
    "grey": (0.46, 0.46, 0.48),
    "navy": (0.17, 0.20, 0.42),
    "teal": (0.15, 0.39, 0.38),
    "maroon": (0.42, 0.17, 0.21),
    "olive": (0.40, 0.40, 0.18),
    "slate": (0.25, 0.29, 0.33),
    "brown": (0.44, 0.31, 0.22),
    "sand": (0.66, 0.60, 0.47),
}
CAMERAS = {"": 0, "panning left": -PAN_PIXELS, "panning right": PAN_PIXELS}
TINT = 0.08  # largest relative change of a colour channel of a wall
PICTURES_PER_ROOM = 3
_COLUMNS = (12, 32, 52)
_ROWS = (10, 27, 43)
_JITTER = 2  # pixels; where pictures hang on 64 columns of a wall
_CONTRAST = 0.45  # least distance in RGB between an actor and its emblem


@dataclass(frozen=True)
class Layout:
    """Contents of a room of one video: pictures on 64 columns of wall after another, and the tint
    of the wall.
    """

    seed: int
    room: str
    version: int = 0

    @property
    def tint(self) -> np.ndarray:
        """Factors of the wall's colour channels, `[3]`."""
        return 1 + TINT * self._rng(-1).uniform(-1, 1, 3)

    def pictures(self, panel: int = 0) -> tuple[Picture, ...]:
        """The pictures on columns `64 * panel` to `64 * panel + 63`; panel 0 is what a camera at
        rest shows.
        """
        rng = self._rng(panel)
        kinds = rng.choice(PICTURES, PICTURES_PER_ROOM, replace=False)
        places = rng.choice(len(_COLUMNS) * len(_ROWS), PICTURES_PER_ROOM, replace=False)
        jitter = rng.integers(-_JITTER, _JITTER + 1, (PICTURES_PER_ROOM, 2))
        return tuple(
            Picture(
                str(kind),
                panel * FRAME_SIZE + _COLUMNS[place % 3] + int(dx),
                _ROWS[place // 3] + int(dy) // 2,
            )
            for kind, place, (dx, dy) in zip(kinds, places, jitter, strict=True)
        )

    def between(self, left: int, right: int) -> list[Picture]:
        """All pictures that the columns from `left` to `right` may show."""
        panels = range(left // FRAME_SIZE - 1, right // FRAME_SIZE + 2)
        return list(chain.from_iterable(map(self.pictures, panels)))

    def _rng(self, part: int) -> np.random.Generator:
        return np.random.default_rng(
            (self.seed, zlib.crc32(self.room.encode()), self.version, part + 2**20)
        )


@dataclass(frozen=True)
class Marking:
    """The actor's emblem and its colour."""

    emblem: str
    colour: str

    @classmethod
    def draw(cls, looks: Sequence[Look], seed: int) -> Marking:
        """The marking of a video; its colour is far from all that its prompts give to the actor, if
        there is such.
        """
        rng = np.random.default_rng((seed, 1))
        emblem = str(rng.choice(EMBLEMS))
        order = rng.permutation(tuple(COLOURS)).tolist()
        named = [COLOURS[look.colour] for look in looks]
        apart = {}
        for name in order:
            apart[name] = min(math.dist(COLOURS[name], other) for other in named)
        return cls(
            emblem,
            next(
                (name for name in order if apart[name] > _CONTRAST),
                max(order, key=apart.__getitem__),
            ),
        )


@dataclass(frozen=True)
class Clip:
    """A rendered clip with all that its prompts do not say."""

    video_frames: Tensor  # [n, 64, 64, 3] in 0..1
    shape: Tensor  # [n, 64, 64], coverage of each pixel by the actor, 0..1
    pictures: Tensor  # [n, 64, 64], coverage by pictures that the actor does not hide
    facing: Tensor  # [n], how much of the emblem can be seen, 0..1
    looks: tuple[Look, ...]  # one per block
    camera: Tensor  # [n], pixels that the camera has moved to the right since it entered the room
    marking: Marking
    layouts: tuple[Layout, ...]  # one per block


def looks_of_frames(looks: Sequence[Look]) -> list[Look]:
    """The look of every video frame, from one look per block."""
    return [looks[block] for block in blocks_of_frames(len(looks))]


def camera_path(per_frame: Sequence[Look]) -> np.ndarray:
    """Pixels that the camera has moved to the right at each video frame; 0 wherever a room is
    entered.
    """
    places = [0]
    for before, look in pairwise(per_frame):
        places.append(places[-1] + CAMERAS[look.camera] if before.room == look.room else 0)
    return np.array(places)


def render(looks: Sequence[Look], seed: int, versions: Sequence[int] | None = None) -> Clip:
    """Render a video from one look per block of three latent frames; 12 blocks give 141 video
    frames.

    `versions`, one number per block, gives another number to blocks that shall show other layouts
    of the same rooms.
    """
    versions = versions or [0] * len(looks)
    layouts = tuple(
        Layout(seed, look.room, version) for look, version in zip(looks, versions, strict=True)
    )
    marking = Marking.draw(looks, seed)
    pose = poses(looks, seed)
    per_frame = looks_of_frames(looks)
    camera = camera_path(per_frame)
    parts = []
    blocks = blocks_of_frames(len(looks))
    for _, group in groupby(range(len(per_frame)), lambda i: (per_frame[i], layouts[blocks[i]])):
        frames = list(group)
        start = frames[0]
        stop = frames[-1] + 1
        look = per_frame[start]
        layout = layouts[blocks[start]]
        view = camera[start:stop]
        colour = np.array(BACKGROUNDS[look.background]) * layout.tint
        hung = layout.between(int(view.min()), int(view.max()) + FRAME_SIZE)
        wall, covered = draw_wall(colour.tolist(), look.pattern, hung, view)
        body = COLOURS[look.colour]
        mark = COLOURS[marking.colour]
        drawn = draw_actor(
            wall,
            pose.part(start, stop),
            shape=look.shape,
            colour=body,
            emblem=marking.emblem,
            mark=mark,
        )
        parts.append((*drawn, covered * (1 - drawn[1])))
    video_frames, shape, facing, pictures = map(
        torch.from_numpy, map(np.concatenate, zip(*parts, strict=True))
    )
    return Clip(
        video_frames,
        shape,
        pictures=pictures,
        facing=facing,
        looks=tuple(looks),
        camera=torch.from_numpy(camera),
        marking=marking,
        layouts=layouts,
    )


def poses(looks: Sequence[Look], seed: int) -> Pose:
    """The actor in every video frame: it moves as the prompts say, and turns from the second block
    on.
    """
    rng = np.random.default_rng((seed, 2))
    actor = _Actor(rng)
    per_frame = looks_of_frames(looks)
    path = np.array([actor.step(look.motion) for look in per_frame])
    later = np.maximum(0, np.arange(len(per_frame)) - CLOCK.video_frames(1) + 1)
    turn = later * rng.choice((-1, 1)) * 2 * math.pi / rng.uniform(28, 48)
    blur = np.where(later > 0, 2.6, 1.0)
    return Pose(
        path[:, 0],
        path[:, 1],
        tilt=path[:, 2],
        turn=turn,
        blur=blur,
        radius=actor.radius,
    )


def blocks_of_frames(blocks: int) -> list[int]:
    """The block of every video frame."""
    of_frames: list[int] = []
    for block in range(blocks):
        count = CLOCK.video_frames(block + 1) - CLOCK.video_frames(block)
        of_frames += [block] * count
    return of_frames


class _Actor:
    """Motion of the actor: its `x, y, tilt` in each video frame."""

    def __init__(self, rng: np.random.Generator):
        self.radius = rng.uniform(10.5, 13.0)
        self.x, self.y = rng.uniform(20, FRAME_SIZE - 20, 2).tolist()
        heading = rng.uniform(0, 2 * math.pi)
        self.speed = rng.uniform(0.7, 1.4)
        self.vx = self.speed * math.cos(heading)
        self.vy = self.speed * math.sin(heading)
        self.turn = int(rng.choice((-1, 1)))
        self.phase = rng.uniform(0, 2 * math.pi)
        self.motion = ""

    def step(self, motion: str) -> tuple[float, float, float]:
        if motion != self.motion:
            self._begin(motion)
        middle = FRAME_SIZE / 2
        low = self.radius * 1.2 + 1
        high = FRAME_SIZE - 1 - self.radius * 1.2
        if motion == "circling":
            dx = self.x - middle
            dy = self.y - middle
            distance = math.hypot(dx, dy)
            distance += 0.15 * (15 - distance)
            angle = math.atan2(dy, dx) + self.turn * self.speed / 15
            x = middle + distance * math.cos(angle)
            y = middle + distance * math.sin(angle)
            self.vx = x - self.x
            self.vy = y - self.y
            self.x = x
            self.y = y
        else:
            falling = motion == "bouncing"
            self.vy += 0.11 * falling
            self.x = self.x + self.vx
            self.y = self.y + self.vy
            if not low <= self.x <= high:
                self.x = min(max(self.x, low), high)
                self.vx = math.copysign(self.vx, middle - self.x)
            if self.y > high:
                self.y = high
                self.vy = -2.6 if falling else -abs(self.vy)
            elif self.y < low:
                self.y = low
                self.vy = abs(self.vy)
        self.phase += 0.12
        return self.x, self.y, 0.2 * math.sin(self.phase)

    def _begin(self, motion: str) -> None:
        self.motion = motion
        if motion == "gliding":
            speed = math.hypot(self.vx, self.vy)
            self.vx, self.vy = (self.vx, self.vy) if speed > 0.3 else (1.0, 0.6)
            scale = self.speed / math.hypot(self.vx, self.vy)
            self.vx = self.vx * scale
            self.vy = self.vy * scale
        elif motion == "bouncing":
            self.vx = math.copysign(min(max(abs(self.vx), 0.35), 0.8), self.vx)
