"""Decoding and writing of a video in a background thread while the next blocks are sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .queue_thread import HostCopy, QueueThread, arrived, to_host
from .stream import VideoInfo, VideoStream

WAITING_BLOCKS = 4  # length of the queue: if decoding is slower than sampling, more would only use memory


class BackgroundStream:
    """A `VideoStream` in a background thread, with its own CUDA stream if `device`, that of the decoder, is a GPU.

    It has the same methods, and `add` does not wait for a GPU. Errors in the thread are raised by the next call of
    `check`, `add` or `finish`. `while_waiting` is called every 0.1 s while a call waits; it may raise, for example to
    cancel.
    """

    def __init__(
        self,
        stream: VideoStream,
        device: torch.device | str = "cpu",
        while_waiting: Callable[[], None] = lambda: None,
    ):
        self.stream, self.device = stream, torch.device(device)
        self._thread = QueueThread("video", self._decode, WAITING_BLOCKS, while_waiting)
        self._info: VideoInfo | None = None

    def __enter__(self) -> BackgroundStream:
        if self.device.type == "cuda":  # this thread's stream may still be loading the decoder's weights
            self._loaded_by = torch.cuda.current_stream(self.device)
        self._thread.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.abandon()

    def add(self, latents: Tensor) -> None:
        """Queue the next latent frames `[frames, 16, h, w]`; waits while the queue is full."""
        self._thread.put(to_host(latents))

    def finish(self) -> VideoInfo:
        """Wait until the whole video is written."""
        self._thread.finish()
        assert self._info is not None
        return self._info

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        self._thread.check()

    def _decode(self, copies: Iterator[HostCopy]) -> None:
        # inference mode and the CUDA stream are per thread; without its own stream decoding would run between the
        # sampler's kernels instead of beside them
        gpu_stream: Any = nullcontext()
        if self.device.type == "cuda":
            own = torch.cuda.Stream(self.device)
            own.wait_stream(self._loaded_by)
            gpu_stream = torch.cuda.stream(own)
        with torch.inference_mode(), gpu_stream, self.stream:
            for block in arrived(copies):
                self.stream.add(block)
            info = self.stream.finish()
        self._info = info
