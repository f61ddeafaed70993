"""The roles of a model's heads: measured before the first render of its weights, and kept for all
later ones.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..devices import Device, empty_cache
from ..errors import HeadForcingError
from ..files import TargetInUse, check_writable, claimed
from ..hashing import digest
from ..head_profiles.agreement import compare_profiles
from ..head_profiles.auto import (
    AutoProfile,
    found_profile_path,
    load_found_profile,
    store_found_profile,
)
from ..head_profiles.profile import HeadProfile, bundled_profiles, load_profile
from ..head_profiles.profiler import profile_heads
from ..head_profiles.shares import WINDOW, HeadShares, ProfileSetup, measured_blocks
from ..model.attention import AttentionFunction, sdpa
from ..plan.layout import bundled_profile
from ..plan.request import RenderJob
from ..plan.resources import Needs, needs_of, pass_bytes
from ..rollout.loop import StepCallback, VideoModel
from ..rollout.schedule import Schedule
from .measuring_time import MeasuringClock, known_seconds, note_speed

log = logging.getLogger(__name__)

VIDEOS = 4  # of a window each
SPEED = ".speed"  # of the file that notes how fast a device is that is too slow
LISTED = "self_forcing"  # the bundled profile that was measured on the published weights
UNUSUAL = 0.6  # of the heads; the roles in any order agree on 0.4
MOST_STEPS = 2  # denoising steps of each block
SEED = 0
# of a step that another process takes to measure the same model; then this one measures, too
PATIENCE = 60.0
ASK_AGAIN_SECONDS = 0.5
WAITING = "waiting: another process is measuring the attention heads of this model"


@dataclass(frozen=True)
class Measuring:
    """Device, backend, memory and progress of a measurement before a render.

    Attributes:
        attention: the backend that renders.
        needs: the memory of the render, by default without a decoder.
        folders: keep what is measured, in files by the name of the weights; the first that can be
            written gets it. None keep nothing.
        on_step: gets the blocks and steps of `setup_for`; it may raise to stop.
        on_block: gets the numbers of finished blocks and of all, and the seconds that are left,
            None until they are known; called at the begin and after each block.
        while_waiting: called every half second while another process measures; it may raise to
            stop.
    """

    device: Device = "cpu"
    attention: AttentionFunction = sdpa
    needs: Needs | None = None
    folders: Sequence[Path] = ()
    on_step: StepCallback = lambda block, step, latents: None
    on_block: Callable[[int, int, float | None], object] = lambda done, count, left: None
    while_waiting: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class MeasuredRoles:
    """Roles that were measured for a render; `kept` is their file, None if nothing keeps them;
    `beside` says how far they agree with the list of a model of this size, empty for none, and
    `problem` why `kept` is not the file of all renders.
    """

    profile: HeadProfile
    seconds: float
    kept: Path | None = None
    beside: str = ""
    problem: str = ""

    @property
    def line(self) -> str:
        """A line of a report; the plan's says which rule named the roles."""
        size = self.profile.measured["size"]
        line = (
            f"measured which head is what in {self.seconds:.0f} s, on {VIDEOS} videos of {WINDOW} "
            f"latent frames at {size}: {self.profile.counted}"
        )
        if self.kept is not None:
            whose = "all renders of this model in"
            if self.problem:
                whose = f"renders with run folders in {self.kept.parent}, in"
            line += f"; kept for {whose} {self.kept.name}"
        if self.problem:
            line += f"; {self.problem}; --found-profiles of a command names another folder"
        return "; ".join(filter(None, [line, self.beside]))

    def keep(self, files: Iterable[Path]) -> MeasuredRoles:
        """Store the roles for later renders of the model, in the first of these files that can be
        written.
        """
        problem = ""
        for file in files:
            try:
                profile = store_found_profile(file, self.profile)
            except HeadForcingError as error:
                problem = problem or str(error).partition(": choose")[0]
            else:
                return replace(self, profile=profile, kept=file, problem=problem)
        return replace(self, problem=problem)


@dataclass(frozen=True)
class ListedRoles:
    """Roles of a bundled list, since measuring would take so many `seconds`."""

    profile: HeadProfile
    seconds: float
    most: float  # seconds that it may take

    @property
    def line(self) -> str:
        """A line of a report."""
        return (
            f"roles are those of the bundled profile {self.profile.name!r}: measuring which head "
            f"is what would take {self.seconds:.0f} s here, more than {self.most:g} s; to measure "
            f"anyway choose the profile `auto` with measure_seconds above {self.seconds:.0f}"
        )


FoundRoles = MeasuredRoles | ListedRoles


class _TooSlow(Exception):
    """Raised where measuring would take longer than it may."""


def roles_files(folders: Iterable[Path], weights: str) -> list[Path]:
    """The files that may hold the roles that were measured for these weights."""
    return [found_profile_path(folder, weights) for folder in folders]


