"""Profile Heads: measure what every attention head of a MODEL attends to."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import comfy.utils
import torch
from comfy_api.latest import io
from torch import Tensor

from ..headforcing_core.demo import word_hash
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.hashing import digest
from ..headforcing_core.head_profiles import profile_plot as pictures
from ..headforcing_core.head_profiles.profiler import profile_heads
from ..headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from ..headforcing_core.head_profiles.rules import remark_on_rule, with_rule
from ..headforcing_core.head_profiles.shares import HeadShares, ProfileSetup, measured_blocks
from ..headforcing_core.names import BUDGETS, RULES
from ..headforcing_core.plan.layout import check_size
from ..headforcing_core.plan.options import DEFAULTS, RenderOptions
from ..headforcing_core.plan.resources import pass_bytes
from ..headforcing_core.rollout.loop import StepCallback
from ..headforcing_core.timeline.characters import split_prompts
from .host import folders
from .host.browser.player import say
from .host.browser.progress import previewer, stop_where_asked
from .host.graph import images, schema
from .host.graph.conditioning import encode_text
from .host.graph.schema import HeadProfileType
from .host.model.loaded_model import (
    ModelName,
    check_text_width,
    compute_dtype,
    name_model,
    options_for,
    wan_config,
)
from .host.model.model_contents import check_contents, contents
from .host.model.native_model import is_toy_clip, size_for
from .host.render.bridge import HostedModel, host


class ProfileHeads(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingProfileHeads",
            "Profile Heads",
            "research",
            aliases="head roles, attention, measure, calibrate",
            inputs=[
                io.Model.Input("model"),
                io.Clip.Input("clip"),
                io.Combo.Input("preset", options=list(BUDGETS), default="quick"),
                *schema.size_inputs(),
                schema.seed_input(),
                io.String.Input("save_name", default="my_model"),
                io.String.Input("prompts", default="", multiline=True, optional=True),
                io.Combo.Input("rope", options=["absolute", "contiguous"], default="absolute"),
                schema.family_input(),
                io.Combo.Input("rule", options=list(RULES), default="auto"),
            ],
            advanced="rope model_family rule",
            outputs={
                "head_profile": HeadProfileType,
                "picture": io.Image,
                "report": io.String,
            },
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    @schema.shows_errors
    def execute(
        cls,
        model: Any,
        clip: Any,
        preset: str,
        width: int,
        height: int,
        seed: int,
        save_name: str,
        prompts: str = "",
        rope: str = "absolute",
        model_family: str = DEFAULTS.model_family,
        rule: str = "auto",
    ) -> io.NodeOutput:
        if clip is None:
            raise HeadForcingError(
                "clip: there is no text encoder in this checkpoint; connect Load CLIP with "
                "umt5_xxl and type wan"
            )
        path = folders.profile_path(save_name) if save_name.strip() else None
        options, notes = options_for(model, RenderOptions(model_family=model_family))
        family = options.schedule
        width, height = size_for(model, width, height)
        check_size("width", width, family.latents.side_multiple)
        check_size("height", height, family.latents.side_multiple)
        config = wan_config(model)
        count, seconds = BUDGETS[preset]
        texts = split_prompts(prompts)
        if not texts:
            texts = (
                word_hash.sample_prompts(count) if is_toy_clip(clip) else PROFILING_PROMPTS[:count]
            )
        blocks = measured_blocks(family, seconds)
        check_contents(model)
        named = name_model(model)
        setup = ProfileSetup.of(
            named.weights,
            config,
            texts,
            blocks=blocks,
            family=family,
            size=(width, height),
            rope=rope,
            seed=seed,
        )
        shares, problems = _measure(model, clip, setup, named, node_id=cls.hidden.unique_id)
        notes += problems
        profile = shares.profile(save_name.strip() or "measured", {"source": "measured in ComfyUI"})
        profile = with_rule(profile, rule)
        notes += contents(model).lines()
        report = [*shares.describe(profile), *remark_on_rule(profile), *notes]
        if path is not None:
            report.append(
                f"saved as {folders.save_profile(profile, path).name} in models/head_profiles"
            )
        picture = images.to_image(pictures.profile_picture(profile, stability=shares.stability()))
        return io.NodeOutput(profile, picture, "\n".join(report))


def _measure(
    model: Any, clip: Any, setup: ProfileSetup, named: ModelName, node_id: str
) -> tuple[HeadShares, list[str]]:
    """Measure all prompts; resumes a cancelled measurement of the same setup. Also says why the
    shares are not kept for another run, in at most one sentence.
    """
    embeds = [encode_text(clip, text)[0][0] for text in setup.prompts]
    check_text_width(model, embeds)
    key = digest(setup, *embeds)[:16]  # the text encoder is part of the setup
    path = folders.user_folder("measured") / f"{key}.safetensors"
    is_kept = named.is_known and os.path.exists(path)
    shares = HeadShares.load(path) if is_kept else HeadShares(setup)
    missing = shares.missing_prompts()
    problems: list[str] = []
    if not missing:
        return shares, problems
    bar = comfy.utils.ProgressBar(len(missing) * setup.blocks * len(setup.sigmas))
    preview = previewer(model)

    def on_step(block: int, step: int, latents: Tensor | None) -> None:
        stop_where_asked()
        if latents is None:
            done = len(missing) - len(shares.missing_prompts())
            say(
                f"prompt {done + 1} of {len(missing)} - block {block + 1} of {setup.blocks}",
                node_id,
            )
        else:
            last = step == len(setup.sigmas)
            bar.update_absolute(
                bar.current + 1, preview=preview(latents.transpose(0, 1)[None]) if last else None
            )

    def keep(*_: int) -> None:
        if named.is_known:
            try:
                shares.save(path)
            except HeadForcingError as error:
                problem = str(error).partition(": choose")[0]
                problems[:] = [f"the measurement is not kept for another run: {problem}"]

    try:
        measure(
            model, shares, {prompt: embeds[prompt] for prompt in missing}, on_step, on_prompt=keep
        )
    finally:
        keep()
    return shares, problems


def measure(
    model: Any,
    shares: HeadShares,
    embeds: Mapping[int, Tensor],
    on_step: StepCallback,
    on_prompt: Callable[[int], None],
) -> None:
    """Profile the heads of a MODEL into `shares`, on those of the setup's prompts whose `embeds`
    are given.
    """
    setup = shares.setup
    config = wan_config(model)
    dtype = compute_dtype(model)
    shape = setup.shape(config)

    def body(hosted: HostedModel, device: torch.device) -> None:
        profile_heads(
            hosted,
            config,
            shares,
            embeds,
            on_prompt=on_prompt,
            dtype=dtype,
            device=device,
            on_step=on_step,
        )

    # twice, for what measures attention beside a pass
    memory = shape.bytes(dtype) + 2 * pass_bytes(
        config, setup.frames_per_block * shape.frame_tokens, dtype
    )
    first = next(iter(embeds.values()))
    host(model, first, setup.schedule, setup.block_shape(config), memory=memory, body=body)
