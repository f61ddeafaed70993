"""The commands that measure, merge, compare and plot head profiles."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..demo import assets, word_hash
from ..distributed.farm import Farm, Shared
from ..errors import HeadForcingError
from ..files import check_writable, claimed
from ..head_profiles.profile_setup import ProfileSetup, ReturnStory
from ..head_profiles.profiler import measure_returns, pick_part, profile_heads
from ..head_profiles.prompts import PROFILING_PROMPTS
from ..head_profiles.rules import describe_returns, remark_on_rule, retrieving_heads, with_rule
from ..head_profiles.shares import HeadShares
from ..model.wan import WanModel
from ..names import BUDGETS
from ..rollout.loop import WanVideoModel
from ..rollout.schedule import SCHEDULES
from ..timeline.clock import BlockClock
from ..timeline.grammar import split_prompts
from .arguments import Result
from .farms import farm_of
from .values import DTYPES, Kept, ModelFiles, find_profile, parse_size, pick_device, read_text, save_plot


def profile(args: argparse.Namespace) -> Result:
    """Measure attention shares, resuming an interrupted measurement, and save shares and profile."""
    _check_profile_name(args.out)
    if args.returns and args.farm is not None:
        raise HeadForcingError("--returns is measured by one process, or by each --shard; leave out --farm")
    count, seconds = BUDGETS[args.preset]
    if args.demo:
        weights = args.demo_weights or assets.model_path()
        files, size = ModelFiles(weights, assets.inspect_toy(weights).config.num_heads), assets.SIZE
        default, dtype = word_hash.sample_prompts(count), torch.float32
    else:
        files, size = ModelFiles.of(args), parse_size(args.size)
        default, dtype = PROFILING_PROMPTS[:count], DTYPES[args.dtype]
    prompts = default if args.prompts is None else split_prompts(read_text(args.prompts))
    setup = setup_of(files, prompts, seconds, size, args.model_family, rope=args.rope, seed=args.seed)
    made_for = "toy_world" if args.demo else args.model_family
    if args.returns:
        ReturnStory.of(setup, 0)  # refuses prompts and blocks that none fits
    return Measurement(
        args.out,
        files,
        setup,
        made_for,
        farm_of(args),
        args.device,
        dtype,
        rule=args.rule,
        part=args.shard,
        quiet=args.json,
        returns=args.returns,
    ).run()


def setup_of(
    files: ModelFiles, prompts: tuple[str, ...], seconds: float, size: tuple[int, int], family: str, **options: Any
) -> ProfileSetup:
    """The setup of a measurement on these files; `seconds` of video for each prompt, `options` of `ProfileSetup`."""
    info, schedule = files.inspect(), SCHEDULES[family]
    blocks = BlockClock(schedule.frames_per_block).blocks_for(seconds)
    return ProfileSetup.of(info.fingerprint, info.config, prompts, blocks, schedule, size, **options)


@dataclass(frozen=True)
class Measurement:
    """A head profile to measure, and where.

    Attributes:
        out: the profile; the measured shares go beside it.
        made_for: the model family that the profile is for; `toy_world` for files of a model of that world.
        device: by name.
        rule: of `rules.RULES`, which makes the roles of shares.
        part: of the prompts, such as 2/4, for one machine of several.
        returns: whether return stories are measured, too, see `head_profiles.profiler`.
    """

    out: Path
    files: ModelFiles
    setup: ProfileSetup
    made_for: str
    farm: Farm
    device: str
    dtype: torch.dtype
    rule: str = "quota"
    part: str = "1/1"
    quiet: bool = False
    returns: bool = False

    def run(self) -> Result:
        """Measure what is missing, and save shares and profile."""
        with claimed(self.out, self.measured):
            shares, texts, toy = self._begin(), list(self.setup.prompts), self.made_for == "toy_world"
            device, part = pick_device(self.device), pick_part(len(texts), self.part)
            embeds = list(map(word_hash.encode, texts)) if toy else self.files.encode(texts, device)
            missing = set(shares.missing_prompts())
            todo = {prompt: embeds[prompt] for prompt in part if prompt in missing}
            if self.farm.parallel:
                self._measure_on_farm(shares, todo)
            else:
                self._measure_here(shares, todo, device, embeds, part if self.returns else [])
            source = f"measured on {self.files.weights.name}"
            return _finish(shares, self.out, source, (self.made_for,), self.rule)

    @property
    def measured(self) -> Path:
        """The file of the measured shares."""
        return self.out.with_suffix(".safetensors")

    def _begin(self) -> HeadShares:
        """The shares that an interrupted measurement has left, or none."""
        if not self.measured.exists():
            return HeadShares(self.setup)
        shares = HeadShares.load(self.measured)
        if shares.setup != self.setup:
            raise HeadForcingError(
                f"{self.measured} was measured with other settings; choose another name or remove it"
            )
        return shares

    def _measure_here(
        self,
        shares: HeadShares,
        todo: dict[int, Tensor],
        device: torch.device,
        embeds: Sequence[Tensor],
        stories: Sequence[int],
    ) -> None:
        """Measure prompts, given with their text embeddings, into `shares`, which are saved after each; then return
        stories, from the embeddings of all prompts."""
        setup, config = self.setup, self.files.inspect().config
        where: dict[str, Any] = {"dtype": self.dtype, "device": device}
        backbone = WanModel.from_state_dict(config, self.files.load(), self.dtype, device)
        model = WanVideoModel(backbone, self.dtype, device)
        steps = len(todo) * setup.blocks * len(setup.sigmas)

        def save(number: int) -> None:
            shares.save(self.measured)

        try:
            with tqdm(total=steps, unit="step", desc="profiling", disable=self.quiet) as bar:
                profile_heads(
                    model,
                    config,
                    shares,
                    todo,
                    on_prompt=save,
                    on_step=lambda block, step, latents: bar.update(latents is not None),
                    **where,
                )
            told = tqdm(stories, unit="return story", disable=self.quiet or not stories)
            measure_returns(model, config, shares, told, embeds, on_story=save, **where)
        finally:
            shares.save(self.measured)

    def _measure_on_farm(self, shares: HeadShares, todo: dict[int, Tensor]) -> None:
        """Measure prompts, given with their text embeddings, as jobs of a farm; as `_measure_here`."""
        paths: dict[str, Any] = {n: path.absolute() for n, path in vars(self.files).items() if isinstance(path, Path)}
        files, farm = replace(self.files, **paths), self.farm
        with farm, tqdm(total=len(todo), unit="prompt", desc="profiling", disable=self.quiet) as bar:
            jobs = {
                f"prompt {prompt}": PromptJob(files, self.setup, prompt, farm.share(embed), self.dtype, self.device)
                for prompt, embed in todo.items()
            }
            for outcome in farm.run(measure_job, jobs):
                found = outcome.get()
                shares.forget(int(outcome.name.split()[-1]))
                shares.merge(found)
                shares.save(self.measured)
                bar.update()


@dataclass(frozen=True)
class PromptJob:
    """A prompt of a measurement as a worker gets it; `embed` is its text embedding."""

    files: ModelFiles
    setup: ProfileSetup
    prompt: int
    embed: Shared[Tensor]
    dtype: torch.dtype
    device: str


_backbones = Kept()


def measure_job(job: PromptJob) -> HeadShares:
    """Measure one prompt; to be called in any process."""
    info, device, shares = job.files.inspect(), pick_device(job.device), HeadShares(job.setup)
    backbone = _backbones.get(
        (job.files, info.fingerprint, job.dtype, str(device)),
        lambda: WanModel.from_state_dict(info.config, job.files.load(), job.dtype, device),
    )
    model, todo = WanVideoModel(backbone, job.dtype, device), {job.prompt: job.embed.get()}
    profile_heads(model, info.config, shares, todo, dtype=job.dtype, device=device)
    return shares


def merge(args: argparse.Namespace) -> Result:
    """Add up measurements and save the profile of all of them."""
    _check_profile_name(args.out)
    first, *others = [HeadShares.load(path) for path in args.measured]
    for other in others:
        first.merge(other)
    first.save(args.out.with_suffix(".safetensors"))
    return _finish(first, args.out, f"merged from {len(args.measured)} measurements")


def compare(args: argparse.Namespace) -> Result:
    """Compare two profiles, and warn about unusual values of the first."""
    from ..head_profiles.agreement import compare_profiles, sanity_checks

    a, b = (find_profile(name) for name in args.profiles)
    found = compare_profiles(a, b)
    remarks = sanity_checks(a)
    return {"text": "\n".join([found.text(), *remarks]), "json": {**found.to_dict(), "remarks": remarks}}


def show(args: argparse.Namespace) -> Result:
    """Describe a profile."""
    from ..head_profiles.agreement import describe_profile, sanity_checks

    profile = find_profile(args.profile)
    remarks = sanity_checks(profile)
    found = {"name": profile.name, "counts": profile.counts(), "provenance": profile.provenance}
    disputed = [list(place) for place in sorted(profile.disputed)]
    lines = [profile.name, *describe_profile(profile), *remarks]
    return {"text": "\n".join(lines), "json": {**found, "disputed": disputed, "remarks": remarks}}


def plot(args: argparse.Namespace) -> Result:
    """Plot a profile."""
    from ..report.profile_plot import profile_picture

    if args.out.suffix.lower() not in (".png", ".jpg", ".webp"):
        raise HeadForcingError(f"the name of the plot must end in .png, .jpg or .webp, got {args.out.name!r}")
    check_writable(args.out)
    profile = find_profile(args.profile)
    shares = None if args.measured is None else HeadShares.load(args.measured)
    if shares is not None:
        profile.check_model(shares.setup.num_layers, shares.setup.num_heads)
    save_plot(args.out, profile_picture(profile, shares, theme=args.theme))
    return {"text": f"plot     {args.out}", "json": {"picture": str(args.out)}}


def _check_profile_name(out: Path) -> None:
    if out.suffix != ".json":  # the shares beside it have the same name with another suffix
        raise HeadForcingError(f"the head profile to write must end in .json, got {out.name!r}")
    check_writable(out)
    check_writable(out.with_suffix(".safetensors"))


def _finish(shares: HeadShares, out: Path, source: str, families: tuple[str, ...] = (), rule: str = "quota") -> Result:
    """Save the profile of measured shares, and report on both."""
    measured = out.with_suffix(".safetensors")
    made = replace(shares.profile(out.stem, {"source": source}), families=families)
    made = made if rule == "quota" else with_rule(made, rule)
    made.save(out)
    remarks = [*remark_on_rule(made), *describe_returns(made)]
    lines = [*shares.describe(made), *remarks, f"profile  {out}", f"shares   {measured}"]
    found: dict[str, Any] = {"profile": str(out), "measured": str(measured), "counts": made.counts()}
    found |= {"stability": shares.stability(), "missing_prompts": shares.missing_prompts()}
    found |= {"retrieving": retrieving_heads(made)} if made.returns is not None else {}
    return {"text": "\n".join(lines), "json": found}
