"""Making the video of a job, from rows to finished blocks: its listeners, its run folder and a
report at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ...kernels.dispatch import kernels_put_aside
from ..cache.base import Cache
from ..devices import Device, upload
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction, sdpa
from ..names import versions
from ..plan.request import RenderJob
from ..queue_thread import QueueThread
from ..rollout.loop import Block, RolloutInputs, VideoModel
from ..rollout.rows import SeededNoise
from ..runs.folder import RunFolder
from ..weights.containers import first_not_finite
from .result import RenderResult
from .run import MAX_WAITING_TASKS, Run


@dataclass(frozen=True)
class Place:
    """Device, attention and caches with which a video is made."""

    device: Device = "cpu"
    attention: AttentionFunction = sdpa
    attention_choice: str = "auto"  # the user's name for `attention`, for reports
    # an empty one in place of the plan's; it is never stored
    make_cache: Callable[[RenderJob], Cache] | None = None
    # gives all processes what one has read from disk
    share: Callable[[Any], Any] = lambda read: read


HERE = Place()


class Listener:
    """Receives the events of a render; a context manager, entered before it begins. Any method may
    raise to stop it.
    """

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def begin(self, render: Render) -> None:
        """The render begins; what an earlier one has finished is known. `render.job` has the
        current story, which may be another one after any block.
        """

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        """A denoising step is done, or with None a pass of the model is about to begin; as
        `RolloutInputs.on_step`.
        """

    def add(self, block: Block) -> None:
        """The next block is finished; start blocks and those of earlier renders included."""

    def finish(self) -> None:
        """All blocks are there."""


class Render:
    """One video while it is made.

    Attributes:
        job: with the current story. It stands nowhere else: the run folder, the listeners and the
            report read it here. `LiveEdits` puts another one here, and its rows into the script.
        run, model, script: until the render has ended, see `release`.
    """

    def __init__(
        self,
        job: RenderJob,
        model: VideoModel,
        place: Place,
        folder: RunFolder | None = None,
        thread: QueueThread | None = None,
        listeners: Sequence[Listener] = (),
    ):
        self.job = job
        self.model = model
        self.place = place
        self.listeners = listeners
        self.script = job.script
        self.run = Run(self, folder, thread, place.share)
        if place.make_cache is not None:  # the state of a part of a cache is no state of the cache
            self.run.state_seconds = 0.0
        # per block under way, whether each step's prediction is finite
        self._finite: dict[int, list[Tensor]] = {}

    def blocks(self) -> Iterator[Block]:
        """Yield all blocks, start blocks and those of earlier renders included; new ones are stored
        meanwhile.
        """
        self.run.resume(self._new_cache, self.script)
        for listener in self.listeners:
            listener.begin(self)
        finished = 0
        begun = time.perf_counter()
        for block in self._rollout():
            self.check_finite(block)
            block = self.run.add(block, time.perf_counter() - begun)
            finished = block.index + 1
            for listener in self.listeners:
                listener.add(block)
            self.run.measure(block)
            yield block
            if finished == self.job.end_block < self.job.plan.blocks:
                break
            begun = time.perf_counter()
        self.run.finish(finished == self.job.plan.blocks)
        for listener in self.listeners:
            listener.finish()

    def release(self) -> None:
        """Drop the model, the caches and the listeners. A listener that keeps the render keeps only
        its job: in a circle of references the caches would stay until Python looks for circles."""
        self.listeners = ()
        del self.run, self.model, self.script

    def _new_cache(self) -> Cache:
        job = self.job
        place = self.place
        if place.make_cache is not None:
            return place.make_cache(job)
        return job.plan.make_cache(job.request.dtype, place.device, place.attention)

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        """Pass a denoising step on; the test of its result runs on its device, and nothing waits
        for the answer.
        """
        if latents is not None:
            self._finite.setdefault(block, []).append(torch.isfinite(latents).all())
        for listener in self.listeners:
            listener.step(block, step, latents)

    def check_finite(self, block: Block) -> None:
        """Refuse a new block with NaN or infinity, and name its first bad denoising step; those
        before it stay.
        """
        steps = self._finite.pop(block.index, [])
        # the copy comes before the decoder's work for this block, which later ones would wait for
        if not self.run.is_made(block.index) or torch.isfinite(block.in_main_memory).all():
            return
        bad = next((number for number, finite in enumerate(steps, 1) if not finite), None)
        place = f"block {block.index + 1} of {self.job.plan.blocks}"
        if bad:
            place += f", denoising step {bad} of {len(steps)}"
        backbone = self.model.backbone
        weight = first_not_finite(
            backbone.named_parameters() if isinstance(backbone, torch.nn.Module) else ()
        )
        if weight is not None:
            raise HeadForcingError(
                f"{place}: NaN or infinity, because the weight {weight} holds some; load or "
                "convert the model again"
            )
        dtype = str(self.job.request.dtype).removeprefix("torch.")
        raise HeadForcingError(
            f"{place}: NaN or infinity in the latents; compute in bf16 or float32 (now {dtype}) or "
            "choose another attention backend; blocks stored before it stay"
        )

    def _rollout(self) -> Iterator[Block]:
        """All blocks, from the method's loop; where all are stored they are read, and the model is
        not called.
        """
        job = self.job
        run = self.run
        ready = run.ready_blocks()
        if run.needs_no_model:
            for index, latents in enumerate(ready):
                self.step(index, 0, None)
                yield Block(index, upload(latents, run.cache.device))
            return
        inputs = RolloutInputs(
            self.script,
            SeededNoise(job.plan.block_shape, job.video),
            ready,
            held=run.start if job.plan.held_frames else None,
            extra=run.stored[-1].extra if run.stored else {},
            reencode=None if job.request.codec is None else job.request.codec.reencode,
            on_step=self.step,
        )
        conditions = job.request.conditions
        if conditions is not None and run.start is not None:
            self.model.use_conditions(conditions.of_video(run.start))
        yield from job.plan.method.rollout(self.model, run.cache, inputs)


# ----------------------------------------------------------------------------------- making a video


def make_video(
    job: RenderJob, model: VideoModel, place: Place = HERE, listeners: Sequence[Listener] = ()
) -> RenderResult:
    """Make the video. The listeners get each block before the next one is begun; a thread stores it
    meanwhile.
    """
    begun = time.perf_counter()
    with ExitStack() as stack:
        render = stack.enter_context(begin_render(job, model, place, listeners))
        for listener in listeners:
            stack.enter_context(listener)
        for _ in render.blocks():
            pass
        return _result(render, time.perf_counter() - begun)


def make_blocks(job: RenderJob, model: VideoModel, place: Place = HERE) -> Iterator[Block]:
    """Yield all blocks of the video, start blocks included, as they are finished."""
    with begin_render(job, model, place) as render:
        yield from render.blocks()


@contextmanager
def begin_render(
    job: RenderJob, model: VideoModel, place: Place = HERE, listeners: Sequence[Listener] = ()
) -> Iterator[Render]:
    """A render of this video, with its run folder open where there is one; the roles of the heads
    must be known.
    """
    request = job.request
    if job.plan.heads.auto is not None:
        raise HeadForcingError(
            "head roles: they are not known before the render; measure them with "
            "`with_measured_roles`, or give a head profile"
        )
    attention = attention_name(place.attention, place.attention_choice)
    about = {**request.about, "attention": attention}
    if request.runs is not None:
        about["versions"] = versions()
    pictures = request.pictures and place.share(dict(request.pictures))
    job = job.with_request(about=about, pictures=pictures)
    job.request.check_finite()
    job.request.check_conditions(job.plan)
    job.plan.check_encoder(request.codec is not None, "give `codec`")
    with ExitStack() as stack:
        folder = thread = None
        if request.runs is not None:
            folder = stack.enter_context(
                RunFolder(request.runs, job.setup_key, job.about, request.patience)
            )
            thread = stack.enter_context(QueueThread("storing", MAX_WAITING_TASKS))
        render = Render(job, model, place=place, folder=folder, thread=thread, listeners=listeners)
        try:
            yield render
        finally:
            render.release()


def _result(render: Render, seconds: float) -> RenderResult:
    run = render.run
    job = render.job
    return RenderResult(
        events=run.events,
        run_report=run.meter.report(run.events),
        cache_bytes=run.cache.bytes,
        seconds=seconds,
        seconds_per_block=run.seconds_per_block,
        reused_blocks=len(run.stored),
        problems=run.problems,
        attention=job.about["attention"],
        job=job,
        recalls=run.recalls,
        kernels=kernels_put_aside(torch.device(render.place.device)),
    )


def attention_name(attention: AttentionFunction, chosen: str) -> str:
    """The name of a backend for reports: its own, else the user's choice, where `auto` is
    resolved.
    """
    name: str = getattr(attention, "name", "")  # a host's attention has one, too
    if name or chosen != "auto" or not isinstance(attention, FunctionType):
        return name or chosen
    return attention.__name__
