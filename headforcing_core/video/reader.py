"""Opening of video files and images, and fitting of them to the size of a render."""

from __future__ import annotations

import io
import math
import os
import warnings
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import torch
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition
from av.video.stream import VideoStream
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from ..errors import HeadForcingError, one_line
from ..files import check_regular, not_allowed, reason

MAX_PIXELS = 8192 * 4320  # of a frame: decoders hold several, whatever a damaged file claims
MAX_IMAGE_PIXELS = 80_000_000  # 1 GB as numbers; Pillow warns of files that claim more
# others may run programs: EPS runs Ghostscript
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
# FFmpeg's names of file formats that hold a video. Formats that name other files or addresses
# (playlists, lists of files, session descriptions) are not among them.
VIDEO_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,ogg,asf,mxf,"
    "gif,webp_pipe,apng,nut,ivf,h264,hevc,wmv,dv,rm,y4m,yuv4mpegpipe"
)
# tags of a damaged file are any bytes, which PyAV refuses by default before version 19
_OF_TAGS: dict[str, Any] = (
    {} if int(av.__version__.partition(".")[0]) >= 19 else {"metadata_errors": "replace"}
)
VideoSource = str | Path | io.BytesIO


def name_of(source: VideoSource) -> str:
    """The name of a video in messages, without its folder."""
    return "the video" if isinstance(source, io.BytesIO) else Path(source).name


def address(path: str | Path) -> str:
    """The path of a file on this disk for FFmpeg, which would take `concat:...` or `http:...` for
    something else.
    """
    return os.path.abspath(path)


def open_container(opened: str | io.BytesIO, formats: str) -> InputContainer:
    """Open a file in one of these formats, separated by commas, read from this disk alone; raises
    what PyAV raises.
    """
    options = {"format_whitelist": formats, "protocol_whitelist": "file"}
    return av.open(opened, "r", options=options, **_OF_TAGS)


def open_video(source: VideoSource, name: str | None = None) -> InputContainer:
    """Open a video file for a `with` block: a regular file in one of `VIDEO_FORMATS`, read from
    this disk alone.

    Raises HeadForcingError, which names it `name`, if it is something else.
    """
    name = name or str(source)
    if isinstance(source, io.BytesIO):
        # two containers may read it in turn, each from its own place; the bytes are shared
        opened: str | io.BytesIO = io.BytesIO(source.getvalue())
    else:
        check_regular(source)
        opened = address(source)
    try:
        container = open_container(opened, VIDEO_FORMATS)
    except PermissionError as error:
        raise not_allowed(name, error) from error
    except (OSError, ValueError, FFmpegError) as error:
        raise HeadForcingError(
            f"{name} cannot be read as a video ({error}): give a video file"
        ) from error
    stream = shown_stream(container)
    if stream is None:
        container.close()
        raise HeadForcingError(f"{name} holds no video that can be decoded: give a video file")
    context = stream.codec_context
    if not 0 < context.width * context.height <= MAX_PIXELS:
        container.close()
        raise HeadForcingError(
            f"{name} has frames of {context.width}x{context.height} pixels: give a video of at "
            "most 8192x4320 that plays elsewhere"
        )
    stream.thread_type = "AUTO"
    return container


def shown_stream(container: InputContainer) -> VideoStream | None:
    """The stream of pictures that a player shows: one that is no cover, marked as default, the
    largest, the first; None where there is none that can be decoded.
    """
    streams = [
        stream
        for stream in container.streams.video
        # a stream without a decoder has no codec context
        if stream.codec_context is not None
        and not stream.disposition & (Disposition.attached_pic | Disposition.timed_thumbnails)
    ]
    return max(streams, key=_preference, default=None)


def _preference(stream: VideoStream) -> tuple[bool, int]:
    context = stream.codec_context
    return bool(stream.disposition & Disposition.default), context.width * context.height


def video_stream(container: InputContainer) -> VideoStream:
    """The stream of `shown_stream` in a container of `open_video`, which has one."""
    return cast(VideoStream, shown_stream(container))


def read_image(path: Path) -> Tensor:
    """An image file as a video frame `[h, w, 3]` in 0..1, float32, as ComfyUI's node Load Image
    reads it.

    Upright by its EXIF data, grey as RGB, without transparency, the first of several in a file.
    Raises HeadForcingError for a file that is no image in one of `IMAGE_FORMATS`, damaged or too
    large.
    """
    check_regular(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, and of damaged tags
            return _image(path)
    except HeadForcingError:
        raise
    except PermissionError as error:
        raise not_allowed(path.name, error) from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        why = one_line(reason(error), 200)
        raise HeadForcingError(
            f"{path.name} cannot be read as an image ({why}): give a PNG or JPEG"
        ) from error


def _image(path: Path) -> Tensor:
    with Image.open(path, formats=IMAGE_FORMATS) as image:
        if math.prod(image.size) > MAX_IMAGE_PIXELS:
            raise HeadForcingError(
                f"{path.name} has {image.width}x{image.height} pixels: give an image of at "
                "most 80 million"
            )
        ImageOps.exif_transpose(image, in_place=True)
        # 16 bits or floats, which a conversion would cut to 8 bits
        if image.mode.startswith(("I", "F")):
            grey = np.asarray(image, dtype=np.float32) / (1 if image.mode == "F" else 65535)
            if not np.isfinite(grey).all():
                raise HeadForcingError(f"{path.name} holds NaN or infinity: give another image")
            return torch.from_numpy(grey.clip(0, 1))[..., None].repeat(1, 1, 3)
        # bytes are small; a large image takes 1 GB as numbers, which is enough
        pixels = np.asarray(image.convert("RGB")).astype(np.float32)
        pixels /= 255
        return torch.from_numpy(pixels)


def fit(
    video_frames: Tensor,
    width: int,
    height: int,
    pixel_aspect: float = 1.0,
    antialias: bool = False,
) -> Tensor:
    """Crop `[n, h, w, 3]` around the middle to the proportions `width:height` and scale it, `[n,
    height, width, 3]`.

    The rule of ComfyUI's node ARVideoI2V, bit for bit: nothing is stretched or padded, scaling is
    bilinear. `pixel_aspect` is the width of a pixel divided by its height. With `antialias` each
    pixel is a mean of all that it replaces.
    """
    rows, columns = video_frames.shape[1:3]
    old = columns / rows * pixel_aspect
    new = width / height
    x = max(0, round((columns - columns * (new / old)) / 2))
    y = max(0, round((rows - rows * (old / new)) / 2))
    # a line of pixels stays a line
    x = min(x, (columns - 1) // 2)
    y = min(y, (rows - 1) // 2)
    cropped = video_frames.movedim(-1, 1)[..., y : rows - y, x : columns - x]
    channels = cropped.split(1, dim=1)  # one after another, as each is copied
    size = (height, width)
    fitted = [
        F.interpolate(channel, size, mode="bilinear", antialias=antialias) for channel in channels
    ]
    return torch.cat(fitted, dim=1).movedim(1, -1)
