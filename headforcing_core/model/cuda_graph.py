"""Denoising passes recorded once as a CUDA graph and replayed, so that launching their kernels costs next to nothing.

While a cache is steady, every denoising pass does the same to the same memory, with other latents and another timestep.
Contexts that grow, a new prompt or other shapes end that, and passes run as always until the cache is steady again.
Off unless asked for: it needs weights that stay where they are (a host that loads them layer by layer cannot use it),
and the recording keeps the working memory of one pass for itself. **It has not run on a GPU yet.**
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .wan import KeyValueCache, PromptKV, forward_block, timestep_embedding

log = logging.getLogger(__name__)

STEADY_BLOCKS = 3  # a memory that admits as often as it may, every third block, is not steady

Replay = Callable[[], Tensor]
# given a function that reads and writes the same memory each time, returns one that repeats what it did
Recorder = Callable[[Callable[[], Tensor]], Replay]


def record_cuda(run: Callable[[], Tensor]) -> Replay:
    """A `Recorder`: the launches of `run` as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # libraries reserve their working memory, which must not happen while recording
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


@dataclass(frozen=True)
class Situation:
    """All that a recording takes for granted."""

    backbone: Any
    prompt: PromptKV
    cache: Any
    layout: Hashable
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def changes(self, other: Situation | None) -> str:
        """What is different in `other`, for people; empty where nothing is."""
        if other is None:
            return "everything"
        same = {
            "the model": self.backbone is other.backbone,
            "the prompt": self.prompt is other.prompt,
            "the cache": self.cache is other.cache and self.layout == other.layout,
            "the latents' shape": (self.shape, self.dtype, self.device) == (other.shape, other.dtype, other.device),
        }
        return ", ".join(name for name, equal in same.items() if not equal)


class GraphedForward:
    """Takes the place of `forward_block`: the same results, from a recording where that is possible.

    Args:
        record: how; a test gives one that needs no GPU.
        steady_blocks: how many blocks nothing must have changed before a pass is recorded.
        forward: what is recorded.
    """

    def __init__(
        self,
        record: Recorder = record_cuda,
        steady_blocks: int = STEADY_BLOCKS,
        forward: Callable[..., Tensor | None] = forward_block,
    ):
        self.record, self.steady_blocks, self.forward = record, steady_blocks, forward
        self.replays = 0  # passes that were replayed
        self._situation: Situation | None = None
        self._since = 0  # the first block in this situation
        self._replay: Replay | None = None
        self._failed = False
        self._inputs: tuple[Tensor, Tensor] | None = None

    def __call__(
        self,
        backbone: Any,
        latents: Tensor,
        timesteps: Tensor,
        prompt: PromptKV,
        cache: KeyValueCache,
        *,
        write_only: bool = False,
    ) -> Tensor | None:
        layout = None if self._failed else getattr(cache, "layout", None)
        if layout is None:
            return self.forward(backbone, latents, timesteps, prompt, cache, write_only=write_only)
        now = Situation(backbone, prompt, cache, layout, latents.shape, latents.dtype, latents.device)
        self._notice(now)
        if write_only or now.cache.block - self._since < self.steady_blocks:
            return self.forward(backbone, latents, timesteps, prompt, cache, write_only=write_only)
        waves = timestep_embedding(timesteps, backbone.freq_dim)
        if self._replay is None and not self._recorded(now, latents, waves):
            return self.forward(backbone, latents, timesteps, prompt, cache)
        return self._replayed(latents, waves)

    def _notice(self, now: Situation) -> None:
        """Forget the recording if something has changed, in a clean pass, too: tables may lie elsewhere since."""
        if changes := now.changes(self._situation):
            if self._replay is not None:
                log.info("Head Forcing: the CUDA graph is dropped after a change of %s", changes)
            self._situation, self._since = now, now.cache.block
            self._replay = self._inputs = None

    def _recorded(self, now: Situation, latents: Tensor, waves: Tensor) -> bool:
        """Record a pass over inputs of its own. If that cannot be done it is not tried again."""
        x, e = self._inputs = latents.clone(), waves.to(latents)

        def run() -> Tensor:
            flow = self.forward(now.backbone, x, e, now.prompt, now.cache)
            assert flow is not None
            return flow

        try:
            self._replay = self.record(run)
        except Exception as error:  # too little memory, or whatever a library may do that cannot be recorded
            self._failed, self._situation, self._inputs = True, None, None
            log.warning("Head Forcing: goes on without a CUDA graph: %s", (str(error) or repr(error)).splitlines()[0])
            return False
        log.info("Head Forcing: denoising passes are replayed as a CUDA graph from block %d on", now.cache.block + 1)
        return True

    def _replayed(self, latents: Tensor, waves: Tensor) -> Tensor:
        assert self._inputs is not None and self._replay is not None
        for own, given in zip(self._inputs, (latents, waves), strict=True):
            own.copy_(given, non_blocking=True)
        self.replays += 1
        return self._replay().clone()  # the next pass writes to the same memory
