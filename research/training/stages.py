"""Stages of the training: autoencoder, base, distillation; each goes on where it was stopped."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...headforcing_core.demo.assets import TOY_CONFIG
from ...headforcing_core.demo.rooms_autoencoder import (
    RoomsAutoencoder,
    load_rooms_autoencoder,
)
from ...headforcing_core.model.wan import WanConfig, WanModel
from ..rooms.detector import SATURATION
from . import training
from .data import ClipPool, Crops, draw_stories, training_clip
from .distill import (
    FAKE_STEPS,
    Rollout,
    denoised,
    matching_gradient,
    own_flow_loss,
    roll_out,
)
from .parallel_forward import teacher_forced_flow
from .sizes import BLOCK_FRAMES
from .training import (
    STRUCTURE,
    Average,
    Checkpoint,
    Journal,
    Optimizer,
    Stateful,
    Workers,
)

LATENT_NOISE = 0.05  # in standard deviations; makes the decoder robust to small errors of latents
STATISTICS_CLIPS = 40  # that the normalisation of latents is measured on
AUTOENCODER_RATE = 3e-3
MUON_RATE = 0.02
ADAM_RATE = 2e-3  # of the base
BASE_DECAY = 0.35  # last part of the base's steps in which the learning rate falls
STUDENT_RATE = 3e-4
GUIDANCE = (1.75, 1.0)  # the teacher's, at the first and at the last step
PIXEL_PART = 0.1
PIXEL_CLIPS = 2  # last part of the distillation with a loss on pixels, and clips a step it is of


@dataclass(frozen=True)
class Recipe:
    """Sizes of a training; the defaults are for two CPU cores and four hours."""

    out: Path
    seed: int = 1
    autoencoder_steps: int = 8000
    autoencoder_batch: int = 16  # crops per worker and step; the others are clips
    # steps between two stored states, from which an interrupted training goes on
    autoencoder_keep: int = 200
    base_steps: int = 2000
    base_batch: int = 8
    base_keep: int = 40
    student_steps: int = 100
    student_batch: int = 8
    student_keep: int = 10
    student_warm_up: int = 10  # steps in which only the fake score model learns
    picture_steps: int = 3600
    picture_batch: int = 24  # latent frames per worker and step
    picture_keep: int = 200
    config: WanConfig = TOY_CONFIG

    def file(self, stage: str) -> Path:
        """The weights that the stage `autoencoder`, `base`, `student` or `picture` leaves."""
        return self.out / f"{stage}.safetensors"


class Run:
    """A recipe and the workers that follow it."""

    def __init__(self, recipe: Recipe, workers: Workers):
        self.recipe = recipe
        self.workers = workers

    @cached_property
    def autoencoder(self) -> RoomsAutoencoder:
        return load_rooms_autoencoder(self.recipe.file("autoencoder"))


class Stage:
    """Steps of one stage from its stored state, which is of `parts`; after the last its weights
    replace the state.
    """

    def __init__(self, run: Run, name: str, steps: int, keep: int, **parts: Stateful):
        self.recipe = run.recipe
        self.workers = run.workers
        self.name = name
        self.count = steps
        self.keep = keep
        self.parts = parts
        self.checkpoint = Checkpoint(self.recipe.out, name, self.workers, self.recipe.seed)
        self.journal = Journal(self.recipe.out / "journal.jsonl", name, self.workers.rank)

    def steps(self) -> Iterator[int]:
        """The numbers of the steps, with torch's random numbers seeded for each; states are stored
        in between.
        """
        for step in range(self.checkpoint.restore(self.parts), self.count):
            torch.manual_seed((self.recipe.seed * 64 + self.workers.rank) * 10_000_000 + step)
            yield step
            if (step + 1) % self.keep == 0 or step + 1 == self.count:
                self.checkpoint.save(step + 1, self.parts)

    def finish(
        self,
        tensors: dict[str, Tensor],
        dtype: torch.dtype,
        metadata: dict[str, str],
    ) -> None:
        """Write the result, by the first worker, and remove the states."""
        if self.workers.rank == 0:
            training.save(tensors, self.recipe.file(self.name), dtype, metadata)
        self.checkpoint.remove()


def picture_loss(decoded: Tensor, video_frames: Tensor, weight: Tensor) -> Tensor:
    """Errors of pixels, of edges, of the means of latent cells, across the seams of patches, and of
    changes in time.

    Video frames are `[batch, n, 3, h, w]`, the weights of pixels `[batch, n, 1, h, w]`.
    """
    error = decoded.float() - video_frames
    across = error.diff(dim=-1).abs()
    down = error.diff(dim=-2).abs()
    cells = F.avg_pool2d(error.flatten(0, 1), 8).abs().mean()
    seams = across[..., 3::4].mean() + down[..., 3::4, :].mean()
    pixels = (error.abs() * weight).mean() + 2 * (error.square() * weight).mean()
    return (
        pixels
        + 0.3 * (across.mean() + down.mean())
        + cells
        + 0.2 * seams
        + 0.3 * error.diff(dim=1).abs().mean()
    )


def decode_clips(model: RoomsAutoencoder, latents: Tensor) -> Tensor:
    """The inverse of `encode_raw` for whole clips `[batch, frames, channels, h, w]`, with
    gradients, without limits.
    """
    batch, frames = latents.shape[:2]
    hidden = model.dec(latents.flatten(0, 1)).unflatten(0, (batch, frames))
    before = torch.cat((hidden[:, :1], hidden[:, :-1]), 1)
    mixed = model.mix(hidden.flatten(0, 1), before.flatten(0, 1)).unflatten(0, (batch, frames))
    first = model.draw(mixed[:, 0], first=True)
    if frames == 1:
        return first
    later = model.draw(mixed[:, 1:].flatten(0, 1), first=False)
    return torch.cat((first, later.unflatten(0, (batch, frames - 1)).flatten(1, 2)), 1)


def train_autoencoder(run: Run) -> None:
    """Train the autoencoder on crops, measure the statistics of its latents, write it."""
    recipe = run.recipe
    workers = run.workers
    torch.manual_seed(recipe.seed)
    model = RoomsAutoencoder()
    crops = Crops(recipe.seed, workers.rank)
    steps = recipe.autoencoder_steps
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=AUTOENCODER_RATE,
        weight_decay=1e-3,
        betas=(0.9, 0.98),
    )
    stage = Stage(
        run,
        "autoencoder",
        steps,
        recipe.autoencoder_keep,
        model=model,
        optimizer=optimizer,
    )
    for step in stage.steps():
        video_frames, weight = crops.draw(step, recipe.autoencoder_batch)
        optimizer.param_groups[0]["lr"] = AUTOENCODER_RATE * (
            min(1, (step + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * step / steps)) + 0.005
        )
        with torch.autocast("cpu", torch.bfloat16):
            latents = model.encode_raw(video_frames)
            noise = LATENT_NOISE * latents.detach().std() * torch.randn_like(latents)
            decoded = decode_clips(model, latents + noise)
        loss = picture_loss(decoded, video_frames, weight) + 1e-4 * latents.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            workers.average(model)
        if (step + 1) % recipe.autoencoder_keep == 0:
            psnr = -10 * (decoded.detach().float() - video_frames).square().mean().log10()
            stage.journal.write(step + 1, loss=loss.item(), psnr=psnr.item())
    workers.average(model)
    _measure_statistics(model, recipe.seed)
    stage.finish(model.state_dict(), torch.bfloat16, {})


@torch.no_grad()
def _measure_statistics(model: RoomsAutoencoder, seed: int) -> None:
    """Set the per-channel mean and standard deviation of video latents, which normalise them as in
    Wan.
    """
    clips = (training_clip(seed * 1000 + index).video_frames for index in range(STATISTICS_CLIPS))
    latents = torch.cat([model.encode_raw(clip.movedim(-1, 1)[None])[0, 1:] for clip in clips])
    model.mean.copy_(latents.mean((0, 2, 3), keepdim=True))
    model.std.copy_(latents.std((0, 2, 3), keepdim=True))


def flow_loss(model: WanModel, clean: Tensor, cover: Tensor, text: Tensor) -> Tensor:
    """Mean squared error of the flow; the first block has weight two, `cover` three (see
    `asked_for`), as actors and pictures are small."""
    times = training.draw_times((len(clean), clean.shape[1] // BLOCK_FRAMES))
    noisy, noise = training.add_noise(clean, times)
    with torch.autocast("cpu", torch.bfloat16):
        flow = teacher_forced_flow(model, clean, noisy=noisy, timesteps=times * 1000, text=text)
    error = (flow - (noise - clean)).square().mean(2)
    weight = 1 + 2 * cover
    weight[:, :BLOCK_FRAMES] *= 2
    return (error * weight).sum() / weight.sum()


def rate_factor(step: int, steps: int, decay: float) -> float:
    """Learning-rate factor: 100 steps of warm-up, constant, linear decay over the last fraction
    `decay` of steps.
    """
    return min(1, (step + 1) / 100, (steps - step) / max(1, decay * steps))


def train_base(run: Run) -> None:
    """Train the base with teacher forcing on stories that return, write its moving average."""
    recipe = run.recipe
    workers = run.workers
    torch.manual_seed(recipe.seed)
    model = WanModel(recipe.config)
    training.initialise(model)
    optimizer = Optimizer(model, MUON_RATE, ADAM_RATE)
    average = Average(model, 0.998)
    parts: dict[str, Stateful] = {
        "model": model,
        "optimizer": optimizer,
        "average": average,
    }
    stage = Stage(run, "base", recipe.base_steps, recipe.base_keep, **parts)
    losses = deque[float](maxlen=50)
    pool = ClipPool(run.autoencoder, recipe.seed, workers.rank)
    for step in stage.steps():
        loss = flow_loss(model, *pool.draw(step, recipe.base_batch))
        optimizer.step(loss, rate_factor(step, recipe.base_steps, BASE_DECAY))
        average.update(model)
        losses.append(loss.item())
        if (step + 1) % 20 == 0:
            workers.average(model)
            stage.journal.write(step + 1, loss=sum(losses) / len(losses))
    stage.finish(average.parameters, torch.float32, STRUCTURE)


class Recent:
    """The last rollouts with what the student made of them; the fake score model learns from
    them.
    """

    def __init__(self) -> None:
        self.made: deque[tuple[Rollout, Tensor]] = deque(maxlen=6)

    def state_dict(self) -> dict[str, Any]:
        stored = []
        for rollout, made in self.made:
            fields = {
                "text": rollout.text,
                "clean": rollout.clean,
                "noisy": rollout.noisy,
                "times": rollout.times,
            }
            stored.append((fields, made))
        return {"made": stored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made.extend((Rollout(**fields), made) for fields, made in state["made"])


def distill(run: Run) -> None:
    """Distribution matching on rollouts of the same stories, as in Self Forcing; writes the
    student's average.
    """
    recipe = run.recipe
    workers = run.workers
    steps = run.recipe.student_steps
    base = recipe.file("base")
    teacher = training.load(recipe.config, base)
    fake = training.load(recipe.config, base)
    student = training.load(recipe.config, base)
    fake_optimizer = Optimizer(fake, muon=6e-3, adam=6e-4, betas=(0.5, 0.99))
    optimizer = torch.optim.AdamW(student.parameters(), STUDENT_RATE, (0.5, 0.99), weight_decay=0.0)
    average = Average(student, 0.95)
    recent = Recent()
    parts: dict[str, Stateful] = {
        "student": student,
        "optimizer": optimizer,
        "average": average,
        "recent": recent,
        "fake": fake,
        "fake_optimizer": fake_optimizer,
    }
    stage = Stage(run, "student", steps, recipe.student_keep, **parts)
    for step in stage.steps():
        rng = np.random.default_rng((recipe.seed, workers.rank, step, 1))
        text, gaps = draw_stories(recipe.seed, workers.rank, step, recipe.student_batch)
        learns = step >= recipe.student_warm_up
        loss = torch.zeros(())
        # a context of its own for each pass: within one, autocast keeps the weights as they were
        # before an update
        with torch.autocast("cpu", torch.bfloat16):
            rollout = roll_out(student, text)
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(learns):
            made = denoised(
                student, rollout.clean, noisy=rollout.noisy, times=rollout.times, text=text
            )
            if learns:
                loss = _student_loss(
                    teacher,
                    fake,
                    autoencoder=run.autoencoder,
                    made=made,
                    rollout=rollout,
                    gaps=gaps,
                    part=step / steps,
                )
        if learns:
            rising = (step + 1 - recipe.student_warm_up) / 20
            falling = 2 * (1 - step / steps)
            _update_student(student, optimizer, loss, STUDENT_RATE * min(1, rising, falling))
            average.update(student)
        recent.made.append((rollout, made.detach()))
        fake_loss = _update_fake(fake, fake_optimizer, recent, rng)
        if (step + 1) % 10 == 0 or step + 1 == steps:
            workers.average(student, fake)
            stage.journal.write(step + 1, own_flow_loss=fake_loss.item(), loss=loss.item())
    # what the gate and the tables measure is what ships
    stage.finish(average.parameters, torch.bfloat16, STRUCTURE)


def _update_student(
    student: WanModel, optimizer: torch.optim.Optimizer, loss: Tensor, rate: float
) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()


def _update_fake(
    fake: WanModel, optimizer: Optimizer, recent: Recent, rng: np.random.Generator
) -> Tensor:
    """Train the fake score model on the newest rollout, then on drawn ones; the last loss."""
    for update in range(FAKE_STEPS):
        place = -1 if update == 0 else int(rng.integers(len(recent.made)))
        rollout, made = recent.made[place]
        with torch.autocast("cpu", torch.bfloat16):
            loss = own_flow_loss(fake, rollout, made)
        optimizer.step(loss, 1.0)
    return loss


def _student_loss(
    teacher: WanModel,
    fake: WanModel,
    autoencoder: RoomsAutoencoder,
    made: Tensor,
    rollout: Rollout,
    gaps: Tensor,
    part: float,
) -> Tensor:
    """The matching loss, in which blocks that come back to a room (`gaps [batch, blocks]` above 0)
    count twice.

    `part` is the part of the training that is over; at its end the loss is on pixels, too.
    """
    guidance = float(np.interp(part, (0, 1), GUIDANCE))
    goal = made.detach() - matching_gradient(
        teacher, fake, made=made.detach(), rollout=rollout, guidance=guidance
    )
    weight = (1.0 + (gaps > 0)).repeat_interleave(BLOCK_FRAMES, 1)[..., None, None, None]
    loss = 0.5 * ((made - goal).square() * weight).sum() / (weight.sum() * made[0, 0].numel())
    if part < 1 - PIXEL_PART:
        return loss
    shown = decode_clips(autoencoder, autoencoder.raw(made[:PIXEL_CLIPS])).float()
    wanted = decode_clips(autoencoder, autoencoder.raw(goal[:PIXEL_CLIPS])).float()
    # the actor's cover
    strong = wanted.amax(2, keepdim=True) - wanted.amin(2, keepdim=True) > SATURATION
    weight = 1 + 3 * F.max_pool2d(strong.float().flatten(0, 1), 5, 1, 2).unflatten(
        0, shown.shape[:2]
    )
    return loss + 5 * ((shown - wanted.detach()).square() * weight).mean()
