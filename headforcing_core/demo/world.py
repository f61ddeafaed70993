"""The toy world, a procedural renderer: a coloured shape moves in front of a patterned wall with white landmarks.

A prompt specifies everything but the landmarks. They are at random places on an infinite wall along which the camera
can pan, so that a model has to remember them to show the right ones when the camera returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from ..timeline.clock import BlockClock

FRAME_SIZE = 64
PAN_PIXELS = 2  # per video frame, so that a latent frame (four video frames) moves by exactly one latent pixel
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
    "grey": (0.42, 0.42, 0.44),
    "navy": (0.12, 0.14, 0.34),
    "teal": (0.08, 0.32, 0.32),
    "maroon": (0.34, 0.10, 0.14),
    "olive": (0.30, 0.30, 0.10),
    "black": (0.07, 0.07, 0.08),
    "brown": (0.36, 0.24, 0.15),
    "sand": (0.70, 0.65, 0.52),
}
SHAPES = ("ball", "square", "triangle", "star", "ring")
MOTIONS = ("bouncing", "gliding", "circling")
PATTERNS = ("floor", "checkerboard", "stripes")
CAMERAS = {"": 0, "panning left": -PAN_PIXELS, "panning right": PAN_PIXELS}

# the size of a shape relative to a ball of radius 1, so that all cover about the same area
_SQUARE, _TRIANGLE, _STAR_TIP, _STAR_VALLEY, _RING, _RING_HALF_WIDTH = 0.88, 0.72, 1.42, 0.66, 0.82, 0.30
_CELL = 20  # pixels of wall per landmark
_LANDMARK_ODDS = 0.85


@dataclass(frozen=True)
class Look:
    """The content of a prompt such as `a red ball bouncing on a teal floor panning left`."""

    colour: str
    shape: str
    motion: str
    background: str
    pattern: str
    camera: str = ""

    @property
    def prompt(self) -> str:
        return f"a {self.colour} {self.shape} {self.motion} on a {self.background} {self.pattern} {self.camera}".strip()

    @classmethod
    def parse(cls, prompt: str) -> Look:
        """Parse a prompt; raises ValueError for text that is not in the toy world's grammar."""
        words = prompt.lower().split()
        if len(words) not in (8, 10) or words[0] != "a" or words[4:6] != ["on", "a"]:
            raise ValueError(f"not a prompt of the toy world: {prompt!r}")
        named = dict(zip(CHOICES, (*words[1:4], *words[6:8], " ".join(words[8:])), strict=True))
        for name, word in named.items():
            if word not in CHOICES[name]:
                raise ValueError(f"the toy world has no {name} {word!r}")
        return cls(**named)

    @classmethod
    def draw(cls, rng: np.random.Generator, pan_odds: float = 0.5) -> Look:
        """Draw a random look; the camera pans with probability `pan_odds`."""
        picks = {name: rng.choice(tuple(words)) for name, words in CHOICES.items() if name != "camera"}
        camera = rng.choice(("panning left", "panning right")) if rng.random() < pan_odds else ""
        return cls(**{name: str(word) for name, word in picks.items()}, camera=str(camera))

    def changed(self, rng: np.random.Generator) -> Look:
        """Draw the look after a prompt switch: the camera reverses, or 1, 2 or 5 properties change."""
        if self.camera and rng.random() < 0.6:
            back = "panning left" if self.camera == "panning right" else "panning right"
            return replace(self, camera=back)
        names = rng.permutation([field.name for field in fields(self)])[: rng.choice((1, 1, 2, 5))]
        new = {name: str(rng.choice([w for w in CHOICES[name] if w != getattr(self, name)])) for name in names}
        return replace(self, **new)


CHOICES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "motion": MOTIONS,
    "background": tuple(BACKGROUNDS),
    "pattern": PATTERNS,
    "camera": tuple(CAMERAS),
}


@dataclass(frozen=True)
class Clip:
    """A rendered clip."""

    video_frames: Tensor  # [n, 64, 64, 3] in 0..1
    shape: Tensor  # [n, 64, 64], coverage of each pixel by the shape, 0..1
    looks: tuple[Look, ...]  # one per block
    camera: Tensor  # [n], pixels that the camera has moved to the right


