"""The stage `picture`: the decoder for what is shown, trained on exact fields of random stories.

Half of the latents are the autoencoder's, half are what the student made of them after noise was
added, as the decoder sees the student's latents later. The loss is on fields; no picture is drawn
in a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...headforcing_core.demo.picture_decoder import PictureNetwork, read_features
from ...headforcing_core.demo.picture_drawing import draw
from ...headforcing_core.demo.picture_fields import COARSE, OUTLINES, named
from ...headforcing_core.demo.rooms_autoencoder import RoomsAutoencoder
from ...headforcing_core.model.wan import WanModel
from ...headforcing_core.timeline.clock import TEMPORAL_STRIDE
from ..rooms.detector import SATURATION
from ..rooms.drawing import FRAME_SIZE
from ..rooms.exact_fields import exact_fields, render_large
from ..rooms.scenes import render
from ..rooms.stories import random_story
from .data import TRAINING_SEEDS, Window
from .distill import SIGMAS, denoised
from .stages import Run, Stage, rate_factor
from .training import Average, Optimizer, load, word_vectors

CLIP_BLOCKS = 6
CLIPS_KEPT = 80
STEPS_A_CLIP = 4
RATE = 3e-3
DECAY = 0.4  # last part of the steps in which the learning rate falls
UNSEEN = 16  # stories that the journal's figures are of, by their numbers from 0
NOISE = 0.3  # in standard deviations, of the second of the journal's figures
MOST_MOVED = 9.0  # pixels by which the student may move an actor, in a clip that teaches
_TWO = 2  # of the four video frames of a latent frame, side by side, are in a step's loss


@dataclass(frozen=True)
class TaughtClip:
    """A story's latents `[frames, 16, 8, 8]` with the exact fields of the four video frames of
    each; of the first latent frame, which is one video frame, it is repeated."""

    latents: Tensor
    outlines: Tensor  # [frames, 4, 5, 64, 64]
    others: Tensor  # [frames, 4, 21, 16, 16]
    known_emblem: bool  # not where the student has drawn the actor anew


class TaughtClips:
    """Clips of a worker, each a function of its number."""

    def __init__(self, autoencoder: RoomsAutoencoder, student: WanModel, seed: int, rank: int):
        self.autoencoder = autoencoder
        self.student = student
        self.seed = seed
        self.rank = rank
        self.clips = Window(self._clip)

    def draw(self, step: int, batch: int) -> tuple[Tensor, ...]:
        """Latents and those before `[batch, 16, 8, 8]`, outlines and other fields, whether each
        begins a video and whether its emblem is known `[batch]`."""
        rng = np.random.default_rng((self.seed, self.rank, step))
        first = step // STEPS_A_CLIP
        self.clips.begin_at(first)
        # the first steps are of a few clips, so that a training begins at once
        kept = min(CLIPS_KEPT, 12 + first)
        parts = []
        for _ in range(batch):
            clip: TaughtClip = self.clips[first + int(rng.integers(kept))]
            frame = 0 if rng.random() < 0.06 else int(rng.integers(1, len(clip.latents)))
            parts.append(
                (
                    clip.latents[frame],
                    clip.latents[max(0, frame - 1)],
                    clip.outlines[frame],
                    clip.others[frame],
                    torch.tensor(float(frame == 0)),
                    torch.tensor(float(clip.known_emblem)),
                )
            )
        return tuple(torch.stack(column).float() for column in zip(*parts, strict=True))

    def _clip(self, index: int) -> TaughtClip:
        number = TRAINING_SEEDS * (40 + self.rank + 2 * self.seed) + index
        looks = random_story(np.random.default_rng(number), CLIP_BLOCKS)
        latents = self.autoencoder.encode(render(looks, number).video_frames)
        text = torch.stack([word_vectors(look.prompt) for look in looks])
        generator = torch.Generator().manual_seed(number)
        shift = None
        known = True
        source = index % 4
        if source == 1:
            latents = remade(self.student, latents, text=text, steps=1, generator=generator)
        elif source > 1 and not any(look.camera for look in looks):
            # where a camera pans, the pictures that come are the student's own choice
            made = remade(self.student, latents, text=text, steps=2, generator=generator)
            shift = actor_shift(self.autoencoder.decode(latents), self.autoencoder.decode(made))
            if shift is not None:
                latents = made
                known = False
        outlines, others = exact_fields(looks, number, shift=shift)
        return TaughtClip(latents.half(), _by_latent(outlines), _by_latent(others), known)


def _by_latent(fields: Tensor) -> Tensor:
    """Fields of video frames `[1 + 4k, ...]` as `[1 + k, 4, ...]`, half precision."""
    lead = fields[:1].expand(TEMPORAL_STRIDE - 1, *fields.shape[1:])
    return torch.cat((lead, fields)).unflatten(0, (-1, TEMPORAL_STRIDE)).half()


@torch.no_grad()
def remade(
    student: WanModel, latents: Tensor, text: Tensor, steps: int, generator: torch.Generator
) -> Tensor:
    """`latents [frames, 16, 8, 8]` after noise and the last `steps` of the student's four steps,
    each block after a clean past; `text [blocks, words, 64]`."""
    clean = latents[None].float()
    made = clean
    with torch.compiler.set_stance("force_eager"), torch.autocast("cpu", torch.bfloat16):
        for sigma in SIGMAS[len(SIGMAS) - steps :]:
            noise = torch.randn(made.shape, generator=generator)
            times = torch.full(made.shape[:2], sigma)
            noisy = (1 - sigma) * made + sigma * noise
            made = denoised(student, clean, noisy=noisy, times=times, text=text[None]).float()
    return made[0]


def actor_shift(true: Tensor, made: Tensor) -> np.ndarray | None:
    """How far the actor of video frames `made [n, 64, 64, 3]` is from that of `true`, `[n, 2]`
    pixels to the right and down; None where it is not found or is too far."""
    (place, area), (other, size) = map(_actor_place, (true, made))
    ratio = size / area
    shift = other - place
    lost = ((ratio < 0.6) | (ratio > 1.6)).float().mean() > 0.04
    if lost or float(shift.abs().quantile(0.98)) > MOST_MOVED:
        return None
    wide = F.pad(shift.T[None], (1, 1), mode="replicate")
    return F.avg_pool1d(wide, 3, 1)[0].T.clamp(-MOST_MOVED, MOST_MOVED).numpy()


def _actor_place(video_frames: Tensor) -> tuple[Tensor, Tensor]:
    """Middle `[n, 2]` and area `[n]` of what has a strong colour."""
    cover = (video_frames.amax(-1) - video_frames.amin(-1) > SATURATION).float()
    area = cover.sum((1, 2)).clamp_min(1)
    along = torch.arange(float(FRAME_SIZE))
    middle = torch.stack(
        ((cover * along).sum((1, 2)) / area, (cover * along[:, None]).sum((1, 2)) / area), 1
    )
    return middle, area


def disturbed(latents: Tensor, before: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Latents with errors such as a model makes: noise, smooth noise, cells of the frame before or
    of elsewhere; the frame before of a video's first latent frame stays that frame."""
    count = (len(latents), 1, 1, 1)
    cells = (len(latents), 1, *latents.shape[-2:])
    sigma = 0.04 + 0.7 * torch.rand(count).square()
    sigma_before = 0.04 + 0.7 * torch.rand(count).square()
    smooth = F.interpolate(
        torch.randn(*latents.shape[:2], 4, 4), size=latents.shape[-2:], mode="bilinear"
    )
    made = latents
    late = (torch.rand(cells) < 0.12) & (torch.rand(count) < 0.5)
    made = torch.where(late, made.lerp(before, torch.rand(count)), made)
    wrong = (torch.rand(cells) < 0.03) & (torch.rand(count) < 0.4)
    made = torch.where(wrong, made.flip(-1), made)
    down, right = torch.randint(-1, 2, (2,)).tolist()
    blurred = (torch.rand(cells) < 0.10) & (torch.rand(count) < 0.4)
    made = torch.where(blurred, made.lerp(torch.roll(made, (down, right), (-2, -1)), 0.25), made)
    made = made + sigma * torch.randn_like(made) + 0.5 * sigma * smooth
    past = before + sigma_before * torch.randn_like(before) + 0.5 * sigma * smooth
    return made, torch.where(first.bool().view(count), made, past)


