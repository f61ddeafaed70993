"""Guards in a render: block keys, resuming, head roles found on the way, the report."""

from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.cache.guards import Guards
from headforcing.headforcing_core.cache.policy import CachePolicy
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, default_profile
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from toy_renders import Render, measured


def setup(profile: HeadProfile | None = None, **settings) -> str:
    options = RenderOptions(width=64, height=64, seconds=3.0, profile=profile, **settings)
    plan = options.plan(assets.TOY_CONFIG, parse_timeline("a fox", 3.0))
    return RenderJob(plan, {}, "0" * 16).setup


def test_block_keys_name_every_guard_and_statistics_that_are_used():
    assert setup(measured(8)) == setup(), "query statistics that are not used are no part of the keys"
    trigonometric = [setup(measured(8, seed), compression="trigonometric") for seed in (0, 1)]
    others = [setup(sink_gate=0.8), setup(sink_gate=0.7), setup(rope_jitter=0.8), setup(sink_gate=0.8, rope_jitter=0.8)]
    assert len({setup(), *trigonometric, *others}) == 7
    assert setup(compression="trigonometric") != setup(), "the demo model's bundled profile has statistics"


def test_jitter_works_while_head_roles_are_found(backbone, tmp_path):
    policy = replace(CachePolicy(), guards=Guards(0.5, 0.8))
    render = Render(backbone, tmp_path, policy=policy, profile=AutoProfile(), seconds=6.0)
    render.go()
    profile = render.run.found_profile
    assert render.run.cache.report[0].startswith("sink gate 0.5: left out ")
    known = Render(backbone, tmp_path / "known", policy=policy, profile=profile, seconds=6.0)
    assert not torch.equal(known.go()[-3:], render.go()[-3:]), "the first five seconds are plain Self Forcing"


def test_trigonometric_compression_needs_a_profile_with_statistics():
    without = replace(default_profile(8, 6), queries=None)
    for profile, said in ((without, "profile 'toy_world' has none; measure one"), (AutoProfile(), "seconds has none")):
        with pytest.raises(HeadForcingError, match=said):
            setup(profile, compression="trigonometric")


def test_the_reports_of_a_render_and_a_comparison_say_what_the_guards_did(tmp_path, capsys):
    arguments = f"--out {tmp_path} --seconds 2 --scale 1 --sigmas 1 --rope-jitter 0.8 --prompts ball".split()
    assert main(["demo", *arguments, "--sink-gate", "0.3"]) == 0
    said = capsys.readouterr().out
    assert "\nguard    sink gate 0.3: left out " in said and "\nguard    rope jitter 0.8: rotary bases" in said
    assert main(["compare", "--demo", "--methods", "head_forcing", *arguments, "--seed", "3"]) == 0
    lines = (tmp_path / "comparison.md").read_text("utf-8").splitlines()
    assert lines[-1].startswith("guard: head_forcing, seed 3: rope jitter 0.8: rotary bases from ")
