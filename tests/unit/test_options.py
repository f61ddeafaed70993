"""Options of methods and of a render: read, checked, listed, part of a render's identity; the keys
of stored blocks.
"""

from collections import Counter
from dataclasses import fields, replace
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from headforcing.cli.cli import _parser, main
from headforcing.cli.options import OPTIONS
from headforcing.cli.values import find_profile, render_options
from headforcing.headforcing_core.cache.roles import RolePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.rules import with_rule
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.methods.options import (
    option_text,
    options_of,
    read_pairs,
    with_options,
)
from headforcing.headforcing_core.methods.registry import (
    ALIASES,
    describe_method,
    method_named,
    method_names,
)
from headforcing.headforcing_core.plan.options import DEFAULTS, RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.settings import MEMORY_INPUTS
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from jobs import job_of
from method_renders import PROFILE, SMALL, STRIPES

CHOICES = {
    "clean_reads": ("all", "recent"),
    "episodic.admission": ("novelty", "uniform"),
    "episodic.eviction": ("summary", "fifo"),
    "episodic.token_selection": ("prompt", "random"),
    "rope": ("contiguous", "absolute"),
}


def setup_of(method: str, options: str = "", **more) -> str:
    asked = RenderOptions(
        method_name=method, width=96, height=64, method_options=read_pairs(options), **more
    )
    plan = RenderPlan.of(SMALL, asked, parse_timeline("a red ball", 9.0), profile=STRIPES)
    return job_of(plan, {}, "0123456789abcdef", dtype=torch.bfloat16).setup_key


@pytest.mark.parametrize("name", method_names())
def test_every_option_can_be_set_to_the_value_that_is_shown_and_is_part_of_the_identity_of_the_settings(
    name,
):
    method = method_named(name)
    options = options_of(method)
    shown = [(key, option_text(option.value)) for key, option in options.items()]
    assert with_options(method, shown, name) == method and with_options(method, (), name) is method
    # the rows have what a recall changes
    assert set(method.key) >= {"method", *options} - {"scenes"}
    for key, (value, types) in options.items():
        if key == "scenes":
            continue
        if key in CHOICES:
            (other,) = {*CHOICES[key]} - {value}
        elif bool in types:
            other = not value
        else:
            other = (value or 0) / 2 + 0.125 if float in types else (value or 0) + 3
        try:
            changed = with_options(method, [(key, option_text(other))], name)
        except HeadForcingError as error:  # not with the other options of this method
            assert "episodic" in str(error)
        else:
            assert changed.key != method.key, key


def test_a_render_with_other_options_makes_blocks_of_its_own():
    names = {setup_of("longlive", words) for words in ("", "window_frames=9", "sink_frames=1")}
    assert len(names) == 3
    assert setup_of("memrope", "window_frames=14") != setup_of("reward_forcing", "window_frames=14")
    sinks = [("memory.sink_frames", "2"), ("memory.episodic_frames", "0")]
    method = with_options(PRESETS["head_forcing"], sinks, "head_forcing")
    assert method.memory == RolePolicy(sink_frames=2, recent_frames=3)
    method = with_options(PRESETS["head_forcing"], sinks[:1], "head_forcing")
    assert method.memory == RolePolicy(2, recent_frames=3, episodic_frames=5)
    assert setup_of("longlive", " window_frames = 12;sink_frames=3\n") == setup_of("longlive")
    assert setup_of("head_forcing", "episodic.eviction=fifo") == setup_of("fifo_eviction")


def test_an_alias_is_a_method_with_options():
    for name, (method, options) in ALIASES.items():
        assert method_named(name) == with_options(method_named(method), read_pairs(options), method)
        assert setup_of(name) == setup_of(method, options)
        about, told = describe_method(name, [("window_frames", "12")])
        assert (
            about.startswith(f"method {method}: ")
            and told == f"method options: {options}, window_frames=12"
        )


def test_the_command_line_lists_all_options_and_sets_them(capsys):
    assert main(["methods"]) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == set(method_names())
    assert lines["longlive"].startswith("window_frames=12, sink_frames=3, infinite=false")
    assert (
        lines["memflow_sma"] == "memflow with routed=true"
        and lines["rolling_forcing"] == "no options"
    )
    command = [
        "demo",
        "--method",
        "longlive",
        "--seconds",
        "1",
        "--out",
        "unused.mp4",
        "--set",
        "window_frames=9",
    ]
    assert main([*command, "--set", "sink=1"]) == 2
    assert "has no option 'sink'; its options are window_frames" in capsys.readouterr().err


