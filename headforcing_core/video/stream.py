"""From finished latent blocks to an MP4, block by block and in constant memory.

`n` latent frames decode to `4(n-1)+1` pictures, shown at 16 a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..files import check_writable
from ..timeline.clock import VIDEO_FPS
from .contact_sheet import contact_sheet as contact_sheet
from .writer import VideoWriter, find_encoder, to_uint8


class StreamingDecoder(Protocol):
    """Turns the latents of one video into pictures, chunk after chunk, as if they had come at once.

    Chunks arrive as `Chunks` cuts them; what the decoder needs of earlier chunks it keeps itself.
    """

    def decode(self, latents: Tensor) -> Tensor:
        """Next `[frames, 16, h, w]` to `[pictures, H, W, 3]`, float in 0..1: 4 a frame, 1 for a video's first frame."""
        ...

    def reset(self) -> None:
        """Forget everything: the next chunk starts a new video."""
        ...


class Chunks:
    """Re-cuts a stream of latent blocks so that every Wan VAE decoder gives exactly what it would give in one go.

    The first chunk is 1 frame, later ones are at least 2; only the very last may be 1. (From 0.18, ComfyUI's decoder
    is wrong for any other single frame; every version gets the picture count wrong when the first chunk is longer.)
    At most one frame is held back, and no chunk is longer than the block it came from plus that one.
    """

    def __init__(self) -> None:
        self._held: Tensor | None = None
        self._begun = False

    def add(self, block: Tensor) -> Iterator[Tensor]:
        """The chunks that can be decoded once this block is there."""
        pending = block if self._held is None else torch.cat([self._held, block])
        self._held = None
        if not self._begun and len(pending) > 0:
            self._begun = True
            yield pending[:1]
            pending = pending[1:]
        if len(pending) >= 2:
            yield pending
        elif len(pending) > 0:
            self._held = pending

    def rest(self) -> Iterator[Tensor]:
        """What is left at the end of the video."""
        if self._held is not None:
            yield self._held
            self._held = None


@dataclass(frozen=True)
class VideoInfo:
    """What was written."""

    path: Path
    video_frames: int
    seconds: float
    width: int
    height: int


class VideoStream:
    """A video file that grows with the latents it is given. Use as a context manager; `finish` completes the file.

    Args:
        pictures: trims the end: what lies beyond is not decoded.
        scale: enlarges every pixel to a square, for the toy world.
        crf, metadata, partial: as in `VideoWriter`.
        on_progress: gets the number of pictures so far.
    """

    def __init__(
        self,
        path: str | Path,
        decoder: StreamingDecoder,
        fps: float = VIDEO_FPS,
        video_frames: int | None = None,
        scale: int = 1,
        metadata: Mapping[str, str] | None = None,
        on_progress: Callable[[int], None] | None = None,
        crf: int = 18,
        partial: Path | None = None,
    ):
        if video_frames is not None and video_frames < 1:
            raise HeadForcingError(f"A video needs at least 1 picture, got {video_frames}.")
        find_encoder()
        check_writable(path)
        self.path, self.decoder, self.fps, self.scale = Path(path), decoder, fps, scale
        self._limit = sys.maxsize if video_frames is None else video_frames
        self._writer: VideoWriter | None = None
        self._options: dict[str, Any] = {"crf": crf, "metadata": metadata, "partial": partial}
        self._on_progress = on_progress or (lambda video_frames: None)
        self._chunks = Chunks()

    @property
    def video_frames(self) -> int:
        """How many have been written."""
        return 0 if self._writer is None else self._writer.video_frames

    def __enter__(self) -> VideoStream:
        self.decoder.reset()
        self._stack = ExitStack()
        self._stack.callback(self.decoder.reset)
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)

    def add(self, latents: Tensor) -> None:
        """Decode and write the next `[frames, 16, h, w]`."""
        for chunk in self._chunks.add(latents):
            self._write(chunk)

    def finish(self) -> VideoInfo:
        """Write what is left. The file stands at `path`, which may be changed until now, after the `with` block."""
        for chunk in self._chunks.rest():
            self._write(chunk)
        if self._writer is None:
            raise HeadForcingError(f"{self.path.name} would be an empty video: there are no latent frames to decode.")
        self._writer.path = self.path
        return VideoInfo(
            self.path, self.video_frames, self.video_frames / self.fps, self._writer.width, self._writer.height
        )

    def _write(self, chunk: Tensor) -> None:
        left = self._limit - self.video_frames
        if left <= 0:
            return
        decoded = _enlarge(to_uint8(self.decoder.decode(chunk)[:left]), self.scale)
        if self._writer is None:
            height, width = decoded.shape[1:3]
            writer = VideoWriter(self.path, width, height, self.fps, **self._options)
            self._writer = self._stack.enter_context(writer)
        self._writer.write(decoded)
        self._on_progress(self.video_frames)


def write_video(
    path: str | Path,
    blocks: Iterable[Tensor],
    decoder: StreamingDecoder,
    fps: float = VIDEO_FPS,
    video_frames: int | None = None,
    scale: int = 1,
    metadata: Mapping[str, str] | None = None,
    on_progress: Callable[[int], None] | None = None,
    crf: int = 18,
    partial: Path | None = None,
) -> VideoInfo:
    """Decode latent blocks `[frames, 16, h, w]` one after another into an MP4; arguments as for `VideoStream`.

    Blocks beyond `pictures` are still taken from `blocks`: a rollout must finish.
    """
    with VideoStream(path, decoder, fps, video_frames, scale, metadata, on_progress, crf, partial) as stream:
        for block in blocks:
            stream.add(block)
        return stream.finish()


def _enlarge(video_frames: Tensor, scale: int) -> Tensor:
    return video_frames if scale == 1 else video_frames.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
