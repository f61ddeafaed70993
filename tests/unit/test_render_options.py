"""What a render is asked for: defaults stand once, and everything a person can get wrong is refused at once."""

from dataclasses import fields, replace

import pytest
from headforcing.headforcing_core.cache.policy import PRESETS, preset
from headforcing.headforcing_core.commands.cli import _parser
from headforcing.headforcing_core.commands.values import render_options
from headforcing.headforcing_core.render.options import DEFAULTS, RenderOptions
from headforcing.headforcing_core.rollout.schedule import schedule

FIELDS = {field.name for field in fields(RenderOptions)}
COMMANDS = {"generate": ["--weights", "w", "--prompts", "a fox"], "compare": ["--weights", "w"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_arguments_asks_for_the_defaults(command: str):
    asked = render_options(_parser().parse_args([command, *COMMANDS[command]]))
    assert asked == replace(DEFAULTS, model_family="auto")  # nodes keep the default that shared graphs were made with


def test_every_argument_that_sets_something_is_passed_on():
    words = "--episodic-frames 7 --recent-frames 6 --novelty-threshold 0.5 --update-interval 2 --seed 9 --seconds 20 "
    words += "--size 96x64 --switch flush --blend-blocks 2 --re-anchor --state-seconds 5 --method random_tokens "
    words += "--roles shuffled --model-family longlive --sigmas 1,0.5 --sink-gate 0.8 --rope-jitter 0.5 "
    words += "--compression trigonometric --shuffle 4 --set episodic.pin_first=true --set local.sink_frames=1"
    options = render_options(_parser().parse_args(["generate", *COMMANDS["generate"], *words.split()]))
    same = {name for name in FIELDS if getattr(options, name) == getattr(DEFAULTS, name)}
    assert same == {"profile", "policy"}
    assert options.method_options == "episodic.pin_first=true, local.sink_frames=1"
    assert (options.width, options.height, options.update_interval) == (96, 64, 2)
    assert str(options.switch) == "flush, re-anchor, blend 2"


def test_defaults_are_those_of_the_policy_and_leave_every_preset_as_it_is():
    assert DEFAULTS.cache_policy == preset("head_forcing") and DEFAULTS.schedule == schedule("self_forcing")
    for name, policy in PRESETS.items():
        assert RenderOptions(method=name).cache_policy == policy, name
