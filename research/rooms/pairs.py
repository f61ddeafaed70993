"""A return judged by two frames, and whether it happened at all.

RememBench (2610.02153) compares the frame at a departure with one at the return. MBench
(2606.00793) scores memory only where its trigger happened: a video that never leaves a room has
nothing to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor
from torch.nn import functional

from ...headforcing_core.demo.rooms_autoencoder import RoomsAutoencoder
from ...headforcing_core.demo.words import Look
from ..statistics import Numbers, mean
from .detector import Sighting, layout_kept, sightings
from .judge import JUDGED_BLOCKS, STRIDE
from .scenes import CLOCK
from .stories import visits

HALF = 0.5  # of judged frames; a room is shown in more of them


def pair_numbers(
    video_frames: Tensor, looks: Sequence[Look], autoencoder: RoomsAutoencoder
) -> Numbers:
    """Numbers of a story's video frames `[n, 64, 64, 3]`, means over the rooms that come back.

    - `returned`: 1 where the walls that the prompts name are seen in most judged frames before the
      return and in most after it, else 0;
    - `layout_returned`: the judge's `layout` of these returns alone;
    - `pair`: cosine of the autoencoder's latents of the last frame before the room was left and of
      the last judged frame after it came back; `pair_just_left`: the same with the last frame of
      the room that was left then.
    """
    found: dict[str, list[float | None]] = {
        "returned": [],
        "layout_returned": [],
        "pair": [],
        "pair_just_left": [],
    }
    for visit, left, back in _returns(looks):
        before = _frames(left[-JUDGED_BLOCKS:])
        after = _frames(back[:JUDGED_BLOCKS])
        first = _frames(visit)
        seen_after = sightings(video_frames[after])
        shown = _shows(sightings(video_frames[before]), looks[left.start])
        happened = shown and _shows(seen_after, looks[back.start])
        found["returned"].append(float(happened))
        if happened:
            found["layout_returned"].append(layout_kept(sightings(video_frames[first]), seen_after))
        departure = autoencoder.encode(video_frames[[first[-1]]]).flatten()
        just_left = autoencoder.encode(video_frames[[before[-1]]]).flatten()
        again = autoencoder.encode(video_frames[[after[-1]]]).flatten()
        found["pair"].append(_cosine(departure, again))
        found["pair_just_left"].append(_cosine(just_left, again))
    return {name: mean(values, decides=False) for name, values in found.items()}


def _returns(looks: Sequence[Look]) -> list[tuple[range, range, range]]:
    """For every room that comes back the blocks of its first visit, of the room just left, and of
    its later visit.
    """
    first: dict[str, range] = {}
    found = []
    for left, visit in pairwise(visits(looks)):
        first.setdefault(looks[left.start].room, left)
        if (seen := first.get(looks[visit.start].room)) is not None:
            found.append((seen, left, visit))
    return found


def _frames(blocks: range) -> list[int]:
    """One video frame of every latent frame of these blocks."""
    count = CLOCK.frames_per_block
    return [STRIDE * frame for frame in range(blocks.start * count, blocks.stop * count)]


def _shows(seen: Sequence[Sighting], look: Look) -> bool:
    """Whether most frames show the wall that a prompt names."""
    walls = [(each.background, each.pattern) for each in seen]
    return walls.count((look.background, look.pattern)) > HALF * len(walls)


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(functional.cosine_similarity(a, b, dim=0))
