"""Stage 2 of training the toy model: the base transformer, trained with teacher forcing before distillation.

torchrun --nproc-per-node 2 -m headforcing.headforcing_core.demo.training.train_base --out FOLDER
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import torch
from torch import Tensor

from ...model.wan import WanModel
from ..assets import TOY_CONFIG, load_autoencoder
from .parallel_forward import BLOCK_FRAMES, teacher_forced_flow
from .training import STRUCTURE, Average, ClipPool, Optimizer, Workers, add_noise, draw_times, initialise, load, save

log = logging.getLogger(__name__)
MUON_RATE, ADAM_RATE = 0.02, 2e-3


def flow_loss(model: WanModel, clean: Tensor, cover: Tensor, text: Tensor) -> Tensor:
    """Mean squared error of the flow; the first block has weight two, shapes and landmarks have weight three.

    Shapes and landmarks are small, so without weights they would be learnt last.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for base.safetensors")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=8, help="clips per worker and step")
    parser.add_argument(
        "--decay", type=float, default=0.3, help="fraction of the steps in which the learning rate decays"
    )
    parser.add_argument("--init", type=Path, help="initial weights")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    workers = Workers()
    torch.manual_seed(args.seed + 1000 * workers.rank)
    model = load(TOY_CONFIG, args.init) if args.init else WanModel(TOY_CONFIG)
    if not args.init:
        initialise(model)
    workers.average(model)
    optimizer, average = Optimizer(model, MUON_RATE, ADAM_RATE), Average(model, 0.998)
    clips = ClipPool(load_autoencoder(), seed=2 * args.seed + workers.rank, size=600, fresh=2)
    running, begun = 0.0, time.monotonic()
    for step in range(args.steps):
        loss = flow_loss(model, *clips.draw(args.batch))
        optimizer.step(loss, rate_factor(step, args.steps, args.decay))
        average.update(model)
        running += (loss.item() - running) * max(0.02, 1 / (step + 1))
        if step % 50 == 49:
            workers.average(model)
            minutes = (time.monotonic() - begun) / 60
            log.info("step %d: loss %.4f, %.1f min", step + 1, running, minutes)
        if (step % 200 == 199 or step + 1 == args.steps) and workers.rank == 0:
            save(average.state_dict(model), args.out / "base.safetensors", metadata=STRUCTURE)


if __name__ == "__main__":
    main()
