"""The job of a plan, as a request makes it."""

from dataclasses import replace

from headforcing.headforcing_core.plan.options import DEFAULTS
from headforcing.headforcing_core.plan.request import RenderJob, RenderRequest, StartLatents


def job_of(
    plan, embeds, weights="", *, start_latents=None, video=0, state_seconds=0.0, **fields
) -> RenderJob:
    """The job of a plan with these embeddings; `start_latents [frames, channels, h, w]`, other
    fields as of a request.

    Its options are the default ones but for `state_seconds`: the plan has all others.
    """
    start = None if start_latents is None else StartLatents(start_latents[None])
    options = replace(
        DEFAULTS, state_seconds=state_seconds, seconds=plan.timeline.seconds, seed=plan.seed
    )
    request = RenderRequest(
        plan.config, options, plan.timeline, embeds, start=start, weights=weights, **fields
    )
    return request.job(plan, video)
