"""Detection of shape, colour, wall and landmarks in video frames of the toy world, without any model.

`tests/render/test_toy_world.py` states how often it is right on rendered frames, for which the truth is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .world import BACKGROUNDS, COLOURS, FRAME_SIZE, PATTERNS, SHAPES, Look, distance_to

SATURATION = 0.40  # threshold: walls are below 0.31, shapes above 0.46
WHITE = 0.70
MIN_SHAPE, MIN_LANDMARK = 40, 5  # pixels
TILTS = (-0.2, -0.1, 0.0, 0.1, 0.2)


@dataclass(frozen=True)
class Sighting:
    """What one video frame shows. Colour, shape and place are None if there is no shape."""

    count: int  # of shapes
    area: int  # pixels of the largest
    colour: str | None
    shape: str | None
    place: tuple[float, float] | None
    background: str
    pattern: str
    landmarks: tuple[tuple[float, float], ...]
    mean_colour: tuple[float, float, float] | None

    def colour_error(self, look: Look) -> float | None:
        """Distance between the shape's colour and the prompted one, both scaled to a largest channel of 1."""
        if self.mean_colour is None:
            return None
        named, seen = np.array(COLOURS[look.colour]), np.array(self.mean_colour)
        return float(np.linalg.norm(seen / max(seen.max(), 0.2) - named / named.max()))


def sightings(video_frames: Tensor) -> list[Sighting]:
    """Detect the contents of video frames `[n, 64, 64, 3]` in 0..1."""
    video_frames = video_frames.float().clamp(0, 1)
    shape_mask = video_frames.amax(-1) - video_frames.amin(-1) > SATURATION
    shape_labels = label(shape_mask)
    near_shape = grow(shape_mask, 3)
    white = (video_frames.amin(-1) > WHITE) & ~grow(shape_mask, 1)
    white_labels = label(white)
    wall = ~near_shape & ~grow(white, 2)
    return [
        _sighting(*parts)
        for parts in zip(video_frames, shape_labels, white_labels, wall, shape_mask | white, strict=True)
    ]


def _sighting(video_frame: Tensor, shapes: Tensor, whites: Tensor, wall: Tensor, things: Tensor) -> Sighting:
    wall = wall if wall.any() else ~things
    wall = wall if wall.any() else torch.ones_like(wall)
    background, pattern = _background(video_frame[wall]), _pattern(video_frame, wall)
    landmarks = tuple(centre for centre, _ in regions(whites, MIN_LANDMARK))
    by_size = sorted(regions(shapes, MIN_SHAPE), key=lambda region: -int(region[1].sum()))
    if not by_size:
        return Sighting(0, 0, None, None, None, background, pattern, landmarks, None)
    centre, mask = by_size[0]
    red, green, blue = video_frame[mask].median(0).values.tolist()
    colour = nearest((red, green, blue), COLOURS)
    area, kind = int(mask.sum()), classify_shape(mask, centre)
    return Sighting(len(by_size), area, colour, kind, centre, background, pattern, landmarks, (red, green, blue))


def label(masks: Tensor) -> Tensor:
    """Label the connected regions (8 neighbours) of `masks [n, h, w]` with distinct numbers from 1; 0 elsewhere."""
    ids = torch.arange(1, masks[0].numel() + 1, dtype=torch.float32).view_as(masks[0]) * masks
    while True:
        spread = F.max_pool2d(ids[:, None], 3, 1, 1)[:, 0] * masks
        if torch.equal(spread, ids):
            return ids.long()
        ids = spread


def grow(masks: Tensor, pixels: int) -> Tensor:
    """Dilate `masks [n, h, w]` by `pixels` in all directions."""
    return F.max_pool2d(masks.float()[:, None], 2 * pixels + 1, 1, pixels)[:, 0] > 0


def regions(labels: Tensor, smallest: int) -> list[tuple[tuple[float, float], Tensor]]:
    """Centre `(x, y)` and mask of each labelled region with at least `smallest` pixels."""
    large = []
    for number in labels.unique().tolist():
        mask = labels == number
        if number and mask.sum() >= smallest:
            y, x = (mask.nonzero().float().mean(0) + 0.5).tolist()
            large.append(((x, y), mask))
    return large


