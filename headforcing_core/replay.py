"""Replay a recorded case: given weights, noise and prompts, which latents come out?

A case is a folder with `config.json`, weights and a safetensors file of inputs; `tests/golden/README.md` describes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from .attention import attention_function
from .cache import CacheShape, HeadCache
from .checkpoint import load_state_dict
from .errors import HeadForcingError
from .noise import RecordedNoise
from .policy import CachePolicy, EpisodicPolicy, RolePolicy, Roles
from .reference import ReferenceCache
from .rollout import WanVideoModel, rollout, split_start_latents
from .schedule import Schedule
from .wan import WanConfig, WanModel


@dataclass(frozen=True)
class Case:
    """A recorded case, opened."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def open(cls, folder: str | Path) -> Case:
        """Read `config.json` and the recorded tensors of a case folder."""
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            name = _need(config, "tensors", str)
            tensors = load_file(folder / name)
        except HeadForcingError:
            raise
        except Exception as error:  # safetensors has an exception class of its own
            file = getattr(error, "filename", None) or folder
            raise HeadForcingError(
                f"{file} cannot be read as part of a case (config.json and its golden.safetensors): {error}"
            ) from error
        return cls(folder, config, tensors)

    def run(self, name: str) -> dict[str, Any]:
        """One recorded run's settings, or an error that lists the names."""
        runs = _need(self.config, "runs", dict)
        if name not in runs:
            raise HeadForcingError(f"the case has no run {name!r}; it has {', '.join(runs)}")
        return runs[name]

    def tensor(self, name: str) -> Tensor:
        """One recorded tensor."""
        if name not in self.tensors:
            raise HeadForcingError(f"the case's tensors lack {name!r}")
        return self.tensors[name]

    def prompt_embeds(self) -> list[Tensor]:
        """The embeddings of all prompts, `prompt_embeds_0` and so on."""
        return [self.tensor(f"prompt_embeds_{k}") for k in range(sum("prompt_embeds" in name for name in self.tensors))]

    def model(self, device: str = "cpu") -> WanModel:
        """The case's model in float32."""
        given = _need(self.config, "model", dict)
        dims = {name: _need(given, name, (int, float, list)) for name in WanConfig.__dataclass_fields__}
        config = WanConfig(**{**dims, "patch_size": tuple(dims["patch_size"])})
        state_dict, _ = load_state_dict(self.folder / _need(self.config, "weights", str), num_heads=config.num_heads)
        return WanModel.from_state_dict(config, state_dict, torch.float32, device)


@dataclass(frozen=True)
class Replay:
    """What a replay gave: `latents [frames, 16, h, w]`, the memory events, and the entries' source frames."""

    latents: Tensor
    memory_events: list[dict[str, Any]]
    final_episodic_sources: list[list[int]]


def replay(case: Case, run_name: str, device: str = "cpu", attention: str = "auto") -> Replay:
    """Run one recorded run. `attention` is a backend's name, or `reference` for the whole reference path."""
    run = case.run(run_name)
    frames_per_block = _need(case.config, "frames_per_block", int)
    timesteps = _need(_need(case.config, "schedule", dict), "timesteps", list)
    schedule = Schedule(tuple(timestep / 1000 for timestep in timesteps), frames_per_block)
    noise, renoise = case.tensor("noise"), case.tensor("renoise")
    height, width = noise.shape[-2:]
    start = case.tensor("initial_latent") if run.get("initial_latent") else None
    start_blocks = len(split_start_latents(start, frames_per_block))
    blocks = start_blocks + _blocks_to_make(run, frames_per_block, len(noise))
    embeds = case.prompt_embeds()
    prompts = _prompt_per_block(_need(run, "prompt_schedule", list), blocks, len(embeds))

    model = case.model(device)
    roles, policy = _roles_and_policy(run, model.config, frames_per_block)
    frames = blocks * frames_per_block
    shape = CacheShape.for_model(model.config, roles, policy, height, width, frames_per_block, frames)
    cache: HeadCache | ReferenceCache
    if attention == "reference":
        cache = ReferenceCache(shape, torch.float32, device)
    else:
        backend = attention_function(attention, device, torch.float32, shape.head_dim)
        cache = HeadCache(shape, torch.float32, device, backend)

    video_model = WanVideoModel(model, embeds, torch.float32, device)
    source = RecordedNoise(noise, renoise, first_block=start_blocks)
    made = list(rollout(video_model, cache, schedule, source, prompts, start_latents=start))
    given = [] if start is None else [start]
    return Replay(
        torch.cat([*given, *(block.latents.cpu() for block in made)]),
        [block.event.to_dict() for block in made if block.event],
        cache.memory.sources,
    )


def _need(fields: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """A field of `config.json`, or one sentence about what is wrong with it."""
    value = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        found = "is missing" if value is None else f"is {str(value)[:80]!r}"
        raise HeadForcingError(f"the case's config.json cannot be used: {key!r} {found}")
    return value


def _blocks_to_make(run: dict[str, Any], frames_per_block: int, recorded: int) -> int:
    frames = _need(run, "frames", int)
    if frames < 1 or frames % frames_per_block or frames > recorded:
        raise HeadForcingError(
            f"frames must be whole blocks of {frames_per_block} and at most the {recorded} with noise, got {frames}"
        )
    return frames // frames_per_block


def _prompt_per_block(prompt_schedule: list[Any], blocks: int, prompts: int) -> list[int]:
    starts = {_need(entry, "block", int): _need(entry, "prompt", int) for entry in prompt_schedule}
    if 0 not in starts or not all(0 <= prompt < prompts for prompt in starts.values()):
        raise HeadForcingError(
            f"prompt_schedule must begin at block 0 and name prompts from 0 to {prompts - 1}, got {starts}"
        )
    return [starts[max(start for start in starts if start <= block)] for block in range(blocks)]


def _roles_and_policy(run: dict[str, Any], config: WanConfig, frames_per_block: int) -> tuple[Roles, CachePolicy]:
    method, rope = _need(run, "method", str), _need(run, "rope", str)
    if method == "head_forcing":
        neighbor = _need(run, "neighbor_frames", int)
        policy = CachePolicy(
            local=RolePolicy(recent_frames=neighbor),
            anchor=RolePolicy(sink_frames=_need(run, "anchor_frames", int), recent_frames=neighbor),
            memory=RolePolicy(
                recent_frames=_need(run, "fast_frames", int), episodic_frames=_need(run, "episodic_frames", int)
            ),
            rope=rope,
            episodic=EpisodicPolicy(_need(run, "novelty_threshold", (int, float)), _need(run, "update_interval", int)),
        )
        return _need(run, "roles", list), policy
    if method == "window":
        sink, window = _need(run, "sink_frames", int), run.get("window_frames")
        recent = None if window is None else _need(run, "window_frames", int) - sink - frames_per_block
        every_head = [["memory"] * config.num_heads] * config.num_layers
        return every_head, CachePolicy.uniform(RolePolicy(sink, recent), rope)
    raise HeadForcingError(f"method must be window or head_forcing, got {method!r}")
