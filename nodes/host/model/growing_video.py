"""The video file of a render, which grows while its blocks are made."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from comfy import model_management
from torch import Tensor

from ....headforcing_core.files import Fields, is_disk_full
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.request import RenderJob
from ....headforcing_core.render.sinks import VideoFile
from ....headforcing_core.rollout.loop import Block
from ....headforcing_core.video.pictures import PictureSheets
from ..browser.player import growing
from ..browser.progress import stop_where_asked
from ..graph import folders, video_files
from ..graph.part import WHOLE, skipped_video_frames
from . import vae
from .host_render import HostRender


class GrowingVideo(VideoFile):
    """Decodes blocks as they are finished and writes them to a file in the output folder that plays
    at any time.

    A decoder or a disk that fails ends the video, not the sampling: the latents are what took the
    time. Decodes in a thread of its own, if it is asked for, where the VAE is on another GPU than
    the model: on the same one they would take turns, and ComfyUI's weight streaming is not made for
    two threads.

    Attributes:
        host: the render whose video it is.
        first: the block with which the file begins.
        id: by which pages tell it from an earlier file of that name, which a render that goes on
            writes from its beginning.
        growing: the file that grows; set when the render begins. The same video made again replaces
            it.
        is_disk_full: whether it ended early because there was no space left.
    """

    passes = (model_management.InterruptProcessingException,)

    def __init__(self, host: HostRender, job: RenderJob):
        used = host.vae
        vae.check_vae(used)
        self.host = host
        self.first = host.part.first(job.plan)
        self.name = job.keys[-1][:8]
        self.id = uuid.uuid4().hex
        self.growing: folders.OutputFile
        self.is_disk_full = False
        shares_gpu = used.device == host.model.load_device and used.device.type != "cpu"
        super().__init__(
            None,  # see `claim`
            lambda plan: vae.codec_of(used).decoder(plan.restart_frames),
            background=used.device if host.decode_in_background and not shares_gpu else None,
            losable=True,
            while_waiting=stop_where_asked,
        )

    @property
    def shown(self) -> Fields:
        """The growing file for the player in the editor, see `player.growing`.

        None of it before the first video frame is written: until then a file of that name is that
        of an earlier render.
        """
        about = growing(self.growing, self.id, self.host.request.soundtrack is not None)
        if not self.video.video_frames:
            about["bytes"] = 0
        if self.sheets.count:
            about["pictures"] = self.sheets.count
        return about

    def claim(self, stack: ExitStack, plan: RenderPlan) -> tuple[Path, Path]:
        file = folders.growing_file(self.host.filename_prefix, self.name, plan.width, plan.height)
        self.growing = stack.enter_context(file)
        return self.growing.path, self.growing.path  # until it gets its number

    def __exit__(self, *error: Any) -> None:
        with suppress(Exception):  # something else ended the render already
            super().__exit__(*error)

    def tags(self, job: RenderJob) -> dict[str, str]:
        about = job.about if self.host.part == WHOLE else None
        return video_files.tags_of(self.host.hidden, about)

    def length(self, plan: RenderPlan) -> int:
        return plan.video_frames - skipped_video_frames(plan, self.first)

    def pictures(self, plan: RenderPlan) -> PictureSheets:
        self.sheets = PictureSheets(folders.pictures_folder(), self.id, plan.timeline.clock.fps)
        return self.sheets

    def begins_at(self, plan: RenderPlan) -> float:
        skipped = skipped_video_frames(plan, self.first)
        return super().begins_at(plan) + skipped / plan.timeline.clock.fps

    def add(self, block: Block) -> None:
        if block.index >= self.first:
            super().add(block)

    def to_decoder(self, latents: Tensor) -> Tensor:
        return vae.to_latent(self.host.model.model.latent_format, latents)

    def sentence(self, error: Exception) -> str:
        self.is_disk_full = is_disk_full(error)
        if self.is_disk_full:
            return f"No space left on the disk for {self.growing.place}"
        return super().sentence(error).replace(str(folders.output_folder()), "output")

    def complete(self) -> None:
        job = self._render.job
        # numbered now, not at the beginning: others may have come since
        with folders.output_file(
            self.host.filename_prefix, job.plan.width, job.plan.height
        ) as file:
            self.video.settings = replace(self.video.settings, path=file.path)
            super().complete()