def fields_loss(
    outlines: Tensor, others: Tensor, true: Tensor, true_others: Tensor, known_emblem: Tensor
) -> Tensor:
    """Errors of outlines, most where they are near and seen, of their differences in space and
    time, and errors of the other fields where they mean something.

    Outlines are `[batch, n, 5, 64, 64]`, other fields `[batch, n, 21, 16, 16]`.
    """
    at = named(true, OUTLINES, 2)
    seen = 0.12 + 0.88 * (at["actor"] > -0.7)  # not hidden by the actor
    emblem = known_emblem[:, None, None, None, None]
    around = F.max_pool2d(-at["emblem"].flatten(0, 1), 5, 1, 2).view_as(at["emblem"]) > -1.5
    weights = {
        "pattern": 0.7 * seen * (0.2 + 0.8 * (at["frame"] > -0.7)),
        "frame": seen,
        "light": 1.5 * seen * (at["frame"] < 0.3),
        "actor": 1.6 * torch.ones_like(at["actor"]),
        "emblem": 2.0 * emblem * (at["actor"] < 0.8) * (0.25 + 0.75 * around),
    }
    weight = torch.cat([weights[name] for name in OUTLINES], 2)
    error = (outlines - true) * weight * (0.35 + 2.0 * torch.exp(-true.abs() / 1.2))
    changes = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    loss = 6 * (error.abs().mean() + 0.4 * changes + 0.3 * error.diff(dim=1).abs().mean())
    return loss + _others_loss(others, true_others, at, emblem)


