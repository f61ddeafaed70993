"""LongLive and MemRoPE as their authors' code computes them where the sinks are not whole blocks.

There a sink after the first block keeps the keys and values of its noisiest pass. With whole blocks of sinks, as both
papers have, it is the same as the methods themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..methods.longlive import LongLive, LongLiveCache, WindowCache
from ..methods.memrope import MemRoPE, MemRoPECache


class FirstPassSinks(WindowCache):
    """Writes a block's sinks in its first pass alone."""

    def open(self) -> None:
        super().open()
        self._written: set[int] = set()  # layers that a pass of the current call has written

    def store(self, layer: int, k: Tensor, v: Tensor, protected: int = 0) -> None:
        repeated = self.start and not self.recaching and layer in self._written
        self._written.add(layer)
        super().store(layer, k, v, self.sinks if repeated else protected)


class _LongLiveCache(FirstPassSinks, LongLiveCache):
    pass


class _MemRoPECache(FirstPassSinks, MemRoPECache):
    pass


@dataclass(frozen=True)
class AuthorsLongLive(LongLive):
    resumes_from = ()  # clean passes cannot reproduce these sinks

    def make_cache(self, *args: Any) -> WindowCache:
        return _LongLiveCache(*args)


@dataclass(frozen=True)
class AuthorsMemRoPE(MemRoPE):
    resumes_from = ()

    def make_cache(self, *args: Any) -> WindowCache:
        return _MemRoPECache(*args)
