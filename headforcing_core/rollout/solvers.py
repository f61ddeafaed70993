"""The solvers: what leads a block from noise over its noise levels to clean latents. Each is made
anew for a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..devices import upload
from ..model.wan import KeyValueCache


class Denoiser(Protocol):
    """The part of `loop.VideoModel` that a solver asks."""

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        """Predict the clean latents, same shape, from latents at a noise level, or at one per
        frame, `[frames]`.
        """


class Renoise:
    """Self Forcing's: fresh noise is added to the clean latents that the model predicts.

    Args:
        sigmas: the noise levels of the block, highest first.
        fresh: the noise after a step, `[frames, channels, h, w]`, by the number of the step.
        held: first frames of the block that are given, clean, `[frames, channels, h, w]`.
    """

    def __init__(
        self, sigmas: tuple[float, ...], fresh: Callable[[int], Tensor], held: Tensor | None = None
    ):
        self.sigmas = sigmas
        self.fresh = fresh
        self.held = held

    def predict(self, model: Denoiser, x: Tensor, step: int, cache: KeyValueCache) -> Tensor:
        """The clean latents `x0` that the model sees in `x`, the latents at the noise level of a
        step.
        """
        return hold(self.held, self._ask(model, hold(self.held, x), self.sigmas[step], cache))

    def _ask(self, model: Denoiser, x: Tensor, sigma: float, cache: KeyValueCache) -> Tensor:
        return model.denoise(x, sigma, cache)

    def advance(self, x0: Tensor, step: int) -> Tensor:
        """The latents at the noise level after this step, from its prediction."""
        sigma = self.sigmas[step + 1]
        return (1 - sigma) * x0 + sigma * upload(self.fresh(step).to(x0.dtype), x0.device)


class RenoiseInBf16(Renoise):
    """The same for a model that is asked at the time step in bf16; its flow leads to clean latents
    from the noise level itself.
    """

    def _ask(self, model: Denoiser, x: Tensor, sigma: float, cache: KeyValueCache) -> Tensor:
        return predict_at(model, x, sigma=sigma, level=bf16_timestep(sigma) / 1000, cache=cache)


class UniPC(Renoise):
    """The multistep solver UniPC of order 2 with `B(h) = exp(h) - 1` ("bh2"), predicting clean
    latents (arXiv 2302.04867; LongLive 2.0, `causal_diffusion_inference.py`). It adds no fresh
    noise. The last step has order 1 and gives the last prediction itself; frames that are given are
    shown to the model at timestep 0.
    """

    def __init__(
        self, sigmas: tuple[float, ...], fresh: Callable[[int], Tensor], held: Tensor | None = None
    ):
        super().__init__(sigmas, fresh, held)
        # half the logarithm of the signal-to-noise ratio, with sigma the share of noise
        self.lam = [math.log1p(-sigma) - math.log(sigma) for sigma in sigmas]
        self.predictions: list[Tensor] = []
        self.x: Tensor  # the latents of the step
        self.before: Tensor  # the corrected latents of the step before

    def predict(self, model: Denoiser, x: Tensor, step: int, cache: KeyValueCache) -> Tensor:
        self.x = hold(self.held, x)
        sigma = self.sigmas[step]
        level = whole_timestep(sigma) / 1000
        x0 = predict_at(model, self.x, sigma=sigma, level=level, cache=cache, held=self.held)
        self.predictions.append(x0)
        return x0

    def advance(self, x0: Tensor, step: int) -> Tensor:
        x = self._corrected(step) if step else self.x.to(x0.device)
        self.before = x
        change = x0
        h = self.lam[step + 1] - self.lam[step]
        after = self.sigmas[step + 1]
        if step:
            ratio = (self.lam[step - 1] - self.lam[step]) / h
            change = x0 + (self.predictions[step - 1] - x0) / ratio / 2
        return after / self.sigmas[step] * x - (1 - after) * math.expm1(-h) * change

    def _corrected(self, step: int) -> Tensor:
        """The latents of a step once more, from the corrected ones of the step before, now that the
        step's prediction is known.
        """
        lam = self.lam
        old, x0 = self.predictions[step - 1 :]
        h = lam[step] - lam[step - 1]
        b = math.expm1(-h)
        change = (x0 - old) / 2
        if step > 1:
            ratio = (lam[step - 2] - lam[step - 1]) / h
            f = b / -h - 1
            b1 = f / b
            b2 = 2 * (f / -h - 0.5) / b
            weight = (b2 - b1) / (ratio - 1)
            earlier = (self.predictions[step - 2] - old) / ratio
            change = weight * earlier + (b1 - weight) * (x0 - old)
        sigma = self.sigmas[step]
        share = sigma / self.sigmas[step - 1]
        return share * self.before - (1 - sigma) * b * (old + change)


SOLVERS: dict[str, type[Renoise]] = {
    "renoise": Renoise,
    "renoise_held": RenoiseInBf16,
    "unipc": UniPC,
}
"""By the name in a `Schedule`."""


def hold(held: Tensor | None, latents: Tensor) -> Tensor:
    """The latents of a block with the frames that are given in place of the first ones."""
    return latents if held is None else torch.cat((held.to(latents), latents[len(held) :]))


def predict_at(
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


def bf16_timestep(sigma: float) -> float:
    """The time step of a noise level as bf16 has it: 936 of 937.5, 832 of 833.3."""
    return torch.tensor(1000 * sigma).to(torch.bfloat16).item()


def whole_timestep(sigma: float) -> int:
    """The timestep, 0 to 1000, at which UniPC asks the model for latents of noise level sigma."""
    return math.floor(1000 * sigma)
