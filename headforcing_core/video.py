"""From finished latent blocks to an MP4, block by block and in constant memory.

`n` latent frames decode to `4(n-1)+1` pictures, shown at 16 a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Protocol, cast

import av
import numpy as np
import torch
from av.video.reformatter import ColorRange, Colorspace
from torch import Tensor

from .clock import PICTURES_PER_SECOND
from .contact_sheet import contact_sheet as contact_sheet
from .errors import HeadForcingError
from .files import replacing

# The first is in every PyAV wheel; the others are for PyAV built against a distribution's own FFmpeg.
_ENCODERS = ("libx264", "libopenh264", "h264_videotoolbox", "h264_nvenc", "h264")
# Declared in the file, so that players need not guess. The matrix is BT.601 because PyAV before 17 (what ComfyUI reads
# videos with) takes every file for that.
_MATRIX_BT601, _BT709 = 6, 1


class StreamingDecoder(Protocol):
    """Turns the latents of one video into pictures, chunk after chunk, as if they had come at once.

    Chunks arrive as `chunks_for_wan` cuts them; what the decoder needs of earlier chunks it keeps itself.
    """

    def decode(self, latents: Tensor) -> Tensor:
        """Next `[frames, 16, h, w]` to `[pictures, H, W, 3]`, float in 0..1: 4 a frame, 1 for a video's first frame."""
        ...

    def reset(self) -> None:
        """Forget everything: the next chunk starts a new video."""
        ...


def chunks_for_wan(blocks: Iterable[Tensor]) -> Iterator[Tensor]:
    """Re-cut a stream of latent blocks so that every Wan VAE decoder gives exactly what it would give in one go.

    The first chunk is 1 frame, later ones are at least 2; only the very last may be 1. (From 0.18, ComfyUI's decoder
    is wrong for any other single frame; every version gets the picture count wrong when the first chunk is longer.)
    At most one frame is held back, and no chunk is longer than the block it came from plus that one.
    """
    held: Tensor | None = None
    begun = False
    for block in blocks:
        pending = block if held is None else torch.cat([held, block])
        if not begun and len(pending) > 0:
            yield pending[:1]
            pending, begun = pending[1:], True
        if len(pending) >= 2:
            yield pending
            held = None
        else:
            held = pending
    if held is not None and len(held) > 0:
        yield held


class VideoWriter:
    """Writes pictures to an H.264 MP4 as they come; the file appears at `path` only when the `with` block succeeds.

    `metadata` become top-level tags of the file (ComfyUI reads the workflow back from `prompt` and `workflow`).
    `crf` is x264's quality (lower is better, 18 is visually lossless). `pictures` counts what has been written.
    """

    def __init__(
        self,
        path: str | Path,
        width: int,
        height: int,
        fps: float = PICTURES_PER_SECOND,
        crf: int = 18,
        metadata: Mapping[str, str] | None = None,
        preset: str = "veryfast",
    ):
        if min(width, height) < 2 or width % 2 or height % 2:
            raise HeadForcingError(
                f"A video of {width}x{height} pixels cannot be written: H.264 needs an even width and height; "
                f"choose {max(2, width - width % 2)}x{max(2, height - height % 2)}."
            )
        self.path = Path(path)
        self.width, self.height, self.fps = width, height, fps
        self.pictures = 0
        self._encoder = _find_encoder()
        self._options = {"crf": str(crf), "preset": preset} if self._encoder == "libx264" else {}
        self._metadata = dict(metadata or {})

    def __enter__(self) -> VideoWriter:
        with ExitStack() as stack:
            temporary = stack.enter_context(replacing(self.path))
            # Not fragmented: readers take the length from the index, which faststart moves to the front.
            options = {"movflags": "use_metadata_tags+faststart"}
            self._container = stack.enter_context(av.open(str(temporary), "w", format="mp4", options=options))
            self._container.metadata.update(self._metadata)
            self._stream = self._open_stream()
            stack.push(self._flush)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        self._cleanup.__exit__(*error)

    def write(self, pictures: Tensor) -> None:
        """Append `[n, height, width, 3]`, uint8 or float in 0..1."""
        if pictures.ndim != 4 or tuple(pictures.shape[1:]) != (self.height, self.width, 3):
            raise HeadForcingError(
                f"{self.path.name} takes pictures of shape [n, {self.height}, {self.width}, 3], "
                f"got {list(pictures.shape)}."
            )
        for picture in _to_uint8(pictures).cpu().numpy():
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU601, dst_color_range=ColorRange.MPEG)
            frame.pts = self.pictures
            self._container.mux(self._stream.encode(frame))
            self.pictures += 1

    def _flush(self, error_type: type | None, *_) -> None:
        if error_type is not None:
            return
        if self.pictures == 0:
            raise HeadForcingError(f"{self.path.name} would be an empty video: no picture was written to it.")
        self._container.mux(self._stream.encode())

    def _open_stream(self) -> av.VideoStream:
        rate = Fraction(self.fps).limit_denominator(1001)
        stream = cast(av.VideoStream, self._container.add_stream(self._encoder, rate=rate, options=self._options))
        stream.width, stream.height, stream.pix_fmt = self.width, self.height, "yuv420p"
        if not self._options:
            stream.bit_rate = round(0.25 * self.width * self.height * self.fps)
        codec = stream.codec_context
        codec.colorspace, codec.color_primaries, codec.color_trc = _MATRIX_BT601, _BT709, _BT709
        codec.color_range = ColorRange.MPEG
        return stream