def classify_shape(mask: Tensor, centre: tuple[float, float]) -> str:
    """The shape with the highest intersection over union with the mask, drawn at its centre with its area."""
    steps = torch.arange(FRAME_SIZE) + 0.5
    dx, dy = steps - centre[0], (steps - centre[1])[:, None]
    tilts = torch.tensor(TILTS)[:, None, None]
    scores = []
    for shape, unit_area in _unit_areas().items():
        outline = distance_to(shape, dx, dy, tilts, (float(mask.sum()) / unit_area) ** 0.5) < 0
        overlap = (outline & mask).sum((-2, -1)) / (outline | mask).sum((-2, -1))
        scores.append((float(overlap.max()), shape))
    return max(scores)[1]


@lru_cache(maxsize=1)
def _unit_areas() -> dict[str, float]:
    """Area of each shape at radius 1."""
    fine = (torch.arange(400) + 0.5) / 100 - 2
    upright = torch.zeros(())
    return {shape: float((distance_to(shape, fine, fine[:, None], upright, 1.0) < 0).sum()) / 1e4 for shape in SHAPES}


def nearest(colour: Sequence[float], named: dict[str, tuple[float, float, float]]) -> str:
    return min(named, key=lambda name: sum((a - b) ** 2 for a, b in zip(colour, named[name], strict=True)))


def _background(pixels: Tensor) -> str:
    return nearest(pixels.mean(0).tolist(), BACKGROUNDS)


@lru_cache(maxsize=1)
def _patterns() -> tuple[Tensor, list[str]]:
    """Brightness `[n, 64, 64]` of each pattern at every camera position, and the names of the patterns."""
    x, y = torch.arange(FRAME_SIZE) + 0.5, (torch.arange(FRAME_SIZE) + 0.5)[:, None]
    floor, *_ = PATTERNS
    brightness, names = [(-y / FRAME_SIZE + 0 * x)], [floor]
    for shift in range(0, 32, 2):
        brightness.append(((x + shift) // 16 + y // 16) % 2 + 0.0)
        names.append("checkerboard")
        brightness.append((x + shift) // 8 % 2 + 0 * y)
        names.append("stripes")
    return torch.stack(brightness), names


def _pattern(video_frame: Tensor, wall: Tensor) -> str:
    """The pattern with the highest correlation with the wall's brightness."""
    light = video_frame.mean(-1)[wall]
    patterns, names = _patterns()
    expected = patterns[:, wall]
    light, expected = light - light.mean(), expected - expected.mean(1, keepdim=True)
    similarity = (expected @ light) / (expected.norm(dim=1) * light.norm() + 1e-6)
    return names[int(similarity.argmax())]


@dataclass(frozen=True)
class Scores:
    """Prompt adherence, one value per video frame; see `score`."""

    background: np.ndarray
    pattern: np.ndarray
    present: np.ndarray  # there is a shape of the prompted colour
    shape: np.ndarray  # it is of the prompted kind
    single: np.ndarray  # there is exactly one shape
    colour_error: np.ndarray  # NaN without a shape
    area: np.ndarray  # in pixels
    landmarks: np.ndarray  # number of landmarks

    def means(self) -> dict[str, float]:
        return {name: float(np.nanmean(values)) if len(values) else float("nan") for name, values in vars(self).items()}


def score(seen: Sequence[Sighting], looks: Sequence[Look]) -> Scores:
    """Compare the contents of each video frame with its prompt."""
    pairs = list(zip(seen, looks, strict=True))
    return Scores(
        background=np.array([s.background == look.background for s, look in pairs], float),
        pattern=np.array([s.pattern == look.pattern for s, look in pairs], float),
        present=np.array([s.colour == look.colour for s, look in pairs], float),
        shape=np.array([s.shape == look.shape for s, look in pairs], float),
        single=np.array([s.count == 1 for s, _ in pairs], float),
        colour_error=np.array([np.nan if s.colour is None else s.colour_error(look) for s, look in pairs], float),
        area=np.array([s.area for s, _ in pairs], float),
        landmarks=np.array([len(s.landmarks) for s, _ in pairs], float),
    )