def random_looks(rng: np.random.Generator, blocks: int) -> tuple[Look, ...]:
    """One look per block, with no change (45 % of clips), one (35 %) or two (20 %)."""
    look = Look.draw(rng)
    cuts = set(rng.integers(1, blocks, size=rng.choice((0, 1, 2), p=(0.45, 0.35, 0.2))).tolist()) if blocks > 1 else ()
    looks = []
    for block in range(blocks):
        look = look.changed(rng) if block in cuts else look
        looks.append(look)
    return tuple(looks)


def looks_of_frames(looks: Sequence[Look]) -> list[Look]:
    """The look of every video frame, from one look per block."""
    return [
        look
        for block, look in enumerate(looks)
        for _ in range(CLOCK.start_video_frame(block), CLOCK.start_video_frame(block + 1))
    ]


def camera_path(per_frame: Sequence[Look]) -> Tensor:
    """Pixels that the camera has moved to the right at each video frame."""
    speeds = torch.tensor([CAMERAS[look.camera] for look in per_frame])
    return speeds.cumsum(0) - speeds[0]


def render(looks: tuple[Look, ...], seed: int) -> Clip:
    """Render a video from one look per block of three latent frames; seven blocks give 81 video frames."""
    rng = np.random.default_rng(seed)
    actor = _Actor(rng)
    per_frame = looks_of_frames(looks)
    path = torch.tensor(np.array([actor.step(look.motion) for look in per_frame]), dtype=torch.float32)
    camera = camera_path(per_frame)
    landmarks = _landmarks(seed, int(camera.min()), int(camera.max()) + FRAME_SIZE)
    video_frames, masks = [], []
    start = 0
    while start < len(per_frame):
        look, stop = per_frame[start], start
        while stop < len(per_frame) and per_frame[stop] == look:
            stop += 1
        wall = _wall(look, landmarks, camera[start:stop])
        video_frame, mask = _with_shape(wall, look, path[start:stop], actor.radius)
        video_frames.append(video_frame)
        masks.append(mask)
        start = stop
    return Clip(torch.cat(video_frames), torch.cat(masks), looks, camera)


class _Actor:
    """Motion of the shape: its `x, y, tilt` in each video frame."""

    def __init__(self, rng: np.random.Generator):
        self.radius = rng.uniform(10.5, 13.0)
        self.x, self.y = rng.uniform(20, FRAME_SIZE - 20, 2)
        heading = rng.uniform(0, 2 * math.pi)
        self.speed = rng.uniform(0.7, 1.4)
        self.vx, self.vy = self.speed * math.cos(heading), self.speed * math.sin(heading)
        self.turn = rng.choice((-1, 1))
        self.phase = rng.uniform(0, 2 * math.pi)
        self.motion = ""

    def step(self, motion: str) -> tuple[float, float, float]:
        if motion != self.motion:
            self._begin(motion)
        middle, low, high = FRAME_SIZE / 2, self.radius * 1.2 + 1, FRAME_SIZE - 1 - self.radius * 1.2
        if motion == "circling":
            dx, dy = self.x - middle, self.y - middle
            distance = math.hypot(dx, dy)
            distance += 0.15 * (15 - distance)
            angle = math.atan2(dy, dx) + self.turn * self.speed / 15
            x, y = middle + distance * math.cos(angle), middle + distance * math.sin(angle)
            self.vx, self.vy = x - self.x, y - self.y
            self.x, self.y = x, y
        else:
            falling = motion == "bouncing"
            self.vy += 0.11 * falling
            self.x, self.y = self.x + self.vx, self.y + self.vy
            if not low <= self.x <= high:
                self.x = min(max(self.x, low), high)
                self.vx = math.copysign(self.vx, middle - self.x)
            if self.y > high:
                self.y, self.vy = high, -2.6 if falling else -abs(self.vy)
            elif self.y < low:
                self.y, self.vy = low, abs(self.vy)
        self.phase += 0.12
        return self.x, self.y, 0.2 * math.sin(self.phase)

    def _begin(self, motion: str) -> None:
        self.motion = motion
        if motion == "gliding":
            speed = math.hypot(self.vx, self.vy)
            self.vx, self.vy = (self.vx, self.vy) if speed > 0.3 else (1.0, 0.6)
            scale = self.speed / math.hypot(self.vx, self.vy)
            self.vx, self.vy = self.vx * scale, self.vy * scale
        elif motion == "bouncing":
            self.vx = math.copysign(min(max(abs(self.vx), 0.35), 0.8), self.vx)


_STEPS = torch.arange(FRAME_SIZE) + 0.5