def with_found_roles(job: RenderJob, folders: Iterable[Path]) -> RenderJob:
    """The job with the roles that were measured before an earlier render of its model, if its plan
    lacks them and one of these folders has kept them.
    """
    auto = job.plan.heads.auto
    if auto is not None:
        for file in roles_files(folders, job.request.weights):
            found = load_found_profile(file, auto)
            if found is not None:
                return job.with_profile(found)
    return job


def with_measured_roles(
    job: RenderJob, model: VideoModel, measuring: Measuring = Measuring()
) -> tuple[RenderJob, FoundRoles | None]:
    """The job with the roles of its model's heads. They are measured now if its plan lacks them and
    no earlier render has kept them; else the second value is None.

    Where the first measured block shows that measuring takes longer than `AutoProfile` allows, a
    bundled list that fits the model is used in its place. Later renders do so at once on a device
    of this name.

    A stop keeps the blocks that were measured, and the next call goes on after them. Another
    process that measures the same model is waited for; if it makes no step for `PATIENCE` seconds,
    this one measures, too, and the roles that are kept first are those of both.
    """
    auto = job.plan.heads.auto
    if auto is None:
        return job, None
    files = roles_files(measuring.folders, job.request.weights)
    path = _writable(files)
    partial = None if path is None else path.with_suffix(".safetensors")
    with ExitStack() as stack:
        if path is not None and partial is not None:
            if not _is_claimed(stack, path, partial, measuring.while_waiting):
                partial = None
            known = with_found_roles(
                job, measuring.folders
            )  # measured by another process meanwhile
            if known.plan.heads.auto is None:
                return known, None
        begun = time.perf_counter()
        try:
            shares = _Measurement(job, measuring, partial).run(model)
        except _TooSlow as slow:
            empty_cache(measuring.device)
            return _with_list(job, *slow.args)
        empty_cache(measuring.device)  # pieces that do not fit the render's
        profile = shares.profile("measured", {"note": "measured before a render"})
        found = auto.of(profile)
        seconds = time.perf_counter() - begun
        measured = MeasuredRoles(found, seconds, beside=beside_list(found, auto))
        known = with_found_roles(
            job, measuring.folders
        )  # by a process that did not wait for this one
        if known.plan.heads.auto is not None:
            measured = measured.keep(files)
        if partial is not None:
            partial.unlink(missing_ok=True)
            partial.with_suffix(SPEED).unlink(missing_ok=True)
    if known.plan.heads.auto is None:
        return known, None
    return job.with_profile(measured.profile), measured


def beside_list(profile: HeadProfile, auto: AutoProfile) -> str:
    """The number of heads that have the same role in the list of `LISTED`, by the same rule; empty
    for a model of another size.
    """
    listed = auto.of(load_profile(bundled_profiles()[LISTED]))
    if (profile.num_layers, profile.num_heads) != (listed.num_layers, listed.num_heads):
        return ""
    compared = compare_profiles(profile, listed)
    text = f"{compared.same} of {compared.heads} heads are what the bundled profile {LISTED!r} says"
    if compared.same < UNUSUAL * compared.heads:
        text += (
            f", which is unusual: below {UNUSUAL:.0%} check that the model family is that of the "
            "weights"
        )
    return text


def _writable(files: Iterable[Path]) -> Path | None:
    """The first of these files that can be written; None if none can."""
    for file in files:
        with suppress(HeadForcingError):
            check_writable(file)
            return file
    return None


def _is_claimed(
    stack: ExitStack, path: Path, partial: Path, while_waiting: Callable[[], object]
) -> bool:
    """Claim the file of the roles until the stack is closed, as soon as no other process has it.

    False if another one keeps it, but has made no step for `PATIENCE` seconds, by the time of
    `partial` in its file system: its computer sleeps, or it was paused.
    """
    seen = _last_written(partial)
    since = time.monotonic()
    said = False
    while True:
        try:
            stack.enter_context(claimed(path))
        except TargetInUse:
            if not said:
                log.info("Head Forcing: %s", WAITING)
            said = True
        except HeadForcingError:  # a drive without locks
            return False
        else:
            return True
        while_waiting()
        now = _last_written(partial)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            return False
        time.sleep(ASK_AGAIN_SECONDS)


