"""Renders of the toy model with a run folder, which can be stopped and repeated."""

from dataclasses import replace

import torch
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, default_profile
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.render.block_keys import setup_hash, video_keys
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.video_rollout import VideoRollout
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.headforcing_core.runs.folder import RunFolder
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

    def __init__(self, backbone, folder, text=STORY, seconds=9.0, seed=3, state_seconds=0.0, start=None, **options):
        self.timeline = parse_timeline(text)
        family = options.pop("family", "self_forcing")
        method = options.pop("method", "head_forcing")
        policy = options.pop("policy", preset(method))
        policy = policy.with_memory(5, 3, 0.99, 1)  # admits much and often: summaries are made
        frames = 0 if start is None else len(start)
        config = backbone.config
        layers, heads = config.num_layers, config.num_heads
        options.setdefault("profile", HeadProfile("toy", layers, heads, default_profile(8, 6).roles[:layers]))
        self.plan = RenderPlan.make(
            config, policy, schedule(family), self.timeline, 64, 64, seconds, start_frames=frames, **options
        )
        self.embeds = self.plan.embeddings([word_hash.encode(text) for text in self.timeline.texts])
        self.backbone, self.folder, self.seed, self.start = backbone, folder, seed, start
        self.state_seconds = state_seconds
        self.attention = None
        self.setup = setup_hash(self.plan, "toy", seed, 0, torch.float32, start)
        self.keys = video_keys(self.plan, self.setup, self.embeds, seed=seed)

    def go(self, stop_after=None, on_step=lambda block, step, latents: None, model=None):
        """All latents made or reused, `[frames, 16, 8, 8]`; `stop_after` blocks the render is stopped."""
        model = model or WanVideoModel(self.backbone, self.embeds, torch.float32)
        with RunFolder(self.folder, self.setup, {"about": "a test"}) as run:
            prompts = [segment.text for segment in self.plan.timeline.segments]
            about = {"prompts": prompts, "pictures": self.plan.video_frames, "start_frames": self.plan.start_frames}
            about["seeds"] = [segment.seed for segment in self.plan.timeline.segments]
            run.save_video(self.keys, about)
            video = VideoRollout(
                self.plan,
                self.seed,
                dtype=torch.float32,
                start_latents=self.start,
                run=run,
                keys=self.keys,
                state_seconds=self.state_seconds,
                attention=self.attention or sdpa,
            )
            made = []
            for block in video.blocks(model, on_step):
                made.append(block.latents)
                if stop_after is not None and len(made) == stop_after:
                    break
            self.video, self.problems = video, run.problems
        return torch.cat(made)

    def straight(self):
        """The same render in one go, without a run folder."""
        video = VideoRollout(self.plan, self.seed, dtype=torch.float32, start_latents=self.start)
        model = WanVideoModel(self.backbone, self.embeds, torch.float32)
        self.straight_events = None
        latents = torch.cat([block.latents for block in video.blocks(model)])
        self.straight_events = video.events
        return latents


def files(render):
    return sorted(path for path in (render.folder / render.setup[:16]).iterdir() if path.name != "lock")