def _landmarks(seed: int, left: int, right: int) -> list[tuple[float, float]]:
    """Centres of the landmarks near `left..right`; each has its own seed, so that it is the same at every visit."""
    centres = []
    for cell in range(left // _CELL - 1, right // _CELL + 2):
        rng = np.random.default_rng((seed, cell + 2**20))
        x, y = (cell + rng.uniform(0.2, 0.8)) * _CELL, rng.uniform(7, FRAME_SIZE - 7)
        if rng.random() < _LANDMARK_ODDS:
            centres.append((x, y))
    return centres


def _wall(look: Look, landmarks: list[tuple[float, float]], camera: Tensor) -> Tensor:
    """The wall in every video frame, `[n, 3, 64, 64]`; drawn once if the camera is static."""
    moves = bool((camera != camera[0]).any())
    x = (_STEPS + (camera if moves else camera[:1])[:, None])[:, None]  # [n or 1, 1, 64]
    y = _STEPS[:, None]
    if look.pattern == "floor":
        light = 1.2 - 0.5 * (y / FRAME_SIZE) + 0 * x
    elif look.pattern == "checkerboard":
        light = torch.where((x // 16 + y // 16) % 2 == 0, 1.25, 0.75)
    else:
        light = torch.where(x // 8 % 2 == 0, 1.25, 0.75) + 0 * y
    wall = light[:, None] * torch.tensor(BACKGROUNDS[look.background])[:, None, None]
    for centre_x, centre_y in landmarks:
        cover = (3.2 - ((x - centre_x).abs() + (y - centre_y).abs()) * 0.8).clamp(0, 1)[:, None]
        wall = wall * (1 - cover) + cover * 0.97
    return wall.clamp(0, 1).expand(len(camera), -1, -1, -1)


def _with_shape(wall: Tensor, look: Look, path: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Draw the shape and its shadow on the wall: video frames `[n, 64, 64, 3]` and coverage by the shape."""
    x, y, tilt = path.T[:, :, None, None]
    dx, dy = _STEPS - x, _STEPS[:, None] - y
    shadow = (0.5 - distance_to(look.shape, dx - 2.2, dy - 2.8, tilt, radius) / 1.6).clamp(0, 1)
    cover = (0.5 - distance_to(look.shape, dx, dy, tilt, radius)).clamp(0, 1)
    shine = torch.exp(-((dx + radius * 0.3) ** 2 + (dy + radius * 0.35) ** 2) / (radius**2 * 0.5))
    colour = torch.tensor(COLOURS[look.colour])[:, None, None] * (0.86 + 0.22 * shine)[:, None]
    lit = wall * (1 - 0.4 * shadow[:, None])
    video_frames = lit * (1 - cover[:, None]) + colour.clamp(0, 1) * cover[:, None]
    return video_frames.movedim(1, -1), cover


def distance_to(shape: str, dx: Tensor, dy: Tensor, tilt: Tensor, radius: float | Tensor) -> Tensor:
    """Signed distance in pixels to the outline of a shape, negative inside; `dx, dy` from its centre, tilt in radians.

    `radius` is that of the ball; the other shapes have about the same area.
    """
    if shape == "ball":
        return torch.hypot(dx, dy) - radius
    if shape == "ring":
        return (torch.hypot(dx, dy) - _RING * radius).abs() - _RING_HALF_WIDTH * radius
    x, y = tilt.cos() * dx + tilt.sin() * dy, tilt.cos() * dy - tilt.sin() * dx
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - _SQUARE * radius
    if shape == "triangle":  # one side below, two to the upper left and right
        slope = math.sqrt(0.75) * x.abs() - 0.5 * y
        return torch.maximum(y, slope) - _TRIANGLE * radius
    # a star: fold all ten half-rays onto one, whose outline is the straight line from a tip to a valley
    wedge = 2 * math.pi / 5
    angle = (torch.atan2(x, -y) + wedge / 2) % wedge - wedge / 2
    along, across = torch.hypot(x, y) * angle.cos(), torch.hypot(x, y) * angle.sin().abs()
    valley = _STAR_VALLEY * math.cos(wedge / 2), _STAR_VALLEY * math.sin(wedge / 2)
    edge = valley[0] - _STAR_TIP, valley[1]
    return ((along - _STAR_TIP * radius) * edge[1] - across * edge[0]) / math.hypot(*edge)
