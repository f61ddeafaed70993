"""Noise of a recorded render."""

from __future__ import annotations

from torch import Tensor

from ...headforcing_core.rollout.rows import SeededNoise


class RecordedNoise(SeededNoise):
    """Noise from given tensors, whatever the seed: `noise [frames, channels, h, w]`, which is cut
    into blocks, and `renoise [blocks, steps - 1, frames_per_block, channels, h, w]`, from block
    `first_block` on."""

    def __init__(self, noise: Tensor, renoise: Tensor, first_block: int = 0):
        self._noise = noise
        self._renoise = renoise
        self._first_block = first_block
        self.size = noise.shape[-2:]  # of the latents, (h, w)

    def initial(self, block: int, seed: int = 0) -> Tensor:
        return self._noise.split(self._renoise.shape[2])[block - self._first_block]

    def renoise(self, block: int, seed: int, step: int) -> Tensor:
        return self._renoise[block - self._first_block, step]

    def ahead(self, block: int, seed: int) -> None:
        pass
