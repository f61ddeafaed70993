"""NaN and infinity stop a render, with the place where they appeared and what may help."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..finite import first_not_finite, is_finite
from ..rollout.loop import Block
from .render import Listener, Render


def check_inputs(embeds: Iterable[Tensor], start_latents: Tensor | None) -> None:
    """Refuse text embeddings and start latents that hold NaN or infinity."""
    for number, embed in enumerate(embeds, 1):
        if not is_finite(embed):
            raise HeadForcingError(
                f"the text embedding of prompt {number} holds NaN or infinity: encode the prompts again, with the text "
                "encoder in bf16 or float32 instead of fp16"
            )
    if start_latents is not None:
        bad = [frame for frame, latents in enumerate(start_latents) if not is_finite(latents)]
        if bad:
            raise HeadForcingError(
                f"the start latents hold NaN or infinity, first in latent frame {bad[0]} of {len(start_latents)}: "
                "encode the video again, with the VAE in bf16 or float32 instead of fp16"
            )


class FiniteCheck(Listener):
    """Refuses a block with NaN or infinity, and names its first bad denoising step.

    The result of every step is tested on its device without waiting for it; the answers are only read when a finished
    block is not finite.
    """

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self._steps: dict[int, list[Tensor]] = {}  # per block under way, whether each step's prediction is finite

    def begin(self, render: Render) -> None:
        self._render = render

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        if latents is not None:
            self._steps.setdefault(block, []).append(torch.isfinite(latents).all())

    def add(self, block: Block) -> None:
        """Raise HeadForcingError if a new block holds NaN or infinity; those stored before it stay."""
        steps = self._steps.pop(block.index, [])
        if not self._render.run.is_made(block.index) or is_finite(block.latents):
            return
        bad = next((number for number, finite in enumerate(steps, 1) if not finite), None)
        place = f"block {block.index + 1} of {self._render.job.plan.blocks}"
        place += f", denoising step {bad} of {len(steps)}" if bad else ""
        backbone = self._render.model.backbone
        weights = backbone.named_parameters() if isinstance(backbone, torch.nn.Module) else ()
        weight = first_not_finite(weights)
        if weight is not None:
            raise HeadForcingError(
                f"{place}: NaN or infinity, because the weight {weight} holds some; load or convert the model again"
            )
        dtype = str(self.dtype).removeprefix("torch.")
        raise HeadForcingError(
            f"{place}: NaN or infinity in the latents; compute in bf16 or float32 (now {dtype}) or choose another "
            "attention backend; blocks stored before it stay"
        )
