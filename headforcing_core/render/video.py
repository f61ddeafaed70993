"""Making the video of a job: with its run folder, its listeners and a report at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from ...kernels.dispatch import kernels_put_aside
from ..head_profiles.auto import store_found_profile
from ..rollout.loop import Block, JointModel
from ..runs.folder import RunFolder
from ..runs.stored import earlier_video
from .job import RenderJob
from .provenance import attention_name
from .render import Listener, Place, Render
from .result import RenderResult
from .run import Run

HERE = Place()
_EARLIER = "Head Forcing: all blocks are made again: %s in %s is of an earlier version, whose blocks no render reuses"

log = logging.getLogger(__name__)


def make_video(
    job: RenderJob, model: JointModel, place: Place = HERE, listeners: Sequence[Listener] = ()
) -> RenderResult:
    """Make the video. The listeners get each block before the next one is begun; a thread stores it meanwhile."""
    begun = time.perf_counter()
    with ExitStack() as stack:
        render = stack.enter_context(begin_render(job, model, place, listeners))
        for listener in listeners:
            stack.enter_context(listener)
        for _ in render.blocks():
            pass
        return _result(render, time.perf_counter() - begun)


def make_blocks(job: RenderJob, model: JointModel, place: Place = HERE) -> Iterator[Block]:
    """Yield all blocks of the video, start blocks included, as they are finished."""
    with begin_render(job, model, place) as render:
        yield from render.blocks()


@contextmanager
def begin_render(
    job: RenderJob, model: JointModel, place: Place = HERE, listeners: Sequence[Listener] = ()
) -> Iterator[Render]:
    """A render of this video, with its run folder open where there is one."""
    if job.pictures:
        job = replace(job, pictures=place.share(dict(job.pictures)))
    job.check_finite()
    name = attention_name(place.attention, place.attention_choice)
    job = replace(job, about={**job.about, "attention": name})
    job.plan.check_encoder(job.codec is not None, "give `codec`")
    with ExitStack() as stack:
        folder, keys, known, state_seconds = None, list[str](), False, job.state_seconds
        if job.runs is not None:
            folder, keys = stack.enter_context(RunFolder(job.runs, job.setup, job.about, job.patience)), job.keys
            known = folder.save_video(keys, job.about)
            if not job.finished_blocks and (earlier := earlier_video(job.runs, job.about)) is not None:
                log.warning(_EARLIER, earlier.name, job.runs)
        if place.new_cache is not None:  # the state of a part of a cache is no state of the cache
            state_seconds = 0.0
        run = stack.enter_context(Run(job.plan, folder, keys, state_seconds, place.share, job.until))
        run.known = known
        render = Render(job, model, place, run, listeners)
        try:
            yield render
        finally:
            # listeners know the render: in a circle, model and cache would stay until Python looks for circles
            render.listeners = ()


def _result(render: Render, seconds: float) -> RenderResult:
    run, job, kept = render.run, render.job, None
    if job.found_profiles is not None and run.found_profile is not None and run.found_now:
        kept = store_found_profile(job.found_profiles, job.weights, run.found_profile)
    return RenderResult(
        events=run.events,
        run=run.meter.report(run.events),
        cache_bytes=run.cache.bytes,
        seconds=seconds,
        seconds_per_block=run.seconds_per_block,
        reused_blocks=len(run.stored),
        found_profile=run.found_profile,
        found_now=run.found_now,
        kept_profile=kept,
        problems=run.problems,
        attention=job.about["attention"],
        guards=run.guards,
        plan=job.plan,
        embeds=job.embeds,
        about=job.about,
        recalls=run.recalls,
        kernels=kernels_put_aside(torch.device(render.place.device)),
    )
