"""Writing of H.264 MP4 files that can be played while they are written."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
import torch
from av import Packet, VideoFrame, VideoStream
from av.bitstream import BitStreamFilterContext
from av.container import OutputContainer
from av.error import FFmpegError
from av.video.reformatter import ColorRange, Colorspace
from torch import Tensor

from ..errors import HeadForcingError
from ..files import check_writable, explained, remove_leftovers, replacing, temporary_path
from ..timeline.clock import VIDEO_FPS
from .reader import address, open_video, video_stream
from .sound import Sound, SoundStream

ENCODER = "libx264"  # in every PyAV wheel
# Colour tags of the file, which players would otherwise guess. The matrix is BT.601 because PyAV
# before 17, with which ComfyUI reads videos, assumes it for every file.
_MATRIX_BT601 = 6
_BT709 = 1
# While it is written, the file is a sequence of one-second fragments, which can be played even
# after a crash. Without `delay_moov` the times would be shifted by the frames that the encoder
# reorders.
_GROWING = {
    "movflags": "delay_moov+default_base_moof+use_metadata_tags",
    "frag_duration": "1000000",
    "flush_packets": "1",
    "max_interleave_delta": "250000",  # pictures wait at most 0.25 s for sound that ended before
}
# A fragment a frame: each can be read when it is encoded, and no frame waits for later ones.
_LOW_DELAY = {
    **_GROWING,
    "movflags": f"{_GROWING['movflags']}+frag_every_frame",
}
# The finished file is not fragmented: readers take its length from the index, which faststart moves
# to the front.
_FINISHED = {"movflags": "use_metadata_tags+faststart"}
KEY_FRAME_SECONDS = 2.0  # longest time between key frames of a video that can be resumed


@dataclass(frozen=True)
class VideoSettings:
    """Settings of a video file.

    Attributes:
        path: of the finished file.
        fps: video frames a second.
        tags: top-level tags of the file (ComfyUI reads the workflow back from `prompt` and
            `workflow`).
        crf: constant rate factor of x264 (lower is better, 18 is visually lossless).
        preset: of x264.
        scale: whoever gives the frames makes each pixel a square of this side, for the toy model.
        partial: path of the unfinished video, which plays at any time, replaces a file there, and
            is kept if writing fails. None uses a hidden file, which is always removed.
        low_delay: while the file grows, each frame can be read at once.
    """

    path: Path
    fps: float = VIDEO_FPS
    tags: Mapping[str, str] = field(default_factory=dict)
    crf: int = 18
    preset: str = "veryfast"
    scale: int = 1
    partial: Path | None = None
    low_delay: bool = False


@dataclass(frozen=True)
class VideoInfo:
    """A written video file: number of video frames, length in seconds, size in pixels."""

    path: Path
    video_frames: int
    seconds: float
    width: int
    height: int


class VideoWriter:
    """Writes video frames to an H.264 MP4; the file appears at its path only when the `with` block
    succeeds.

    Args:
        width, height: of the frames that `write` gets, in pixels, even for H.264.
        goes_on: first copy what an earlier attempt with the same arguments left at
            `settings.partial`, up to its last key frame. The caller goes on with the frame of
            number `video_frames`.
        sound: is written beside the pictures, and ends with them.

    Attributes:
        settings: another path and other tags may be set until the end of the `with` block.
        partial: where the file grows: beside `settings.partial` if the system keeps an earlier file
            there open.
        video_frames: number of frames written so far.

    Raises HeadForcingError where the disk or the encoder fails.
    """

    def __init__(
        self,
        settings: VideoSettings,
        width: int,
        height: int,
        *,
        goes_on: bool = False,
        sound: Sound | None = None,
    ):
        partial = settings.partial
        self.settings = settings
        self.width = width
        self.height = height
        self.video_frames = 0
        self._keep = partial is not None
        self.partial = partial or temporary_path(settings.path)
        self._earlier: Path | None = None  # what an earlier attempt left
        if goes_on:
            self._earlier = self.partial.with_name(f"{self.partial.stem}.earlier.mp4")
        self._sound = sound
        check_encoder()

    @property
    def _seconds(self) -> float:
        """Length of what is written so far."""
        return self.video_frames / self.settings.fps

    @property
    def info(self) -> VideoInfo:
        """The file if nothing more is written."""
        return VideoInfo(
            self.settings.path,
            self.video_frames,
            seconds=self._seconds,
            width=self.width,
            height=self.height,
        )

    def __enter__(self) -> VideoWriter:
        check_writable(self.settings.path)
        with ExitStack() as stack, self._explained():
            if self._keep:
                check_writable(self.partial)
            else:
                stack.callback(self._remove_partial)
            if self._earlier:
                _keep_larger(self.partial, self._earlier)
            self._container = self._open()
            stack.callback(self._close)
            self._container.metadata.update(self.settings.tags)
            self._stream = self._open_stream()
            self._track = SoundStream(self._container, self._sound)
            if self._earlier and self._earlier.exists():
                self._go_on(self._earlier)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if error_type is not None:
            self.leave()  # the first error is the one to report
            return
        with self._cleanup:
            with self._explained():
                self._finish()
                self._remux()
            self._remove_partial()

    def leave(self) -> None:
        """Close the file where it has grown, in place of the end of the `with` block; none appears
        at the path.
        """
        with self._cleanup, suppress(OSError, FFmpegError):
            self._finish()

    def _close(self) -> None:
        """Close the file after an error, which is the one to report; otherwise it is closed."""
        with suppress(OSError, FFmpegError):
            self._container.close()

    def _remove_partial(self) -> None:
        with suppress(OSError):  # on Windows a player may have it open
            self.partial.unlink(missing_ok=True)

    def write(self, video_frames: Tensor) -> None:
        """Append video frames `[n, height, width, 3]`, uint8 or float in 0..1."""
        for video_frame in to_uint8(video_frames).cpu().numpy():
            rgb = VideoFrame.from_ndarray(np.ascontiguousarray(video_frame), format="rgb24")
            with self._explained():
                frame = rgb.reformat(
                    format="yuv420p",
                    dst_colorspace=Colorspace.ITU601,
                    dst_color_range=ColorRange.MPEG,
                )
                frame.pts = self.video_frames
                self._track.write(self._seconds)
                self._container.mux(self._stream.encode(frame))
            self.video_frames += 1

    def _go_on(self, earlier: Path) -> None:
        """Copy an earlier attempt without the frames from its last key frame on, which may be cut
        off, then remove it. Its packets keep their times, which count from the same beginning.
        """
        for group in _groups(earlier):
            for packet in group:
                packet.stream = self._stream
            self._track.write(self._seconds)
            self._container.mux(group)
            self.video_frames += len(group)
        earlier.unlink(missing_ok=True)

    def _open(self) -> OutputContainer:
        if self._keep:
            remove_leftovers(self.partial)
            self._remove_partial()  # it may be a link to another file, which opening would empty
        options = _LOW_DELAY if self.settings.low_delay else _GROWING
        with suppress(OSError):  # on Windows, the file of an earlier attempt that a player has open
            return av.open(address(self.partial), "w", format="mp4", options=options)
        self.partial = self.partial.with_name(f"{self.partial.stem}-{uuid.uuid4().hex[:8]}.mp4")
        return av.open(address(self.partial), "w", format="mp4", options=options)

    def _explained(self) -> AbstractContextManager[None]:
        """Convert errors of the disk and of the encoder to a HeadForcingError."""
        what = f"the video {self.settings.path} cannot be written"
        return explained(what, (OSError, FFmpegError))

    def _finish(self) -> None:
        """Flush the encoder and close the fragmented file."""
        if self.video_frames:
            self._track.write(self._seconds)
            self._container.mux(self._stream.encode())
        self._container.close()

    def _remux(self) -> None:
        """Copy what is encoded, without encoding it again, to an unfragmented file at
        `settings.path`.
        """
        with (
            replacing(self.settings.path) as temporary,
            open_video(self.partial) as source,
            av.open(address(temporary), "w", format="mp4", options=_FINISHED) as target,
        ):
            target.metadata.update(self.settings.tags)
            # opaque: PyAV 14 would begin an encoder, whose header does not fit the packets
            copied = [
                target.add_stream_from_template(stream, opaque=True) for stream in source.streams
            ]
            for packet in source.demux():
                if packet.size:  # the last packet is empty and marks the end of the stream
                    packet.stream = copied[packet.stream.index]
                    target.mux(packet)

    def _open_stream(self) -> VideoStream:
        settings = self.settings
        rate = Fraction(settings.fps).limit_denominator(1001)  # exact for 24000/1001
        # mbtree off: with AVX-512, x264 reads beyond its macroblock tree if a row is no multiple of
        # eight blocks, so that the same frames give a different file each time
        options = {
            "crf": str(settings.crf),
            "preset": settings.preset,
            "x264-params": "mbtree=0",
        }
        if settings.low_delay:
            options["tune"] = "zerolatency"
        stream = cast(VideoStream, self._container.add_stream(ENCODER, rate, options))
        stream.width = self.width
        stream.height = self.height
        stream.pix_fmt = "yuv420p"
        if self._earlier:
            stream.codec_context.gop_size = round(KEY_FRAME_SECONDS * settings.fps)
        codec = stream.codec_context
        codec.colorspace = _MATRIX_BT601
        codec.color_primaries = _BT709
        codec.color_trc = _BT709
        codec.color_range = ColorRange.MPEG
        return stream


def _groups(path: Path) -> Iterator[list[Packet]]:
    """Packets with start codes (Annex B), as an encoder gives them: one list from each key frame to
    the next, without the last list, which may be cut off.
    """
    group: list[Packet] = []
    with suppress(OSError, FFmpegError, HeadForcingError), open_video(path) as source:
        stream = video_stream(source)
        to_start_codes = BitStreamFilterContext("h264_mp4toannexb", stream)
        for packet in source.demux(stream):
            if packet.is_keyframe and group:
                yield group
                group = []
            group += to_start_codes.filter(packet)


def _keep_larger(partial: Path, earlier: Path) -> None:
    """Name what an attempt has written `earlier`, unless that is there from before and holds
    more.
    """
    if not partial.is_file() or partial.is_symlink():
        return
    if not earlier.is_file() or partial.stat().st_size > earlier.stat().st_size:
        os.replace(partial, earlier)


def check_encoder() -> None:
    """Raise HeadForcingError if PyAV cannot write H.264."""
    if ENCODER not in av.codecs_available:
        raise HeadForcingError(
            f"The installed PyAV {av.__version__} has no H.264 encoder ({ENCODER}); install the "
            "official wheel with `pip install --force-reinstall --only-binary av av`."
        )


def to_uint8(video_frames: Tensor) -> Tensor:
    """Video frames in 0..1 as uint8; uint8 is returned unchanged."""
    if video_frames.dtype == torch.uint8:
        return video_frames
    return (video_frames.float().clamp(0, 1) * 255).round().to(torch.uint8)
