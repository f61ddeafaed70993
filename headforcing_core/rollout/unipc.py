"""UniPC, the multistep solver that leads from one noise level to the next without fresh noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def denoise(
    model: Any,
    x: Tensor,
    sigmas: Sequence[float],
    cache: Any,
    on_step: Callable[[int, Tensor], None],
    held: Tensor | None = None,
) -> Tensor:
    """The clean latents of a block, from noise `x [frames, channels, h, w]` over all noise levels.

    Args:
        model: a `loop.JointModel`.
        on_step: called as `(step, predicted clean latents)` after each step, from 1.
        held: first frames of the block that are given, clean: they stay as they are, and the model is asked for them at
            timestep 0.
    """
    solver = UniPC(sigmas)
    for step in range(len(sigmas)):
        if held is not None:
            x = torch.cat((held.to(x), x[len(held) :]))
        x0 = solver.predict(model, x, step, cache, 0 if held is None else len(held))
        on_step(step + 1, x0)
        if step + 1 < len(sigmas):
            x = solver.advance(step, x, x0)
    return x0


class UniPC:
    """UniPC of order 2 with `B(h) = exp(h) - 1` ("bh2"), predicting clean latents, as LongLive 2.0 samples and was
    trained; it draws no noise. The last step has order 1 and gives the last prediction itself.

    The model is asked at the whole timestep below `1000 sigma`, and the flow it predicts counts at sigma itself
    (arXiv 2302.04867; LongLive 2.0, `causal_diffusion_inference.py`).
    """

    def __init__(self, sigmas: Sequence[float]):
        self.sigmas = [*sigmas, 0.0]
        # half the logarithm of the signal-to-noise ratio, with sigma the share of noise
        self.lam = [math.log1p(-sigma) - math.log(sigma) for sigma in sigmas]
        self.predictions: list[Tensor] = []
        self.before: Tensor  # the corrected latents of the step before

    def predict(self, model: Any, x: Tensor, step: int, cache: Any, held: int = 0) -> Tensor:
        """The clean latents that the model predicts from `x` at the noise level of a step; `held` frames are clean."""
        level = whole_timestep(self.sigmas[step]) / 1000
        if held:
            levels = torch.full((len(x),), level, dtype=torch.float64)
            levels[:held] = 0
            x0 = model.denoise_jointly(x, levels, cache)
        else:
            x0 = model.denoise(x, level, cache)
        x = x.to(x0.device)
        return x + (x0 - x) * (self.sigmas[step] / level)

    def advance(self, step: int, x: Tensor, x0: Tensor) -> Tensor:
        """Correct the latents of this step, then predict those of the next; see `Renoise.advance`."""
        self.predictions.append(x0)
        x = x.to(x0.device)
        if step:
            x = self._correct(step, x0)
        self.before = x
        first, last = self.sigmas[step], self.sigmas[step + 1]
        h = self.lam[step + 1] - self.lam[step]
        b = math.expm1(-h)
        change = x0
        if self._order(step) == 2:
            change = x0 + self._slope(step, h) / 2
        return last / first * x - (1 - last) * b * change

    def _order(self, step: int) -> int:
        return min(2, len(self.lam) - step, step + 1)

    def _slope(self, step: int, h: float) -> Tensor:
        """The change of the prediction between the step before and this one, over a step of length `h`."""
        ratio = (self.lam[step - 1] - self.lam[step]) / h
        return (self.predictions[step - 1] - self.predictions[step]) / ratio

    def _correct(self, step: int, x0: Tensor) -> Tensor:
        """The latents of this step once more, now that their prediction is known."""
        first, last = self.sigmas[step - 1], self.sigmas[step]
        h = self.lam[step] - self.lam[step - 1]
        b = math.expm1(-h)
        old = self.predictions[step - 1]
        change = (x0 - old) / 2
        if self._order(step - 1) == 2:
            ratio = (self.lam[step - 2] - self.lam[step - 1]) / h
            f = b / -h - 1
            b1, b2 = f / b, 2 * (f / -h - 0.5) / b
            weight = (b2 - b1) / (ratio - 1)
            change = weight * self._slope(step - 1, h) + (b1 - weight) * (x0 - old)
        return last / first * self.before - (1 - last) * b * (old + change)


def whole_timestep(sigma: float) -> int:
    """The timestep, 0 to 1000, at which UniPC asks the model for latents of noise level sigma."""
    return math.floor(1000 * sigma)
