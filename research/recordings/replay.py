"""Replay of recorded cases, folders that `tests/golden/README.md` describes."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ...headforcing_core.cache.roles import EpisodicPolicy, RolePolicy, Roles
from ...headforcing_core.cache.scenes import number_recalls
from ...headforcing_core.cache.shape import CacheShape
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import check_regular
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.methods.base import MethodShape
from ...headforcing_core.methods.causvid import SCHEDULE, CausVid, Overlap
from ...headforcing_core.methods.head_forcing import HeadForcing
from ...headforcing_core.methods.longlive import LongLive
from ...headforcing_core.methods.memrope import MemRoPE
from ...headforcing_core.methods.method import Method
from ...headforcing_core.methods.swift import Swift
from ...headforcing_core.model.attention import attention_function
from ...headforcing_core.model.wan import WanConfig, WanModel
from ...headforcing_core.plan.speech import Speech, TalkingPortrait
from ...headforcing_core.rollout.loop import RolloutInputs, WanVideoModel, split_start_latents
from ...headforcing_core.rollout.rows import Script, lay_out_rows
from ...headforcing_core.rollout.schedule import Schedule
from ...headforcing_core.timeline.clock import TEMPORAL_STRIDE
from ...headforcing_core.timeline.switch import Switch
from ...headforcing_core.weights.checkpoint import load_state_dict
from .authors import SINKS_ONCE
from .fields import check_fields
from .noise import RecordedNoise
from .policies import recorded_method
from .reference_cache import ReferenceCache

_UNUSABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)


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
            name = config.get("tensors")  # some describe their tensors there
            tensors = load_file(folder / (name if isinstance(name, str) else "golden.safetensors"))
        except Exception as error:  # safetensors has an exception class of its own
            file = getattr(error, "filename", None) or folder
            raise HeadForcingError(
                f"{file} cannot be read as part of a case (config.json and its "
                f"golden.safetensors): {error}"
            ) from error
        return cls(folder, config, tensors)

    def run(self, name: str) -> dict[str, Any]:
        """One recorded run's settings, or an error that lists the names."""
        runs = self.config["runs"]
        if name not in runs:
            raise HeadForcingError(f"the case has no run {name!r}; it has {', '.join(runs)}")
        return runs[name]

    @property
    def dimensions(self) -> WanConfig:
        """The dimensions of the case's model."""
        given = self.config if "method" in self.config else self.config["model"]
        if "latent_channels" in given:
            given = {
                **given,
                "in_dim": given["latent_channels"],
                "out_dim": given["latent_channels"],
                "eps": 1e-6,
            }
        if "audio_feature_size" in given:
            given = {
                **given,
                "audio_width": given["audio_feature_size"],
                "audio_dim": given["audio_hidden_size"],
                "eps": 1e-6,
            }
        given = {"audio_width": 0, "audio_dim": 0, **given}
        dims = {each.name: given[each.name] for each in fields(WanConfig)}
        return WanConfig(**{**dims, "patch_size": tuple(dims["patch_size"])})

    def model(self, device: str = "cpu", lora: bool = False) -> WanModel:
        """The case's model in float32, with its LoRA if a run has it."""
        config = self.dimensions
        adapter = self.folder / self.config["lora"] if lora else None
        weights = self.folder / self.config["weights"]
        state_dict, _ = load_state_dict(
            weights, num_heads=config.num_heads, lora=adapter, dtype=torch.float32
        )
        return WanModel.from_state_dict(config, state_dict, torch.float32, device)


@dataclass(frozen=True)
class Replay:
    """Result of a replay, start blocks included: `latents [frames, channels, h, w]`, events, the
    entries' source frames.
    """

    latents: Tensor
    memory_events: list[dict[str, Any]]
    final_episodic_sources: list[list[int]]


