"""Inputs that a video begins with, and pictures that prompts hold, encoded with a VAE that ComfyUI
loaded.
"""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.names import DEFAULT_START_SECONDS
from ....headforcing_core.plan.options import RenderOptions
from ....headforcing_core.plan.request import StartLatents
from ....headforcing_core.plan.start import Start, image_frames
from ....headforcing_core.rollout.rows import Picture
from ....headforcing_core.rollout.schedule import Schedule
from ....headforcing_core.video.restarts import needs_encoder
from ....headforcing_core.video.section import read_section
from ..graph import video_files
from ..graph.conditioning import Conditioning, node_of
from ..model.vae import check_vae, codec_of, is_draft

STARTS = ("start_frames", "start_image", "start_video")
_VIDEO_INSTEAD = "connect a short video to start_video"


def start_of(
    options: RenderOptions, inputs: Fields, vae: Any
) -> tuple[StartLatents | None, list[str]]:
    """The start of a render and lines for its report, from the one of `STARTS` that is connected.

    Latents are as a LATENT holds them. `vae` encodes an image or a video.
    """
    connected = [name for name in STARTS if inputs[name] is not None]
    if len(connected) > 1:
        raise HeadForcingError(
            f"{' and '.join(connected)}: a video begins with one of these; disconnect the others"
        )
    if not connected:
        return None, []
    name = connected[0]
    value = inputs[name]
    if name == "start_frames":
        return _whole_blocks(value, options.schedule)
    start = _start_image(value, options) if name == "start_image" else _start_video(value, options)
    _check_encoder(options, vae, name)
    latents = vae.encode(start.video_frames).transpose(1, 2)
    notes = [f"starts with {start.about}"]
    if options.schedule.is_driven and name == "start_image":
        notes.append(_crop(value, options))
    return StartLatents(latents, start.key(codec_of(vae)), start.about), notes


def portrait_of(options: RenderOptions, images: Tensor | None) -> Image.Image | None:
    """The part of a start image that a model which speech drives begins with, to be looked at; None
    for other models.
    """
    if images is None or not options.schedule.is_driven:
        return None
    (picture,) = _start_image(images, options).video_frames
    return Image.fromarray((255 * picture).round().byte().numpy())


def _crop(images: Tensor, options: RenderOptions) -> str:
    """A line about the part of a portrait that is shown."""
    rows, columns = images.shape[1:3]
    wide = min(columns, round(rows * options.width / options.height))
    high = min(rows, round(columns * options.height / options.width))
    if (wide, high) == (columns, rows):
        return f"portrait: all of its {columns}x{rows} pixels are shown"
    return f"portrait: the middle {wide}x{high} of its {columns}x{rows} pixels is shown"


def _start_image(images: Tensor, options: RenderOptions) -> Start:
    frames = image_frames(options, _VIDEO_INSTEAD)
    picture = one_image(images, "start_image", f", or {_VIDEO_INSTEAD}")
    return Start.image(
        picture, options.size, "the start image", frames, portrait=options.schedule.is_driven
    )


def _start_video(video: Any, options: RenderOptions) -> Start:
    """The last seconds of a VIDEO, of what *Video Slice* left of it."""
    video_frames, about = read_section(
        video.get_stream_source(),
        options.size,
        DEFAULT_START_SECONDS,
        "last",
        frames_per_block=options.schedule.frames_per_block,
        window=video_files.window_of(video),
        fps=options.schedule.latents.fps,
    )
    return Start(video_frames, about)


def pictures_of(options: RenderOptions, positive: Conditioning, vae: Any) -> dict[str, Picture]:
    """The pictures that the prompts of a CONDITIONING can name, with latents as a LATENT holds
    them.
    """
    node = node_of(positive)
    pictures: dict[str, Picture] = {}
    if node is None:
        return pictures
    for name, image in node.references.items():
        _check_encoder(options, vae, "references")
        frames = options.schedule.frames_per_block
        start = Start.image(image, options.size, f"the picture @{name}", frames)
        latents = vae.encode(start.video_frames)[0].transpose(0, 1)
        pictures[name] = Picture(latents, start.key(codec_of(vae)))
    return pictures


def _whole_blocks(start_frames: Fields, schedule: Schedule) -> tuple[StartLatents, list[str]]:
    """The whole blocks of a LATENT, and a line about latent frames that were dropped at its end."""
    latents = start_frames["samples"]
    frames_per_block = schedule.frames_per_block
    kind = schedule.latents
    if (
        latents.ndim != 5
        or latents.shape[1] != kind.channels
        or latents.shape[2] < frames_per_block
    ):
        raise HeadForcingError(
            f"start_frames: expected video latents of the model, [videos, {kind.channels}, frames, "
            f"h, w], of at least {frames_per_block} frames, got {list(latents.shape)}"
        )
    width, height = kind.pixels(latents.shape)
    if width % kind.side_multiple or height % kind.side_multiple:
        raise HeadForcingError(
            f"start_frames: the video is {width}x{height}; crop it so that width and height are "
            f"multiples of {kind.side_multiple}"
        )
    if start_frames.get("noise_mask") is not None or not latents.any():
        raise HeadForcingError(
            "start_frames is an empty latent or has a noise mask, so it is no video to begin with; "
            "disconnect it: width and height set the size, start_image takes a picture"
        )
    frames = latents.shape[2]
    about = start_frames.get("head_forcing", {})
    if about.get("frames") == frames and needs_encoder(about):
        raise HeadForcingError(
            "start_frames has latents of several rollouts, each a video of its own; go on from the "
            "video with start_video"
        )
    dropped = frames % frames_per_block
    notes = []
    if dropped:
        notes.append(
            f"start_frames: left out the last {dropped} latent frames, which do not fill a block"
        )
    return StartLatents(latents[:, :, : frames - dropped].transpose(1, 2)), notes


def _check_encoder(options: RenderOptions, vae: Any, name: str) -> None:
    """Refuse to encode an input without the VAE of the model."""
    if vae is None or is_draft(vae):
        wanted = options.schedule.latents.vae
        raise HeadForcingError(f"{name} is encoded by the {wanted}: connect it to vae")
    check_vae(vae, options.schedule.latents)


def one_image(images: Tensor, name: str, instead: str = "") -> Tensor:
    """The picture `[h, w, 3]` of an IMAGE of one; transparency is ignored, as ComfyUI does."""
    if len(images) != 1:
        raise HeadForcingError(
            f"{name}: expected one image, got {len(images)}; choose one (Get Image from "
            f"Batch){instead}"
        )
    picture = images[0, ..., :3]
    if picture.shape[-1] < 3:
        picture = picture[..., :1].expand(-1, -1, 3)
    return picture.float().cpu()
