"""A Wan backbone as a `VideoModel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..devices import upload
from ..model.wan import KeyValueCache, encode_prompt, forward_block
from .loop import BlockCache


class WanVideoModel:
    """A Wan backbone as a `VideoModel`.

    Args:
        dtype: compute dtype of the backbone.
        forward: `wan.forward_block` or an equivalent function (`cuda_graph.GraphedForward`).
    """

    def __init__(
        self,
        backbone: Any,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        forward: Callable[..., Tensor | None] = forward_block,
    ):
        self.backbone, self.dtype, self.device, self.forward = backbone, dtype, device, forward

    @torch.no_grad()
    def use_prompt(self, embedding: Tensor) -> None:
        # only the active prompt's keys and values are kept: 94 MB for the 1.3B model
        self.prompt = encode_prompt(self.backbone, embedding, self.dtype, self.device)

    @torch.no_grad()
    def flow(self, latents: Tensor, sigma: float, cache: KeyValueCache, write_only: bool = False) -> Tensor | None:
        """The backbone's raw prediction, noise minus clean latents, float32."""
        timesteps = torch.full((len(latents),), 1000 * sigma, dtype=torch.float64)
        latents = latents.to(device=self.device, dtype=self.dtype)
        flow = self.forward(self.backbone, latents, timesteps, self.prompt, cache, write_only=write_only)
        return None if flow is None else flow.float()

    def denoise(self, latents: Tensor, sigma: float, cache: BlockCache) -> Tensor:
        return _clean(latents, sigma, self.flow(latents, sigma, cache))

    @torch.no_grad()
    def denoise_jointly(self, latents: Tensor, sigmas: Tensor, cache: KeyValueCache) -> Tensor:
        """Like `denoise`, with one noise level per frame, `sigmas [frames]`."""
        x = latents.to(device=self.device, dtype=self.dtype)
        flow = self.forward(self.backbone, x, 1000 * sigmas, self.prompt, cache)
        return _clean(latents, sigmas[:, None, None, None], flow)

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        self.flow(latents, 0.0, cache, write_only=not cache.reads_queries)


def _clean(x: Tensor, sigma: float | Tensor, flow: Tensor | None) -> Tensor:
    """`x0 = x - sigma * v`, subtracted in float64 where the device has it, in the dtype of `x`."""
    assert flow is not None
    precise = torch.float64 if flow.device.type in ("cpu", "cuda") else torch.float32  # mps has no float64
    if isinstance(sigma, Tensor):
        sigma = upload(sigma.to(precise), flow.device)
    return (x.to(flow.device, precise) - sigma * flow.to(precise)).to(x.dtype)
