"""One video of a graph: rendered, with what is said on the node when it ends early."""

from __future__ import annotations

from typing import Any

from ...headforcing_core.head_profiles.auto import remember
from ...headforcing_core.render.block_keys import goes_on
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.render.provenance import about_video
from ...headforcing_core.render.resources import Needs
from . import checks, folders
from .progress import RenderProgress
from .render import RenderJob, Sampled, sample

FOUND_PROFILES = folders.user_folder("found_profiles")
RUNS = folders.runs_folder()


def sample_one(job: RenderJob, plan: RenderPlan, video: int, progress: RenderProgress, needs: Needs) -> Sampled:
    """One video; says on the node what is kept when something ends it early."""
    try:
        return sample(job, plan, video, progress)
    except BaseException as error:  # a cancel is no Exception in newer versions
        progress.stopped()
        if checks.is_out_of_memory(error):
            kept = job.runs is not None and goes_on(plan)
            raise checks.out_of_memory(error, needs, kept) from error
        raise


def keep_roles(made: Sampled, weights: str) -> str:
    """Keep roles that were found for the next run with these weights; a line for the report."""
    assert made.found_profile is not None
    counts = ", ".join(f"{n} {role}" for role, n in made.found_profile.counts().items())
    if not made.found_now:
        return f"found {counts} heads"
    path = remember(FOUND_PROFILES, weights, made.found_profile)
    return f"found {counts} heads; kept for the next run with this model in {path.name}"


def about_run(model: Any, plan: RenderPlan, method: str, seed: int) -> dict[str, Any]:
    """What to note in the run folder and in the video file."""
    return about_video(plan, method, seed, type(model.model.latent_format).__name__)
