"""Shared code of the stages: noise, optimisers, data-parallel workers, files of weights."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed

from ...headforcing_core.demo import assets, word_hash
from ...headforcing_core.files import replacing
from ...headforcing_core.model.wan import TransformerBlock, WanConfig, WanModel
from .parallel_forward import BLOCK_FRAMES

ABOUT = {
    "format": "pt",
    "title": "Head Forcing toy world",
    "description": "Trained from scratch on procedurally drawn shapes; no other data, no other weights.",
    "license": "Apache-2.0",
}
"""Metadata of every file of weights."""
STRUCTURE = {
    "config": json.dumps(
        {
            "transformer": {
                "causal_ar": True,
                "num_heads": assets.TOY_CONFIG.num_heads,
                "text_len": assets.TOY_CONFIG.text_len,
            }
        }
    ),
    "head_forcing": json.dumps({"frames_per_block": assets.BLOCK_FRAMES}),
}
"""Metadata of a toy transformer's files: the properties that do not follow from the shapes of its weights."""


@lru_cache(maxsize=50000)
def word_vectors(prompt: str) -> Tensor:
    return word_hash.encode(prompt)


def draw_times(shape: tuple[int, int]) -> Tensor:
    """A random noise level in (0, 1) per block, biased to high levels, repeated for the block's latent frames."""
    u = torch.rand(shape) * 0.98 + 0.01
    return (2 * u / (1 + u)).repeat_interleave(BLOCK_FRAMES, 1)


def add_noise(clean: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """`(1 - t) clean + t noise`, and the noise."""
    noise, t = torch.randn_like(clean), times[..., None, None, None]
    return (1 - t) * clean + t * noise, noise


def initialise(model: WanModel) -> None:
    """Initialise gates and outputs with small values, so that training starts near the identity."""
    for block in model.blocks:
        assert isinstance(block, TransformerBlock)
        torch.nn.init.normal_(block.modulation, std=model.config.dim**-0.5)
    torch.nn.init.normal_(model.head.modulation, std=model.config.dim**-0.5)
    torch.nn.init.zeros_(model.head.head.weight)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.zeros_(module.bias)


class Optimizer:
    """Muon for the matrices of the blocks, AdamW for the rest, one learning-rate factor for both."""

    def __init__(self, model: WanModel, muon: float, adam: float, betas: tuple[float, float] = (0.9, 0.99)):
        matrices = [p for name, p in model.named_parameters() if name.startswith("blocks") and p.ndim == 2]
        ids = set(map(id, matrices))
        self.rest = [p for p in model.parameters() if id(p) not in ids]
        self.rates = muon, adam
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, lr=muon, momentum=0.95, weight_decay=0.01, adjust_lr_fn="original"),
            torch.optim.AdamW(self.rest, lr=adam, betas=betas, weight_decay=0.0),
        )

    def step(self, loss: Tensor, factor: float) -> None:
        for part in self.parts:
            part.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.param_groups[0]["lr"] = rate * factor
            part.step()


class Average:
    """Exponential moving average of a model's parameters."""

    def __init__(self, model: WanModel, decay: float):
        self.decay, self.steps = decay, 0
        self.parameters = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: WanModel) -> None:
        self.steps += 1
        weight = 1 - min(self.decay, 1 - 1 / (1 + 0.1 * self.steps))
        torch._foreach_lerp_(self.parameters, list(model.parameters()), weight)

    def state(self) -> dict[str, object]:
        """State that a training goes on from, see `restore`."""
        return {"steps": self.steps, "parameters": self.parameters}

    def restore(self, state: dict[str, Any]) -> None:
        self.steps, self.parameters = state["steps"], state["parameters"]

    def state_dict(self, model: WanModel) -> dict[str, Tensor]:
        return dict(zip((name for name, _ in model.named_parameters()), self.parameters, strict=True))


class Workers:
    """Data-parallel processes that periodically average their weights; has no effect with one process.

    Start two with `torchrun --nproc-per-node 2 -m ...`: single-threaded workers use the cores better than one worker
    with several threads.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        if distributed.is_torchelastic_launched():
            distributed.init_process_group("gloo", timeout=timedelta(hours=2))
        self.rank = distributed.get_rank() if distributed.is_initialized() else 0

    @torch.no_grad()
    def average(self, *models: torch.nn.Module) -> None:
        if distributed.is_initialized():
            parameters = [p for model in models for p in model.parameters()]
            flat = torch.cat([p.flatten() for p in parameters])
            distributed.all_reduce(flat)
            flat /= distributed.get_world_size()
            for parameter, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(mean.view_as(parameter))


def save(
    state_dict: dict[str, Tensor],
    path: Path,
    dtype: torch.dtype = torch.float32,
    metadata: dict[str, str] | None = None,
) -> None:
    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in state_dict.items()}
    with replacing(path) as partial:
        save_file(tensors, partial, ABOUT | (metadata or {}))


def load(config: WanConfig, path: Path) -> WanModel:
    """A model to train further, float32."""
    model = WanModel(config)
    model.load_state_dict(load_file(path))
    return model
