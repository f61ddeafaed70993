"""Renders of the toy model with a run folder, which can be stopped and repeated."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.hashing import digest
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, default_profile
from headforcing.headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from headforcing.headforcing_core.methods.method import Method
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.render.live_story import StoryEdits
from headforcing.headforcing_core.render.render import Listener, Place, begin_render
from headforcing.headforcing_core.render.run import Run
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.rows import Picture
from headforcing.headforcing_core.rollout.schedule import SCHEDULES
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import load_state_dict
from jobs import job_of
from policies import with_memory
from safetensors import safe_open
from safetensors.torch import load_file, save_file

STORY = (
    "0:00 a red ball bouncing in the teal plain room\n0:05 a yellow cross circling in the navy "
    "checkerboard room"
)


def picture(seed: int) -> Picture:
    """A picture of random latents."""
    return Picture(
        torch.randn(3, 16, 8, 8, generator=torch.Generator().manual_seed(seed)), f"picture {seed}"
    )


PICTURES = {"hall": picture(1), "hero": picture(2)}


# the latents and events of renders, by all that was asked for
_straight: dict[str, tuple[torch.Tensor, list]] = {}


def first_layers(state_dict: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    left_out = tuple(f"blocks.{layer}." for layer in range(layers, assets.TOY_CONFIG.num_layers))
    return {name: tensor for name, tensor in state_dict.items() if not name.startswith(left_out)}


def toy_model(layers: int = 8, dtype: torch.dtype = torch.float32):
    """The demo's model, or its first layers."""
    state_dict, info = load_state_dict(assets.model_path())
    kept = first_layers(state_dict, layers)
    return WanModel.from_state_dict(replace(info.config, num_layers=layers), kept, dtype)


def save_toy(folder: Path, layers: int) -> Path:
    """Write the first layers of the demo's model, and `toy.json`, a head profile for them; the
    model's file.
    """
    with safe_open(assets.model_path(), "pt") as file:
        metadata = file.metadata()
    save_file(
        first_layers(load_file(assets.model_path()), layers), folder / "toy.safetensors", metadata
    )
    HeadProfile("toy", layers, 6, default_profile(8, 6).roles[:layers]).save(folder / "toy.json")
    return folder / "toy.safetensors"


def family_for(method: Method, family: str = "self_forcing") -> str:
    """The model family, with shots (the fixture `shots`) where the method needs them."""
    needs = method.needs_shots and not SCHEDULES[family].shot_prefix
    return f"{family}_shots" if needs else family


class Render:
    """A render of the toy model that can be stopped and repeated."""

    def __init__(
        self,
        backbone,
        folder,
        text=STORY,
        seconds=9.0,
        seed=3,
        state_seconds=0.0,
        start=None,
        video=0,
        pictures=None,
        *,
        family="self_forcing",
        name="head_forcing",
        method=None,
        sigmas="1, 0.6",
        profile=None,
        **options,
    ):
        # two denoising steps, because bits are compared and not pictures
        self.timeline = parse_timeline(text, references=tuple(pictures or ()))
        # made of all that was asked for, and not of the keys, which tests hold against it
        asked = (
            backbone.config.num_layers,
            text,
            seconds,
            seed,
            video,
            family,
            name,
            method,
            sigmas,
            options,
        )
        shown = [(name, digest(picture.latents)) for name, picture in (pictures or {}).items()]
        self.asked = repr((asked, profile, shown, start is not None and digest(start)))
        method = method or PRESETS[name]
        if isinstance(method, HeadForcing):
            method = with_memory(method, 5, 3, 0.99, 1)  # admits much and often: summaries are made
        if isinstance(method, str):
            method = method_named(method)
        frames = 0 if start is None else len(start)
        config = backbone.config
        layers = config.num_layers
        heads = config.num_heads
        profile = profile or HeadProfile("toy", layers, heads, default_profile(8, 6).roles[:layers])
        options = RenderOptions(
            given_method=method,
            model_family=family_for(method, family),
            sigmas=sigmas,
            profile=profile,
            width=64,
            height=64,
            seconds=seconds,
            seed=seed,
            **options,
        )
        self.plan = RenderPlan.of(config, options, self.timeline, frames)
        self.embeds = {text: word_hash.encode(text) for text in self.timeline.texts}
        self.backbone = backbone
        self.folder = folder
        self.start = start
        self.job = job_of(
            self.plan,
            self.embeds,
            "toy",
            video=video,
            start_latents=start,
            runs=folder,
            state_seconds=state_seconds,
            pictures=pictures or {},
        )
        self.attention = sdpa
        self.setup = self.job.setup_key
        self.keys = self.job.keys

    def go(self, stop_after=None, on_step=lambda block, step, latents: None, model=None):
        """All latents made or reused, `[frames, channels, 8, 8]`; `stop_after` blocks the render is
        stopped.
        """
        stop_after = None if stop_after is None else self.plan.layout.start_blocks + stop_after
        job = self.job.with_request(runs=self.folder)  # tests move the folder
        latents = rendered(
            job, model or self.model(), Place(attention=self.attention), stop_after, on_step
        )
        self.run = latents.run
        self.reused = len(latents.run.stored)
        self.events = latents.run.events
        self.problems = self.run.problems
        return torch.cat(latents.blocks[self.plan.layout.start_blocks :])

    def straight(self):
        """The same render in one go, without a run folder; made once for all tests that ask for
        it.
        """
        if self.asked not in _straight:
            latents = rendered(self.job.with_request(runs=None), self.model(), Place())
            _straight[self.asked] = (
                torch.cat(latents.blocks[self.plan.layout.start_blocks :]),
                latents.run.events,
            )
        made, self.straight_events = _straight[self.asked]
        return made

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
    return sorted(
        path for path in (render.folder / render.setup[:16]).iterdir() if path.name != "lock"
    )


class LiveTexts(StoryEdits):
    """Tells texts while a video is made, each when the render asks before the block of that
    number.
    """

    def __init__(self, texts: dict[int, str], seconds: float, references=()):
        self.texts = texts
        self.length = seconds
        self.references = tuple(references)
        self.block = 0
        self.encoded = []
        self.changes = []
        self.refusals = []

    def ask(self):
        text = self.texts.get(self.block)
        self.block += 1
        return (
            None if text is None else parse_timeline(text, self.length, references=self.references)
        )

    def encode(self, texts):
        self.encoded += texts
        return {text: word_hash.encode(text) for text in texts}

    def taken(self, plan, block):
        self.changes.append(block)

    def refused(self, error):
        self.refusals.append(str(error))

    def about(self):
        return {"story": "as it was told"}
