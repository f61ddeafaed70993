"""What a render is asked for: defaults stand once, and everything a person can get wrong is refused at once."""

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy, preset
from headforcing.headforcing_core.commands.cli import _parser
from headforcing.headforcing_core.commands.values import render_options
from headforcing.headforcing_core.render.options import DEFAULTS, RenderOptions
from headforcing.headforcing_core.render.settings import RenderSettings
from headforcing.headforcing_core.rollout.schedule import schedule

FIELDS = {field.name for field in fields(RenderOptions)}
CALLED_OTHERWISE = {"memory_every_blocks": "update_interval", "checkpoint_seconds": "state_seconds"}
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


def widgets(path: Path) -> dict[str, str]:
    """The default of each input in a node's file that sets a field of `RenderOptions`, as it is written."""
    found = {}
    for call in (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)):
        default = next((ast.unparse(k.value) for k in call.keywords if k.arg == "default"), None)
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if default is not None and names and CALLED_OTHERWISE.get(names[0], names[0]) in FIELDS:
            found[names[0]] = default
    return found


@pytest.mark.parametrize("file", ["sampler_inputs.py", "host/helpers.py", "compare_methods.py"])
def test_widgets_take_their_defaults_from_the_options(file: str, repo_root: Path):
    found = widgets(repo_root / "nodes" / file)
    if file == "host/helpers.py":
        assert found.pop("seconds") == "default"  # an argument, whose own default is
        assert "default: float = DEFAULTS.seconds" in (repo_root / "nodes" / file).read_text("utf-8")
    assert found == {name: f"DEFAULTS.{CALLED_OTHERWISE.get(name, name)}" for name in found}
    expected = {
        "sampler_inputs.py": "method sigmas episodic_frames recent_frames novelty_threshold memory_every_blocks roles "
        "sink_gate rope_jitter compression method_options checkpoint_seconds",
        "host/helpers.py": "seed model_family",
        "compare_methods.py": "",
    }
    assert set(found) == set(expected[file].split())


def test_defaults_are_those_of_the_policy_and_leave_every_preset_as_it_is():
    assert DEFAULTS.cache_policy == preset("head_forcing") and DEFAULTS.schedule == schedule("self_forcing")
    for name, policy in PRESETS.items():
        assert RenderOptions(method=name).cache_policy == policy, name


def test_defaults_that_are_written_without_the_engine_are_the_engines():
    policy = CachePolicy()
    engine = (policy.memory.episodic_frames, policy.memory.recent_frames or 0)
    engine += (policy.episodic.novelty_threshold, policy.episodic.update_interval)
    told = RenderSettings()
    assert (told.episodic_frames, told.recent_frames, told.novelty_threshold, told.update_interval) == engine
