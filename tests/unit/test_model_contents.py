"""What other nodes put on a MODEL, without ComfyUI: which values are read, and what the table says
of each kind.
"""

import functools
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.weights.identity import identity
from host_alone import host_module
from torch import nn

plain_values = host_module("model.plain_values")
model_contents = host_module("model.model_contents")
loaded_model = host_module("model.loaded_model")
STRENGTH = 1.0


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, given):
        return given * self.factor

    def method(self, given):
        return given * self.factor


class Slots:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor


class Counts(Scale):
    def __call__(self, given):
        self.factor += 1
        return given


def closure(factor):
    return lambda given: given * factor


def stateful(factor):
    calls = 0

    def function(given):
        nonlocal calls
        calls += 1
        return given * factor

    return function


def digits(value):
    return identity(plain_values.Reader({}).read("value", value))


@pytest.mark.parametrize(
    "made",
    [
        closure,
        Scale,
        Slots,
        lambda factor: Scale(factor).method,
        lambda factor: functools.partial(max, factor),
        lambda factor: closure(Scale(factor)),
        lambda factor: closure({"a": [factor, {factor}]}),
        lambda factor: closure(torch.full((3,), factor)),
        lambda factor: nn.LayerNorm(3, eps=factor),
        lambda factor: lambda given, by=factor: given * by,
        lambda factor: (lambda x: x * 2) if factor == 1 else lambda x: x * 3,
    ],
)
def test_every_plain_value_counts_wherever_it_is_kept(made):
    assert digits(made(1.0)) == digits(made(1.0))
    assert digits(made(1.0)) != digits(made(2.0))


def test_a_number_of_the_file_that_a_function_reads_counts(monkeypatch):
    def function(given):
        return given * STRENGTH

    before = digits(function)
    monkeypatch.setitem(globals(), "STRENGTH", 2.0)
    assert digits(function) != before


@pytest.mark.parametrize(
    "value",
    [
        stateful(1.0),
        closure(x for x in ()),
        Counts(1.0),
        Counts(1.0).__call__,
        closure(torch.Generator()),
        {object(): 1},
    ],
)
def test_what_keeps_a_state_or_cannot_be_read_is_not_named(value):
    with pytest.raises(plain_values.UnreadableError):
        digits(value)


def test_an_object_that_refers_to_itself_is_read():
    scale = Scale(1.0)
    scale.own = scale
    assert digits(scale) != digits(Scale(1.0))


def model(**carried):
    net = nn.Module()
    net.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])
    net.blocks[0][0].load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    return SimpleNamespace(
        model=SimpleNamespace(diffusion_model=net), backup={}, patches={}, **carried
    )


@pytest.mark.parametrize(
    "carried",
    [
        lambda by: {"injections": {"bypass_lora": [closure(by)]}},
        lambda by: {"callbacks": {"on_load_after": {None: [closure(by)]}}},
        lambda by: {"weight_wrapper_patches": {"blocks.0.weight": [closure(by)]}},
        lambda by: {"wrappers": {"apply_model": {None: [closure(by)]}}},
        lambda by: {"model_options": {"sampler_post_cfg_function": [Scale(by), closure(by)]}},
        lambda by: {"model_options": {"model_function_wrapper": Scale(by).method}},
        lambda by: {
            "model_options": {"transformer_options": {"optimized_attention_override": closure(by)}}
        },
        lambda by: {
            "model_options": {
                "transformer_options": {"wrappers": {"apply_model": {"theirs": [closure(by)]}}}
            }
        },
        lambda by: {"wrappers": {"apply_model": {"one": [closure(by)], "two": [closure(3.0)]}}},
        lambda by: {
            "wrappers": {"apply_model": {"theirs": [closure(3.0)]}},
            "model_options": {
                "transformer_options": {"wrappers": {"apply_model": {"theirs": [closure(by)]}}}
            },
        },
        lambda by: {"object_patches": {"diffusion_model.blocks.0.0.forward": closure(by)}},
        lambda by: {"object_patches": {"model_sampling": nn.LayerNorm(2, eps=by)}},
    ],
)
def test_what_a_rollout_runs_counts_with_its_values(carried):
    names = [
        loaded_model.name_model(model(**given))
        for given in (carried(1.0), carried(1.0), carried(2.0), {})
    ]
    assert [name.unread for name in names] == [()] * 4
    assert names[0] == names[1]
    assert len({name.weights for name in names}) == 3


@pytest.mark.parametrize(
    "carried",
    [
        {"model_options": {"theirs": 1}},
        {"model_options": {"transformer_options": {"theirs": 1}}},
        {"wrappers": {"a_new_type": {None: [closure(1)]}}},
        {"hook_patches": {"hook": {}}},
        {"attachments": {"theirs": 1}},
        {"additional_models": {"theirs": [1]}},
        {"injections": {"theirs": [stateful(1)]}},
    ],
)
def test_what_the_table_does_not_know_keeps_no_blocks(carried):
    named = loaded_model.name_model(model(**carried))
    assert named.unread and not named.is_known
    assert named.notes[0].startswith(
        "stored blocks and measured head roles are neither read nor written"
    )


def test_what_is_not_run_has_the_name_of_a_model_without_it():
    options = {
        "context_handler": Scale(1),
        "transformer_options": {"patches": {"attn1": [stateful(1)]}},
    }
    wrappers = {
        kind: {"theirs": [stateful(1)]}
        for kind in ("outer_sample", "predict_noise", "calc_cond_batch")
    }
    carried = model(
        model_options=options, wrappers=wrappers, attachments={"lora_metadata": object()}
    )
    named = loaded_model.name_model(carried)
    assert named == loaded_model.name_model(model()) and named.is_known
    assert len(model_contents.contents(carried).lines()) == 5
    assert len(model_contents.contents(carried).lines(around=False)) == 4


def test_guidance_of_a_step_is_refused_unless_it_is_one():
    def override(cfg):
        return lambda executor, *given: executor(*given, cfg)

    model_contents.check_contents(model(wrappers={"predict_noise": {None: [override(1.0)]}}))
    with pytest.raises(HeadForcingError, match="sets cfg to 3"):
        model_contents.check_contents(model(wrappers={"predict_noise": {None: [override(3.0)]}}))
