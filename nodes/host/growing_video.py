"""The video file of a render, which grows while the blocks are sampled."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import comfy.model_management
import torch
from torch import Tensor

from ...headforcing_core.files import is_disk_full
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.render.sinks import VideoFile
from . import folders, helpers
from .vae import check_vae, codec_of


class GrowingVideo(VideoFile):
    """Decodes blocks as they are finished and writes them to a file in the output folder that plays at any time.

    A decoder or a disk that fails ends the video, not the sampling: the latents are what took the time.

    Args:
        to_latent: from the latents of the model to those of a LATENT, `[1, 16, frames, h, w]`.
        name: tells this video from others in the name of the growing file. The same video made again replaces it.
        tags: the tags of the file, from what is noted `about` the video.
        device: where the model samples.
        background: decode in a thread of its own where the VAE is on another GPU than the model. On the same one
            they would take turns, and ComfyUI's weight streaming is not made for two threads.

    Attributes:
        growing: the file that grows; set when the render begins.
        is_disk_full: whether it ended early because there was no space left.
    """

    passes = (comfy.model_management.InterruptProcessingException,)

    def __init__(
        self,
        vae: Any,
        prefix: str,
        plan: RenderPlan,
        *,
        to_latent: Callable[[Tensor], Tensor],
        name: str,
        tags: Callable[[Mapping[str, Any]], dict[str, str]],
        about: Mapping[str, Any],
        device: torch.device,
        background: bool = False,
    ):
        check_vae(vae)
        self.prefix, self.name = prefix, name
        self.shares_device = vae.device == device and device.type != "cpu"
        self.id = uuid.uuid4().hex  # a render that goes on writes the file of that name from its beginning
        self.growing: folders.OutputFile
        self.is_disk_full = False
        self._to_latent, self._tags, self._about = to_latent, tags, about
        super().__init__(
            None,  # see `claim`
            plan,
            lambda: codec_of(vae).decoder(plan.restart_frames),
            tags(about),
            background=vae.device if background and not self.shares_device else None,
            losable=True,
            while_waiting=comfy.model_management.throw_exception_if_processing_interrupted,
        )

    @property
    def shown(self) -> dict[str, Any]:
        """The growing file for the player in the editor: what it is, and how many bytes can be read by now.

        None before the first video frame is written: until then a file of that name is that of an earlier render.
        """
        written = 0
        with suppress(OSError):  # it is finished, and has its number
            written = self.growing.path.stat().st_size if self.video.video_frames else 0
        return {**helpers.saved(self.growing), "id": self.id, "bytes": written}

    def claim(self, stack: ExitStack) -> tuple[Path, Path]:
        size = self.plan.width, self.plan.height
        self.growing = stack.enter_context(folders.growing_file(self.prefix, self.name, *size))
        return self.growing.path, self.growing.path  # until it gets its number

    def __exit__(self, *error: Any) -> None:
        with suppress(Exception):  # something else ended the render already
            super().__exit__(*error)

    def tags_of(self, about: Mapping[str, Any]) -> dict[str, str]:
        self._about = about
        return self._tags(about)

    def to_decoder(self, latents: Tensor) -> Tensor:
        return self._to_latent(latents.transpose(0, 1)[None])[0].transpose(0, 1)

    def sentence(self, error: Exception) -> str:
        self.is_disk_full = is_disk_full(error)
        if self.is_disk_full:
            return f"No space left on the disk for output/{self.growing.label}"
        return super().sentence(error).replace(str(folders.output_folder()), "output")

    def complete(self) -> None:
        self.video.metadata = self._tags(self._about)  # the queued graph got the latest story after `change`
        # numbered now, not at the beginning: others may have come since
        with folders.output_file(self.prefix, ".mp4", self.plan.width, self.plan.height) as file:
            self.video.path = file.path
            super().complete()
