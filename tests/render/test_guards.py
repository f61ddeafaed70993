"""Guards in a render: block keys, resuming, head roles found on the way, the report."""

import json
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


def test_block_keys_name_every_guard_and_stay_as_they_were_without():
    assert setup() == "da3a912fc0e7f0ddca9778d72c2106e5", "run folders of this head profile are no longer found"
    assert setup(method="longlive") == "49ea9f7d2a5a03943db3db0a18c32ac1"
    assert setup(measured(8)) == setup(), "query statistics that are not used are no part of the keys"
    trigonometric = [setup(measured(8, seed), compression="trigonometric") for seed in (0, 1)]
    others = [setup(sink_gate=0.8), setup(sink_gate=0.7), setup(rope_jitter=0.8), setup(sink_gate=0.8, rope_jitter=0.8)]
    assert len({setup(), *trigonometric, *others}) == 7
    assert setup(compression="trigonometric") != setup(), "the demo model's bundled profile has statistics"


def test_jitter_works_while_head_roles_are_found(backbone, tmp_path):
    policy = replace(CachePolicy(), guards=Guards(0.5, 0.8))
    render = Render(backbone, tmp_path, policy=policy, profile=AutoProfile(), seconds=6.5)
    render.go()
    profile = render.run.found_profile
    assert render.run.cache.report[0].startswith("sink gate 0.5: left out ")
    known = Render(backbone, tmp_path / "known", policy=policy, profile=profile, seconds=6.5)
    assert not torch.equal(known.go()[-3:], render.go()[-3:]), "the first five seconds are plain Self Forcing"


def test_trigonometric_compression_needs_a_profile_with_statistics():
    without = replace(default_profile(8, 6), queries=None)
    with pytest.raises(HeadForcingError, match=r"profile 'toy_world' has none; measure one with this version"):
        setup(without, compression="trigonometric")
    with pytest.raises(HeadForcingError, match="to be found in the first seconds has none"):
        setup(AutoProfile(), compression="trigonometric")


def test_the_report_of_a_render_says_what_the_guards_did(tmp_path, capsys):
    arguments = ["--out", str(tmp_path), "--seconds", "3", "--scale", "1", "--sigmas", "1", "--prompts", "a red ball"]
    assert main(["demo", *arguments, "--sink-gate", "0.3", "--rope-jitter", "0.8"]) == 0
    said = capsys.readouterr().out
    assert "\nguard    sink gate 0.3: left out " in said and "\nguard    rope jitter 0.8: rotary bases" in said
    assert main(["demo", *arguments, "--sink-gate", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["guards"][0].startswith("sink gate 0.3: left out ")
