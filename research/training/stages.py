"""The three trainings of the world of rooms: autoencoder, base, distillation; each resumes where it was stopped."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from ...headforcing_core.demo.assets import TOY_CONFIG
from ...headforcing_core.demo.rooms_autoencoder import RoomsAutoencoder, load_rooms_autoencoder
from ...headforcing_core.model.wan import WanConfig, WanModel
from ..rooms.detector import SATURATION
from .data import ClipPool, Crops, draw_stories, training_clip
from .distill import FAKE_STEPS, Rollout, denoised, matching_gradient, own_flow_loss, roll_out
from .parallel_forward import BLOCK_FRAMES, teacher_forced_flow
from .resumable import Checkpoints, Deadline, Journal, Stopped, seed_step, wait
from .training import STRUCTURE, Average, Optimizer, Workers, add_noise, draw_times, initialise, load, save

LATENT_NOISE = 0.05  # in standard deviations; makes the decoder robust to small errors of latents
STATISTICS_CLIPS = 40  # that the normalisation of latents is measured on
MUON_RATE, ADAM_RATE = 0.02, 2e-3  # of the base
STUDENT_RATE = 3e-4
GUIDANCE = (1.75, 1.0)  # the teacher's, at the first and at the last step
PIXEL_PART, PIXEL_CLIPS = 0.1, 2  # last part of the distillation with a loss on pixels, and clips a step it is of


@dataclass(frozen=True)
class Recipe:
    """Everything that a training depends on besides the code; the defaults are for two CPU cores and three hours."""

    out: Path
    seed: int = 1
    autoencoder_steps: int = 8000
    autoencoder_batch: int = 16  # crops per worker and step
    base_steps: int = 2000
    base_batch: int = 8  # clips per worker and step
    base_decay: float = 0.35  # last part of the base's steps in which the learning rate falls
    student_steps: int = 100
    student_batch: int = 8
    student_warm_up: int = 10  # steps in which only the fake score model learns
    students_every: int = 20  # steps between two students that the gate chooses among
    autoencoder_keep: int = 200  # steps between two stored states, from which an interrupted training goes on
    base_keep: int = 40
    student_keep: int = 10
    config: WanConfig = TOY_CONFIG

    @property
    def autoencoder(self) -> Path:
        return self.out / "autoencoder.safetensors"

    @property
    def base(self) -> Path:
        return self.out / "base.safetensors"

    def student(self, step: int) -> Path:
        return self.out / f"student-{step}.safetensors"

    def students(self) -> list[Path]:
        """The students of a finished distillation, oldest first."""
        first = self.students_every * (1 + self.student_warm_up // self.students_every)
        return [self.student(step) for step in range(first, self.student_steps + 1, self.students_every)]


class Run:
    """State that the stages share: workers, journal, the time at which to stop."""

    def __init__(self, recipe: Recipe, workers: Workers, deadline: Deadline):
        self.recipe, self.workers, self.deadline = recipe, workers, deadline

    @cached_property
    def autoencoder(self) -> RoomsAutoencoder:
        """The trained autoencoder."""
        return load_rooms_autoencoder(self.recipe.autoencoder)

    def checkpoints(self, stage: str) -> Checkpoints:
        count = distributed.get_world_size() if distributed.is_initialized() else 1
        return Checkpoints(self.recipe.out, stage, self.workers.rank, count, self.recipe.seed)

    def journal(self, stage: str) -> Journal:
        return Journal(self.recipe.out / "journal.jsonl", stage, self.workers.rank)

    def keep(self, checkpoints: Checkpoints, step: int, state: dict[str, Any]) -> None:
        """Store a state; raises Stopped if the time is over."""
        checkpoints.save(step, state)
        if self.deadline.over():
            raise Stopped(f"{checkpoints.stage}: stopped after step {step}; the same command goes on from there")


def picture_loss(decoded: Tensor, video_frames: Tensor, weight: Tensor) -> Tensor:
    """Errors of pixels, of edges, of the means of latent cells, across the seams of patches, and of changes in time.

    Video frames are `[batch, n, 3, h, w]`, the weights of pixels `[batch, n, 1, h, w]`.
    """
    error = decoded.float() - video_frames
    across, down = error.diff(dim=-1).abs(), error.diff(dim=-2).abs()
    cells = F.avg_pool2d(error.flatten(0, 1), 8).abs().mean()
    seams = across[..., 3::4].mean() + down[..., 3::4, :].mean()
    pixels = (error.abs() * weight).mean() + 2 * (error.square() * weight).mean()
    return pixels + 0.3 * (across.mean() + down.mean()) + cells + 0.2 * seams + 0.3 * error.diff(dim=1).abs().mean()


def train_autoencoder(run: Run) -> None:
    """Train the autoencoder on crops, measure the statistics of its latents, write it."""
    recipe, workers = run.recipe, run.workers
    checkpoints, journal = run.checkpoints("autoencoder"), run.journal("autoencoder")
    torch.manual_seed(recipe.seed)
    model, crops = RoomsAutoencoder(), Crops(recipe.seed, workers.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3, betas=(0.9, 0.98))
    start, steps = 0, recipe.autoencoder_steps
    if found := checkpoints.load():
        start, state = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(start, steps):
        seed_step(recipe.seed, workers.rank, step)
        video_frames, weight = crops.draw(step, recipe.autoencoder_batch)
        optimizer.param_groups[0]["lr"] = 3e-3 * (
            min(1, (step + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * step / steps)) + 0.005
        )
        with torch.autocast("cpu", torch.bfloat16):
            latents = model.encode_raw(video_frames)
            noise = LATENT_NOISE * latents.detach().std() * torch.randn_like(latents)
            decoded = model.decode_raw(latents + noise)
        loss = picture_loss(decoded, video_frames, weight) + 1e-4 * latents.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done = step + 1
        if done % 50 == 0:
            workers.average(model)
        if done % recipe.autoencoder_keep == 0 or done == steps:
            psnr = -10 * (decoded.detach().float() - video_frames).square().mean().log10()
            journal.write(done, loss=loss.item(), psnr=psnr.item())
            run.keep(checkpoints, done, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    workers.average(model)
    _measure_statistics(model, recipe.seed)
    if workers.rank == 0:
        save(model.state_dict(), recipe.autoencoder, torch.bfloat16)
    _finish(checkpoints)


@torch.no_grad()
def _measure_statistics(model: RoomsAutoencoder, seed: int) -> None:
    """Set the per-channel mean and standard deviation of video latents, which normalise them as in Wan."""
    clips = (training_clip(seed * 1000 + index).video_frames for index in range(STATISTICS_CLIPS))
    latents = torch.cat([model.encode_raw(clip.movedim(-1, 1)[None])[0, 1:] for clip in clips])
    model.mean.copy_(latents.mean((0, 2, 3), keepdim=True))
    model.std.copy_(latents.std((0, 2, 3), keepdim=True))


def flow_loss(model: WanModel, clean: Tensor, cover: Tensor, text: Tensor) -> Tensor:
    """Mean squared error of the flow; the first block has weight two, `cover` has weight three (see `asked_for`).

    Actors and pictures are small, so without weights they would be learnt last.
    """
    times = draw_times((len(clean), clean.shape[1] // BLOCK_FRAMES))
    noisy, noise = add_noise(clean, times)
    with torch.autocast("cpu", torch.bfloat16):
        flow = teacher_forced_flow(model, clean, noisy, times * 1000, text)
    error = (flow - (noise - clean)).square().mean(2)
    weight = 1 + 2 * cover
    weight[:, :BLOCK_FRAMES] *= 2
    return (error * weight).sum() / weight.sum()


def rate_factor(step: int, steps: int, decay: float) -> float:
    """Learning-rate factor: 100 steps of warm-up, constant, linear decay over the last fraction `decay` of steps."""
    return min(1, (step + 1) / 100, (steps - step) / max(1, decay * steps))


def train_base(run: Run) -> None:
    """Train the base with teacher forcing on stories that return, write its moving average."""
    recipe, workers = run.recipe, run.workers
    checkpoints, journal = run.checkpoints("base"), run.journal("base")
    torch.manual_seed(recipe.seed)
    model = WanModel(recipe.config)
    initialise(model)
    optimizer, average = Optimizer(model, MUON_RATE, ADAM_RATE), Average(model, 0.998)
    start, running = 0, 0.0
    if found := checkpoints.load():
        start, state = found
        _restore(state, model, optimizer, average)
        running = state["running"]
    pool = ClipPool(run.autoencoder, recipe.seed, workers.rank)
    for step in range(start, recipe.base_steps):
        clips = pool.draw(step, recipe.base_batch)
        seed_step(recipe.seed, workers.rank, step)
        loss = flow_loss(model, *clips)
        optimizer.step(loss, rate_factor(step, recipe.base_steps, recipe.base_decay))
        average.update(model)
        running += (loss.item() - running) * max(0.02, 1 / (step + 1))
        done = step + 1
        if done % 20 == 0:
            workers.average(model)
            journal.write(done, loss=running)
        if done % recipe.base_keep == 0 or done == recipe.base_steps:
            run.keep(checkpoints, done, _state(model, optimizer, average) | {"running": running})
    if workers.rank == 0:
        save(average.state_dict(model), recipe.base, metadata=STRUCTURE)
    wait()  # the last state stays, for more steps where the gate asks for them


def distill(run: Run) -> None:
    """Distribution matching on rollouts of the same stories, as in Self Forcing; writes a student every few steps."""
    recipe, workers = run.recipe, run.workers
    checkpoints, journal = run.checkpoints("student"), run.journal("student")
    teacher, fake, student = (load(recipe.config, recipe.base) for _ in range(3))
    fake_optimizer = Optimizer(fake, muon=6e-3, adam=6e-4, betas=(0.5, 0.99))
    optimizer = torch.optim.AdamW(student.parameters(), STUDENT_RATE, (0.5, 0.99), weight_decay=0.0)
    average, start = Average(student, 0.95), 0
    recent: deque[tuple[Rollout, Tensor]] = deque(maxlen=6)
    if found := checkpoints.load():
        start, state = found
        _restore(state["fake"], fake, fake_optimizer)
        student.load_state_dict(state["student"])
        optimizer.load_state_dict(state["optimizer"])
        average.restore(state["average"])
        recent.extend((Rollout(**fields), made) for fields, made in state["recent"])
    for step in range(start, recipe.student_steps):
        seed_step(recipe.seed, workers.rank, step)
        rng = np.random.default_rng((recipe.seed, workers.rank, step, 1))
        text, gaps = draw_stories(recipe.seed, workers.rank, step, recipe.student_batch)
        learns, loss = step >= recipe.student_warm_up, torch.zeros(())
        # a context of its own for each pass: within one, autocast keeps the weights as they were before an update
        with torch.autocast("cpu", torch.bfloat16):
            rollout = roll_out(student, text)
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(learns):
            made = denoised(student, rollout.clean, rollout.noisy, rollout.times, text)
            if learns:
                loss = _student_loss(teacher, fake, run.autoencoder, made, rollout, gaps, step / recipe.student_steps)
        if learns:
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            rising, falling = (step + 1 - recipe.student_warm_up) / 20, 2 * (1 - step / recipe.student_steps)
            optimizer.param_groups[0]["lr"] = STUDENT_RATE * min(1, rising, falling)
            optimizer.step()
            average.update(student)
        recent.append((rollout, made.detach()))
        for update in range(FAKE_STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                fake_loss = own_flow_loss(fake, *recent[-1 if update == 0 else rng.integers(len(recent))])
            fake_optimizer.step(fake_loss, 1.0)
        done = step + 1
        if done % 10 == 0 or done == recipe.student_steps:
            workers.average(student, fake)
            journal.write(done, own_flow_loss=fake_loss.item(), loss=loss.item())
        if done > recipe.student_warm_up and done % recipe.students_every == 0 and workers.rank == 0:
            # what the gate and the tables measure is what is released
            save(average.state_dict(student), recipe.student(done), torch.bfloat16, STRUCTURE)
        if done % recipe.student_keep == 0 or done == recipe.student_steps:
            state = {
                "student": student.state_dict(),
                "optimizer": optimizer.state_dict(),
                "recent": [(vars(rollout), made) for rollout, made in recent],
            }
            run.keep(checkpoints, done, state | {"fake": _state(fake, fake_optimizer), "average": average.state()})
    _finish(checkpoints)


def _student_loss(
    teacher: WanModel,
    fake: WanModel,
    autoencoder: RoomsAutoencoder,
    made: Tensor,
    rollout: Rollout,
    gaps: Tensor,
    part: float,
) -> Tensor:
    """The matching loss, in which blocks that come back to a room count twice; at the end on pixels, too.

    `part` is the part of the training that is over, `gaps [batch, blocks]` is above 0 where a room comes back.
    """
    guidance = float(np.interp(part, (0, 1), GUIDANCE))
    goal = made.detach() - matching_gradient(teacher, fake, made.detach(), rollout, guidance)
    weight = (1.0 + (gaps > 0)).repeat_interleave(BLOCK_FRAMES, 1)[..., None, None, None]
    loss = 0.5 * ((made - goal).square() * weight).sum() / (weight.sum() * made[0, 0].numel())
    if part < 1 - PIXEL_PART:
        return loss
    shown, wanted = (autoencoder.decode_raw(autoencoder.raw(x[:PIXEL_CLIPS])).float() for x in (made, goal))
    strong = wanted.amax(2, keepdim=True) - wanted.amin(2, keepdim=True) > SATURATION  # the actor's cover
    weight = 1 + 3 * F.max_pool2d(strong.float().flatten(0, 1), 5, 1, 2).unflatten(0, shown.shape[:2])
    return loss + 5 * ((shown - wanted.detach()).square() * weight).mean()


def _state(model: WanModel, optimizer: Optimizer, average: Average | None = None) -> dict[str, Any]:
    state: dict[str, Any] = {"model": model.state_dict(), "parts": [part.state_dict() for part in optimizer.parts]}
    return state | ({"average": average.state()} if average else {})


def _restore(state: dict[str, Any], model: WanModel, optimizer: Optimizer, average: Average | None = None) -> None:
    model.load_state_dict(state["model"])
    for part, stored in zip(optimizer.parts, state["parts"], strict=True):
        part.load_state_dict(stored)
    if average:
        average.restore(state["average"])


def _finish(checkpoints: Checkpoints) -> None:
    """Remove a finished stage's states, once its result is there for all workers."""
    wait()
    checkpoints.remove()
