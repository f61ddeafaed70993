"""Streaming decoding of latent blocks to an MP4, in memory that is independent of the video's
length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..files import check_writable
from ..queue_thread import HostCopy, QueueThread, arrived, to_host
from .sound import Sound
from .writer import VideoInfo, VideoSettings, VideoWriter, check_encoder, to_uint8

WAITING_CHUNKS = 3  # that were decoded and not yet encoded; more would only use memory
WAITING_BLOCKS = 4  # that a background stream has not decoded yet


class StreamingDecoder(Protocol):
    """Decodes the latents of one video in chunks cut by `Chunks`, with the same result as decoding
    them at once.
    """

    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next `[frames, channels, h, w]` to `[video frames, H, W, 3]`, float in 0..1,
        on any device.

        A latent frame gives 4 video frames, the first of a video 1. Callers do not change the
        result.
        """

    def reset(self) -> None:
        """Clear the state: the next chunk starts a new video."""


class FrameSink(Protocol):
    """Gets the video frames of a file while they are made."""

    def add(self, first: int, video_frames: Tensor) -> None:
        """Take the next video frames `[n, height, width, 3]`, uint8, in main memory, of which the
        first has this number. Must not raise: the video does not depend on it.
        """


class Chunks:
    """Re-cuts a stream of latent blocks so that every Wan VAE decoder gives the result of decoding
    them at once.

    The first chunk has 1 latent frame, later ones at least 2; only the last one may have 1:
    ComfyUI's decoder is wrong for other divisions. At most one latent frame is held back, so a
    chunk has at most one more than its block.
    """

    def __init__(self) -> None:
        self._held: Tensor | None = None
        self._begun = False

    def add(self, block: Tensor) -> Iterator[Tensor]:
        """The chunks that can be decoded after this block."""
        pending = torch.cat([*self.rest(), block])
        if not self._begun and len(pending) > 0:
            self._begun = True
            yield pending[:1]
            pending = pending[1:]
        if len(pending) >= 2:
            yield pending
        elif len(pending) > 0:
            self._held = pending

    def rest(self) -> Iterator[Tensor]:
        """The chunk that was held back, if there is one; it is held no more."""
        held = self._held
        self._held = None
        if held is not None:
            yield held


