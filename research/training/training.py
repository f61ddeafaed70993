"""Shared code of the stages: noise, optimisers, data-parallel workers, stored states, files of
weights.

A training may be stopped at any moment. Noise and clips of a step follow from the seed and the
number of the step, so that one that goes on from a stored state ends as one that was not stopped.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed

from ...headforcing_core.demo import word_hash
from ...headforcing_core.demo.assets import TOY_CONFIG
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import replacing
from ...headforcing_core.model.wan import TransformerBlock, WanConfig, WanModel
from .sizes import BLOCK_FRAMES

log = logging.getLogger(__name__)
ABOUT = {
    "format": "pt",
    "title": "Head Forcing toy world",
    "description": (
        "Trained from scratch on procedurally drawn shapes; no other data, no other weights."
    ),
    "license": "Apache-2.0",
}
"""Metadata of every file of weights."""
_TRANSFORMER = {
    "causal_ar": True,
    "num_heads": TOY_CONFIG.num_heads,
    "text_len": TOY_CONFIG.text_len,
}
STRUCTURE = {
    "config": json.dumps({"transformer": _TRANSFORMER}),
    "head_forcing": json.dumps({"frames_per_block": BLOCK_FRAMES}),
}
"""Metadata of a toy transformer's files: the properties that do not follow from the shapes of its
weights.
"""


@lru_cache(maxsize=50000)
def word_vectors(prompt: str) -> Tensor:
    return word_hash.encode(prompt)


def draw_times(shape: tuple[int, int]) -> Tensor:
    """A random noise level in (0, 1) per block, biased to high levels, repeated for the block's
    latent frames.
    """
    u = torch.rand(shape) * 0.98 + 0.01
    return (2 * u / (1 + u)).repeat_interleave(BLOCK_FRAMES, 1)


def add_noise(clean: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """`(1 - t) clean + t noise`, and the noise."""
    noise = torch.randn_like(clean)
    t = times[..., None, None, None]
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
    """Muon for hidden weights, AdamW for the rest, one learning-rate factor for both."""

    def __init__(
        self,
        model: torch.nn.Module,
        muon: float,
        adam: float,
        betas: tuple[float, float] = (0.9, 0.99),
        hidden: Collection[str] | None = None,
        rule: str = "original",
    ):
        """`hidden` are names of weights of linear layers or convolutions, by default the matrices
        of the model's blocks; `rule` says how their rate follows from their size
        (`torch.optim.Muon`).
        """
        self.model = model
        parameters = dict(model.named_parameters())
        if hidden is None:
            hidden = [n for n, p in parameters.items() if n.startswith("blocks") and p.ndim == 2]
        self.rest = [p for name, p in parameters.items() if name not in hidden]
        self.hidden = [p for name, p in parameters.items() if name in hidden]
        # Muon takes matrices; these share their memory with the weights
        self.matrices = [torch.nn.Parameter(p.detach().flatten(1)) for p in self.hidden]
        self.rates = muon, adam
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                self.matrices,
                lr=muon,
                momentum=0.95,
                weight_decay=0.01,
                adjust_lr_fn=rule,
            ),
            torch.optim.AdamW(self.rest, lr=adam, betas=betas, weight_decay=0.0),
        )

    def step(self, loss: Tensor, factor: float) -> None:
        self.model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for matrix, weight in zip(self.matrices, self.hidden, strict=True):
            matrix.grad = None if weight.grad is None else weight.grad.flatten(1)
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.param_groups[0]["lr"] = rate * factor
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, stored in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(stored)


class Average:
    """Exponential moving average of a model's parameters."""

    def __init__(self, model: torch.nn.Module, decay: float):
        self.decay = decay
        self.steps = 0
        self.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        self.steps += 1
        weight = 1 - min(self.decay, 1 - 1 / (1 + 0.1 * self.steps))
        torch._foreach_lerp_(list(self.parameters.values()), list(model.parameters()), weight)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "parameters": self.parameters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.parameters = state["parameters"]


