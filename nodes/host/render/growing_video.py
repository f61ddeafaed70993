"""The video file of a render in the output folder, which grows while its blocks are made."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from comfy import model_management

from ....headforcing_core.errors import first_line
from ....headforcing_core.files import is_disk_full
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.request import RenderJob
from ....headforcing_core.render.sinks import FileTarget, VideoFile
from ....headforcing_core.video.pictures import PictureSheets
from .. import folders
from ..browser.progress import RenderProgress, stop_where_asked
from ..graph import video_files
from ..graph.part import WHOLE
from ..model import vae
from .host_render import HostRender
from .live_decoder import drafted


def growing_video(render: HostRender, job: RenderJob, progress: RenderProgress) -> VideoFile:
    """The file of a job's video, decoded by the VAE of the render, with small pictures.

    A decoder or a disk that fails ends the video, not the sampling: the latents are what took the
    time, unless none are kept. Decodes in a thread of its own, if it is asked for, where the VAE is
    on another GPU than the model: on the same one they would take turns, and ComfyUI's weight
    streaming is not made for two threads.
    """
    used = render.vae
    vae.check_vae(used)
    prefix = render.filename_prefix
    latent_format = render.model.model.latent_format

    @contextmanager
    def claim(plan: RenderPlan) -> Iterator[tuple[Path, Path]]:
        key = job.keys[-1][:8]
        with folders.growing_file(prefix, key, *vae.picture_size(used, plan)) as file:
            yield file.path, file.path  # until it gets its number

    @contextmanager
    def claim_number(plan: RenderPlan) -> Iterator[Path]:
        with folders.output_file(prefix, *vae.picture_size(used, plan)) as file:
            yield file.path

    def tags(current: RenderJob) -> dict[str, str]:
        about = current.about if render.part == WHOLE else None
        return video_files.tags_of(render.hidden, about)

    target = FileTarget(
        claim,
        lambda plan: vae.codec_of(used).decoder(plan.vae_notes),
        to_decoder=lambda latents: vae.to_latent(latent_format, latents),
        tags=tags,
        first_block=render.part.first(job.plan),
        pictures=PictureSheets(
            folders.pictures_folder(), uuid.uuid4().hex, job.plan.timeline.clock.fps
        ),
        claim_last=claim_number,  # then, since others may have come since the beginning
        sentence=_sentence,
    )
    shares_gpu = used.device == render.model.load_device and used.device.type != "cpu"
    kind: Callable[..., VideoFile] = VideoFile
    if render.story is not None:
        kind = render.story.file_class
    if render.live_vae is not None:
        kind = partial(drafted, render, progress)
    story = render.story
    keeps_latents = story is None or story.keeps_latents or job.request.runs is not None
    return kind(
        target,
        background=used.device if render.decode_in_background and not shares_gpu else None,
        losable=keeps_latents,
        while_waiting=stop_where_asked,
        cancels=(model_management.InterruptProcessingException,),
    )


def _sentence(error: Exception, growing: Path) -> str:
    """Why there is no video, with names below the output folder."""
    if is_disk_full(error):
        return f"No space left on the disk for {folders.OutputFile(growing).place}"
    return first_line(error).replace(str(folders.output_folder()), "output")
