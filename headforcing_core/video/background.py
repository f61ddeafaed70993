"""Decoding and writing of a video in a background thread while the next blocks are sampled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .encoding import to_host
from .stream import VideoInfo, VideoStream

WAITING_BLOCKS = 4  # length of the queue: if decoding is slower than sampling, more would only use memory
_POLL_SECONDS = 0.1


class Abandoned(Exception):
    """Ends the thread when the `with` block is left before `finish`."""


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
        self.stream, self.device, self.while_waiting = stream, torch.device(device), while_waiting
        self._blocks: queue.Queue[tuple[Tensor, torch.cuda.Event | None] | None] = queue.Queue(WAITING_BLOCKS)
        self._error: BaseException | None = None
        self._info: VideoInfo | None = None
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="head forcing video", daemon=True)

    def __enter__(self) -> BackgroundStream:
        if self.device.type == "cuda":  # this thread's stream may still be loading the decoder's weights
            self._loaded_by = torch.cuda.current_stream(self.device)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._abandoned.set()
        self._thread.join()

    def add(self, latents: Tensor) -> None:
        """Queue the next latent frames `[frames, 16, h, w]`; waits while the queue is full."""
        self._put(to_host(latents))

    def finish(self) -> VideoInfo:
        """Wait until the whole video is written."""
        self._put(None)
        while self._thread.is_alive():
            self.while_waiting()
            self._thread.join(_POLL_SECONDS)
        self.check()
        assert self._info is not None
        return self._info

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def _put(self, block: tuple[Tensor, torch.cuda.Event | None] | None) -> None:
        while True:
            self.check()
            try:
                self._blocks.put(block, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                self.while_waiting()

    def _get(self) -> Tensor | None:
        """The next block, arrived in the host's memory; None at the end."""
        while not self._abandoned.is_set():
            try:
                block = self._blocks.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if block is None:
                return None
            latents, copied = block
            if copied is not None:
                copied.synchronize()
            return latents
        raise Abandoned

    def _work(self) -> None:
        try:
            # inference mode and the CUDA stream are per thread; without its own stream decoding would run between the
            # sampler's kernels instead of beside them
            gpu_stream: Any = nullcontext()
            if self.device.type == "cuda":
                own = torch.cuda.Stream(self.device)
                own.wait_stream(self._loaded_by)
                gpu_stream = torch.cuda.stream(own)
            with torch.inference_mode(), gpu_stream, self.stream:
                while (block := self._get()) is not None:
                    self.stream.add(block)
                info = self.stream.finish()
            self._info = info
        except BaseException as error:  # raised by the next call in the caller's thread
            self._error = error
