"""Stage 3 of the embedded model: distribution matching distillation on its own rollouts, as Self Forcing was made.

    torchrun --nproc-per-node 2 -m headforcing.headforcing_core.demo.distill --base base.safetensors --out FOLDER

The student makes whole clips with the four fresh-noise steps it will ship with. Its outputs are noised again, and two
models say where they should have been: the base model, which knows the data, and a copy that learns the student's own
outputs meanwhile. The difference is the student's gradient (Yin et al., "Improved Distribution Matching Distillation";
Huang et al., "Self Forcing").
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...model.wan import WanModel
from ...rollout.schedule import Schedule
from ..assets import TOY_CONFIG
from .parallel_forward import BLOCK_FRAMES, KeysValues, forward, teacher_forced_flow
from .training import BLOCKS, STRUCTURE, Average, Optimizer, Workers, add_noise, draw_texts, draw_times, load, save

log = logging.getLogger(__name__)
SIGMAS = Schedule.warped([1000, 750, 500, 250]).sigmas
STEP_ODDS = (0.1, 0.2, 0.35, 0.35)  # which of the four steps carries a block's gradient
GUIDED_TIMES = (0.4, 0.965)  # elsewhere guidance only distorts colours
FAKE_STEPS = 2  # updates of the model of the student's outputs, for each of the student's own


@dataclass(frozen=True)
class Rollout:
    """What the student made of `text [batch, blocks, words, 64]`; the latents are `[batch, frames, 16, h, w]`."""

    text: Tensor
    clean: Tensor
    noisy: Tensor  # what one step of every block, drawn at random, was given
    times: Tensor  # and its noise level, [batch, frames]


@torch.no_grad()
@torch.compiler.set_stance("force_eager")
def roll_out(model: WanModel, text: Tensor, generator: torch.Generator | None = None) -> Rollout:
    """The sampler of Self Forcing on a batch: four fresh-noise steps a block, then a clean pass that is remembered."""
    batch, blocks = text.shape[:2]
    past: KeysValues | None = None
    cleans, noisies, times = [], [], []
    for block in range(blocks):
        frames = range(block * BLOCK_FRAMES, (block + 1) * BLOCK_FRAMES)
        words, shape = text[:, block : block + 1], (batch, BLOCK_FRAMES, 16, 8, 8)
        chosen = torch.multinomial(torch.tensor(STEP_ODDS), batch, replacement=True, generator=generator)
        noisy = torch.zeros(shape)
        clean = torch.zeros(shape)
        for step, sigma in enumerate(SIGMAS):
            x = (1 - sigma) * clean + sigma * torch.randn(shape, generator=generator)
            flow, _ = forward(model, x, torch.full(shape[:2], 1000 * sigma), words, frames, past=past)
            clean = x - sigma * flow
            noisy[chosen == step] = x[chosen == step]
        cleans.append(clean)
        noisies.append(noisy)
        times.append(torch.tensor(SIGMAS)[chosen][:, None].expand(shape[:2]))
        if block + 1 < blocks:
            _, new = forward(model, clean, torch.zeros(shape[:2]), words, frames, past=past)
            past = _joined(past, new) if past else new
    return Rollout(text, torch.cat(cleans, 1), torch.cat(noisies, 1), torch.cat(times, 1))


def _joined(before: KeysValues, new: KeysValues) -> KeysValues:
    pairs = zip(before, new, strict=True)
    return [(torch.cat((k, new_k), 2), torch.cat((v, new_v), 2)) for (k, v), (new_k, new_v) in pairs]


def denoised(model: WanModel, context: Tensor, noisy: Tensor, times: Tensor, text: Tensor) -> Tensor:
    """The clean latents that a model expects behind noisy ones, block by block after clean blocks."""
    return noisy - times[..., None, None, None] * teacher_forced_flow(model, context, noisy, 1000 * times, text)


@torch.no_grad()
def matching_gradient(teacher: WanModel, fake: WanModel, made: Tensor, rollout: Rollout, guidance: float) -> Tensor:
    """Where the student's outputs `made` should move from, per block in units of the teacher's own correction."""
    times = draw_times((len(made), BLOCKS))
    noisy, _ = add_noise(made, times)
    real = denoised(teacher, rollout.clean, noisy, times, rollout.text)
    if guidance != 1:
        unprompted = denoised(teacher, rollout.clean, noisy, times, torch.zeros_like(rollout.text))
        guided = (times > GUIDED_TIMES[0]) & (times < GUIDED_TIMES[1])
        real = unprompted + torch.where(guided, guidance, 1.0)[..., None, None, None] * (real - unprompted)
    own = denoised(fake, rollout.clean, noisy, times, rollout.text)
    size = (made - real).abs().unflatten(1, (BLOCKS, -1)).flatten(2).mean(2).clamp_min(0.05)
    return (own - real) / size.repeat_interleave(BLOCK_FRAMES, 1)[..., None, None, None]


def own_flow_loss(fake: WanModel, rollout: Rollout, made: Tensor) -> Tensor:
    times = draw_times((len(made), BLOCKS))
    noisy, noise = add_noise(made, times)
    flow = teacher_forced_flow(fake, rollout.clean, noisy, 1000 * times, rollout.text)
    return (flow - (noise - made)).square().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="base.safetensors of stage 2")
    parser.add_argument("--out", type=Path, required=True, help="folder for student-<step>.safetensors")
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--batch", type=int, default=8, help="clips per worker and step")
    parser.add_argument("--guidance", type=float, nargs=2, default=(1.75, 1.0), help="the teacher's, first and last")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    workers = Workers()
    torch.manual_seed(args.seed + 1000 * workers.rank)
    rng = np.random.default_rng(args.seed + 1000 * workers.rank)
    teacher, fake, student = (load(TOY_CONFIG, args.base) for _ in range(3))
    fake_optimizer = Optimizer(fake, muon=6e-3, adam=6e-4, betas=(0.5, 0.99))
    optimizer, average = torch.optim.AdamW(student.parameters(), 3e-4, (0.5, 0.99), weight_decay=0.0), None
    recent: deque[tuple[Rollout, Tensor]] = deque(maxlen=6)
    warm_up, begun = 10, time.monotonic()
    for step in range(args.steps):
        with torch.autocast("cpu", torch.bfloat16):
            rollout = roll_out(student, draw_texts(rng, args.batch))
            with torch.set_grad_enabled(step >= warm_up):
                made = denoised(student, rollout.clean, rollout.noisy, rollout.times, rollout.text)
            if step >= warm_up:
                guidance = float(np.interp(step / args.steps, (0, 1), args.guidance))
                goal = made.detach() - matching_gradient(teacher, fake, made.detach(), rollout, guidance)
                loss = 0.5 * (made - goal).square().mean()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                optimizer.param_groups[0]["lr"] = 3e-4 * min(1, (step + 1 - warm_up) / 20, 2 * (1 - step / args.steps))
                optimizer.step()
                average = average or Average(student, 0.95)
                average.update(student)
            recent.append((rollout, made.detach()))
            for update in range(FAKE_STEPS):
                fake_loss = own_flow_loss(fake, *recent[-1 if update == 0 else rng.integers(len(recent))])
                fake_optimizer.step(fake_loss, 1.0)
        if step % 10 == 9:
            workers.average(student, fake)
            minutes = (time.monotonic() - begun) / 60
            log.info("step %d: own flow loss %.4f, %.1f min", step + 1, fake_loss.item(), minutes)
        if average and (step + 1) % args.save_every == 0 and workers.rank == 0:
            save(average.state_dict(student), args.out / f"student-{step + 1}.safetensors", metadata=STRUCTURE)


if __name__ == "__main__":
    main()