class Workers:
    """Data-parallel processes, each with one thread, that periodically average their weights."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        if distributed.is_torchelastic_launched():
            distributed.init_process_group("gloo", timeout=timedelta(hours=2))
        several = distributed.is_initialized()
        self.rank, self.count = (
            (distributed.get_rank(), distributed.get_world_size()) if several else (0, 1)
        )

    def wait(self) -> None:
        """Wait until all workers are here."""
        if self.count > 1:
            distributed.barrier()

    @torch.no_grad()
    def average(self, *models: torch.nn.Module) -> None:
        if self.count > 1:
            parameters = list(chain(*(model.parameters() for model in models)))
            flat = torch.cat([p.flatten() for p in parameters])
            distributed.all_reduce(flat)
            flat /= self.count
            for parameter, mean in zip(
                parameters, flat.split([p.numel() for p in parameters]), strict=True
            ):
                parameter.copy_(mean.view_as(parameter))


class Stateful(Protocol):
    """A part of a training that goes on from its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Checkpoint:
    """The state of a stage, a file per worker; all workers replace theirs after the same step."""

    def __init__(self, folder: Path, stage: str, workers: Workers, seed: int):
        self.folder = folder
        self.stage = stage
        self.workers = workers
        self.seed = seed

    def save(self, step: int, parts: Mapping[str, Stateful]) -> None:
        """Store the state after `step` steps; a worker that is stopped before all have theirs
        changes nothing.
        """
        state = {name: part.state_dict() for name, part in parts.items()}
        made_by = {"workers": self.workers.count, "seed": self.seed, "step": step}
        path = self._path(self.workers.rank)
        torch.save({"made_by": made_by, **state}, path.with_suffix(".next"))
        self.workers.wait()
        path.with_suffix(".next").replace(path)

    def restore(self, parts: Mapping[str, Stateful]) -> int:
        """Go on from the stored state; returns after how many steps it was stored, 0 without one.
        Raises HeadForcingError, in all workers, for states of another number of workers, another
        seed or other steps."""
        self.workers.wait()
        paths = sorted(self.folder.glob(f"{self.stage}.rank*.pt"))
        found = [torch.load(path, weights_only=True, mmap=True)["made_by"] for path in paths]
        if not found:
            return 0
        step: int = found[0]["step"]
        if (
            found
            != [{"workers": self.workers.count, "seed": self.seed, "step": step}]
            * self.workers.count
        ):
            raise HeadForcingError(
                f"{self.stage}: the states in {self.folder} are not of {self.workers.count} "
                f"workers with seed {self.seed} after the same step; start as before, or remove "
                f"{self.stage}.rank*.pt to begin anew"
            )
        log.info("%s: going on after step %d", self.stage, step)
        state = torch.load(self._path(self.workers.rank), weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return step

    def remove(self) -> None:
        """Remove this worker's state, after the stage has ended for all workers."""
        self.workers.wait()
        self._path(self.workers.rank).unlink(missing_ok=True)

    def _path(self, rank: int) -> Path:
        return self.folder / f"{self.stage}.rank{rank}.pt"


class Journal:
    """Lines of JSON with what a stage measured, also of steps that were made twice after an
    interruption.
    """

    def __init__(self, path: Path, stage: str, rank: int):
        self.path = path
        self.stage = stage
        self.rank = rank
        self.begun: tuple[int, float] | None = None  # step and time; the first steps compile

    def write(self, step: int, **numbers: float) -> None:
        """Log the numbers of a step with the mean seconds a step since the program was started."""
        first, begun = self.begun = self.begun or (step, time.monotonic())
        seconds = (time.monotonic() - begun) / max(1, step - first)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        log.info("%s %d: %s, %.2f s a step", self.stage, step, shown, seconds)
        if self.rank == 0:
            line = {
                "stage": self.stage,
                "step": step,
                **numbers,
                "seconds_a_step": round(seconds, 3),
            }
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def save(
    tensors: Mapping[str, Tensor],
    path: Path,
    dtype: torch.dtype = torch.float32,
    metadata: Mapping[str, str] = {},
) -> None:
    stored = {name: tensor.detach().to(dtype).contiguous() for name, tensor in tensors.items()}
    with replacing(path) as partial:
        save_file(stored, partial, {**ABOUT, **metadata})


def load(config: WanConfig, path: Path) -> WanModel:
    """A model to train further, float32."""
    model = WanModel(config)
    model.load_state_dict(load_file(path))
    return model
