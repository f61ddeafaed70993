"""Replay a recorded case: given weights, noise and prompts, which latents come out?

A case is a folder with `config.json`, weights and a safetensors file of inputs; `tests/golden/README.md` describes it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..cache.method import Method, RolloutInputs
from ..cache.policy import CachePolicy, EpisodicPolicy, RolePolicy, Roles
from ..cache.reference import ReferenceCache
from ..cache.scenes import number_recalls
from ..cache.shape import CacheShape
from ..errors import HeadForcingError
from ..files import check_regular
from ..head_profiles.profile import HeadProfile
from ..methods.causvid import SCHEDULES, CausVid, OverlapBlock
from ..model.attention import attention_function, explicit
from ..model.wan import WanConfig, WanModel
from ..rollout.loop import WanVideoModel, split_start_latents
from ..rollout.noise import RecordedNoise
from ..rollout.rows import Script, lay_out_rows
from ..rollout.schedule import Schedule
from ..timeline.switch import Switch
from ..weights.checkpoint import load_state_dict
from .policies import recorded_policy


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
        check_regular(folder / "config.json")
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            name = config.get("tensors")
            name = name if isinstance(name, str) or "method" not in config else "golden.safetensors"
            need({"tensors": name}, "tensors", str)
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
        runs = need(self.config, "runs", dict)
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

    def dimensions(self) -> WanConfig:
        """The dimensions of the case's model."""
        given = self.config if "method" in self.config else need(self.config, "model", dict)
        if "latent_channels" in given:
            given = {**given, "in_dim": given["latent_channels"], "out_dim": given["latent_channels"], "eps": 1e-6}
        dims = {name: need(given, name, (int, float, list)) for name in WanConfig.__dataclass_fields__}
        return WanConfig(**{**dims, "patch_size": tuple(dims["patch_size"])})

    def model(self, device: str = "cpu", lora: bool = False) -> WanModel:
        """The case's model in float32, with its LoRA if a run has it."""
        config = self.dimensions()
        adapter = self.folder / need(self.config, "lora", str) if lora else None
        weights = self.folder / need(self.config, "weights", str)
        state_dict, _ = load_state_dict(weights, num_heads=config.num_heads, lora=adapter, dtype=torch.float32)
        return WanModel.from_state_dict(config, state_dict, torch.float32, device)


@dataclass(frozen=True)
class Replay:
    """Result of a replay, start blocks included: `latents [frames, 16, h, w]`, events, the entries' source frames."""

    latents: Tensor
    memory_events: list[dict[str, Any]]
    final_episodic_sources: list[list[int]]


def replay(case: Case, run_name: str, device: str = "cpu", attention: str = "auto") -> Replay:
    """Run one recorded run. `attention` is a backend's name, or `reference` for the whole reference path."""
    run = read_run(case, run_name)
    cache = new_cache(case, run, device, attention)
    video_model = WanVideoModel(case.model(device, case.run(run_name).get("lora", False)), torch.float32, device)
    frames, start = run.schedule.frames_per_block, split_start_latents(run.start, run.schedule.frames_per_block)
    prompts = [str(number) for number in run.prompts]
    rows = lay_out_rows(prompts, run.schedule, switches=run.switches, start_blocks=len(start))
    script = Script(rows, {str(number): embedding for number, embedding in enumerate(run.embeds)})
    script = number_recalls(script, run.policy.recalled(script))
    video = RolloutInputs(script, run.noise, frames, start, held=run.held, reencode=run.reencode)
    made = list(run.policy.rollout(video_model, cache, video))
    begun_with = {block.index: block.given for block in made if isinstance(block, OverlapBlock)}
    parts = [part for block in made for part in (begun_with.get(block.index), block.latents) if part is not None]
    return Replay(
        torch.cat([part.cpu() for part in parts]),
        [block.event.to_dict() for block in made if block.event],
        cache.memory.sources if isinstance(run.policy, CachePolicy) else [],
    )


@dataclass(frozen=True)
class RecordedRun:
    """Everything a run depends on but the weights.

    Attributes:
        prompts: per block, start blocks included, the number of its embedding in `embeds`.
        reencode: as in `RolloutInputs`.
    """

    schedule: Schedule
    noise: RecordedNoise
    embeds: list[Tensor]
    prompts: list[int]
    roles: Roles
    policy: Method
    start: Tensor | None = None
    switches: dict[int, Switch] = field(default_factory=dict)
    held: Tensor | None = None
    reencode: Callable[[Tensor], Tensor] | None = None