@dataclass
class VideoStream:
    """A video file that is written while latents arrive. Use as a context manager; `finish`
    completes the file.

    Video frames are encoded in a thread, a few chunks behind; its errors are raised by the next
    call.

    Args:
        limit: video frames of the video; chunks beyond it are not decoded. It may be changed before
            frames beyond the old one are added, which are dropped at once.
        on_progress: gets the number of encoded video frames.
        background: the device of the decoder. Decoding then has a thread of its own, on a GPU with
            a CUDA stream of its own, and `add` waits for nothing. None: `add` decodes.
        while_waiting: as in `QueueThread`, for the decoding thread.
        sound: of the file; it begins with the first video frame.
        sinks: get all video frames before they are scaled.

    Attributes:
        settings: another path and other tags may be set until `finish`; a file that is still
            growing has the tags that were there at its beginning.
    """

    settings: VideoSettings
    decoder: StreamingDecoder
    limit: int = sys.maxsize
    on_progress: Callable[[int], None] = lambda video_frames: None
    background: torch.device | None = None
    while_waiting: Callable[[], None] = lambda: None
    sound: Sound | None = None
    sinks: Sequence[FrameSink] = ()
    _writer: VideoWriter | None = None
    _encoder: QueueThread | None = None
    _decoder_thread: QueueThread | None = None
    _decoded: int = 0  # video frames so far
    _gpu_stream: AbstractContextManager[Any] = nullcontext()

    def __post_init__(self) -> None:
        # both raise before sampling starts, not after the first block
        check_encoder()
        check_writable(self.settings.path)
        self.settings = for_squares(self.settings)
        self._chunks = Chunks()

    @property
    def video_frames(self) -> int:
        """Number of video frames that are encoded so far."""
        return 0 if self._writer is None else self._writer.video_frames

    def __enter__(self) -> VideoStream:
        self.decoder.reset()
        self._stack = ExitStack()
        self._stack.callback(self.decoder.reset)
        if self.background is not None:
            if self.background.type == "cuda":
                # without its own stream decoding would run between the sampler's kernels instead of
                # beside them; this thread's may still be loading the decoder's weights
                own = torch.cuda.Stream(self.background)
                own.wait_stream(torch.cuda.current_stream(self.background))
                self._gpu_stream = torch.cuda.stream(own)
            self._decoder_thread = QueueThread("video", WAITING_BLOCKS, self.while_waiting)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._decoder_thread is not None:
            self._decoder_thread.abandon()
        self._stack.__exit__(*error)

    def add(self, latents: Tensor) -> None:
        """Decode and write the next latent frames `[frames, channels, h, w]`, or queue them."""
        if self._decoder_thread is None:
            self._add(latents)
        else:
            self._decoder_thread.put(partial(self._decode, to_host(latents)))

    def finish(self) -> VideoInfo:
        """Write the remaining frames. The file appears after the `with` block, at the path of the
        settings.
        """
        if self._decoder_thread is None:
            self._end()
        else:
            self._decoder_thread.put(partial(self._decode, None))
            self._decoder_thread.settle()
        assert self._writer is not None
        self.on_progress(self.video_frames)
        self._writer.settings = self.settings
        return self._writer.info

    def _decode(self, latents: HostCopy | None) -> None:
        """Decode the next latents in a thread; None: what is left."""
        # inference mode and the CUDA stream are per thread
        with torch.inference_mode(), self._gpu_stream:
            if latents is None:
                self._end()
            else:
                self._add(arrived(latents))

    def _add(self, latents: Tensor) -> None:
        for chunk in self._chunks.add(latents):
            self._write(chunk)

    def _end(self) -> None:
        for chunk in self._chunks.rest():
            self._write(chunk)
        if self._encoder is None:
            raise HeadForcingError(
                f"{self.settings.path.name} would be an empty video: there are no latent frames to "
                "decode."
            )
        self._encoder.settle()

    def _write(self, chunk: Tensor) -> None:
        left = self.limit - self._decoded
        if left <= 0:
            return
        video_frames = self.decoder.decode(chunk)[:left]
        if self._encoder is None:
            if not video_frames.isfinite().all():  # of the first chunk, since this waits for a GPU
                raise HeadForcingError(
                    "NaN or infinity in the latents or by the VAE, which a video would show as "
                    "black; use bf16 or float32 in place of fp16"
                )
            scale = self.settings.scale
            _, height, width, _ = video_frames.shape
            writer = VideoWriter(self.settings, width * scale, height * scale, sound=self.sound)
            self._writer = self._stack.enter_context(writer)
            self._encoder = self._stack.enter_context(QueueThread("encoder", WAITING_CHUNKS))
        self._decoded += len(video_frames)
        self._encoder.put(partial(self._encode, to_host(to_uint8(video_frames))))
        self.on_progress(self.video_frames)

    def _encode(self, copy: HostCopy) -> None:
        """Write video frames `[n, H, W, 3]`, every pixel as a square of side `scale`."""
        assert self._writer is not None
        video_frames = arrived(copy)
        for sink in self.sinks:
            sink.add(self._writer.video_frames, video_frames)
        self._writer.write(in_squares(video_frames, self.settings.scale))


def for_squares(settings: VideoSettings) -> VideoSettings:
    """The settings with the preset for their scale."""
    if settings.scale == 1:
        return settings
    # flat squares take less than half the time, and 25 % more bytes
    return replace(settings, preset="ultrafast")


def in_squares(video_frames: Tensor, scale: int) -> Tensor:
    """Video frames `[n, H, W, 3]` with every pixel as a square of side `scale`."""
    if scale > 1:
        for axis in (1, 2):
            video_frames = video_frames.repeat_interleave(scale, axis)
    return video_frames


def write_video(
    settings: VideoSettings,
    blocks: Iterable[Tensor],
    decoder: StreamingDecoder,
    video_frames: int | None = None,
    on_progress: Callable[[int], None] = lambda video_frames: None,
    sound: Sound | None = None,
) -> VideoInfo:
    """Decode latent blocks `[frames, channels, h, w]` one after another into an MP4; as
    `VideoStream`.

    Blocks beyond `video_frames` are still consumed, because a rollout must run to its end.
    """
    limit = video_frames or sys.maxsize
    with VideoStream(settings, decoder, limit, on_progress=on_progress, sound=sound) as stream:
        for block in blocks:
            stream.add(block)
        return stream.finish()