def _others_loss(others: Tensor, true: Tensor, at: dict[str, Tensor], emblem: Tensor) -> Tensor:
    got, goal = named(others, COARSE, 2), named(true, COARSE, 2)
    actor, frame, mark = _coarse(at["actor"]), _coarse(at["frame"]), _coarse(at["emblem"])
    everywhere = torch.ones_like(actor)
    near_actor = (actor < 2.5).float()
    seen = 0.15 + 0.85 * (actor > -3.0)
    near_picture = goal["hang"].abs().amax(2, keepdim=True) < 1.75
    parts = {
        "wall": (6.0, everywhere),
        "strength": (1.0, everywhere),
        "body": (2.5, near_actor),
        "mark": (2.0, near_actor * (mark < 1.0) * emblem),
        "round": (2.0, near_actor),
        "place": (4.0, near_actor),
        "hang": (4.0, seen * near_picture),
        "kind": (5.0, seen * (frame < 2.0)),
    }
    loss = others.new_zeros(())
    for name, (scale, weight) in parts.items():
        if name == "kind":
            error = -got[name].clamp_min(1e-4).log() * goal[name]
        else:
            error = (got[name] - goal[name]).abs()
        loss = loss + scale * (error * weight).sum() / weight.expand_as(error).sum().clamp_min(1)
    return loss


def _coarse(field: Tensor) -> Tensor:
    """Means `[batch, n, 1, 16, 16]` of a field `[batch, n, 1, 64, 64]`."""
    return F.avg_pool2d(field.flatten(0, 1), 4).unflatten(0, field.shape[:2])