def replay(case: Case, run_name: str, device: str = "cpu", attention: str = "auto") -> Replay:
    """Run one recorded run. `attention` is a backend's name, or `reference` for the whole reference
    path.
    """
    try:
        run = read_run(case, run_name)
        cache = new_cache(case, run, device, attention)
        model = WanVideoModel(
            case.model(device, case.run(run_name).get("lora", False)), torch.float32, device
        )
    except _UNUSABLE as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else f"{error}"
        raise HeadForcingError(f"the run {run_name} of the case cannot be used: {what}") from error
    if run.conditions is not None:
        model.use_conditions(run.conditions)
    script = number_recalls(run.script, run.method.recalled(run.script))
    encoded: list[Tensor] = []

    def reencode(finished: Tensor) -> Tensor:
        assert run.reencode is not None
        encoded.append(run.reencode(finished))
        return encoded[-1]

    video = RolloutInputs(script, run.noise, run.start, held=run.held, reencode=reencode)
    made = list(run.method.rollout(model, cache, video))
    latents = torch.cat([block.latents.cpu() for block in made])
    if isinstance(run.method, CausVid):
        layout = run.method.overlap(run.schedule.frames_per_block)
        latents = with_overlaps(latents, layout, encoded)
    return Replay(
        latents,
        [block.event.to_dict() for block in made if block.event],
        cache.memory.sources if isinstance(run.method, HeadForcing) else [],
    )


def with_overlaps(latents: Tensor, layout: Overlap, encoded: Sequence[Tensor]) -> Tensor:
    """The latents of all rollouts, each after the first with the frames that it began with: one
    that was `encoded`, and the last ones of the rollout before.
    """
    rollouts = [latents[: layout.frames]]
    stride = layout.stride * layout.frames_per_block
    for number, first in enumerate(encoded, 1):
        rest = rollouts[-1][layout.finished_frames :]
        begin = number * stride
        new = latents[begin + layout.overlap : begin + layout.frames]
        rollouts.append(torch.cat((first, rest, new)))
    return torch.cat(rollouts)


@dataclass(frozen=True)
class RecordedRun:
    """Everything a run depends on but the weights; `held` and `reencode` are as in
    `RolloutInputs`, `conditions` as for `VideoModel.use_conditions`.
    """

    schedule: Schedule
    noise: RecordedNoise
    embeds: list[Tensor]  # the text embeddings of all prompts
    prompts: list[int]  # per block, start blocks included, the number of its embedding
    roles: Roles
    method: Method
    given: Tensor | None = None  # start latents `[frames, channels, h, w]`; None for none
    switches: dict[int, Switch] = field(default_factory=dict)
    held: Tensor | None = None
    reencode: Callable[[Tensor], Tensor] | None = None
    conditions: TalkingPortrait | None = None

    @property
    def start(self) -> list[Tensor]:
        """The start blocks."""
        return list(split_start_latents(self.given, self.schedule.frames_per_block))

    @property
    def script(self) -> Script:
        embeds = {str(number): self.embeds[number] for number in self.prompts}
        rows = lay_out_rows(
            [str(number) for number in self.prompts],
            self.schedule,
            switches=self.switches,
            start_blocks=len(self.start),
        )
        return Script(self.method.own_rows(rows, self.schedule.frames_per_block), embeds)


def read_run(case: Case, run_name: str) -> RecordedRun:
    """The settings and inputs of one recorded run."""
    readers = {
        None: _read_own_run,
        "longlive2": _read_longlive2_run,
        "causvid": _read_causvid_run,
        "livetalk": _read_livetalk_run,
    }
    method = case.config.get("method")
    check_fields(case.config, case.run(run_name))
    return readers.get(method, _read_method_run)(case, run_name)


