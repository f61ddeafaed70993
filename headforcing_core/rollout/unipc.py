"""UniPC, the multistep solver that leads from one noise level to the next without fresh noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..model.wan import KeyValueCache


class Denoiser(Protocol):
    """The part of `loop.VideoModel` that a solver asks."""

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        """Predict the clean latents, same shape, from latents at a noise level, or at one per
        frame, `[frames]`.
        """


def denoise(
    model: Denoiser,
    x: Tensor,
    sigmas: Sequence[float],
    cache: KeyValueCache,
    on_step: Callable[[int, Tensor], None],
    held: Tensor | None = None,
) -> Tensor:
    """The clean latents of a block, from noise `x [frames, channels, h, w]` over all noise levels.

    UniPC of order 2 with `B(h) = exp(h) - 1` ("bh2"), predicting clean latents (arXiv 2302.04867;
    LongLive 2.0, `causal_diffusion_inference.py`). The last step has order 1 and gives the last
    prediction itself.

    Args:
        on_step: called as `(step, predicted clean latents)` after each step, from 1.
        held: first frames of the block that are given, clean, for which the model is asked at
            timestep 0.
    """
    # half the logarithm of the signal-to-noise ratio, with sigma the share of noise
    lam = [math.log1p(-sigma) - math.log(sigma) for sigma in sigmas]
    predictions: list[Tensor] = []
    before = x  # the corrected latents of the step before
    for step, sigma in enumerate(sigmas):
        if held is not None:
            x = hold(held, x)
        level = whole_timestep(sigma) / 1000
        x0 = predict(model, x, sigma=sigma, level=level, cache=cache, held=held)
        on_step(step + 1, x0)
        predictions.append(x0)
        if step + 1 == len(sigmas):
            break
        x = x.to(x0.device)
        if step:
            x = _correct(before, predictions, sigmas, lam)
        before = x
        change = x0
        h = lam[step + 1] - lam[step]
        after = sigmas[step + 1]
        if step:
            ratio = (lam[step - 1] - lam[step]) / h
            change = x0 + (predictions[step - 1] - x0) / ratio / 2
        x = after / sigma * x - (1 - after) * math.expm1(-h) * change
    return x0


def hold(held: Tensor, latents: Tensor) -> Tensor:
    """The latents of a block with the frames that are given in place of the first ones."""
    return torch.cat((held.to(latents), latents[len(held) :]))


def predict(
    model: Denoiser,
    x: Tensor,
    sigma: float,
    level: float,
    cache: KeyValueCache,
    held: Tensor | None = None,
) -> Tensor:
    """The clean latents predicted from `x`, whose first frames `held` are clean: the model is asked
    at a noise level that it knows, and its flow counts at sigma itself."""
    levels: float | Tensor = level
    if held is not None:
        levels = torch.full((len(x),), level, dtype=torch.float64)
        levels[: len(held)] = 0
    x0 = model.denoise(x, levels, cache)
    x = x.to(x0.device)
    return x + (x0 - x) * (sigma / level)


def _correct(
    before: Tensor, predictions: Sequence[Tensor], sigmas: Sequence[float], lam: Sequence[float]
) -> Tensor:
    """The latents of a step once more, from those `before` it, now that the step's prediction (the
    last) is known.
    """
    step = len(predictions) - 1
    old, x0 = predictions[step - 1 :]
    h = lam[step] - lam[step - 1]
    b = math.expm1(-h)
    change = (x0 - old) / 2
    if step > 1:
        ratio = (lam[step - 2] - lam[step - 1]) / h
        f = b / -h - 1
        b1 = f / b
        b2 = 2 * (f / -h - 0.5) / b
        weight = (b2 - b1) / (ratio - 1)
        change = weight * ((predictions[step - 2] - old) / ratio) + (b1 - weight) * (x0 - old)
    return sigmas[step] / sigmas[step - 1] * before - (1 - sigmas[step]) * b * (old + change)


def whole_timestep(sigma: float) -> int:
    """The timestep, 0 to 1000, at which UniPC asks the model for latents of noise level sigma."""
    return math.floor(1000 * sigma)
