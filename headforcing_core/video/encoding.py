"""Encoding of video frames in a thread, so that neither sampling nor decoding waits for it."""

from __future__ import annotations

import queue
import threading

import torch
from torch import Tensor

from .writer import VideoWriter, to_uint8

WAITING_CHUNKS = 3  # that were decoded and not yet encoded; more would only use memory


class EncodingThread:
    """Writes to a `VideoWriter` in a thread of its own, in order; to be entered after the writer and left before it.

    An error of the writer is raised by the next call in the caller's thread; what comes after it is dropped.
    """

    def __init__(self, writer: VideoWriter, scale: int = 1):
        self.writer, self.scale = writer, scale
        self._chunks: queue.Queue[tuple[Tensor, torch.cuda.Event | None] | None] = queue.Queue(WAITING_CHUNKS)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="head forcing encoder", daemon=True)

    def __enter__(self) -> EncodingThread:
        self._thread.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        """Write what was given so far, also after an error elsewhere."""
        self._finish()
        if error_type is None:
            self.check()

    def write(self, video_frames: Tensor) -> None:
        """Queue video frames `[n, H, W, 3]`, uint8 or float in 0..1, on any device; waits while the queue is full."""
        self.check()
        self._chunks.put(to_host(to_uint8(video_frames)))

    def finish(self) -> None:
        """Wait until everything is written."""
        self._finish()
        self.check()

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def _finish(self) -> None:
        if self._thread.is_alive():
            self._chunks.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            if self._error is not None:
                continue  # the queue is emptied, so that nobody waits for room in it
            try:
                video_frames, copied = chunk
                if copied is not None:
                    copied.synchronize()
                self.writer.write(enlarged(video_frames, self.scale))
            except BaseException as error:  # raised by the next call in the caller's thread
                self._error = error


def to_host(tensor: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Begin to copy a tensor to pinned memory of the host; it has arrived when the event has happened, None: now."""
    if not tensor.is_cuda:
        return tensor.cpu(), None
    with torch.cuda.device(tensor.device):
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
    return copy, copied


def enlarged(video_frames: Tensor, scale: int) -> Tensor:
    """Every pixel of `[n, H, W, 3]` as a square of side `scale`."""
    return video_frames if scale == 1 else video_frames.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
