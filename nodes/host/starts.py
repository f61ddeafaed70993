"""What a video begins with: latents, an image, or a section of a video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.render.options import RenderOptions
from ...headforcing_core.render.start import DEFAULT_START_SECONDS, Start, check_start_image
from . import checks, vae

INPUTS = ("start_frames", "start_image", "start_video")


@dataclass(frozen=True)
class Given:
    """The start of a render.

    Attributes:
        latents: `[videos, frames, 16, h, w]` as a LATENT holds them; None: it begins with noise.
        key: as for `RenderJob.start_key`.
        about: what it is, where it was encoded here.
        notes: lines for the report.
    """

    latents: Tensor | None = None
    key: str = ""
    about: str = ""
    notes: tuple[str, ...] = ()


def given(options: RenderOptions, inputs: dict[str, Any], used: Any) -> Given:
    """The one of `INPUTS` that is connected, the others being None; `used` is the VAE."""
    connected = [name for name in INPUTS if inputs[name] is not None]
    if len(connected) > 1:
        raise HeadForcingError(f"{' and '.join(connected)}: a video begins with one of these; disconnect the others")
    if not connected:
        return Given()
    (name,), value = connected, inputs[connected[0]]
    if name == "start_frames":
        latents, dropped = checks.start_latents(value, options.schedule.frames_per_block)
        note = f"start_frames: left out the last {dropped} latent frames, which do not fill a block"
        return Given(latents, notes=(note,) if dropped else ())
    start = _image(options, value) if name == "start_image" else _video(options, value)
    if used is None or vae.is_draft(used):
        raise HeadForcingError(f"{name} is encoded by the Wan 2.1 VAE: connect it to vae")
    vae.check_vae(used)
    latents = used.encode(start.video_frames).transpose(1, 2)
    return Given(latents, start.key(vae.codec_of(used)), start.about, (f"starts with {start.about}",))


def _image(options: RenderOptions, images: Tensor) -> Start:
    """An IMAGE `[1, h, w, 1, 3 or 4 channels]`; transparency is ignored, as ComfyUI does."""
    instead = "connect a short video to start_video"
    check_start_image(options.schedule, options.model_family, instead)
    if len(images) != 1:
        raise HeadForcingError(
            f"start_image: expected one image, got {len(images)}; choose one (Get Image from Batch), or {instead}"
        )
    picture = images[0, ..., :3] if images.shape[-1] >= 3 else images[0, ..., :1].repeat(1, 1, 3)
    return Start.image(picture.float().cpu(), (options.width, options.height), "the start image")


def _video(options: RenderOptions, video: Any) -> Start:
    """The last seconds of a VIDEO, of what *Video Slice* left of it."""
    source, window = video.get_stream_source(), getattr(video, "get_active_trim_window", lambda: (0.0, 0.0))()
    size, frames_per_block = (options.width, options.height), options.schedule.frames_per_block
    return Start.video(source, size, DEFAULT_START_SECONDS, "last", frames_per_block, window)
