"""Live decoding: the file of a render grows by a tiny decoder until all blocks are there; then the
VAE decodes them into the final file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.sd
import comfy.utils
from torch import Tensor

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.model.latents import WAN21, WAN22, LatentFormat
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.render.drafted_video import DraftedVideo
from ....headforcing_core.render.sinks import FileTarget, VideoFile
from ....headforcing_core.video.advice import tiny_names
from ....headforcing_core.video.tiny_decoder import tiny_sizes
from .. import folders
from ..browser.progress import RenderProgress
from ..model.vae import check_vae, codec_of, is_draft, is_of_demo
from .host_render import HostRender
from .take_file import link_file, linked_file

NONE = "none"


def choices() -> list[str]:
    """Values of the widget: none, and the tiny decoders of Wan in ComfyUI's models."""
    return [NONE, *folders.tiny_decoders((*tiny_names(WAN21), *tiny_names(WAN22)))]


def load_live_decoder(name: str, vae: Any, latents: LatentFormat) -> Any:
    """The VAE in the file of that name, on the device of `vae`; None for none.

    Raises HeadForcingError for what is no tiny decoder of these latents, or of no use beside `vae`.
    """
    if name == NONE:
        return None
    if vae is None:
        raise HeadForcingError(
            "live_decoder shows a video until a VAE decodes it: connect one to vae, or choose none"
        )
    check_vae(vae, latents)
    if is_of_demo(vae) or is_draft(vae):
        kind = "the VAE of the demo model" if is_of_demo(vae) else "a tiny decoder, too"
        raise HeadForcingError(
            f"live_decoder is for the VAE of a Wan model, and vae is {kind}: choose none"
        )
    path = folders.model_file("vae_approx", name)
    if path is None:
        raise HeadForcingError(
            f"live_decoder: {name!r} is not in ComfyUI/models/vae_approx; choose another, or none"
        )
    weights = comfy.utils.load_torch_file(str(path))
    sizes = tiny_sizes(weights)
    if sizes is None or sizes[1] is not latents:
        raise HeadForcingError(
            f"live_decoder: {name} is no tiny decoder for latents of {latents.channels} channels; "
            f"choose a file such as {tiny_names(latents)[1]}safetensors, or none"
        )
    return comfy.sd.VAE(sd=weights, device=vae.device)


def drafted(
    render: HostRender, progress: RenderProgress, target: FileTarget, **options: Any
) -> VideoFile:
    """The file of a render, with further arguments of `VideoFile`.

    The draft gets the number of the final file, and is noted as that of the take: a later render
    replaces it, too, if this one is stopped before.
    """
    live = render.live_vae
    assert target.claim_last is not None
    claim_number = target.claim_last
    codec = replace(codec_of(live), encode=codec_of(render.vae).encode)

    @contextmanager
    def claim_last(plan: RenderPlan) -> Iterator[Path]:
        draft = linked_file(render, video.job, live)
        with claim_number(plan) if draft is None else nullcontext(draft) as path:
            yield path

    def second_pass(blocks: list[Tensor]) -> Iterator[Tensor]:
        assert video.draft is not None
        if video.draft.info is not None:
            link_file(render, video.job, video.draft.info.path, live)
        for index, latents in enumerate(blocks):
            progress.decoding(index)
            yield latents

    video = DraftedVideo(
        replace(target, claim_last=claim_last),
        draft_decoder=lambda plan: codec.decoder(plan.vae_notes),
        second_pass=second_pass,
        **options,
    )
    return video
