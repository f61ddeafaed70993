"""Detection of everything in video frames of the world of rooms, what prompts do not say included,
without any model.

`accuracy.py` states how often it is right on rendered frames, for which the truth is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...headforcing_core.demo.words import CHOICES
from . import drawing
from .drawing import FLOOR, FRAME_SIZE, PICTURE_SIZE, PICTURES, Picture
from .scenes import BACKGROUNDS, CAMERAS, COLOURS

SATURATION = 0.43  # threshold: walls, with tint and pattern, are below 0.39, actors above 0.49
MIN_ACTOR = 40
MIN_EMBLEM = 10  # pixels
LIKENESS = 0.72  # least correlation with a picture
NEAR = 3  # pixels; a picture so near its place is in it
TILTS = (-0.2, -0.1, 0.0, 0.1, 0.2)
# least distance of an emblem's colour from the actor's, both with a largest channel of 1
MARK_CONTRAST = 0.35
# pixels from the actor's edge, whose colour mixes with the wall's; more would cut emblems on a
# cross
MARK_INSET = 1
_BORDER = PICTURE_SIZE // 2


@dataclass(frozen=True)
class Sighting:
    """Contents of one video frame.

    Attributes:
        background, pattern, tint: of the wall; the tint as factors of the named colour's channels.
        pictures: whole pictures that nothing hides, at their places in the frame.
        hidden: `[64, 64]`, where nothing can be said about the wall, because the actor is there.
        count: number of actors; of the largest one are area, colour, shape and place, None without
            one.
        overlaps: intersection over union of the actor with the outline of each shape, at its place
            and with its area.
        mark, mark_area: the second colour on the actor, None where it has turned away, and on how
            many pixels.
    """

    background: str
    pattern: str
    tint: tuple[float, ...]
    pictures: tuple[Picture, ...]
    hidden: Tensor
    count: int = 0
    area: int = 0
    colour: str | None = None
    shape: str | None = None
    place: tuple[float, float] | None = None
    overlaps: dict[str, float] = field(default_factory=dict)
    mark: str | None = None
    mark_area: int = 0


def sightings(video_frames: Tensor) -> list[Sighting]:
    """Detect the contents of video frames `[n, 64, 64, 3]` in 0..1."""
    video_frames = video_frames.float().clamp(0, 1)
    actors = _filled(video_frames.amax(-1) - video_frames.amin(-1) > SATURATION)
    likeness = _likeness(video_frames.mean(-1))
    hidden = grow(actors, 4)
    return [
        _sighting(*parts)
        for parts in zip(video_frames, label(actors), hidden, likeness, strict=True)
    ]


def _sighting(video_frame: Tensor, actors: Tensor, hidden: Tensor, likeness: Tensor) -> Sighting:
    pictures = _pictures(likeness)
    bare = Sighting(*_wall(video_frame, hidden, pictures), pictures, hidden)
    by_size = sorted(regions(actors, MIN_ACTOR), key=lambda region: -int(region[1].sum()))
    if not by_size:
        return bare
    place, mask = by_size[0]
    overlaps, (mark, mark_area) = (
        _overlaps(mask, place),
        _marking(video_frame, mask),
    )
    shape = max(overlaps, key=overlaps.__getitem__)
    colour = _colour_name(video_frame[mask])
    about: dict[str, Any] = {
        "colour": colour,
        "shape": shape,
        "place": place,
        "overlaps": overlaps,
        "mark": mark,
    }
    return replace(bare, count=len(by_size), area=int(mask.sum()), mark_area=mark_area, **about)


def nearest(colour: Sequence[float], named: dict[str, tuple[float, float, float]]) -> str:
    return min(
        named,
        key=lambda name: sum((a - b) ** 2 for a, b in zip(colour, named[name], strict=True)),
    )


def _filled(masks: Tensor) -> Tensor:
    """Masks `[n, 64, 64]` without holes: the edge of an emblem can be grey between two strong
    colours.
    """
    outside = label(F.pad((~masks).float(), (1, 1, 1, 1), value=1.0).bool())
    return (outside != outside[:, :1, :1])[:, 1:-1, 1:-1]


def _vivid(colour: Tensor) -> Tensor:
    """A colour scaled to a largest channel of 1: what is left without light and shade."""
    return colour / colour.amax(-1, keepdim=True).clamp_min(0.2)


_VIVID = {
    name: (r / max(r, g, b), g / max(r, g, b), b / max(r, g, b))
    for name, (r, g, b) in COLOURS.items()
}


def _colour_name(pixels: Tensor) -> str:
    """The actor's or emblem's colour that is nearest to pixels `[n, 3]`."""
    return nearest(_vivid(pixels.median(0).values).tolist(), _VIVID)


@lru_cache(maxsize=1)
def _unit_areas() -> dict[str, float]:
    """Area of each shape at radius 1."""
    fine = (np.arange(400) + 0.5) / 100 - 2
    upright = np.zeros(())
    outlines = {
        shape: drawing.distance_to(shape, fine, dy=fine[:, None], tilt=upright, radius=1.0)
        for shape in CHOICES["shape"]
    }
    return {shape: float((distance < 0).sum()) / 1e4 for shape, distance in outlines.items()}


def _overlaps(mask: Tensor, place: tuple[float, float]) -> dict[str, float]:
    """Intersection over union of a mask with every shape of its area at its place, at the best
    tilt.
    """
    steps = np.arange(FRAME_SIZE) + 0.5
    tilts = np.array(TILTS)[:, None, None]
    dx = steps - place[0]
    dy = (steps - place[1])[:, None]
    there = mask.numpy()
    result = {}
    for shape, unit_area in _unit_areas().items():
        outline = (
            drawing.distance_to(
                shape,
                dx,
                dy=dy,
                tilt=tilts,
                radius=math.sqrt(there.sum() / unit_area),
            )
            < 0
        )
        result[shape] = float(
            ((outline & there).sum((-2, -1)) / (outline | there).sum((-2, -1))).max()
        )
    return result


@lru_cache(maxsize=1)
def _templates() -> Tensor:
    """Brightness of each picture with mean 0 and norm 1, `[6, 1, 13, 13]`."""
    templates = torch.from_numpy(np.stack([drawing.picture(kind).mean(-1) for kind in PICTURES]))
    templates = templates - templates.mean((1, 2), keepdim=True)
    return (templates / templates.flatten(1).norm(dim=1)[:, None, None])[:, None]


def _likeness(light: Tensor) -> Tensor:
    """Correlation of the surroundings of every pixel with each picture, `[n, 6, 52, 52]`; pixel 0
    there is pixel 6.
    """
    windows = light[:, None]
    count = PICTURE_SIZE**2
    mean = F.avg_pool2d(windows, PICTURE_SIZE, 1)
    square = F.avg_pool2d(windows.square(), PICTURE_SIZE, 1)
    spread = (count * (square - mean.square()).clamp_min(4e-4)).sqrt()
    return F.conv2d(windows, _templates()) / spread


def _pictures(likeness: Tensor) -> tuple[Picture, ...]:
    """The pictures of one frame: the best likeness first, and none that overlaps a better one."""
    left = likeness.clone()
    found = []
    while float(left.max()) > LIKENESS:
        kind, y, x = map(int, np.unravel_index(int(left.argmax()), left.shape))
        found.append(Picture(PICTURES[kind], x + _BORDER, y + _BORDER))
        left[:, max(0, y - 9) : y + 10, max(0, x - 9) : x + 10] = 0
    return tuple(found)


@lru_cache(maxsize=1)
def _lights() -> tuple[Tensor, list[str]]:
    """Brightness `[n, 64, 64]` of each pattern at every camera position, and the names of the
    patterns.
    """
    plain, checkerboard, striped = CHOICES["pattern"]
    views = [
        (plain, 0),
        *((checkerboard, s) for s in range(0, 32, 2)),
        *((striped, s) for s in range(0, 16, 2)),
    ]
    lights = [
        drawing.wall_light(pattern, np.arange(FRAME_SIZE) + 0.5 + shift) for pattern, shift in views
    ]
    return torch.from_numpy(np.stack(lights)).float(), [pattern for pattern, _ in views]


def _wall(
    video_frame: Tensor, hidden: Tensor, pictures: Sequence[Picture]
) -> tuple[str, str, tuple[float, ...]]:
    """Name of the wall's colour, pattern and tint: those with the smallest error where nothing
    hangs or stands.
    """
    free = ~hidden
    free[FLOOR - 2 :] = False
    for item in pictures:
        free[max(0, item.y - 7) : item.y + 9, max(0, item.x - 7) : item.x + 9] = False
    if int(free.sum()) < 64:
        free = torch.ones_like(free)
    lights, names = _lights()
    light = lights[:, free]
    seen = video_frame[free]  # [views, pixels], [pixels, 3]
    colours = light @ seen / light.square().sum(1, keepdim=True)  # least squares
    errors = (seen - light[:, :, None] * colours[:, None]).abs().clamp_max(0.1).mean((1, 2))
    best = int(errors.argmin())
    # again without what does not fit, such as half a picture at the edge
    fits = (seen - light[best, :, None] * colours[best]).abs().amax(-1) < 0.1
    kept = light[best, fits] if fits.any() else light[best]
    colour = (kept @ (seen[fits] if fits.any() else seen) / kept.square().sum()).tolist()
    name = nearest(colour, BACKGROUNDS)
    return (
        name,
        names[best],
        tuple(c / named for c, named in zip(colour, BACKGROUNDS[name], strict=True)),
    )


def _marking(video_frame: Tensor, mask: Tensor) -> tuple[str | None, int]:
    """The second colour inside an actor's outline and on how many pixels; None and 0 where there is
    none.
    """
    inside = mask & ~grow(~mask[None], MARK_INSET)[0]
    contrast = (_vivid(video_frame) - _vivid(video_frame[mask].median(0).values)).norm(
        dim=-1
    ) * inside
    other = contrast > max(MARK_CONTRAST, float(contrast.max()) / 2)
    if (pixels := int(other.sum())) < MIN_EMBLEM:
        return None, 0
    strongest = contrast >= contrast[other].median()
    return _colour_name(video_frame[strongest]), pixels


def layout_overlap(seen: Sighting, layout: Sequence[Picture]) -> float | None:
    """Share of right pictures in a frame among all that are expected or seen; 0 to 1.

    Pictures that the actor hides or the edge cuts off are left out. None if none is left.
    """
    inside = [item for item in layout if _BORDER <= item.x < FRAME_SIZE - _BORDER]
    expected = [item for item in inside if not _covered(seen.hidden, item)]
    found = [item for item in seen.pictures if not _covered(seen.hidden, item)]
    right = sum(_is_in(item, found) for item in expected)
    total = len(expected) + sum(not _is_in(item, expected) for item in found)
    return right / total if total else None


def layout_of(visit: Sequence[Sighting]) -> list[Picture]:
    """The pictures of a room, from a visit with a camera at rest: those in most frames that can
    show them.
    """
    found: list[Picture] = []
    for item in chain.from_iterable(sighting.pictures for sighting in visit):
        if not _is_in(item, found):
            can = [sighting for sighting in visit if not _covered(sighting.hidden, item)]
            if 2 * sum(_is_in(item, sighting.pictures) for sighting in can) > len(can):
                found.append(item)
    return found


def layout_kept(first: Sequence[Sighting], back: Sequence[Sighting]) -> float | None:
    """Share of the pictures of a room's first visit that come back, mean over the frames; None if
    it shows none.

    Places that the actor hid during all of the first visit are left out.
    """
    layout = layout_of(first)
    never = torch.stack([sighting.hidden for sighting in first]).all(0)
    views = [replace(sighting, hidden=sighting.hidden | never) for sighting in back]
    known = [value for view in views if (value := layout_overlap(view, layout)) is not None]
    return sum(known) / len(known) if layout and known else None


def mark_of(seen: Sequence[Sighting]) -> str | None:
    """The colour of the marking that these frames show on most pixels together; None if none shows
    one.
    """
    pixels = Counter[str | None]()
    for sighting in seen:
        pixels[sighting.mark] += sighting.mark_area
    del pixels[None]
    return max(pixels, key=pixels.__getitem__) if pixels else None


def _covered(hidden: Tensor, item: Picture) -> bool:
    half = _BORDER - 1  # the shadow's soft edge may touch the frame
    return bool(
        hidden[
            max(0, item.y - half) : item.y + half + 1,
            max(0, item.x - half) : item.x + half + 1,
        ].any()
    )


def _is_in(item: Picture, others: Sequence[Picture]) -> bool:
    """Whether one of the others is the same picture at about the same place."""
    return any(
        it.kind == item.kind and max(abs(it.x - item.x), abs(it.y - item.y)) <= NEAR
        for it in others
    )


def motion_word(places: Sequence[tuple[float, float] | None], stride: int = 4) -> str | None:
    """The prompt's word for a trajectory, from the actor's place in every `stride`-th video frame.

    Circling keeps its distance to the middle, bouncing is drawn downward. None for fewer than six
    places.
    """
    known = np.array([place for place in places if place is not None], float)
    if len(known) < 6:
        return None
    bouncing, gliding, circling = CHOICES["motion"]
    # the actor needs a moment to find its circle
    from_middle = known[len(known) // 4 :] - FRAME_SIZE / 2
    distance = np.hypot(*from_middle.T)
    if distance.std() < 1.5 and 12 < distance.mean() < 18:
        return circling
    fall = np.median(np.diff(known[:, 1], 2)) / stride**2
    return bouncing if fall > 0.05 else gliding


def camera_words(video_frames: Tensor, gap: int = 2) -> list[str]:
    """The `n - gap` words for the camera, empty where it stands still, from the shift of the wall
    in `gap` frames.
    """
    strong = video_frames.amax(-1) - video_frames.amin(-1) > SATURATION
    free = ~grow(strong, 4)
    now = video_frames[:-gap]
    later = video_frames[gap:]
    errors = []
    reach = gap * max(CAMERAS.values())
    middle = slice(reach, FRAME_SIZE - reach)
    for speed in CAMERAS.values():
        moved = slice(reach + gap * speed, FRAME_SIZE - reach + gap * speed)
        both = (free[:-gap, :FRAME_SIZE, moved] & free[gap:, :, middle]).float()
        error = (now[:, :, moved] - later[:, :, middle]).abs().mean(-1) * both
        errors.append(error.sum((1, 2)) / both.sum((1, 2)).clamp_min(1))
    words = list(CAMERAS)
    return [words[int(i)] for i in torch.stack(errors).argmin(0)]


def label(masks: Tensor) -> Tensor:
    """Label the connected regions (8 neighbours) of `masks [n, h, w]` with distinct numbers from 1;
    0 elsewhere.
    """
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