def read_run(case: Case, run_name: str) -> RecordedRun:
    """The settings and inputs of one recorded run."""
    run = case.run(run_name)
    if case.config.get("method") == "longlive2":
        return _read_longlive2_run(case, run_name)
    if case.config.get("method") == "causvid":
        return _read_causvid_run(case, run_name)
    if "method" in case.config:
        return _read_method_run(case, run_name)
    frames_per_block = need(case.config, "frames_per_block", int)
    timesteps = need(need(case.config, "schedule", dict), "timesteps", list)
    schedule = Schedule(tuple(timestep / 1000 for timestep in timesteps), frames_per_block)
    noise, renoise = case.tensor("noise"), case.tensor("renoise")
    start = case.tensor("initial_latent") if run.get("initial_latent") else None
    start_blocks = len(split_start_latents(start, frames_per_block))
    blocks = start_blocks + _blocks_to_make(run, frames_per_block, len(noise))
    embeds = case.prompt_embeds()
    prompts = _prompt_per_block(need(run, "prompt_schedule", list), blocks, len(embeds))
    roles, policy = _roles_and_policy(run, case.dimensions(), frames_per_block)
    source = RecordedNoise(noise, renoise, first_block=start_blocks)
    return RecordedRun(schedule, source, embeds, prompts, roles, policy, start)


def new_cache(case: Case, run: RecordedRun, device: str, attention: str) -> Any:
    """The cache that a run begins with."""
    frames_per_block = run.schedule.frames_per_block
    sizes = (*run.noise.size, frames_per_block, len(run.prompts) * frames_per_block)
    shape = run.policy.shape(case.dimensions(), run.roles, *sizes)
    if attention == "reference":
        if isinstance(shape, CacheShape):
            return ReferenceCache(shape, torch.float32, device)
        return run.policy.make_cache(shape, torch.float32, device, explicit)
    function = attention_function(attention, device, torch.float32, shape.head_dim)
    return run.policy.make_cache(shape, torch.float32, device, function)


