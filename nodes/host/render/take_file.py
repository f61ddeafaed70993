"""The video file of a take: noted beside its stored blocks, and found again by what it was made
of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....headforcing_core.hashing import digest
from ....headforcing_core.plan.request import RenderJob
from ....headforcing_core.video.writer import VideoInfo
from .. import folders
from ..browser import runs
from ..graph.part import WHOLE
from ..model.vae import decoder_fingerprint, picture_size
from .host_render import HostRender


def link_file(render: HostRender, job: RenderJob, path: Path, vae: Any) -> None:
    """Note a file that this VAE has decoded as that of the take, if its blocks are stored; a part
    never takes the place of the whole video.
    """
    plan = job.plan
    if job.folder is None or render.part.first(plan) != 0:
        return
    if job.end_block < plan.blocks:
        whole = _key(render, job, plan.blocks, render.vae)
        if runs.linked_file(job, whole) is not None:
            return
    runs.link_file(job, path, _key(render, job, job.end_block, vae))


def linked_file(render: HostRender, job: RenderJob, vae: Any) -> Path | None:
    """The file of the take as far as it is rendered, if this VAE has decoded it and the render's
    prefix names it; else None.
    """
    if job.folder is None:
        return None
    path = runs.linked_file(job, _key(render, job, job.end_block, vae))
    width, height = picture_size(render.vae, job.plan)
    if path is None or not folders.has_prefix(path, render.filename_prefix, width, height):
        return None
    return path


def earlier_file(render: HostRender, job: RenderJob) -> VideoInfo | None:
    """The file of a finished take that would be made again, byte for byte but for its graph; None
    to make one.
    """
    plan = job.plan
    if (
        render.vae is None
        or render.part != WHOLE
        or job.finished_blocks < plan.new_blocks
        or (render.story is not None and render.story.waits)
    ):
        return None
    path = linked_file(render, job, render.vae)
    if path is None:
        return None
    width, height = picture_size(render.vae, plan)
    seconds = plan.video_frames / plan.timeline.clock.fps
    return VideoInfo(path, plan.video_frames, seconds, width=width, height=height)


def _key(render: HostRender, job: RenderJob, end_block: int, vae: Any) -> str:
    """A hash of what the file of a take depends on: its blocks, the number of them in the file, the
    decoder, the length it is cut to, and the sound.
    """
    decoder = [type(vae.first_stage_model).__name__, decoder_fingerprint(vae)]
    if vae is not render.vae:  # a draft; a render with this decoder as VAE keeps its file
        decoder.append("draft")
    soundtrack = render.request.soundtrack
    sound = [] if soundtrack is None else [soundtrack.identity]
    return digest(job.keys[-1], end_block, decoder, job.plan.video_frames, *sound)
