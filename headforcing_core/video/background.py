"""Decode and write a video in a thread of its own while the next blocks are sampled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .stream import VideoInfo, VideoStream

WAITING_BLOCKS = 4  # more would only take memory: whoever is faster waits for the other
_POLL_SECONDS = 0.1


class Abandoned(Exception):
    """Ends the thread when the video is not wanted any more."""


class BackgroundStream:
    """A `VideoStream` that works in a thread, on a GPU stream of its own where `device` is a GPU.

    Same methods. What goes wrong in the thread is raised by the next call of `check`, `add` or `finish`.
    `while_waiting` is called now and then where a call has to wait, and may raise.
    """

    def __init__(
        self,
        stream: VideoStream,
        device: torch.device | str = "cpu",
        while_waiting: Callable[[], None] = lambda: None,
    ):
        self.stream, self.device, self.while_waiting = stream, torch.device(device), while_waiting
        self._blocks: queue.Queue[Tensor | None] = queue.Queue(WAITING_BLOCKS)
        self._error: BaseException | None = None
        self._info: VideoInfo | None = None
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="head forcing video", daemon=True)

    def __enter__(self) -> BackgroundStream:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._abandoned.set()
        self._thread.join()

    def add(self, latents: Tensor) -> None:
        """Hand over the next `[frames, 16, h, w]`; waits while several blocks are still to be decoded."""
        self._put(latents.cpu())  # the copy waits for the sampler's own stream

    def finish(self) -> VideoInfo:
        """Wait until everything is written."""
        self._put(None)
        while self._thread.is_alive():
            self.while_waiting()
            self._thread.join(_POLL_SECONDS)
        self.check()
        assert self._info is not None
        return self._info

    def check(self) -> None:
        """Raise what went wrong in the thread."""
        if self._error is not None:
            raise self._error

    def _put(self, block: Tensor | None) -> None:
        while True:
            self.check()
            try:
                self._blocks.put(block, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                self.while_waiting()

    def _get(self) -> Tensor | None:
        while not self._abandoned.is_set():
            try:
                return self._blocks.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
        raise Abandoned

    def _work(self) -> None:
        try:
            own: Any = nullcontext()
            if self.device.type == "cuda":
                own = torch.cuda.stream(torch.cuda.Stream(self.device))
            with torch.inference_mode(), own, self.stream:
                while (block := self._get()) is not None:
                    self.stream.add(block)
                info = self.stream.finish()
            self._info = info
        except BaseException as error:  # to be raised where the video is wanted
            self._error = error
