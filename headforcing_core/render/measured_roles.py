"""The roles of a model's heads: measured before the first render of its weights, and kept for all
later ones.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
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
from ..head_profiles.auto import AutoProfile, store_found_profile
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
        on_step: gets the blocks and steps of `setup_for`; it may raise to stop.
        on_block: gets the numbers of finished blocks and of all, and the seconds that are left,
            None until they are known; called at the begin and after each block.
        while_waiting: called every half second while another process measures; it may raise to
            stop.
    """

    device: Device = "cpu"
    attention: AttentionFunction = sdpa
    needs: Needs | None = None
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


def with_measured_roles(
    job: RenderJob,
    model: VideoModel,
    measuring: Measuring,
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
    auto = job.plan.auto
    if auto is None:
        return job, None
    path = _writable(job.roles_files)
    partial = None if path is None else path.with_suffix(".safetensors")
    with ExitStack() as stack:
        if path is not None and partial is not None:
            if not _is_claimed(stack, path, partial, measuring.while_waiting):
                partial = None
            known = job.with_found_roles()  # another process may have measured them meanwhile
            if known.plan.auto is None:
                return known, None
        begun = time.perf_counter()
        setup = setup_for(job, measuring.needs or needs_of(job.plan, job.request.dtype, 0))
        try:
            shares = _measured(job, model, setup, partial, measuring)
        except _TooSlow as slow:
            empty_cache(measuring.device)
            return _with_list(job, *slow.args)
        empty_cache(measuring.device)  # pieces that do not fit the render's
        profile = shares.profile("measured", {"note": "measured before a render"})
        found = auto.of(profile)
        seconds = time.perf_counter() - begun
        measured = MeasuredRoles(found, seconds, beside=beside_list(found, auto))
        known = job.with_found_roles()  # by a process that did not wait for this one
        if known.plan.auto is not None:
            measured = measured.keep(job.roles_files)
        if partial is not None:
            partial.unlink(missing_ok=True)
            partial.with_suffix(SPEED).unlink(missing_ok=True)
    if known.plan.auto is None:
        return known, None
    return job.with_roles(measured.profile), measured


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
    auto = job.plan.auto
    assert auto is not None
    return math.inf if _bundled_list(job) is None else auto.measure_seconds


def _bundled_list(job: RenderJob) -> HeadProfile | None:
    """The bundled list that fits; with shares, its roles are by the rule that is asked for."""
    auto = job.plan.auto
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
    return job.with_roles(profile), ListedRoles(profile, seconds, _most_seconds(job))


def _measured(
    job: RenderJob,
    model: VideoModel,
    setup: ProfileSetup,
    partial: Path | None,
    measuring: Measuring,
) -> HeadShares:
    """Measure the shares, going on after the blocks of a stopped measurement with the same setup,
    which are stored in `partial`.
    """
    embeds = {number: job.request.embeds[text] for number, text in enumerate(setup.prompts)}
    inputs = digest(str(job.request.dtype), *embeds.values())
    setup = replace(setup, inputs=inputs)
    shares = HeadShares(setup)
    if partial is not None and partial.exists():
        with suppress(HeadForcingError):  # damaged: measured again
            stored = HeadShares.load(partial)
            if stored.setup == setup:
                shares = stored

    def on_step(block: int, step: int, latents: Tensor | None) -> None:
        if partial is not None:
            with suppress(OSError):  # those who wait for the roles see that this process goes on
                partial.touch()
        measuring.on_step(block, step, latents)

        if step == 0:
            clock.begin()

    def on_block(block: int) -> None:
        clock.finish(block)
        measuring.on_block(clock.done, clock.count, clock.left)
        if undecided and clock.expected is not None:
            undecided.clear()
            if clock.expected > most:
                if speeds is not None and clock.speed is not None:
                    note_speed(speeds, measuring.device, clock.speed)
                raise _TooSlow(clock.expected)

    speeds = None if partial is None else partial.with_suffix(SPEED)
    most = _most_seconds(job)
    if speeds is not None:
        known = known_seconds(speeds, measuring.device, shares, job.plan.config)
        if known > most:
            raise _TooSlow(known)
    clock = MeasuringClock(shares, job.plan.config)
    measuring.on_block(clock.done, clock.count, clock.left)
    undecided = [True]
    try:
        profile_heads(
            model,
            job.plan.config,
            shares,
            embeds,
            dtype=job.request.dtype,
            device=measuring.device,
            attention=measuring.attention,
            on_step=on_step,
            on_block=on_block,
        )
    finally:
        if partial is not None and shares.missing_prompts():
            with suppress(HeadForcingError):  # the disk is full: what ended the measurement is said
                shares.save(partial)
    if not torch.isfinite(shares.mean()).all():
        if partial is not None:
            partial.unlink(missing_ok=True)
        raise HeadForcingError(
            "head roles: NaN or infinity while they were measured; compute in bf16 or float32, "
            "or load the model again"
        )
    return shares