def test_a_command_without_arguments_asks_for_the_defaults_which_are_those_of_the_policy():
    for command in ("generate --weights w --prompts fox", "compare --weights w"):
        asked = render_options(_parser().parse_args(command.split()))
        # nodes keep what shared graphs were made with
        assert asked == replace(DEFAULTS, model_family="auto")
    assert DEFAULTS.method == PRESETS["head_forcing"] and DEFAULTS.schedule == schedule(
        "self_forcing"
    )
    for name, method in PRESETS.items():
        assert RenderOptions(method_name=name).method == method, name


def test_every_argument_that_sets_something_is_passed_on():
    words = (
        "generate --weights w --prompts fox --episodic-frames 7 --recent-frames 6 "
        "--novelty-threshold 0.5 --seed 9 "
    )
    words += (
        "--size 96x64 --switch flush --blend-blocks 2 --re-anchor --state-seconds 5 --method "
        "random_tokens "
    )
    words += "--roles shuffled --model-family longlive --sigmas 1,0.5 --seconds 20 "
    words += "--shuffle 4 --set episodic.pin_first=true --set local.sink_frames=1 "
    options = render_options(_parser().parse_args([*words.split(), "--update-interval", "2"]))
    same = {
        field.name
        for field in fields(options)
        if getattr(options, field.name) == getattr(DEFAULTS, field.name)
    }
    assert same == {"profile", "given_method"}
    memory = {
        "memory.episodic_frames": "7",
        "memory.recent_frames": "6",
        "episodic.novelty_threshold": "0.5",
    }
    set_ = {"episodic.pin_first": "true", "local.sink_frames": "1", "episodic.update_interval": "2"}
    assert dict(options.method_options) == memory | set_
    assert (options.width, options.height) == (96, 64)
    assert str(options.switch) == "flush, re-anchor, blend 2"


# arguments of `generate`, and the options of the method that they ask for
SPELT = [
    ("--episodic-frames 4", "memory.episodic_frames=4"),
    ("--episodic-frames 5 --update-interval 3", ""),
    ("--update-interval 2 --set window_frames=9 --method longlive", "window_frames=9"),
    ("--episodic-frames 4 --method self_forcing", ""),
    (
        "--episodic-frames 4 --novelty-threshold 0.5 --method uniform_memory",
        "episodic.novelty_threshold=0.5",
    ),
    ("--episodic-frames 4 --set memory.episodic_frames=6", "memory.episodic_frames=6"),
    (
        "--set memory.episodic_frames=4,memory.recent_frames=6",
        "memory.episodic_frames=4, memory.recent_frames=6",
    ),
]


# arguments of `generate` that make roles of a profile's shares, and the numbers of heads
ROLES_ASKED = {
    "--profile toy_world --alpha 0.5 --tau-local 0": {"anchor": 24, "memory": 24},
    "--profile toy_world --alpha 0.125": {"anchor": 6, "local": 10, "memory": 32},
    "--profile toy_world --tau-local 0.25 --rule quota": {"anchor": 12, "local": 12, "memory": 24},
    "--profile auto --alpha 0.5 --tau-local 0.125": {"anchor": 24, "local": 6, "memory": 18},
}


@pytest.mark.parametrize("arguments", ROLES_ASKED)
def test_alpha_and_tau_local_set_how_many_heads_are_anchors_and_local(arguments):
    command = f"generate --weights w --prompts fox {arguments}"
    profile = render_options(_parser().parse_args(command.split())).profile
    if isinstance(profile, AutoProfile):
        assert profile.rule == "auto"
        roles = profile.expected(8, 6).roles
    else:
        assert profile.provenance["rule"] == "quota"
        roles = profile.roles
    assert Counter(map(str, chain(*roles))) == ROLES_ASKED[arguments]


def test_how_long_measuring_may_take_is_an_argument():
    for asked, seconds in {"": 60.0, " --measure-seconds 300": 300.0}.items():
        command = f"generate --weights w --prompts fox --profile auto{asked}"
        profile = render_options(_parser().parse_args(command.split())).profile
        assert profile == AutoProfile(measure_seconds=seconds)


def test_fractions_leave_the_rule_of_the_profile():
    by_function = with_rule(find_profile("toy_world"), "function")
    assert with_rule(by_function, local_fraction=0.25).provenance["rule"] == "function"


