"""The noise of a rollout: seeded, or recorded."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor


class NoiseSource(Protocol):
    """Noise as a pure function of its arguments, so that resuming or changing a later prompt gives the same noise."""

    def initial(self, block: int) -> Tensor:
        """The initial noise of block `block`, `[frames, channels, h, w]` float32."""

    def renoise(self, block: int, step: int) -> Tensor:
        """Fresh noise added after denoising step `step` of block `block`, same shape."""

    def ahead(self, block: int) -> None:
        """Draw the initial noise of a block now, while a GPU is at work, if it takes time."""


class SeededNoise:
    """Gaussian noise seeded by (seed, video, block, step); the same numbers for every device.

    Args:
        shape: `(frames_per_block, channels, h, w)`.
        video: number of the video within a batch.
        later: by block, the seed that replaces `seed` from that block on, until the next one in here.
    """

    def __init__(
        self,
        seed: int,
        shape: tuple[int, int, int, int],
        video: int = 0,
        later: Mapping[int, int] = MappingProxyType({}),
    ):
        self.seed, self.shape, self.video, self.later = seed, shape, video, later
        self._ahead: dict[int, Tensor] = {}

    def seed_of(self, block: int) -> int:
        """The seed that the noise of a block is drawn with."""
        first = max((first for first in self.later if first <= block), default=None)
        return self.seed if first is None else self.later[first]

    def initial(self, block: int) -> Tensor:
        return self._ahead.pop(block) if block in self._ahead else self._draw(block, -1)

    def renoise(self, block: int, step: int) -> Tensor:
        return self._draw(block, step)

    def ahead(self, block: int) -> None:
        self._ahead = {block: self._draw(block, -1)}

    def _draw(self, block: int, step: int) -> Tensor:
        # a hash and not a sum, so that a seed's first block never has the noise of another seed's later block
        key = struct.pack("<Qqqq", self.seed_of(block) % 2**64, self.video, block, step)
        generator = torch.Generator().manual_seed(
            int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little", signed=True)
        )
        return torch.randn(self.shape, generator=generator)


class RecordedNoise:
    """Noise from given tensors.

    Args:
        noise: `[frames, channels, h, w]`, cut into blocks.
        renoise: `[blocks, steps - 1, frames_per_block, channels, h, w]`.
        first_block: number of the first recorded block.
    """

    def __init__(self, noise: Tensor, renoise: Tensor, first_block: int = 0):
        self._noise, self._renoise, self._first_block = noise, renoise, first_block
        self.size = noise.shape[-2:]  # of the latents, (h, w)

    def initial(self, block: int) -> Tensor:
        frames = self._renoise.shape[2]
        return self._noise.split(frames)[block - self._first_block]

    def renoise(self, block: int, step: int) -> Tensor:
        return self._renoise[block - self._first_block, step]

    def ahead(self, block: int) -> None:
        pass