def _last_written(path: Path) -> int | None:
    """The time at which a file was last written to, in ns; None where there is none."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None


def setup_for(job: RenderJob, needs: Needs) -> ProfileSetup:
    """The measurement before a render: short videos of the job's prompts in turn, at the largest
    size of the same shape that takes no more memory than the render, which has these `needs`.
    """
    plan = job.plan
    schedule = plan.schedule
    dtype = job.request.dtype
    timeline = plan.timeline
    texts = list(dict.fromkeys(timeline.spoken(segment) for segment in timeline.segments))
    prompts = tuple(texts[number % len(texts)] for number in range(VIDEOS))
    step = schedule.latents.stride * plan.config.patch_size[2]
    for width in range(plan.width, 0, -step):
        height = max(step, int(plan.height * width / plan.width) // step * step)
        setup = ProfileSetup.of(
            job.request.weights,
            plan.config,
            prompts,
            measured_blocks(schedule),
            family=fewer_steps(schedule),
            size=(width, height),
            seed=SEED,
        )
        shape = setup.shape(plan.config)
        tokens = setup.frames_per_block * shape.frame_tokens
        taken = shape.bytes(dtype) + pass_bytes(plan.config, tokens, dtype)
        if taken + needs.prompt <= needs.working:
            break
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


def _most_seconds(job: RenderJob) -> float:
    """The longest that measuring may take: without a limit where no bundled list fits the model."""
    auto = job.plan.heads.auto
    assert auto is not None
    return math.inf if _bundled_list(job) is None else auto.measure_seconds


def _bundled_list(job: RenderJob) -> HeadProfile | None:
    """The bundled list that fits; with shares, its roles are by the rule that is asked for."""
    auto = job.plan.heads.auto
    assert auto is not None
    plan = job.plan
    try:
        found = bundled_profile(plan.config, plan.method, job.request.options.model_family)
    except HeadForcingError:
        return None
    return found if found.shares is None else auto.of(found)


def _with_list(job: RenderJob, seconds: float) -> tuple[RenderJob, ListedRoles]:
    """The job with the roles of the bundled list."""
    profile = _bundled_list(job)
    assert profile is not None
    return job.with_profile(profile), ListedRoles(profile, seconds, _most_seconds(job))


class _Measurement:
    """Measures the shares for a job, going on after the blocks of a stopped measurement with the
    same setup.

    Attributes:
        partial: the file of an unfinished measurement; None stores none.
    """

    def __init__(self, job: RenderJob, measuring: Measuring, partial: Path | None):
        self.job = job
        self.measuring = measuring
        self.partial = partial
        needs = measuring.needs or needs_of(job.plan, job.request.dtype, 0)
        setup = setup_for(job, needs)
        self.embeds = {
            number: job.request.embeds[text] for number, text in enumerate(setup.prompts)
        }
        inputs = digest(str(job.request.dtype), *self.embeds.values())
        self.shares = self._stored(replace(setup, inputs=inputs))
        self.clock = MeasuringClock(self.shares, job.plan.config)
        self._is_timed = False  # whether it is known that it does not take too long

    def _stored(self, setup: ProfileSetup) -> HeadShares:
        """The shares that a stopped measurement with this setup has left, else none."""
        if self.partial is not None and self.partial.exists():
            with suppress(HeadForcingError):  # damaged: measured again
                stored = HeadShares.load(self.partial)
                if stored.setup == setup:
                    return stored
        return HeadShares(setup)

    def run(self, model: VideoModel) -> HeadShares:
        """Measure what is missing; raises `_TooSlow` if that takes too long."""
        measuring = self.measuring
        job = self.job
        shares = self.shares
        if self._speeds is not None:
            known = known_seconds(self._speeds, measuring.device, shares, job.plan.config)
            if known > _most_seconds(job):
                raise _TooSlow(known)
        measuring.on_block(self.clock.done, self.clock.count, self.clock.left)
        try:
            profile_heads(
                model,
                job.plan.config,
                shares,
                self.embeds,
                dtype=job.request.dtype,
                device=measuring.device,
                attention=measuring.attention,
                on_step=self._on_step,
                on_block=self._on_block,
            )
        finally:
            if self.partial is not None and shares.missing_prompts():
                with suppress(HeadForcingError):  # the disk is full: what ended it is said
                    shares.save(self.partial)
        if not torch.isfinite(shares.mean()).all():
            if self.partial is not None:
                self.partial.unlink(missing_ok=True)
            raise HeadForcingError(
                "head roles: NaN or infinity while they were measured; compute in bf16 or float32, "
                "or load the model again"
            )
        return shares

    @property
    def _speeds(self) -> Path | None:
        """The file that notes how fast a device is that is too slow."""
        return None if self.partial is None else self.partial.with_suffix(SPEED)

    def _on_step(self, block: int, step: int, latents: Tensor | None) -> None:
        if self.partial is not None:
            with suppress(OSError):  # those who wait for the roles see that this process goes on
                self.partial.touch()
        self.measuring.on_step(block, step, latents)
        if step == 0:
            self.clock.begin()

    def _on_block(self, block: int) -> None:
        """Tell the progress; the first measured block decides whether the time is enough."""
        clock = self.clock
        clock.finish(block)
        self.measuring.on_block(clock.done, clock.count, clock.left)
        if self._is_timed or clock.expected is None:
            return
        self._is_timed = True
        if clock.expected > _most_seconds(self.job):
            if self._speeds is not None and clock.speed is not None:
                note_speed(self._speeds, self.measuring.device, clock.speed)
            raise _TooSlow(clock.expected)
