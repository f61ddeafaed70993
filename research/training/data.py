"""Clips of the world of rooms for training, each a function of its number, so that nothing of them
need be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...headforcing_core.demo.rooms_autoencoder import (
    RoomsAutoencoder,
)
from ...headforcing_core.demo.words import Look
from ...headforcing_core.timeline.clock import TEMPORAL_STRIDE
from ..rooms.drawing import FRAME_SIZE
from ..rooms.scenes import COLOURS, Clip, looks_of_frames, render
from ..rooms.stories import BLOCKS, random_story, returns
from .sizes import BLOCK_FRAMES, SPATIAL_FACTOR
from .training import word_vectors

# clips of worker r begin at (1 + r) times this; tests and tables use smaller numbers
TRAINING_SEEDS = 10_000_000
CROP = 32
# of an emblem's pixels in the autoencoder's loss, above 1: they are few, and tell who the actor is
EMBLEM_WEIGHT = 12
# a latent frame that begins a video, one after it, one after another
_CROP_FRAMES = 1 + 2 * TEMPORAL_STRIDE
_NO_PROMPT = 0.15
_NO_WORD = 0.05


def training_clip(seed: int) -> Clip:
    """Clip number `seed`."""
    return render(random_story(np.random.default_rng(seed)), seed)


def text_of(looks: Sequence[Look], rng: np.random.Generator) -> Tensor:
    """Text embedding of each block `[blocks, words, 64]`; empty for 15 % of clips, and 5 % of the
    words are dropped.
    """
    if rng.random() < _NO_PROMPT:
        return torch.stack([word_vectors("") for _ in looks])
    prompts = [look.prompt.split() for look in looks]
    words = dict.fromkeys(chain(*prompts))
    # a dropped word is missing in the whole clip
    kept = {word for word in words if rng.random() >= _NO_WORD}
    vectors = []
    for prompt in prompts:
        vectors.append(word_vectors(" ".join(word for word in prompt if word in kept)))
    return torch.stack(vectors)


def latent_cells(cover: Tensor) -> Tensor:
    """The share of each latent cell that something covers, `[video frames, 64, 64]` to `[latent
    frames, 8, 8]`.
    """
    cells = F.avg_pool2d(cover[:, None], SPATIAL_FACTOR)[:, 0]
    return torch.cat((cells[:1], cells[1:].unflatten(0, (-1, TEMPORAL_STRIDE)).mean(1)))


def asked_for(clip: Clip) -> Tensor:
    """Weights of what counts more in the loss, `[latent frames, 8, 8]`: actor, and pictures where a
    room comes back.

    Where a room is new its pictures cannot be known, and in the rest of a visit they are copied.
    """
    back = torch.tensor([gap > 0 for gap in returns(clip.looks)]).repeat_interleave(BLOCK_FRAMES)
    return (latent_cells(clip.shape) + latent_cells(clip.pictures) * back[:, None, None]).clamp_max(
        1
    )


class Window(dict[int, Any]):
    """Things made of clips, by their numbers; those before the window, which moves on with the
    steps, are dropped.
    """

    def __init__(self, make: Callable[[int], Any]):
        super().__init__()
        self.make = make

    def begin_at(self, first: int) -> None:
        for gone in [index for index in self if index < first]:
            del self[gone]

    def __missing__(self, index: int) -> Any:
        self[index] = self.make(index)
        return self[index]


class ClipPool:
    """Latents of the clips that the steps up to a given one use; `fresh` of them are replaced at
    every step.
    """

    def __init__(
        self,
        autoencoder: RoomsAutoencoder,
        seed: int,
        rank: int,
        size: int = 400,
        fresh: int = 2,
    ):
        self.autoencoder = autoencoder
        self.seed = seed
        self.rank = rank
        self.size = size
        self.fresh = fresh
        self.clips = Window(self._clip)

    def draw(self, step: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Latents `[batch, 36, 16, 8, 8]`, what counts more `[batch, 36, 8, 8]`, text `[batch, 12,
        words, 64]`.
        """
        rng = np.random.default_rng((self.seed, self.rank, step))
        first = step * self.fresh
        self.clips.begin_at(first)
        picks = first + rng.choice(self.size, batch, replace=False)
        latents, weights, looks = zip(*(self.clips[int(index)] for index in picks), strict=True)
        text = torch.stack([text_of(per_block, rng) for per_block in looks])
        return torch.stack(latents).float(), torch.stack(weights).float(), text

    def _clip(self, index: int) -> tuple[Tensor, Tensor, tuple[Look, ...]]:
        clip = training_clip(TRAINING_SEEDS * (1 + self.rank + 2 * self.seed) + index)
        return (
            self.autoencoder.encode(clip.video_frames).half(),
            asked_for(clip).half(),
            clip.looks,
        )