def new_cache(case: Case, run: RecordedRun, device: str = "cpu", attention: str = "sdpa") -> Any:
    """The cache that a run begins with."""
    config = case.dimensions
    frames_per_block = run.schedule.frames_per_block
    sizes = (*run.noise.size, frames_per_block, len(run.prompts) * frames_per_block)
    shape = run.method.shape(config, run.roles, *sizes)
    if attention == "reference" and isinstance(shape, CacheShape):
        return ReferenceCache(shape, torch.float32, device)
    backend = "explicit" if attention == "reference" else attention
    function = attention_function(backend, device, torch.float32, shape.head_dim)
    sinks_once = isinstance(run.method, (LongLive, MemRoPE, Swift)) and case.config["method"] in (
        "commit_forcing",
        "longlive",
        "memrope",
        "swift",
    )
    if sinks_once and isinstance(shape, MethodShape):
        return SINKS_ONCE[run.method.cache_class](shape, torch.float32, device, function)
    return run.method.make_cache(shape, torch.float32, device, function)


def _read_own_run(case: Case, run_name: str) -> RecordedRun:
    """A run of a case without a method of its own: a window, or Head Forcing."""
    config = case.config
    tensors = case.tensors
    run = case.run(run_name)
    block = config["frames_per_block"]
    frames = run["frames"]
    available = len(tensors["noise"])
    schedule = Schedule(
        tuple(timestep / 1000 for timestep in config["schedule"]["timesteps"]), block
    )
    given = tensors["initial_latent"] if run.get("initial_latent") else None
    start_blocks = len(split_start_latents(given, block))
    if frames < 1 or frames % block or frames > available:
        raise HeadForcingError(
            f"frames must be whole blocks of {block} and at most the {available} with noise, got "
            f"{frames}"
        )
    count = sum("prompt_embeds" in name for name in tensors)
    embeds = [tensors[f"prompt_embeds_{number}"] for number in range(count)]
    starts = {entry["block"]: entry["prompt"] for entry in run["prompt_schedule"]}
    if 0 not in starts or not all(0 <= prompt < len(embeds) for prompt in starts.values()):
        raise HeadForcingError(
            f"prompt_schedule must begin at block 0 and name prompts from 0 to {len(embeds) - 1}, "
            f"got {starts}"
        )
    prompts = []
    for number in range(start_blocks + frames // block):
        first_block = max(start for start in starts if start <= number)
        prompts.append(starts[first_block])
    method, roles = _own_method(run, case.dimensions, block)
    return RecordedRun(
        schedule=schedule,
        noise=RecordedNoise(tensors["noise"], tensors["renoise"], first_block=start_blocks),
        embeds=embeds,
        prompts=prompts,
        roles=roles,
        method=method,
        given=given,
    )


def _own_method(run: dict[str, Any], model: WanConfig, block: int) -> tuple[HeadForcing, Roles]:
    """The method and the roles of heads of a window, or of Head Forcing."""
    if run["method"] == "window":
        recent = None
        if run["window_frames"] is not None:
            recent = run["window_frames"] - run["sink_frames"] - block
        method = HeadForcing.uniform(RolePolicy(run["sink_frames"], recent), run["rope"])
        return method, [["memory"] * model.num_heads] * model.num_layers
    if run["method"] != "head_forcing":
        raise HeadForcingError(f"method must be window or head_forcing, got {run['method']!r}")
    method = HeadForcing(
        local=RolePolicy(recent_frames=run["neighbor_frames"]),
        anchor=RolePolicy(sink_frames=run["anchor_frames"], recent_frames=run["neighbor_frames"]),
        memory=RolePolicy(recent_frames=run["fast_frames"], episodic_frames=run["episodic_frames"]),
        rope=run["rope"],
        episodic=EpisodicPolicy(run["novelty_threshold"], run["update_interval"]),
    )
    roles = HeadProfile("recorded", model.num_layers, model.num_heads, run["roles"]).roles
    return method, roles


def _read_method_run(case: Case, run_name: str) -> RecordedRun:
    """A run of a case that names its method; all runs of one share noise, weights and prompts."""
    config = case.config
    tensors = case.tensors
    run = case.run(run_name)
    block = run.get("per_block") or run.get("frames_per_block") or config["frames_per_block"]
    noise = tensors["noise"][0]
    width = run.get("latent_width", noise.shape[-1])  # one case has a run of fewer columns
    noise = noise[..., :width]
    if run.get("repeat_noise"):  # one author's script draws the noise of one block for all
        noise = noise[:block].repeat(len(noise) // block, 1, 1, 1)
    kind = "renoise"
    if "per_block" in run:
        kind = {1: "renoise_framewise", 3: "renoise_chunkwise"}[block]
    given = run.get("input_frames") or run.get("initial_frames", 0)
    source = "initial_latent" if "initial_latent" in tensors else f"latents/{run_name}"
    # some authors count the given frames among a run's, some do not
    blocks = ((run.get("frames") or len(noise)) + run.get("initial_frames", 0)) // block
    embeds = list(tensors["prompt_embeds"])
    order = run.get("prompt_order", range(len(embeds)))
    if "prompts" in run:  # by name: p0, p1 ...
        order = [int(name[1:]) for name in run["prompts"]]
    first_blocks = _first_blocks(run, block)
    method, roles = recorded_method(config, run, tensors)
    return RecordedRun(
        schedule=_method_schedule(config, run, block),
        noise=RecordedNoise(
            noise, tensors[kind][:, :, :block, ..., :width], first_block=given // block
        ),
        embeds=[embeds[index] for index in order],
        prompts=[bisect_right(first_blocks, number) for number in range(blocks)],
        roles=roles,
        method=method,
        given=tensors[source][0, :given] if given else None,
        switches=_switches(run, first_blocks, method),
    )


def _method_schedule(config: dict[str, Any], run: dict[str, Any], block: int) -> Schedule:
    """The noise levels of a run of a method, which may have others for its first block."""
    # some name the clean end
    steps = [step for step in run.get("steps") or config["denoising_steps_listed"] if step]
    shift = config["timestep_shift"]
    schedule = Schedule.warped(steps, shift, block)
    if "first_chunk" in run:
        first = Schedule.warped(run["first_chunk"], shift).sigmas
        schedule = replace(schedule, first_block_sigmas=first)
    return schedule


def _first_blocks(run: dict[str, Any], block: int) -> list[int]:
    """The first block of every prompt after the first; `block` frames each."""
    if "prompt_schedule" in run:
        return [entry["block"] for entry in run["prompt_schedule"][1:]]
    if "blocks" in run:
        return list(itertools.accumulate(run["blocks"]))[:-1]
    # a new prompt begins at the first block that starts at its frame or later, one in a block
    first_blocks: list[int] = []
    for frame in run.get("switch", []):
        earliest = first_blocks[-1] + 1 if first_blocks else 0
        first_blocks.append(max(earliest, -(-frame // block)))
    return first_blocks


def _switches(
    run: dict[str, Any], first_blocks: Sequence[int], method: Method
) -> dict[int, Switch]:
    """What the method does where a prompt begins, by block."""
    cuts = run.get("cut_at_end_of_scene") or [False] * len(first_blocks)
    recalls: list[int | None] = [None] * len(first_blocks)
    if "transition_after_scene" in run:
        ways = run["transition_after_scene"]
        by_hand = run.get("manual_recall_scene_ids") or [0] * len(run["prompts"])
        cuts = [way == "hardcut" for way in ways]
        recalls = [
            scene if way == "recall" else None
            for way, scene in zip(ways, by_hand[1:], strict=False)
        ]
    switches = {}
    for first, cut, recall in zip(first_blocks, cuts, recalls, strict=False):
        switch = method.own_switch(Switch(re_anchor=cut, recall=recall))
        if switch is not None:
            switches[first] = switch
    return switches


def _read_longlive2_run(case: Case, run_name: str) -> RecordedRun:
    """A run of LongLive 2.0, whose prompts are named block by block; the first sample of a
    batch.
    """
    config = case.config
    tensors = case.tensors
    run = case.run(run_name)
    block = run["block"]
    given = run["given_frames"]
    own = f"noise/{run_name}"
    noise = tensors[own if own in tensors else "noise"][0, : run["frames"]]
    prompts = [config["prompt_names"].index(name) for name in run["prompts"][0]]
    start_blocks = given // block
    method, roles = recorded_method(config, run, tensors)
    return RecordedRun(
        schedule=Schedule.unipc(run["steps"], block, config["timestep_shift"]),
        noise=RecordedNoise(noise, noise.new_empty(1, 0, block), start_blocks),
        embeds=list(tensors["prompt_embeds"]),
        prompts=[prompts[0]] * start_blocks + prompts,
        roles=roles,
        method=method,
        given=tensors["given_latents"][0, :given] if given else None,
        switches={start_blocks + shot: Switch(re_anchor=True) for shot in run["shot_starts"]},
        held=tensors["image_latent"][0] if run["image"] else None,
    )


def _read_livetalk_run(case: Case, run_name: str) -> RecordedRun:
    """A run of LiveTalk: portrait, features of speech, one prompt, and a window for all heads."""
    config = case.config
    tensors = case.tensors
    run = case.run(run_name)
    model = case.dimensions
    block = config["frames_per_block"]
    frames = run["frames"]
    own = f"/{run_name}" if f"noise/{run_name}" in tensors else ""  # of another grid
    portrait = tensors[f"image_latent{own}"] if own else tensors["image_latents"][run["image"]]
    count = TEMPORAL_STRIDE * (frames - 1) + 1
    features = torch.zeros(count, config["audio_feature_size"])
    if run["audio"] != "zeros":
        features = tensors[f"audio_features/{run['audio']}"][:count]
    recent = None if run["window"] == -1 else run["window"] - run["sink"] - block
    solver = "renoise" if run["exact_timesteps"] else "renoise_held"
    return RecordedRun(
        schedule=Schedule(tuple(config["schedule"]["sigmas"]), block, solver=solver),
        noise=RecordedNoise(tensors[f"noise{own}"], tensors[f"renoise{own}"]),
        embeds=list(tensors["prompt_embeds"]),
        prompts=[config["prompt_names"].index(run["prompt"])] * (frames // block),
        roles=[["memory"] * model.num_heads] * model.num_layers,
        method=HeadForcing.uniform(RolePolicy(run["sink"], recent), "absolute"),
        held=portrait,
        conditions=TalkingPortrait(portrait[0], Speech(features)),
    )


def _read_causvid_run(case: Case, run_name: str) -> RecordedRun:
    """A run of CausVid, whose rollouts have noise of their own, that of given frames included."""
    tensors = case.tensors
    run = case.run(run_name)
    method, roles = recorded_method(case.config, run, tensors)
    assert isinstance(method, CausVid)
    layout = method.overlap(case.config["frames_per_block"])
    # a single one may be cut short
    rollouts = run.get("rollouts", 1)
    frames = run.get("frames", layout.frames)
    schedule = Schedule.warped([1000, 750, 500, 250], shift=8.0) if run.get("warp") else SCHEDULE
    noise = [tensors["noise"][0, 0]]
    renoise = [tensors["renoise"][0]]
    for rollout in range(1, rollouts):
        noise.append(tensors["noise"][rollout, 0, layout.overlap :])
        renoise.append(tensors["renoise"][rollout, layout.given_blocks :])
    recorded = iter(tensors.get("reencoded_first_frame", ()))
    return RecordedRun(
        schedule=replace(schedule, frames_per_block=layout.frames_per_block),
        noise=RecordedNoise(torch.cat(noise), torch.cat(renoise)),
        embeds=[tensors["prompt_embeds"][0]],
        prompts=[0] * (frames // layout.frames_per_block + layout.stride * (rollouts - 1)),
        roles=roles,
        method=method,
        reencode=lambda latents: next(recorded)[0],
    )
