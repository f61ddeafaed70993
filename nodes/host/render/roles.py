"""The roles of a MODEL's heads, measured before its first render in ComfyUI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import comfy.utils
import torch
from torch import Tensor

from ....headforcing_core.head_profiles.line import answers, profile_of_note
from ....headforcing_core.plan.request import RenderJob
from ....headforcing_core.render.measured_roles import (
    FoundRoles,
    Measuring,
    setup_for,
    with_found_roles,
    with_measured_roles,
)
from .. import folders
from ..browser.player import NodePlayer
from ..browser.progress import stop_where_asked
from ..graph.video_files import heads_in
from ..model import memory
from ..sentences import Sentence
from . import bridge
from .host_render import HostRender
from .sample import RUNS, without_measuring

FOUND_PROFILES = folders.user_folder("found_profiles")


def roles_folders(render: HostRender) -> tuple[Path, ...]:
    """The folders that keep measured roles: ComfyUI's for users, or that of runs where it cannot be
    written.
    """
    return (FOUND_PROFILES, RUNS) if render.keeps_roles else ()


def with_roles(render: HostRender) -> tuple[RenderJob, FoundRoles | None]:
    """The job of a render with the roles of the MODEL's heads: those in the workflow of a video
    that was made with these weights, those that an earlier render has kept, or measured now, which
    the player and the progress bar show. A draft takes a bundled list in place of measuring.
    """
    request = render.request
    job = request.job()
    auto = job.plan.heads.auto
    note = heads_in(render.hidden)
    if auto is not None and answers(note, request.weights, auto):
        return job.with_profile(profile_of_note(note, "the workflow of a video")), None
    job = with_found_roles(job, roles_folders(render))
    if job.plan.heads.auto is None:
        return job, None
    if render.part.draft:  # its size is too small for a measurement that is kept
        options = without_measuring(request.options, request.config)
        return replace(request, options=options).job(), None
    return _measured(render, job)


def _measured(render: HostRender, job: RenderJob) -> tuple[RenderJob, FoundRoles | None]:
    """The job with roles that are measured on the MODEL now."""
    needs = render.needs(job.plan)
    setup = setup_for(job, needs)
    shown = _Shown(NodePlayer(render.hidden), setup.steps)

    def body(
        hosted: bridge.HostedModel, device: torch.device
    ) -> tuple[RenderJob, FoundRoles | None]:
        measuring = Measuring(
            device,
            hosted.attention.or_better(render.request.dtype, device, job.plan.shape),
            needs,
            roles_folders(render),
            on_step=shown.step,
            on_block=shown.block,
            while_waiting=shown.wait,
        )
        return with_measured_roles(job, hosted, measuring)

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
        shown.stop()
        raise


class _Shown:
    """Shows a measurement in the player and the progress bar of a node, and stops where ComfyUI
    asks for it.
    """

    def __init__(self, player: NodePlayer, steps: int):
        self._player = player
        self._bar = comfy.utils.ProgressBar(steps)

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        stop_where_asked()
        if latents is not None:
            self._bar.update(1)

    def block(self, done: int, count: int, left: float | None) -> None:
        if done == count:
            return
        place = Sentence("measuring the model's attention heads, once: %1 of %2", done + 1, count)
        if left is not None:
            place = Sentence("%1, about %2 s left", place, round(left))
        self._player.show("running", place)

    def wait(self) -> None:
        stop_where_asked()
        text = Sentence("waiting: another process is measuring the attention heads of this model")
        self._player.show("running", text)

    def stop(self) -> None:
        self._player.show("stopped", Sentence("Run goes on from there"))
