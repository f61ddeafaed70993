"""ID-Forcing: after the training length, blocks attend only to keys and values that were made as in
training.

Most *entries*, the keys and values of one block, are made by a clean pass that sees nothing but the
block itself. On Self Forcing the newest one is made anew behind the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..cache.base import WriteClean
from ..model.wan import KeyValueCache
from ..rollout.loop import Block, RolloutInputs, VideoModel
from .base import BaseMethod, MethodCache, MethodShape, Requirements, WrappedModel


@dataclass(frozen=True)
class IdForcing(BaseMethod):
    """ID-Forcing's settings (arXiv 2610.03120).

    Attributes:
        native_blocks: blocks at the beginning that are made as by Self Forcing, and after which the
            newest block's entry is made anew for each block; 0: the authors' variant for LongLive,
            which has neither.
        native_window: latent frames that those blocks attend to, the current block included;
            `native_sinks` of them are the first of the video.
        window_blocks: blocks in the window afterwards: the first of the video, the newest ones and
            the current one; with native blocks always 4.
    """

    native_blocks: int = 7
    native_window: int = 21
    native_sinks: int = 0
    window_blocks: int = 4

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        block = shape.frames_per_block
        late = self.window_blocks + bool(self.native_blocks)  # the entry that is made anew
        native = min(self.native_window, self.native_blocks * block) + 2 * block
        return max(native if self.native_blocks else 0, late * block)

    def requirements(self, shape: MethodShape) -> Requirements:
        native = self.native_blocks
        window = self.window_blocks
        return {
            "native_blocks of at least 2 with window_blocks 4, or 0 with window_blocks of at least "
            "3": window == 4 if native > 1 else native == 0 and window >= 3,
            f"native_window for native_sinks and a block of {shape.frames_per_block} frames": (
                self.native_window >= self.native_sinks + shape.frames_per_block
            ),
        }

    def rollout(  # type: ignore[override]  # its own cache
        self, model: VideoModel, cache: IdForcingCache, video: RolloutInputs
    ) -> Iterator[Block]:
        return super().rollout(MakesEntries(model, cache), cache, video)


@dataclass
class MakesEntries(WrappedModel):
    """Has the cache make the entries that a block attends to before its first pass."""

    own_cache: IdForcingCache

    def __post_init__(self) -> None:
        self.clean_pass = partial(self.model.write_clean, cache=self.own_cache)

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        self.own_cache.read_window(self.clean_pass)
        return self.model.denoise(latents, sigma, cache)

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        self.own_cache.read_alone(self.clean_pass)
        self.clean_pass(latents)
        self.own_cache.latest.append(latents)


@dataclass(frozen=True)
class BlockEntry:
    """Keys and values of block number `block` in every layer, without temporal rotation, read from
    `place` on.
    """

    block: int
    layers: list[Tensor]
    place: int


class IdForcingCache(MethodCache, of=IdForcing):
    method: IdForcing

    def begin_video(self) -> None:
        self.first: BlockEntry | None = None  # of the first block of the video
        self.native: list[BlockEntry] = []  # of native blocks, at their own positions
        self.alone: deque[BlockEntry] = deque(maxlen=self.method.window_blocks - 2)
        self.latest: deque[Tensor] = deque(maxlen=2)  # latents of the last blocks
        self.made = self.zeros(0)  # what the last pass made
        self.window: list[BlockEntry] | None = None  # what the current block's denoising steps read
        self.read: list[BlockEntry] = []  # what the current pass reads besides its own block
        self.place = 0  # temporal position of that block

    @property
    def late(self) -> bool:
        """Whether the current block comes after the native ones."""
        return self.block >= self.method.native_blocks

    def open(self) -> None:
        self.window = None

    def read_window(self, write_clean: WriteClean) -> None:
        """Let the next pass read what denoising steps read, and make that first if it is not
        there.
        """
        if self.window is None:
            self._hand_over(write_clean)
            self.window = self._late_window(write_clean) if self.late else self.native
        self.read = self.window
        self.place = self.start
        if self.late:
            self.place = len(self.window) * self.shape.frames_per_block

    def read_alone(self, write_clean: WriteClean) -> None:
        """Let the next pass, the clean one of the current block, read nothing; a native one what
        its others read.
        """
        self._hand_over(write_clean)
        self.read, self.place = ([], 0) if self.late else (self.native, self.start)

    def _hand_over(self, write_clean: WriteClean) -> None:
        """Make the entries of the last two native blocks again, each alone."""
        if self.native and self.late:
            for back, latents in zip((2, 1), list(self.latest), strict=True):
                self.alone.append(self._made_behind([], write_clean, latents, self.block - back))
            self.native = []

    def _late_window(self, write_clean: WriteClean) -> list[BlockEntry]:
        size = self.shape.frames_per_block
        entries = list(self.alone)
        if self.method.native_blocks:  # the newest entry is read only by the block after this one
            before = replace(entries[0], place=0)
            entries = [
                before,
                self._made_behind([before], write_clean, self.latest[-1], self.block - 1),
            ]
        first = [] if self.first is None else [self.first]
        return [
            replace(entry, place=number * size) for number, entry in enumerate((*first, *entries))
        ]

    def _made_behind(
        self, read: list[BlockEntry], write_clean: WriteClean, latents: Tensor, block: int
    ) -> BlockEntry:
        """The entry of a block by a clean pass that attends to `read` and the block itself."""
        self.read = read
        self.place = len(read) * self.shape.frames_per_block
        start = self.start
        self._move_to(block * self.shape.frames_per_block)
        write_clean(latents.to(self.device))
        self._move_to(start)
        return self._entry(block)

    def _move_to(self, start: int) -> None:
        """Let the next pass be over as many frames from another one on."""
        frames = self.frames
        self.start = start
        self.end = start + frames

    def _entry(self, block: int) -> BlockEntry:
        return BlockEntry(block, list(self.made), block * self.shape.frames_per_block)

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.made[layer] = torch.stack((k, v))

    def context(self, layer: int, q: Tensor) -> Tensor:
        places = [entry.place + frame for entry in self.read for frame in range(self.frames)]
        own = range(self.place, self.place + self.frames)
        k, v = torch.cat([*(entry.layers[layer] for entry in self.read), self.made[layer]], dim=2)
        k = self.rope.rotate_temporal(k, [*places, *own])
        return self.attention_over(self.rope.rotate_temporal(q, own), k, v)

    def finish(self) -> None:
        entry = self._entry(self.block)
        self.first = self.first or entry
        if self.late and entry is not self.first:
            self.alone.append(entry)
        # drop the oldest behind the sinks for which there is no room beside the next block
        if not self.late:
            self.native.append(entry)
            if (len(self.native) + 1) * self.shape.frames_per_block > self.method.native_window:
                del self.native[self.method.native_sinks // self.shape.frames_per_block]
