"""The commands that measure, merge, compare and plot head profiles."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..headforcing_core.demo import assets, word_hash
from ..headforcing_core.distributed.workers import Shared, Workers
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import check_writable, claimed
from ..headforcing_core.head_profiles.profiler import measure_returns, pick_part, profile_heads
from ..headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from ..headforcing_core.head_profiles.rules import remark_on_rule, retrieving_heads, with_rule
from ..headforcing_core.head_profiles.shares import (
    PUBLISHED_STABILITY,
    HeadShares,
    ProfileSetup,
    ReturnStory,
    measured_blocks,
)
from ..headforcing_core.model.wan import WanModel
from ..headforcing_core.names import BUDGETS
from ..headforcing_core.page import save_plot
from ..headforcing_core.plan.settings import Size
from ..headforcing_core.rollout.loop import WanVideoModel
from ..headforcing_core.rollout.schedule import SCHEDULES
from ..headforcing_core.timeline.characters import split_prompts
from .arguments import Result
from .texts import read_text
from .values import DTYPES, EmbeddedModel, ModelFiles, find_profile, parse_size, pick_device
from .workers import LastValue, run_jobs, workers_of


def profile(args: Namespace) -> Result:
    """Measure attention shares, resuming an interrupted measurement, and save shares and
    profile.
    """
    _check_profile_name(args.out)
    if args.returns and args.farm is not None:
        raise HeadForcingError(
            "--returns is measured by one process, or by each --shard; leave out --farm"
        )
    count, seconds = BUDGETS[args.preset]
    if args.demo:
        weights = args.demo_weights or assets.model_path()
        heads = assets.inspect_toy(weights).config.num_heads
        files: ModelFiles = EmbeddedModel(weights, heads)
        size = assets.SIZE
        prompts = word_hash.sample_prompts(count)
        dtype = torch.float32
    else:
        files = ModelFiles.of(args)
        size = parse_size(args.size)
        prompts = PROFILING_PROMPTS[:count]
        dtype = DTYPES[args.dtype]
    if args.prompts is not None:
        prompts = split_prompts(read_text(args.prompts))
    setup = setup_of(
        files, prompts, seconds, size=size, family=args.model_family, rope=args.rope, seed=args.seed
    )
    if args.returns:
        ReturnStory.of(setup, 0)  # refuses prompts and blocks that none fits
    return measure(
        args.out,
        MeasuredModel(files, setup, dtype, args.device),
        "toy_world" if args.demo else args.model_family,
        workers_of(args),
        rule=args.rule or "auto",
        part=args.shard,
        quiet=args.json,
        returns=args.returns,
    )


def setup_of(
    files: ModelFiles,
    prompts: tuple[str, ...],
    seconds: float | None,
    *,
    size: Size,
    family: str,
    **options: Any,
) -> ProfileSetup:
    """The setup of a measurement on these files; `seconds` of video for each prompt as for
    `measured_blocks`, `options` of `ProfileSetup`.
    """
    info = files.inspect()
    schedule = SCHEDULES[family]
    blocks = measured_blocks(schedule, seconds)
    return ProfileSetup.of(
        info.fingerprint, info.config, prompts, blocks, family=schedule, size=size, **options
    )


@dataclass(frozen=True)
class MeasuredModel:
    """A model whose heads are measured, and how; `device` by name, on the machine that measures."""

    files: ModelFiles
    setup: ProfileSetup
    dtype: torch.dtype
    device: str

    def load(self) -> WanVideoModel:
        """The model; the last one is kept in memory for the next prompt."""
        info = self.files.inspect()
        device = pick_device(self.device)
        backbone = _backbones.get(
            (self.files, info.fingerprint, self.dtype, str(device)),
            lambda: WanModel.from_state_dict(info.config, self.files.load(), self.dtype, device),
        )
        return WanVideoModel(backbone, self.dtype, device)


_backbones = LastValue()


def measure(
    out: Path,
    model: MeasuredModel,
    made_for: str,
    workers: Workers,
    *,
    rule: str | None = None,
    part: str = "1/1",
    quiet: bool = False,
    returns: bool = False,
) -> Result:
    """Measure the prompts that are missing, and save the shares and, as `out`, the profile.

    Args:
        made_for: the model family that the profile is for; `toy_world` for files of a model of that
            world.
        part: of the prompts, such as 2/4, for one machine of several.
        returns: whether return stories are measured, too, see `head_profiles.profiler`.
    """
    path = out.with_suffix(".safetensors")
    setup = model.setup
    with claimed(out, path):
        shares = HeadShares.load(path) if path.exists() else HeadShares(setup)
        if shares.setup != setup:
            raise HeadForcingError(
                f"{path} was measured with other settings; choose another name or remove it"
            )
        prompts = pick_part(len(setup.prompts), part)
        embeds = model.files.encode(list(setup.prompts), pick_device(model.device))
        missing = shares.missing_prompts()
        todo = {prompt: embeds[prompt] for prompt in prompts if prompt in missing}
        try:
            if workers.parallel:
                _measure_at_once(model, shares, path, todo=todo, workers=workers, quiet=quiet)
            else:
                stories = tqdm(
                    prompts if returns else [], unit="return story", disable=quiet or not returns
                )
                _measure_here(
                    model, shares, path, todo=todo, embeds=embeds, stories=stories, quiet=quiet
                )
        finally:
            shares.save(path)
            _backbones.drop()  # what comes next may need its memory
        return _finish(
            shares, out, f"measured on {model.files.weights.name}", families=(made_for,), rule=rule
        )


def _measure_here(
    measured: MeasuredModel,
    shares: HeadShares,
    path: Path,
    *,
    todo: dict[int, Tensor],
    embeds: Sequence[Tensor],
    stories: Iterable[int],
    quiet: bool,
) -> None:
    """Measure prompts by their embeddings into `shares`, which are saved after each; then stories
    from all `embeds`.
    """
    model = measured.load()
    config = model.backbone.config
    steps = len(todo) * measured.setup.blocks * len(measured.setup.sigmas)
    with tqdm(total=steps, unit="step", desc="profiling", disable=quiet) as bar:
        profile_heads(
            model,
            config,
            shares,
            todo,
            on_prompt=lambda prompt: shares.save(path),
            on_step=lambda block, step, latents: bar.update(latents is not None),
            dtype=model.dtype,
            device=model.device,
        )
    measure_returns(
        model,
        config,
        shares,
        stories,
        embeds=embeds,
        on_story=lambda story: shares.save(path),
        dtype=model.dtype,
        device=model.device,
    )


def _measure_at_once(
    measured: MeasuredModel,
    shares: HeadShares,
    path: Path,
    *,
    todo: dict[int, Tensor],
    workers: Workers,
    quiet: bool,
) -> None:
    """Measure prompts, given with their text embeddings, as jobs of workers; as `_measure_here`."""
    files = measured.files
    lora = None if files.lora is None else files.lora.absolute()
    measured = replace(measured, files=replace(files, weights=files.weights.absolute(), lora=lora))
    with workers:
        jobs = {
            f"prompt {prompt}": (measured, prompt, workers.share(embed))
            for prompt, embed in todo.items()
        }
        for outcome in run_jobs(workers, measure_prompt, jobs, unit="prompt", quiet=quiet):
            found = outcome.get()
            shares.forget(jobs[outcome.name][1])
            shares.merge(found)
            shares.save(path)


def measure_prompt(job: tuple[MeasuredModel, int, Shared[Tensor]]) -> HeadShares:
    """Measure one prompt, given with its text embedding; to be called in any process."""
    measured, prompt, embed = job
    shares = HeadShares(measured.setup)
    model = measured.load()
    profile_heads(
        model,
        model.backbone.config,
        shares,
        {prompt: embed()},
        dtype=model.dtype,
        device=model.device,
    )
    return shares


def merge(args: Namespace) -> Result:
    """Add up measurements and save the profile of all of them."""
    _check_profile_name(args.out)
    first, *others = [HeadShares.load(path) for path in args.measured]
    for other in others:
        first.merge(other)
    first.save(args.out.with_suffix(".safetensors"))
    source = f"merged from {len(args.measured)} measurements"
    return _finish(first, args.out, source, rule=args.rule or "auto")


def compare(args: Namespace) -> Result:
    """Compare two profiles, and name the heads that the first one misnames."""
    from ..headforcing_core.head_profiles.agreement import compare_profiles

    first, second = map(find_profile, args.profiles)
    found = compare_profiles(first, second)
    remarks = remark_on_rule(first)
    return Result([found.text(), *remarks], {**found.to_dict(), "remarks": remarks})


def show(args: Namespace) -> Result:
    """Describe a profile."""
    from ..headforcing_core.head_profiles.agreement import describe_profile

    profile = find_profile(args.profile)
    remarks = remark_on_rule(profile)
    found = {"name": profile.name, "counts": profile.counts(), "provenance": profile.provenance}
    disputed = [list(place) for place in sorted(profile.disputed)]
    lines = [profile.name, *describe_profile(profile), *remarks]
    return Result(lines, {**found, "disputed": disputed, "remarks": remarks})


def plot(args: Namespace) -> Result:
    """Plot a profile."""
    from ..headforcing_core.head_profiles.profile_plot import profile_picture

    if args.out.suffix.lower() not in (".png", ".jpg", ".webp"):
        raise HeadForcingError(
            f"the name of the plot must end in .png, .jpg or .webp, got {args.out.name!r}"
        )
    check_writable(args.out)
    save_plot(args.out, profile_picture(find_profile(args.profile), args.theme))
    return Result([f"plot     {args.out}"], {"picture": str(args.out)})


def _check_profile_name(out: Path) -> None:
    if out.suffix != ".json":  # the shares beside it have the same name with another suffix
        raise HeadForcingError(f"the head profile to write must end in .json, got {out.name!r}")
    check_writable(out)
    check_writable(out.with_suffix(".safetensors"))


def _finish(
    shares: HeadShares,
    out: Path,
    source: str,
    families: tuple[str, ...] = (),
    rule: str | None = None,
) -> Result:
    """Save the profile of measured shares, and report on both."""
    measured = out.with_suffix(".safetensors")
    made = with_rule(shares.profile(out.stem, {"source": source}), rule)
    made = replace(made, families=families)
    made.save(out)
    lines = [*shares.describe(made), *remark_on_rule(made)]
    found = {
        "profile": str(out),
        "measured": str(measured),
        "counts": made.counts(),
        "stability": shares.stability(),
        "published_stability": PUBLISHED_STABILITY,
        "missing_prompts": shares.missing_prompts(),
    }
    if made.returns is not None:
        retrieving = retrieving_heads(made)
        lines.append(f"{len(retrieving)} heads look up the earlier visit of a scene that returns")
        found["retrieving"] = retrieving
    return Result([*lines, f"profile  {out}", f"shares   {measured}"], found)
