"""Keys and values of a few latent frames, for methods that keep them in short lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import MethodCache


@dataclass
class KVFrames:
    """Keys and values `[heads, frames, s, head_dim]`, oldest first. Slices are copies, so the rest can be freed."""

    k: Tensor
    v: Tensor

    def __add__(self, other: KVFrames) -> KVFrames:
        return KVFrames(torch.cat((self.k, other.k), dim=1), torch.cat((self.v, other.v), dim=1))

    def __getitem__(self, frames: slice | Tensor) -> KVFrames:
        return KVFrames(self.k[:, frames].clone(), self.v[:, frames].clone())

    def __len__(self) -> int:
        return self.k.shape[1]

    def of(self, heads: Tensor) -> KVFrames:
        return KVFrames(self.k[heads], self.v[heads])

    def last(self, count: int) -> KVFrames:
        return self[max(0, len(self) - count) :]

    def tokens(self) -> KVFrames:
        """The same tokens, reshaped to frames of one token each."""
        return KVFrames(*(x.flatten(1, 2)[:, :, None] for x in (self.k, self.v)))


def slots_of(cache: MethodCache, kept: Iterable[KVFrames]) -> int:
    """Frame-slots of these keys and values, all heads together; a frame that is stored twice counts twice."""
    return round(sum(frames.k.numel() for frames in kept) / (cache.rope.frame_tokens * cache.shape.head_dim))


def no_frames(cache: MethodCache) -> list[KVFrames]:
    """Per layer an empty `KVFrames` of all heads."""
    return [KVFrames(k, v) for k, v in zip(cache.zeros(0), cache.zeros(0), strict=True)]


def played(places: Iterable[int], period: int) -> list[int]:
    """Index of the frame at each place: `period` frames are played forwards and backwards in turn, both ends twice."""
    turns = (divmod(place, period) for place in places)
    return [period - 1 - rest if turn % 2 else rest for turn, rest in turns]
