"""The roles of a MODEL's heads, measured before its first render in ComfyUI."""

from __future__ import annotations

from dataclasses import replace

import comfy.utils
import torch
from torch import Tensor

from ....headforcing_core.head_profiles.line import answers, profile_of_note
from ....headforcing_core.plan.request import RenderJob
from ....headforcing_core.render.measured_roles import (
    FoundRoles,
    Measuring,
    setup_for,
    with_measured_roles,
)
from ..browser.player import NodePlayer
from ..browser.progress import stop_where_asked
from ..graph.video_files import heads_in
from ..model import memory
from ..sentences import Sentence
from . import bridge
from .host_render import HostRender
from .sample import without_measuring


def with_roles(render: HostRender) -> tuple[RenderJob, FoundRoles | None]:
    """The job of a render with the roles of the MODEL's heads: those in the workflow of a video
    that was made with these weights, those that an earlier render has kept, or measured now, which
    the player and the progress bar show. A draft takes a bundled list in place of measuring.
    """
    request = render.request
    job = request.job()
    note = heads_in(render.hidden)
    if job.plan.auto is not None and answers(note, request.weights, job.plan.auto):
        return job.with_roles(profile_of_note(note, "the workflow of a video")), None
    job = job.with_found_roles()
    if job.plan.auto is None:
        return job, None
    if render.part.draft:  # its size is too small for a measurement that is kept
        options = without_measuring(request.options, request.config)
        return replace(request, options=options).job(), None
    needs = render.needs(job.plan)
    setup = setup_for(job, needs)
    bar = comfy.utils.ProgressBar(setup.steps)
    player = NodePlayer(render.hidden)

    def on_step(block: int, step: int, latents: Tensor | None) -> None:
        stop_where_asked()
        if latents is not None:
            bar.update(1)

    def on_block(done: int, count: int, left: float | None) -> None:
        if done == count:
            return
        place = Sentence("measuring the model's attention heads, once: %1 of %2", done + 1, count)
        if left is not None:
            place = Sentence("%1, about %2 s left", place, round(left))
        player.show("running", place)

    def body(
        hosted: bridge.HostedModel, device: torch.device
    ) -> tuple[RenderJob, FoundRoles | None]:
        attention = hosted.attention.or_better(request.dtype, device, job.plan.shape)
        measuring = Measuring(
            device,
            attention,
            needs,
            on_step=on_step,
            on_block=on_block,
            while_waiting=while_waiting,
        )
        return with_measured_roles(job, hosted, measuring)

    def while_waiting() -> None:
        stop_where_asked()
        text = Sentence("waiting: another process is measuring the attention heads of this model")
        player.show("running", text)

    try:
        with memory.explained(needs, kept=False):
            return bridge.host(
                render.model,
                job.script.embedding(0),
                setup.schedule,
                setup.block_shape(job.plan.config),
                memory=needs.working,
                body=body,
            )
    except BaseException:  # a cancel is no Exception in newer versions
        player.show("stopped", Sentence("Run goes on from there"))
        raise