def train_picture(run: Run) -> None:
    """Train the picture decoder's network on latents of the run's autoencoder and student, write
    its moving average."""
    recipe = run.recipe
    workers = run.workers
    torch.manual_seed(recipe.seed)
    student = load(recipe.config, recipe.file("student")).requires_grad_(False)
    network = PictureNetwork()
    ends = ("start", "fields", "outlines")  # layers whose weights AdamW trains
    hidden = [
        name
        for name, weight in network.named_parameters()
        if weight.ndim > 1 and name.split(".")[0] not in ends
    ]
    optimizer = Optimizer(
        network, 1.25 * RATE, RATE, betas=(0.9, 0.98), hidden=hidden, rule="match_rms_adamw"
    )
    average = Average(network, 0.995)
    stage = Stage(
        run,
        "picture",
        recipe.picture_steps,
        recipe.picture_keep,
        network=network,
        optimizer=optimizer,
        average=average,
    )
    clips = TaughtClips(run.autoencoder, student, recipe.seed, workers.rank)
    unseen = None
    for step in stage.steps():
        latents, before, true, true_others, first, known = clips.draw(step, recipe.picture_batch)
        latents, before = disturbed(latents, before, first)
        with torch.autocast("cpu", torch.bfloat16):
            features = read_features(run.autoencoder, latents, before)
            outlines, others = network(latents, before, features, first)
        some = slice(step % 3, step % 3 + _TWO)
        loss = fields_loss(
            outlines[:, some],
            others[:, some],
            true=true[:, some],
            true_others=true_others[:, some],
            known_emblem=known,
        )
        optimizer.step(loss, rate_factor(step, recipe.picture_steps, DECAY))
        average.update(network)
        if (step + 1) % 20 == 0:
            workers.average(network)
        if (step + 1) % recipe.picture_keep == 0 or step + 1 == recipe.picture_steps:
            unseen = unseen or Unseen.draw(run.autoencoder)
            shown = average_network(average)
            psnr, ssim = unseen.accuracy(shown, 0.0)
            noisy_psnr, noisy_ssim = unseen.accuracy(shown, NOISE)
            stage.journal.write(
                step + 1,
                loss=loss.item(),
                psnr=psnr,
                ssim=ssim,
                noisy_psnr=noisy_psnr,
                noisy_ssim=noisy_ssim,
            )
    stage.finish(average.parameters, torch.bfloat16, {})


def average_network(average: Average) -> PictureNetwork:
    """The network that would be written now, in the precision in which it is stored."""
    network = PictureNetwork()
    state = {name: value.bfloat16().float() for name, value in average.parameters.items()}
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


@dataclass(frozen=True)
class Unseen:
    """Latent frames of stories that are not trained on, with their video frames at 256 pixels."""

    autoencoder: RoomsAutoencoder
    pairs: tuple[tuple[Tensor, Tensor, Tensor], ...]  # latents, those before, true video frames

    @classmethod
    def draw(cls, autoencoder: RoomsAutoencoder) -> Unseen:
        pairs = []
        for number in range(UNSEEN):
            looks = random_story(np.random.default_rng(number), CLIP_BLOCKS)
            latents = autoencoder.encode(render(looks, number).video_frames)
            frame = 1 + (number * 5) % (len(latents) - 1)
            stop = 1 + TEMPORAL_STRIDE * frame
            true = render_large(looks, number, slice(stop - TEMPORAL_STRIDE, stop))
            pairs.append((latents[frame : frame + 1], latents[frame - 1 : frame], true))
        return cls(autoencoder, tuple(pairs))

    @torch.no_grad()
    def accuracy(self, network: PictureNetwork, noise: float) -> tuple[float, float]:
        """Mean PSNR in decibels and SSIM, of latents with noise of so many standard deviations."""
        generator = torch.Generator().manual_seed(0)
        found = []
        for latents, before, true in self.pairs:
            given = latents + noise * torch.randn(latents.shape, generator=generator)
            past = before + noise * torch.randn(before.shape, generator=generator)
            features = read_features(self.autoencoder, given, past)
            outlines, others = network(given, past, features, torch.zeros(1))
            made = draw(outlines[0], others[0])
            found.append((float(-10 * (made - true).square().mean().log10()), ssim(made, true)))
        psnr, likeness = zip(*found, strict=True)
        return sum(psnr) / len(psnr), sum(likeness) / len(likeness)


def ssim(a: Tensor, b: Tensor) -> float:
    """Structural similarity of pictures `[n, 3, h, w]` in windows of 8x8 pixels, four apart."""

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, 8, 4)

    mean_a, mean_b = mean(a), mean(b)
    spread_a, spread_b = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2
    shared = mean(a * b) - mean_a * mean_b
    return float(
        (
            (2 * mean_a * mean_b + 1e-4)
            * (2 * shared + 9e-4)
            / ((mean_a**2 + mean_b**2 + 1e-4) * (spread_a + spread_b + 9e-4))
        ).mean()
    )
