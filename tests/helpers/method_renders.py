"""Small renders with every method, on random weights."""

from types import SimpleNamespace

import torch
from headforcing.headforcing_core.demo import word_hash
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.methods.base import BaseMethod
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.request import RenderJob
from headforcing.headforcing_core.render.render import make_blocks
from headforcing.headforcing_core.render.run import Run
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from jobs import job_of as render_job
from torch import Tensor, nn
from toy_renders import family_for, rendered

SMALL = WanConfig(
    dim=96, ffn_dim=128, num_layers=3, num_heads=3, freq_dim=32, text_dim=8, text_len=4
)
ONE = "0:00 a red ball"
TWO = "0:00 a red ball\n0:04.5 a yellow ring"
CONFIG = WanConfig(
    dim=96,
    ffn_dim=128,
    num_layers=3,
    num_heads=3,
    freq_dim=32,
    text_dim=word_hash.TEXT_DIM,
    text_len=word_hash.TEXT_LEN,
)


def random_backbone() -> WanModel:
    torch.manual_seed(5)
    model = WanModel(CONFIG)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model.requires_grad_(False).eval()


def profile_of(*layers: tuple[str, ...]) -> HeadProfile:
    return HeadProfile("a test", len(layers), len(layers[0]), layers)


PROFILE = profile_of(
    ("memory", "anchor", "local"), ("anchor", "memory", "memory"), ("local", "memory", "anchor")
)
STRIPES = profile_of(*[("memory", "anchor", "local")] * 3)
STATIC = profile_of(*[("local", "anchor", "local")] * 3)


def plan(
    method,
    text=ONE,
    seconds=9.0,
    steps="1, 0.6",
    family="self_forcing",
    profile=PROFILE,
    start_frames=0,
    **options,
) -> RenderPlan:
    """A plan at 96x64; `steps` "" for those of the family."""
    given = method if isinstance(method, BaseMethod) else method_named(method)
    asked = RenderOptions(
        given_method=given,
        width=96,
        height=64,
        seconds=seconds,
        model_family=family_for(given, family),
        sigmas=steps,
        **options,
    )
    return RenderPlan.of(CONFIG, asked, parse_timeline(text), start_frames, profile)


def rolling_plan(text=ONE, seconds=9.0, **options) -> RenderPlan:
    return plan(
        "rolling_forcing", text, seconds, steps="1, 0.9, 0.8, 0.6, 0.3", profile=None, **options
    )


def causvid_plan(seconds=9.0, text=ONE, **options) -> RenderPlan:
    return plan("causvid", text, seconds, profile=None, **options)


def repeated(latents: Tensor) -> Tensor:
    """In place of a VAE that encodes the last picture anew."""
    return latents[-1:]


def job_of(made: RenderPlan, **options) -> RenderJob:
    embeds = {text: word_hash.encode(text) for text in made.timeline.texts}
    codec = SimpleNamespace(reencode=repeated, fingerprint=lambda: "")
    return render_job(made, embeds, "toy", **{"codec": codec, **options})


def keys_of(made: RenderPlan) -> list[str]:
    return job_of(made).keys


def video_of(made: RenderPlan, backbone, **options) -> tuple[RenderJob, WanVideoModel]:
    return job_of(made, **options), WanVideoModel(backbone, torch.float32)


def latents_of(made: RenderPlan, backbone, **options) -> Tensor:
    video, model = video_of(made, backbone, **options)
    return torch.cat([block.latents for block in make_blocks(video, model)])


def watched(seen: list):
    """An `on_step` that notes the steps that were made."""
    return lambda block, step, clean: clean is None or seen.append((block, step))


def rolled(
    tmp_path, made: RenderPlan, backbone, stop_after: int | None = None, model=None, **options
) -> tuple[Run, list[Tensor]]:
    """A render in a run folder, stopped right after a block or not at all."""
    video, own = video_of(made, backbone, runs=tmp_path)
    latents, run = rendered(video, model or own, stop_after=stop_after, **options)
    return run, latents
