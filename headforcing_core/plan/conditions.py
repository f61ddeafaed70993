"""Conditions of a request: what drives its videos besides noise and prompts, for models with
`config.is_driven`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..errors import HeadForcingError
from ..rollout.conditions import VideoConditions
from .plan import RenderPlan


class Conditions(Protocol):
    """Conditions, of a kind that the model was trained for."""

    def check(self, plan: RenderPlan) -> None:
        """Refuse a plan and a model that they do not fit."""

    def check_finite(self) -> None:
        """Refuse NaN and infinity."""

    def block_key(self, first: int, frames: int) -> str:
        """The hash of what latent frames depend on, for the keys of stored blocks."""

    def of_video(self, start: Tensor) -> VideoConditions:
        """The conditions of a video that begins with these latents `[frames, channels, h, w]`."""


def no_conditions() -> HeadForcingError:
    """The error for a model that needs conditions and got none."""
    return HeadForcingError(
        "speech: this model makes a portrait speak and got no speech; connect a Speech node to "
        "the sampler (generate and batch: --speech)"
    )
