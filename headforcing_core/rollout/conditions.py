"""Conditions: what drives the blocks of a video besides noise and prompts."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from ..model.wan import BlockInputs


class PassInputs(Protocol):
    """The conditions of one video, as a model reads them."""

    def of(self, first: int, latents: Tensor) -> BlockInputs:
        """The inputs for a pass over `latents [frames, channels, h, w]` that begin with latent
        frame `first`, on their device and in their dtype.
        """


class VideoConditions(Protocol):
    """The conditions of one video."""

    def inputs(self, modules: Any) -> PassInputs:
        """The inputs of passes of a model with these modules, which are the model's own, under the
        names of its published file.
        """