def test_alpha_and_tau_local_need_a_profile_with_shares_and_fractions():
    parse = "generate --weights w --prompts fox {}".format
    for arguments, said in {
        "--alpha 0.5": "name it with --profile, or --profile auto",
        "--profile raven --tau-local 0.1": "no measured shares",
        "--profile toy_world --alpha 1.5": "anchor_fraction must be a number in 0-1",
        "--measure-seconds 90": "give it with --profile auto",
        "--profile toy_world --measure-seconds 90": "give it with --profile auto",
        "--profile auto --measure-seconds 0": "measure_seconds must be a number of seconds above",
    }.items():
        with pytest.raises(HeadForcingError, match=said):
            render_options(_parser().parse_args(parse(arguments).split()))


@pytest.mark.parametrize(("arguments", "asked"), SPELT)
def test_an_argument_for_episodic_memory_is_an_option_of_a_method_that_has_it(arguments, asked):
    options = render_options(
        _parser().parse_args(f"generate --weights w --prompts fox {arguments}".split())
    )
    assert list(options.method_options) == read_pairs(asked)
    assert options.method == with_options(
        method_named(options.method_name), read_pairs(asked), options.method_name
    )


def test_inputs_for_episodic_memory_have_the_default_of_every_method_that_has_them():
    for name, option in MEMORY_INPUTS.items():
        default = options_of(DEFAULTS.method)[option].value
        assert OPTIONS[f"--{name.replace('_', '-')}"][2].endswith(f" ({option_text(default)})")
        for method in map(method_named, method_names()):
            if option in method.memory_options:
                assert options_of(method)[option].value == default, (method, option)


def test_a_comparison_gives_every_method_the_options_of_episodic_memory_that_it_has():
    common = RenderOptions(
        method_options=(("memory.episodic_frames", "4"), ("episodic.update_interval", "2"))
    )
    assert common.for_method("fifo_eviction").method_options == common.method_options
    assert common.for_method("uniform_memory").method_options == (
        ("episodic.update_interval", "2"),
    )
    assert common.for_method("longlive").method == method_named("longlive")


ONE = "0:00 a red ball"
TWO = "0:00 a red ball\n0:06 a yellow ring"

# A change of one of these makes stored runs of that kind unusable: they
# are rendered anew. Say so in the changelog.
PINNED = [
    ("head_forcing", ONE, {}, "456b9b0e6f904800"),
    ("head_forcing", "0:00 a red ball\n0:06 [recache] a yellow ring", {}, "737584b707fadcd4"),
    (
        "head_forcing",
        "0:00 a red ball\n0:06 [flush, re-anchor] a yellow ring",
        {},
        "f3ee9fe0e43190e9",
    ),
    ("head_forcing", "0:00 a red ball\n0:06 [blend 2] a yellow ring", {}, "73019c1fe6bfbcd2"),
    ("head_forcing", TWO, {"start_frames": 6}, "91985e68b2f37276"),
    ("no_episodic_memory", ONE, {"roles": "shuffled"}, "60d2f50f4b52b136"),
    ("self_forcing_window_21", TWO, {}, "7cb6c51c0599073c"),
    ("longlive", TWO, {"start_frames": 6}, "e883b68050358729"),
    ("infinity_rope", "0:00 a red ball\n0:06 [re-anchor] a yellow ring", {}, "2d7901085d9bbee5"),
    ("deep_forcing", ONE, {}, "19d05c9871932e49"),
    ("forcing_kv", TWO, {}, "9fe93b601decfbae"),
    ("dummy_forcing", ONE, {}, "579b9a79e746903d"),
    ("memflow", TWO, {}, "60407f167d5195eb"),
    ("rolling_forcing", TWO, {}, "27540f10d17a501d"),
    ("causvid", TWO, {}, "e6553b8756bbc607"),
]


@pytest.mark.parametrize(("method", "text", "options", "last"), PINNED)
def test_the_key_of_the_last_block_is_the_one_that_stored_runs_have(method, text, options, last):
    assert last_key(method, text, **options) == last


def last_key(
    method: str, text: str, profile=PROFILE, start_frames: int = 0, roles: str = "profile"
) -> str:
    options = RenderOptions(
        method_name=method, width=96, height=64, seconds=9.0, roles=roles, seed=3
    )
    plan = RenderPlan.of(SMALL, options, parse_timeline(text), start_frames, profile)
    start = torch.full((start_frames, 16, 8, 12), 0.25) if start_frames else None
    embeds = {
        segment.text: torch.full((4, 8), 0.5 + i)
        for i, segment in enumerate(plan.timeline.segments)
    }
    codec = SimpleNamespace(fingerprint=lambda: "an autoencoder")
    job = job_of(
        plan, embeds, "0123456789abcdef", dtype=torch.bfloat16, start_latents=start, codec=codec
    )
    return job.keys[-1][:16]
