"""Stage 1 of training the toy model: the autoencoder, trained on rendered clips of the toy world.

python -m headforcing.headforcing_core.demo.training.train_autoencoder --out FOLDER
"""

from __future__ import annotations

import argparse
import logging
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from ...timeline.clock import TEMPORAL_STRIDE
from ..autoencoder import SPATIAL_FACTOR, ToyAutoencoder
from ..world import FRAME_SIZE, Clip, random_looks, render
from .training import save

log = logging.getLogger(__name__)
CROP = 32
LATENT_NOISE = 0.05  # in standard deviations; makes the decoder robust to small errors of latents


def random_clip(seed: int) -> Clip:
    """A clip of seven blocks (81 video frames), the training length of the transformer."""
    return render(random_looks(np.random.default_rng(seed), 7), seed)


class Crops:
    """Random crops of four video frames, three quarters of them near the shape; each draw replaces one clip."""

    def __init__(self, clips: int, seed: int):
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.pool = [self._clip() for _ in range(clips)]

    def _clip(self) -> Clip:
        self.seed += 1
        return random_clip(self.seed)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Video frames `[count, 4, 3, 32, 32]` in 0..1 and coverage by the shape `[count, 4, 1, 32, 32]`."""
        self.pool[self.rng.integers(len(self.pool))] = self._clip()
        video_frames, shapes = [], []
        for _ in range(count):
            clip = self.pool[self.rng.integers(len(self.pool))]
            first = 1 + TEMPORAL_STRIDE * int(self.rng.integers(len(clip.video_frames) // TEMPORAL_STRIDE))
            cover = clip.shape[first]
            if self.rng.random() < 0.75:
                centre = cover.nonzero().float().mean(0).numpy() + self.rng.uniform(-10, 10, 2)
            else:
                centre = self.rng.uniform(0, FRAME_SIZE, 2)
            corner = np.clip(np.round((centre - CROP / 2) / SPATIAL_FACTOR), 0, (FRAME_SIZE - CROP) / SPATIAL_FACTOR)
            y, x = (SPATIAL_FACTOR * corner).astype(int)
            window = slice(first, first + TEMPORAL_STRIDE), slice(y, y + CROP), slice(x, x + CROP)
            video_frames.append(clip.video_frames[window])
            shapes.append(clip.shape[window])
        return torch.stack(video_frames).movedim(-1, 2), torch.stack(shapes)[:, :, None]


def reconstruct(model: ToyAutoencoder, video_frames: Tensor) -> tuple[Tensor, Tensor]:
    """Encode and decode video frames `[n, 1 or 4, 3, h, w]`; returns also the latents before normalisation."""
    into, out = (model.in_img, model.out_img) if video_frames.shape[1] == 1 else (model.in_vid, model.out_vid)
    latents = model.enc(into(F.pixel_unshuffle(video_frames.flatten(1, 2) * 2 - 1, 4)))
    noise = LATENT_NOISE * latents.detach().std() * torch.randn_like(latents)
    decoded = F.pixel_shuffle(out(model.dec(latents + noise)), 4) * 0.5 + 0.5
    return decoded.unflatten(1, (-1, 3)), latents


def loss_of(decoded: Tensor, video_frames: Tensor, cover: Tensor) -> Tensor:
    """Sum of absolute, squared and edge errors; pixels of the shape have weight four."""
    error = decoded.float() - video_frames
    weight = 1 + 3 * F.max_pool2d(cover.flatten(0, 1), 5, 1, 2).unflatten(0, cover.shape[:2])
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return (error.abs() * weight).mean() + 2 * (error.square() * weight).mean() + 0.3 * edges


def train(model: ToyAutoencoder, crops: Crops, steps: int, batch: int, rate: float, log_every: int = 200) -> None:
    """Minimise `loss_of` over the parameters that require gradients, by AdamW with a cosine schedule."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * step / steps)) + 0.005
    )
    for step in range(1, steps + 1):
        video_frames, cover = crops.draw(batch)
        third = batch // 3
        with torch.autocast("cpu", torch.bfloat16):
            video, video_latents = reconstruct(model, video_frames)
            image, image_latents = reconstruct(model, video_frames[:third, -1:])
        loss = loss_of(video, video_frames, cover) + 0.5 * loss_of(image, video_frames[:third, -1:], cover[:third, -1:])
        loss = loss + 1e-4 * (video_latents.float().square().mean() + image_latents.float().square().mean())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % log_every == 0:
            psnr = -10 * (video.detach().float() - video_frames).square().mean().log10()
            log.info("step %d: loss %.4f, PSNR %.1f dB", step, loss.item(), psnr)


@torch.no_grad()
def measure_statistics(model: ToyAutoencoder, crops: Crops) -> None:
    """Set the model's per-channel mean and standard deviation of video latents, which normalise them as in Wan."""
    latents = torch.cat([model.encode(clip.video_frames)[1:] for clip in crops.pool])
    model.mean.copy_(latents.mean((0, 2, 3), keepdim=True))
    model.std.copy_(latents.std((0, 2, 3), keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for tiny_ae_bf16.safetensors")
    parser.add_argument("--steps", type=int, default=6500)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--polish", type=Path, help="train only the decoder of this autoencoder")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model, crops = ToyAutoencoder(), Crops(clips=150, seed=args.seed)
    if args.polish:
        model.load_state_dict(load_file(args.polish))
        for part in (model.in_img, model.in_vid, model.enc):
            part.requires_grad_(False)
        train(model, crops, args.steps, args.batch, rate=1.5e-3)
    else:
        train(model, crops, args.steps, args.batch, rate=3e-3)
        measure_statistics(model, crops)
    save(model.state_dict(), args.out / "tiny_ae_bf16.safetensors", torch.bfloat16)


if __name__ == "__main__":
    main()
