"""Where all randomness of a rollout comes from."""

from __future__ import annotations

import hashlib
import struct
from typing import Protocol

import torch
from torch import Tensor


class NoiseSource(Protocol):
    """Noise that is a pure function of its arguments, so resuming or changing a later prompt never shifts it."""

    def initial(self, block: int) -> Tensor:
        """What block `block` starts from, `[frames, channels, h, w]` float32."""

    def renoise(self, block: int, step: int) -> Tensor:
        """Fresh noise added after denoising step `step` of block `block`, same shape."""


class SeededNoise:
    """Gaussian noise keyed by (seed, video, block, step); the same numbers on every device.

    Args:
        shape: `(frames_per_block, channels, h, w)`.
        video: number of the video within a batch.
    """

    def __init__(self, seed: int, shape: tuple[int, int, int, int], video: int = 0):
        self.seed, self.shape, self.video = seed, shape, video

    def initial(self, block: int) -> Tensor:
        return self._draw(block, -1)

    def renoise(self, block: int, step: int) -> Tensor:
        return self._draw(block, step)

    def _draw(self, block: int, step: int) -> Tensor:
        # a hash rather than a sum: seed 1000 of block 0 must not equal seed 0 of some later block
        key = struct.pack("<Qqqq", self.seed % 2**64, self.video, block, step)
        generator = torch.Generator().manual_seed(
            int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little", signed=True)
        )
        return torch.randn(self.shape, generator=generator)


class RecordedNoise:
    """Replays given tensors.

    Args:
        noise: `[frames, channels, h, w]`, cut into blocks.
        renoise: `[blocks, steps - 1, frames_per_block, channels, h, w]`.
        first_block: the block that the recording begins with.
    """

    def __init__(self, noise: Tensor, renoise: Tensor, first_block: int = 0):
        self._noise, self._renoise, self._first_block = noise, renoise, first_block

    def initial(self, block: int) -> Tensor:
        frames = self._renoise.shape[2]
        return self._noise.split(frames)[block - self._first_block]

    def renoise(self, block: int, step: int) -> Tensor:
        return self._renoise[block - self._first_block, step]
