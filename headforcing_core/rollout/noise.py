"""The noise of a rollout: seeded, or recorded."""

from __future__ import annotations

import hashlib
import struct
from typing import Protocol

import torch
from torch import Tensor


class NoiseSource(Protocol):
    """Noise as a pure function of its arguments, so that resuming or changing a later prompt gives the same noise.

    `seed` is that of the block's row.
    """

    def initial(self, block: int, seed: int) -> Tensor:
        """The initial noise of block `block`, `[frames, channels, h, w]` float32."""

    def renoise(self, block: int, seed: int, step: int) -> Tensor:
        """Fresh noise added after denoising step `step` of block `block`, same shape."""

    def ahead(self, block: int, seed: int) -> None:
        """Draw the initial noise of a block now, while a GPU is at work, if it takes time."""


class SeededNoise:
    """Gaussian noise seeded by (seed, video, block, step); the same numbers for every device.

    Args:
        shape: `(frames_per_block, channels, h, w)`.
        video: number of the video within a batch.
    """

    def __init__(self, shape: tuple[int, int, int, int], video: int = 0):
        self.shape, self.video = shape, video
        self._ahead: dict[tuple[int, int], Tensor] = {}

    def initial(self, block: int, seed: int) -> Tensor:
        drawn = self._ahead.pop((block, seed), None)
        return self._draw(block, seed, -1) if drawn is None else drawn

    def renoise(self, block: int, seed: int, step: int) -> Tensor:
        return self._draw(block, seed, step)

    def ahead(self, block: int, seed: int) -> None:
        self._ahead = {(block, seed): self._draw(block, seed, -1)}

    def _draw(self, block: int, seed: int, step: int) -> Tensor:
        # a hash and not a sum, so that a seed's first block never has the noise of another seed's later block
        key = struct.pack("<Qqqq", seed % 2**64, self.video, block, step)
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little", signed=True)
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(number))


class RecordedNoise:
    """Noise from given tensors, whatever the seed: `noise [frames, channels, h, w]`, which is cut into blocks, and
    `renoise [blocks, steps - 1, frames_per_block, channels, h, w]`, from block `first_block` on."""

    def __init__(self, noise: Tensor, renoise: Tensor, first_block: int = 0):
        self._noise, self._renoise, self._first_block = noise, renoise, first_block
        self.size = noise.shape[-2:]  # of the latents, (h, w)

    def initial(self, block: int, seed: int = 0) -> Tensor:
        return self._noise.split(self._renoise.shape[2])[block - self._first_block]

    def renoise(self, block: int, seed: int, step: int) -> Tensor:
        return self._renoise[block - self._first_block, step]

    def ahead(self, block: int, seed: int) -> None:
        pass