def _read_method_run(case: Case, run_name: str) -> RecordedRun:
    """A run of a case that names its method; all runs of one share noise, weights and prompts."""
    config, run = case.config, case.run(run_name)
    frames_per_block = run.get("per_block") or run.get("frames_per_block") or need(config, "frames_per_block", int)
    steps = run.get("steps") or need(config, "denoising_steps_listed", list)
    steps = [step for step in steps if step]  # some authors name the clean end, too
    schedule = Schedule.warped(steps, need(config, "timestep_shift", float), frames_per_block, run.get("first_chunk"))
    kind = {1: "renoise_framewise", 3: "renoise_chunkwise"}[frames_per_block] if "per_block" in run else "renoise"
    noise, given = case.tensor("noise")[0], run.get("input_frames") or run.get("initial_frames", 0)
    width = run.get("latent_width", noise.shape[-1])  # one case has a run of fewer columns
    noise = noise[..., :width]
    if run.get("repeat_noise"):  # one author's script draws the noise of one block for all
        noise = noise[:frames_per_block].repeat(len(noise) // frames_per_block, 1, 1, 1)
    source = "initial_latent" if "initial_latent" in case.tensors else f"latents/{run_name}"
    start = case.tensor(source)[0, :given] if given else None
    # some authors count the given frames among a run's, some do not
    blocks = ((run.get("frames") or len(noise)) + run.get("initial_frames", 0)) // frames_per_block
    embeds = list(case.tensor("prompt_embeds"))
    order = run.get("prompt_order", range(len(embeds)))
    if "prompts" in run:  # by name: p0, p1 ...
        order = [int(name[1:]) for name in run["prompts"]]
    embeds = [embeds[index] for index in order]

    # a new prompt begins at the first block that starts at its frame or later
    first_blocks = [-(-frame // frames_per_block) for frame in run.get("switch", [])]
    if "blocks" in run:
        first_blocks = list(itertools.accumulate(need(run, "blocks", list)))[:-1]
    if "prompt_schedule" in run:
        first_blocks = [entry["block"] for entry in run["prompt_schedule"][1:]]
    prompts = [sum(first <= block for first in first_blocks) for block in range(blocks)]
    policy, roles = recorded_policy(config, run, case.tensors)
    cuts = run.get("cut_at_end_of_scene") or [False] * len(first_blocks)
    recalls: list[int | None] = [None] * len(first_blocks)
    if "transition_after_scene" in run:
        ways, by_hand = run["transition_after_scene"], run.get("manual_recall_scene_ids") or [0] * len(run["prompts"])
        cuts = [way == "hardcut" for way in ways]
        recalls = [wanted if way == "recall" else None for way, wanted in zip(ways, by_hand[1:], strict=False)]
    switches = {
        first: switch
        for first, cut, recall in zip(first_blocks, cuts, recalls, strict=False)
        if (switch := policy.own_switch(Switch(re_anchor=cut, recall=recall))) is not None
    }
    renoise = case.tensor(kind)[:, :, :frames_per_block, ..., :width]
    recorded = RecordedNoise(noise, renoise, first_block=given // frames_per_block)
    return RecordedRun(schedule, recorded, embeds, prompts, roles, policy, start, switches)


def _read_longlive2_run(case: Case, run_name: str) -> RecordedRun:
    """A run of LongLive 2.0, whose prompts are named block by block; the first sample of a batch."""
    config, run = case.config, case.run(run_name)
    block, given = run["block"], run["given_frames"]
    noise = case.tensor(f"noise/{run_name}" if f"noise/{run_name}" in case.tensors else "noise")[0, : run["frames"]]
    names = need(config, "prompt_names", list)
    prompts = [names.index(name) for name in run["prompts"][0]]
    start_blocks = given // block
    policy, roles = recorded_policy(config, run, case.tensors)
    levels = Schedule.unipc(run["steps"], block, need(config, "timestep_shift", float))
    return RecordedRun(
        levels,
        RecordedNoise(noise, noise.new_empty(1, 0, block), start_blocks),
        list(case.tensor("prompt_embeds")),
        [prompts[0]] * start_blocks + prompts,
        roles,
        policy,
        case.tensor("given_latents")[0, :given] if given else None,
        {start_blocks + shot: Switch(re_anchor=True) for shot in run["shot_starts"]},
        case.tensor("image_latent")[0] if run["image"] else None,
    )


def _read_causvid_run(case: Case, run_name: str) -> RecordedRun:
    """A run of CausVid, whose rollouts have noise of their own, that of given frames included."""
    config, run = case.dimensions(), case.run(run_name)
    policy = CausVid(overlap_frames=run.get("overlap", 3))
    layout = policy.overlap(need(case.config, "frames_per_block", int))
    rollouts, frames = run.get("rollouts", 1), run.get("frames", layout.frames)  # a single one may be cut short
    noise, renoise, later = case.tensor("noise"), case.tensor("renoise"), range(1, rollouts)
    recorded = iter(case.tensors.get("reencoded_first_frame", ()))
    return RecordedRun(
        replace(SCHEDULES["4_steps" if run.get("warp") else "3_steps"], frames_per_block=layout.frames_per_block),
        RecordedNoise(
            torch.cat([noise[0, 0], *(noise[r, 0, layout.overlap :] for r in later)]),
            torch.cat([renoise[0], *(renoise[r, layout.given_blocks :] for r in later)]),
        ),
        [case.tensor("prompt_embeds")[0]],
        [0] * (frames // layout.frames_per_block + layout.stride * (rollouts - 1)),
        [["memory"] * config.num_heads] * config.num_layers,
        policy,
        reencode=lambda latents: next(recorded)[0],
    )


def need(fields: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """A field of `config.json`, or one sentence about what is wrong with it."""
    value = fields.get(key) if isinstance(fields, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        found = "is missing" if value is None else f"is {str(value)[:80]!r}"
        raise HeadForcingError(f"the case's config.json cannot be used: {key!r} {found}")
    return value


def _blocks_to_make(run: dict[str, Any], frames_per_block: int, recorded: int) -> int:
    frames = need(run, "frames", int)
    if frames < 1 or frames % frames_per_block or frames > recorded:
        raise HeadForcingError(
            f"frames must be whole blocks of {frames_per_block} and at most the {recorded} with noise, got {frames}"
        )
    return frames // frames_per_block


def _prompt_per_block(prompt_schedule: list[Any], blocks: int, prompts: int) -> list[int]:
    starts = {need(entry, "block", int): need(entry, "prompt", int) for entry in prompt_schedule}
    if 0 not in starts or not all(0 <= prompt < prompts for prompt in starts.values()):
        raise HeadForcingError(
            f"prompt_schedule must begin at block 0 and name prompts from 0 to {prompts - 1}, got {starts}"
        )
    return [starts[max(start for start in starts if start <= block)] for block in range(blocks)]


def _roles_and_policy(run: dict[str, Any], config: WanConfig, frames_per_block: int) -> tuple[Roles, CachePolicy]:
    method, rope = need(run, "method", str), need(run, "rope", str)
    if method == "head_forcing":
        neighbor = need(run, "neighbor_frames", int)
        policy = CachePolicy(
            local=RolePolicy(recent_frames=neighbor),
            anchor=RolePolicy(sink_frames=need(run, "anchor_frames", int), recent_frames=neighbor),
            memory=RolePolicy(
                recent_frames=need(run, "fast_frames", int), episodic_frames=need(run, "episodic_frames", int)
            ),
            rope=rope,
            episodic=EpisodicPolicy(need(run, "novelty_threshold", (int, float)), need(run, "update_interval", int)),
        )
        return HeadProfile("recorded", config.num_layers, config.num_heads, need(run, "roles", list)).roles, policy
    if method == "window":
        sink, window = need(run, "sink_frames", int), run.get("window_frames")
        recent = None if window is None else need(run, "window_frames", int) - sink - frames_per_block
        every_head = [["memory"] * config.num_heads] * config.num_layers
        return every_head, CachePolicy.uniform(RolePolicy(sink, recent), rope)
    raise HeadForcingError(f"method must be window or head_forcing, got {method!r}")