@dataclass(frozen=True)
class VideoInfo:
    """What was written."""

    path: Path
    pictures: int
    seconds: float
    width: int
    height: int


def write_video(
    path: str | Path,
    blocks: Iterable[Tensor],
    decoder: StreamingDecoder,
    fps: float = PICTURES_PER_SECOND,
    pictures: int | None = None,
    scale: int = 1,
    metadata: Mapping[str, str] | None = None,
    on_progress: Callable[[int], None] | None = None,
    crf: int = 18,
) -> VideoInfo:
    """Decode latent blocks `[frames, 16, h, w]` one after another into an MP4.

    `pictures` trims the end: blocks beyond it are still taken from `blocks` (a rollout must finish) but not decoded.
    `scale` enlarges every pixel to a square, for the toy world. `on_progress` gets the number of pictures so far.
    """
    if pictures is not None and pictures < 1:
        raise HeadForcingError(f"A video needs at least 1 picture, got {pictures}.")
    limit = sys.maxsize if pictures is None else pictures
    writer: VideoWriter | None = None
    decoder.reset()
    with ExitStack() as stack:
        stack.callback(decoder.reset)
        for chunk in chunks_for_wan(blocks):
            written = writer.pictures if writer else 0
            if written >= limit:
                continue
            decoded = _enlarge(_to_uint8(decoder.decode(chunk)[: limit - written]), scale)
            if writer is None:
                height, width = decoded.shape[1:3]
                writer = stack.enter_context(VideoWriter(path, width, height, fps, crf, metadata))
            writer.write(decoded)
            if on_progress is not None:
                on_progress(writer.pictures)
    if writer is None:
        raise HeadForcingError(f"{Path(path).name} would be an empty video: there are no latent frames to decode.")
    return VideoInfo(writer.path, writer.pictures, writer.pictures / fps, writer.width, writer.height)


def _find_encoder() -> str:
    for name in _ENCODERS:
        try:
            return av.Codec(name, "w").name
        except av.codec.codec.UnknownCodecError:
            continue
    raise HeadForcingError(
        f"The installed PyAV {av.__version__} has no H.264 encoder (looked for {', '.join(_ENCODERS)}); "
        "install the official wheel with `pip install --force-reinstall --only-binary av av`."
    )


def _to_uint8(pictures: Tensor) -> Tensor:
    if pictures.dtype == torch.uint8:
        return pictures
    return (pictures.float().clamp(0, 1) * 255).round().to(torch.uint8)


def _enlarge(pictures: Tensor, scale: int) -> Tensor:
    return pictures if scale == 1 else pictures.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
