"""The roles of a model's heads: measured before the first render of its weights, and kept for all
later ones.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import HeadForcingError
from ..files import claimed
from ..head_profiles.auto import (
    AutoProfile,
    found_profile_path,
    load_found_profile,
    store_found_profile,
)
from ..head_profiles.profile import HeadProfile
from ..head_profiles.profiler import profile_heads
from ..head_profiles.shares import HeadShares, ProfileSetup
from ..plan.request import RenderJob
from ..plan.resources import Needs, needs_of, pass_bytes
from ..rollout.loop import StepCallback, VideoModel
from ..rollout.schedule import Schedule
from ..timeline.clock import BlockClock

SECONDS = 30.0  # of the video that is measured
MOST_STEPS = 2  # denoising steps of each block
SEED = 0
PATIENCE = 3600.0  # seconds to wait for another process that measures the same model


@dataclass(frozen=True)
class MeasuredRoles:
    """Roles that were measured for a render; `kept` is their file, None if nothing keeps them."""

    profile: HeadProfile
    seconds: float
    kept: Path | None

    @property
    def line(self) -> str:
        """A line of a report; the plan's says which rule named the roles."""
        size = self.profile.measured["size"]
        line = (
            f"measured which head is what in {self.seconds:.0f} s, on {SECONDS:.0f} s of video at "
            f"{size}: {self.profile.counted}"
        )
        if self.kept is not None:
            line += f"; kept for all renders of this model in {self.kept.name}"
        return line

    def keep(self, folder: Path, fingerprint: str) -> MeasuredRoles:
        """Store the roles for later renders of the model."""
        path = found_profile_path(folder, fingerprint)
        return replace(self, profile=store_found_profile(path, self.profile), kept=path)


def with_measured_roles(
    job: RenderJob,
    model: VideoModel,
    device: torch.device | str = "cpu",
    on_step: StepCallback = lambda block, step, latents: None,
    needs: Needs | None = None,
) -> tuple[RenderJob, MeasuredRoles | None]:
    """The job with the roles of its model's heads. They are measured now if its plan lacks them and
    no earlier render has kept them; else the second value is None.

    A stop keeps the blocks that were measured, and the next call goes on after them. Another
    process that measures the same model is waited for.

    Args:
        on_step: gets the blocks and steps of `setup_for`; it may raise to stop.
        needs: the memory of the render, by default without a decoder.
    """
    auto = job.plan.auto
    if auto is None:
        return job, None
    begun = time.perf_counter()
    folder = job.request.found_profiles
    path = None if folder is None else found_profile_path(folder, job.request.weights)
    with nullcontext() if path is None else claimed(path, patience=PATIENCE):
        # another process may have measured it meanwhile
        found = None if path is None else load_found_profile(path, auto)
        if found is not None:
            return job.with_roles(found), None
        setup = setup_for(job, needs or needs_of(job.plan, job.request.dtype, 0))
        found = _measured(job, auto, model, setup, path=path, device=device, on_step=on_step)
    measured = MeasuredRoles(found, time.perf_counter() - begun, path)
    return job.with_roles(found), measured


def setup_for(job: RenderJob, needs: Needs) -> ProfileSetup:
    """The measurement before a render: one video of the job's first prompt, at the largest size of
    the same shape that takes no more memory than the render, which has these `needs`.
    """
    plan = job.plan
    schedule = plan.schedule
    dtype = job.request.dtype
    step = schedule.latents.stride * plan.config.patch_size[2]
    setup = None
    for width in range(plan.width, 0, -step):
        height = max(step, int(plan.height * width / plan.width) // step * step)
        setup = ProfileSetup.of(
            job.request.weights,
            plan.config,
            (plan.timeline.texts[0],),
            BlockClock(schedule.frames_per_block).blocks_for(SECONDS),
            family=fewer_steps(schedule),
            size=(width, height),
            seed=SEED,
        )
        shape = setup.shape(plan.config)
        tokens = setup.frames_per_block * shape.frame_tokens
        taken = shape.bytes(dtype) + pass_bytes(plan.config, tokens, dtype)
        if taken + needs.prompt <= needs.working:
            break
    assert setup is not None  # a plan has a size
    return setup


def fewer_steps(schedule: Schedule) -> Schedule:
    """A schedule with every second or third of its noise levels, so that at most `MOST_STEPS` are
    left; the same where a solver needs all of them.
    """
    count = len(schedule.sigmas)
    if count <= MOST_STEPS or schedule.solver != "renoise":
        return schedule
    every = math.ceil(count / MOST_STEPS)
    return replace(schedule, sigmas=schedule.sigmas[::every], first_block_sigmas=None)


def _measured(
    job: RenderJob,
    auto: AutoProfile,
    model: VideoModel,
    setup: ProfileSetup,
    *,
    path: Path | None,
    device: torch.device | str,
    on_step: StepCallback,
) -> HeadProfile:
    """Measure the roles, going on after the blocks that `path` has beside it."""
    partial = None if path is None else path.with_suffix(".safetensors")
    shares = _unfinished(partial, setup)
    try:
        profile_heads(
            model,
            job.plan.config,
            shares,
            {0: job.script.embedding(0)},
            dtype=job.request.dtype,
            device=device,
            on_step=on_step,
        )
    finally:
        if partial is not None and shares.missing_prompts():
            shares.save(partial)
    if not torch.isfinite(shares.mean()).all():
        raise HeadForcingError(
            "head roles: NaN or infinity while they were measured; compute in bf16 or float32, "
            "or load the model again"
        )
    profile = shares.profile("measured", {"note": "one prompt, measured before a render"})
    found = auto.of(profile)
    if path is None or partial is None:
        return found
    found = store_found_profile(path, found)
    partial.unlink(missing_ok=True)
    return found


def _unfinished(partial: Path | None, setup: ProfileSetup) -> HeadShares:
    """The shares that a stopped measurement with the same setup has stored, else empty ones."""
    if partial is not None and partial.exists():
        try:
            shares = HeadShares.load(partial)
        except HeadForcingError:
            return HeadShares(setup)
        if shares.setup == setup:
            return shares
    return HeadShares(setup)
