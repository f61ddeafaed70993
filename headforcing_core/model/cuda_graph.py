"""Denoising passes captured as a CUDA graph and replayed, which removes most of the kernel launch
overhead.

While the cache layout is constant, every denoising pass launches the same kernels on the same
memory; only the latents and the timestep differ. Off by default: weights must stay at their
addresses (which excludes hosts that load them layer by layer), and the graph reserves the working
memory of one pass. **Not yet tested on a GPU.**
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from ..devices import held_tables, upload
from .wan import PromptKV, forward_block, timestep_embedding

log = logging.getLogger(__name__)

# episodic memory admits at most every third block: shorter waits would capture graphs in between
STEADY_BLOCKS = 3

GraphReplay = Callable[[], Tensor]
# takes a function that uses the same memory of a device in each call and returns one that repeats
# its kernel launches
Recorder = Callable[[Callable[[], Tensor], torch.device], GraphReplay]


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that graphs are captured on; one for all of them, because cuBLAS keeps a workspace
    per stream.
    """
    return torch.cuda.Stream(device)


def record_cuda(run: Callable[[], Tensor], device: torch.device) -> GraphReplay:
    """A `Recorder` that captures the kernel launches of `run` as one CUDA graph."""
    with torch.cuda.device(device):  # whose current stream is captured, and into whose pool
        before = torch.cuda.current_stream()
        side = _side_stream(device)
        side.wait_stream(before)
        with torch.cuda.stream(side):
            # warm-up: libraries allocate their workspaces at first use, which is not allowed during
            # capture
            run()
        before.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        try:
            # other threads, such as one that decodes, may allocate meanwhile: the global mode would
            # end the capture
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                out = run()
        except BaseException:
            # where ending a capture fails, PyTorch stays on its stream, and all that is allocated
            # goes into its pool
            torch.cuda.set_stream(before)
            with suppress(RuntimeError):  # ended already
                torch._C._cuda_endAllocateToPool(device.index, pool)
                torch._C._cuda_releasePool(device.index, pool)
            raise

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


class GraphedForward:
    """A replacement for `forward_block` with the same results that replays a CUDA graph where
    possible.

    Args:
        record: captures a pass; tests pass a recorder that needs no GPU.
        steady_blocks: number of blocks without a change of prompt, cache layout or shapes before a
            pass is captured.
        forward: the function that is captured.
    """

    def __init__(
        self,
        record: Recorder = record_cuda,
        steady_blocks: int = STEADY_BLOCKS,
        forward: Callable[..., Any] = forward_block,
    ):
        self.record = record
        self.steady_blocks = steady_blocks
        self.forward = forward
        self.replays = 0  # passes that were replayed
        # while these are the same objects, and equal, a captured graph is valid
        self._objects: tuple[Any, ...] = ()
        self._facts: tuple[Hashable, ...] = ()
        self._since = 0  # the first block with them
        self._replay: Callable[[Tensor, Tensor], Tensor] | None = None
        self._tables: list[Any] = []  # index tables that the graph reads
        self._failed = False

    def __call__(
        self,
        backbone: Any,
        latents: Tensor,
        timesteps: Tensor,
        prompt: PromptKV,
        cache: Any,
        *,
        write_only: bool = False,
    ) -> Tensor | None:
        layout = None if self._failed else cache.layout
        if layout is None:
            return self.forward(backbone, latents, timesteps, prompt, cache, write_only=write_only)
        objects = (backbone, prompt, cache)
        facts = (layout, latents.shape, latents.dtype, latents.device)
        # looked at in clean passes, too, as they may move index tables
        if facts != self._facts or not all(map(is_, objects, self._objects)):
            if self._replay is not None:
                log.info(
                    "Head Forcing: the CUDA graph is dropped after a change of prompt, cache or "
                    "shapes"
                )
            self._objects = objects
            self._facts = facts
            self._since = cache.block
            self._replay = None
            self._tables = []
        # the clean pass happens once per block and stops early: it is not worth a graph of its own
        if write_only or cache.block - self._since < self.steady_blocks:
            return self.forward(backbone, latents, timesteps, prompt, cache, write_only=write_only)
        waves = timestep_embedding(timesteps, backbone.freq_dim)
        if self._replay is None:
            self._replay = self._record(latents, waves)
        if self._replay is None:
            return self.forward(backbone, latents, timesteps, prompt, cache)
        self.replays += 1
        return self._replay(latents, waves)

    def _record(self, latents: Tensor, waves: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Capture a pass that reads its own copies of the inputs; None, and no further attempt, if
        that fails.
        """
        backbone, prompt, cache = self._objects
        x = latents.clone()
        e = upload(waves.to(latents.dtype), latents.device)
        try:
            with held_tables() as self._tables:
                graph = self.record(
                    partial(self.forward, backbone, x, e, prompt, cache), latents.device
                )
        except Exception as error:  # out of memory, or a library call that cannot be captured
            self._failed = True
            self._objects = ()
            self._facts = ()
            log.warning(
                "Head Forcing: continues without a CUDA graph: %s",
                (str(error) or repr(error)).splitlines()[0],
            )
            return None
        log.info(
            "Head Forcing: denoising passes are replayed as a CUDA graph from block %d on",
            cache.block + 1,
        )

        def replay(latents: Tensor, waves: Tensor) -> Tensor:
            x.copy_(latents)
            # from pageable memory the copy would wait for all queued work
            e.copy_(upload(waves.to(e.dtype), e.device))
            return graph().clone()  # the next pass writes to the same memory

        return replay
