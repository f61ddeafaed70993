"""A request with the MODEL of ComfyUI that carries it out, and where its videos go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image

from ....headforcing_core.demo import assets
from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.remedies import check_decoder
from ....headforcing_core.plan.request import RenderRequest
from ....headforcing_core.plan.resources import COMFYUI, NO_DECODER, Needs, needs_of
from ....headforcing_core.video.memory import DecoderMemory
from ..browser.live_story import LiveStory
from ..graph.part import WHOLE, Part
from ..model import memory, vae
from ..model.native_model import is_toy_model


@dataclass(frozen=True)
class HostRender:
    """A request with the MODEL that carries it out, and where its videos go.

    Attributes:
        vae: decodes blocks as they are finished, to a file of that prefix; None decodes nothing.
        live_vae: decodes them first, on the same device; then `vae` does when all are there. None
            for no such decoder.
        hidden: the hidden inputs of the node, whose graph the file carries.
        story: asked for other prompts during the render.
        part: of each video that is made and decoded.
        keeps_roles: whether measured roles of heads are kept for later renders of the MODEL: not if
            its name does not tell it from others.
        portrait: what the video begins with, to be shown until there is more.
    """

    model: Any
    request: RenderRequest
    vae: Any = None
    live_vae: Any = None
    filename_prefix: str = ""
    hidden: Any = None
    decode_in_background: bool = False
    story: LiveStory | None = None
    part: Part = WHOLE
    keeps_roles: bool = False
    portrait: Image.Image | None = None

    @property
    def vaes(self) -> list[Any]:
        """All VAEs that decode."""
        return [each for each in (self.vae, self.live_vae) if each is not None]

    def decoder(self, plan: RenderPlan) -> DecoderMemory:
        """Bytes that decoding takes on the device that samples."""
        if self.vae is None or self.vae.device != self.model.load_device:
            return NO_DECODER
        return self._decoder(plan)

    def _decoder(self, plan: RenderPlan) -> DecoderMemory:
        """Bytes that decoding takes where the VAE is."""
        size = plan.block_shape[-2:]
        memory = vae.decoder_memory(self.vae, size)
        if self.live_vae is None:
            return memory
        return memory.after(vae.decoder_memory(self.live_vae, size))

    def needs(self, plan: RenderPlan) -> Needs:
        """Bytes that a video takes on the device that samples, besides all weights."""
        return needs_of(plan, self.request.dtype, 0, decoder=self.decoder(plan))

    @property
    def scale(self) -> int:
        """The factor by which the VAE makes pictures larger than the plan's."""
        return 1 if self.vae is None else vae.picture_scale(self.vae)

    def check_needs(self, plan: RenderPlan, videos: int = 1) -> Needs:
        """Estimate what that many videos take; refuses what cannot be rendered or cannot fit on the
        device.
        """
        model = self.model
        of_demo = "x".join(map(str, assets.SIZE))
        if is_toy_model(model) and plan.size_text != of_demo:
            raise HeadForcingError(
                f"the demo model makes videos of {of_demo} only, got {plan.size_text}"
            )
        if self.vae is not None:
            vae.check_vae(self.vae, plan.config.latents)
            if vae.is_of_demo(self.vae) != is_toy_model(model):
                raise HeadForcingError(
                    "vae: the VAE of Load Demo Model belongs to the demo model alone; connect the "
                    "one that belongs to the model"
                )
            if self.vae.device not in (model.load_device, torch.device("cpu")):
                check_decoder(self._decoder(plan), plan.size_text, memory.room_on(self.vae.patcher))
        plan.check_encoder(self.vae is not None, "connect the Wan 2.1 VAE to the sampler")
        request = self.request
        finished = [request.job(plan, video).finished_blocks for video in range(videos)]
        needs = needs_of(
            plan,
            request.dtype,
            int(model.model_size()),
            decoder=self.decoder(plan),
            kept=request.runs is not None,
            state=request.options.state_seconds > 0,
            writes_video=self.vae is not None,
            scale=self.scale,
            videos=videos,
            finished_blocks=sum(finished),
        )
        savings = replace(COMFYUI, streams_weights=model.load_device.type != "cpu")
        request.check_needs(needs, plan, memory.room_on(model), savings)
        return needs