def draw_stories(seed: int, rank: int, step: int, batch: int) -> tuple[Tensor, Tensor]:
    """Text `[batch, 12, words, 64]` of random stories, and after how many blocks each room comes
    back `[batch, 12]`.
    """
    rng = np.random.default_rng((seed, rank, step))
    stories = [random_story(rng, BLOCKS) for _ in range(batch)]
    return torch.stack([text_of(looks, rng) for looks in stories]), torch.tensor(
        [returns(looks) for looks in stories]
    )


class Crops:
    """Crops of nine video frames for the autoencoder, most of them near the actor or at a
    picture.
    """

    def __init__(self, seed: int, rank: int, size: int = 60, steps_per_clip: int = 2):
        self.seed = seed
        self.rank = rank
        self.size = size
        self.pace = steps_per_clip
        self.clips = Window(self._clip)

    def draw(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """Video frames `[count, 9, 3, 32, 32]` in 0..1, and their weights `[count, 9, 1, 32, 32]`,
        at least 1.
        """
        rng = np.random.default_rng((self.seed, self.rank, step))
        first = step // self.pace
        self.clips.begin_at(first)
        parts = [self._crop(first + int(rng.integers(self.size)), rng) for _ in range(count)]
        video_frames = torch.stack([crop for crop, _ in parts])
        weights = torch.stack([weight for _, weight in parts])
        return video_frames.float().movedim(-1, 2) / 255, 1 + EMBLEM_WEIGHT * weights.float()[
            :, :, None
        ] / 255

    def _crop(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        video_frames, things = self.clips[index]
        first = TEMPORAL_STRIDE * int(
            rng.integers((len(video_frames) - _CROP_FRAMES) // TEMPORAL_STRIDE + 1)
        )
        centre = rng.uniform(0, FRAME_SIZE, 2)
        seen = (things[first] > 127).nonzero()
        if rng.random() < 0.75 and len(seen):
            centre = seen[int(rng.integers(len(seen)))].numpy() + rng.uniform(-6, 6, 2)
        corner = np.clip(
            np.round((centre - CROP / 2) / SPATIAL_FACTOR),
            0,
            (FRAME_SIZE - CROP) // SPATIAL_FACTOR,
        )
        y, x = (SPATIAL_FACTOR * corner).astype(int)
        window = (
            slice(first, first + _CROP_FRAMES),
            slice(y, y + CROP),
            slice(x, x + CROP),
        )
        return video_frames[window], things[window]

    def _clip(self, index: int) -> tuple[Tensor, Tensor]:
        clip = training_clip(TRAINING_SEEDS * (20 + self.rank + 2 * self.seed) + index)
        around = F.max_pool2d(clip.shape[:, None], 5, 1, 2)[:, 0]
        emblem = F.max_pool2d(emblem_cover(clip)[:, None], 3, 1, 1)[:, 0]
        things = torch.stack((emblem, 0.3 * around, 0.12 * clip.pictures.float())).amax(0)
        return _bytes(clip.video_frames), _bytes(things)


def emblem_cover(clip: Clip) -> Tensor:
    """Pixels of the actor that are nearer to the emblem's colour than to its own, `[video frames,
    64, 64]`, 0 or 1.
    """
    body = torch.tensor([COLOURS[look.colour] for look in looks_of_frames(clip.looks)])
    mark = torch.tensor(COLOURS[clip.marking.colour])
    to_body = (clip.video_frames - body[:, None, None]).square().sum(-1)
    to_mark = (clip.video_frames - mark).square().sum(-1)
    return ((to_mark < to_body) & (clip.shape > 0.5)).float()


def _bytes(values: Tensor) -> Tensor:
    return (values * 255).round().byte()
