"""Replay a recorded case: given weights, noise and prompts, which latents come out?

A case is a folder with `config.json`, weights and a safetensors file of inputs; `tests/golden/README.md` describes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from .policy import CachePolicy, EpisodicPolicy, RolePolicy
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
            return cls(folder, config, load_file(folder / config["tensors"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HeadForcingError(f"{folder} is not a readable case folder (config.json, tensors): {error}") from error

    def run(self, name: str) -> dict[str, Any]:
        """One recorded run's settings, or an error that lists the names."""
        if name not in self.config["runs"]:
            raise HeadForcingError(f"the case has no run {name!r}; it has {', '.join(self.config['runs'])}")
        return self.config["runs"][name]

    def model(self, device: str = "cpu") -> WanModel:
        """The case's model in float32."""
        dims = {k: v for k, v in self.config["model"].items() if k in WanConfig.__dataclass_fields__}
        config = WanConfig(**{**dims, "patch_size": tuple(dims["patch_size"])})
        state_dict, _ = load_state_dict(self.folder / self.config["weights"], num_heads=config.num_heads)
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
    frames_per_block = case.config["frames_per_block"]
    schedule = Schedule(tuple(t / 1000 for t in case.config["schedule"]["timesteps"]), frames_per_block)
    model = case.model(device)
    height, width = case.tensors["noise"].shape[-2:]
    roles, policy = _roles_and_policy(run, model.config, frames_per_block)
    start = case.tensors["initial_latent"] if run.get("initial_latent") else None
    start_blocks = len(split_start_latents(start, frames_per_block))
    blocks_in_all = start_blocks + run["frames"] // frames_per_block
    shape = CacheShape.for_model(
        model.config, roles, policy, height, width, frames_per_block, blocks_in_all * frames_per_block
    )
    cache: HeadCache | ReferenceCache
    if attention == "reference":
        cache = ReferenceCache(shape, torch.float32, device)
    else:
        cache = HeadCache(shape, torch.float32, device, attention_function(attention))

    prompts = sum(name.startswith("prompt_embeds_") for name in case.tensors)
    embeds = [case.tensors[f"prompt_embeds_{k}"] for k in range(prompts)]
    noise = RecordedNoise(case.tensors["noise"], case.tensors["renoise"], first_block=start_blocks)
    video = rollout(
        WanVideoModel(model, embeds, torch.float32, device),
        cache,
        schedule,
        noise,
        list(_prompt_per_block(run["prompt_schedule"], blocks_in_all)),
        start_latents=start,
    )
    blocks = list(video)
    given = [] if start is None else [start]
    return Replay(
        torch.cat([*given, *(block.latents.cpu() for block in blocks)]),
        [block.event.to_dict() for block in blocks if block.event],
        cache.memory.sources,
    )


def _prompt_per_block(prompt_schedule: list[dict[str, int]], blocks: int) -> Iterator[int]:
    for block in range(blocks):
        yield [entry["prompt"] for entry in prompt_schedule if entry["block"] <= block][-1]


def _roles_and_policy(
    run: dict[str, Any], config: WanConfig, frames_per_block: int
) -> tuple[list[list[str]], CachePolicy]:
    if run["method"] == "head_forcing":
        neighbor = run["neighbor_frames"]
        policy = CachePolicy(
            local=RolePolicy(recent_frames=neighbor),
            anchor=RolePolicy(sink_frames=run["anchor_frames"], recent_frames=neighbor),
            memory=RolePolicy(recent_frames=run["fast_frames"], episodic_frames=run["episodic_frames"]),
            rope=run["rope"],
            episodic=EpisodicPolicy(run["novelty_threshold"], run["update_interval"]),
        )
        return run["roles"], policy
    if run["method"] == "window":
        window, sink = run["window_frames"], run["sink_frames"]
        recent = None if window is None else window - sink - frames_per_block
        every_head = [["memory"] * config.num_heads] * config.num_layers
        return every_head, CachePolicy.uniform(RolePolicy(sink, recent), run["rope"])
    raise HeadForcingError(f"method must be window or head_forcing, got {run['method']!r}")
