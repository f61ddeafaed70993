"""NaN and infinity stop a render, with the place where they appeared and what may help."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..finite import first_not_finite, is_finite
from ..rollout.loop import Block, StepCallback


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


class FiniteCheck:
    """Follows the denoising steps of a rollout and refuses a block with NaN or infinity.

    The result of every step is tested on its device without waiting for it; the answers are only read when a finished
    block is not finite, to name its first bad step.
    """

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self._steps: dict[int, list[Tensor]] = {}  # per block under way, whether each step's prediction is finite

    def following(self, on_step: StepCallback) -> StepCallback:
        """`on_step`, after the step's prediction has been tested."""

        def step_done(block: int, step: int, latents: Tensor | None) -> None:
            if latents is not None:
                self._steps.setdefault(block, []).append(torch.isfinite(latents).all())
            on_step(block, step, latents)

        return step_done

    def check(self, block: Block, blocks: int, backbone: Any) -> None:
        """Raise HeadForcingError if a finished block of `blocks` holds NaN or infinity; finished ones stay stored."""
        steps = self._steps.pop(block.index, [])
        if is_finite(block.latents):
            return
        bad = next((number for number, finite in enumerate(steps, 1) if not finite), None)
        place = f"block {block.index + 1} of {blocks}" + (f", denoising step {bad} of {len(steps)}" if bad else "")
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
