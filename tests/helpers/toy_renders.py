"""Renders of the toy model with a run folder, which can be stopped and repeated."""

from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from headforcing.headforcing_core.cache.policy import CachePolicy, preset
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, default_profile
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.render import Listener, Place
from headforcing.headforcing_core.render.run import Run
from headforcing.headforcing_core.render.video import begin_render
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import load_state_dict

STORY = "0:00 a red ball bouncing in the teal plain room\n0:05 a yellow cross circling in the navy checkerboard room"


def toy_model(layers: int = 8):
    """The demo's model, or its first layers."""
    state_dict, info = load_state_dict(assets.model_path())
    left_out = tuple(f"blocks.{layer}." for layer in range(layers, info.config.num_layers))
    kept = {name: tensor for name, tensor in state_dict.items() if not name.startswith(left_out)}
    return WanModel.from_state_dict(replace(info.config, num_layers=layers), kept, torch.float32)


class Render:
    """A render of the toy model that can be stopped and repeated."""

    def __init__(
        self, backbone, folder, text=STORY, seconds=9.0, seed=3, state_seconds=0.0, start=None, video=0, **options
    ):
        self.timeline = parse_timeline(text)
        family = options.pop("family", "self_forcing")
        method = options.pop("method", "head_forcing")
        policy = options.pop("policy", preset(method))
        if isinstance(policy, CachePolicy):
            policy = policy.with_memory(5, 3, 0.99, 1)  # admits much and often: summaries are made
        frames = 0 if start is None else len(start)
        config = backbone.config
        layers, heads = config.num_layers, config.num_heads
        options.setdefault("profile", HeadProfile("toy", layers, heads, default_profile(8, 6).roles[:layers]))
        self.plan = RenderPlan.make(
            config, policy, schedule(family), self.timeline, 64, 64, seconds, start_frames=frames, seed=seed, **options
        )
        self.embeds = {text: word_hash.encode(text) for text in self.timeline.texts}
        self.backbone, self.folder, self.start = backbone, folder, start
        prompts = [segment.text for segment in self.plan.timeline.segments]
        self.job = RenderJob(
            self.plan,
            self.embeds,
            "toy",
            video=video,
            start_latents=start,
            runs=folder,
            state_seconds=state_seconds,
            about={
                "prompts": prompts,
                "video_frames": self.plan.video_frames,
                "start_frames": self.plan.start_frames,
                "seeds": [segment.seed for segment in self.plan.timeline.segments],
            },
        )
        self.attention = sdpa
        self.setup, self.keys = self.job.setup, self.job.keys

    def go(self, stop_after=None, on_step=lambda block, step, latents: None, model=None):
        """All latents made or reused, `[frames, 16, 8, 8]`; `stop_after` blocks the render is stopped."""
        stop_after = None if stop_after is None else self.plan.start_blocks + stop_after
        job = replace(self.job, runs=self.folder)  # tests move the folder
        latents = rendered(job, model or self.model(), Place(attention=self.attention), stop_after, on_step)
        self.run, self.reused, self.events = latents.run, len(latents.run.stored), latents.run.events
        self.problems = self.run.problems
        return torch.cat(latents.blocks[self.plan.start_blocks :])

    def straight(self):
        """The same render in one go, without a run folder."""
        latents = rendered(replace(self.job, runs=None), self.model(), Place())
        self.straight_events = latents.run.events
        return torch.cat(latents.blocks[self.plan.start_blocks :])

    def model(self):
        return WanVideoModel(self.backbone, torch.float32)


class OnStep(Listener):
    """Calls a function after every denoising step."""

    def __init__(self, on_step):
        self.step = on_step


class Rendered(NamedTuple):
    """The latents of a render's blocks, start blocks included, and its run."""

    blocks: list[torch.Tensor]
    run: Run


def rendered(
    job, model, place=None, stop_after=None, on_step=lambda block, step, latents: None, listeners=()
) -> Rendered:
    """Make the video of a job, or its first `stop_after` blocks."""
    with begin_render(job, model, place or Place(), [OnStep(on_step), *listeners]) as render:
        blocks = islice(render.blocks(), stop_after)
        return Rendered([block.latents for block in blocks], render.run)


def files(render):
    return sorted(path for path in (render.folder / render.setup[:16]).iterdir() if path.name != "lock")
