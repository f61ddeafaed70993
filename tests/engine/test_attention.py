"""Attention backends: which one is taken, how each is called, and that nothing waits for a device.

Kernels that need a GPU are stood in for by plain torch with the same arguments (attention_cases.py).
"""

import functools
import logging
import math
import sys
import types
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from attention_cases import WHOLE_LAYER, sequence_attention
from counted_memory import RefuseFloat64
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model import attention_backends as backends
from headforcing.headforcing_core.model.attention import AUTO, LayerSizes, attention_function, first_working, sdpa
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from small_engine import BUSY, F, film, measure, mixed, new_cache
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")


def raises(error: Exception):
    def load():
        raise error

    return load


def every_row(spans):
    return tuple(replace(span, rows=span.room) for span in spans)


TABLES = WHOLE_LAYER["tables"].layer
BROKEN = {
    "refuses": raises(RuntimeError("no kernel image is available. Compile with other flags.\nmore lines")),
    "is_absent": raises(ModuleNotFoundError("No module named 'sageattention'")),
    "forgets_a_key": lambda: lambda q, k, v: sdpa(q, k[:, 1:], v[:, 1:]),
    "gives_nan": lambda: lambda q, k, v: sdpa(q, k, v) * math.nan,
    "swaps_heads": lambda: backends.LayerAttention(lambda *given: TABLES(*given).flip(0)),
    "sees_every_row": lambda: backends.LayerAttention(lambda q, k, v, spans: TABLES(q, k, v, every_row(spans))),
}


@pytest.fixture
def first():
    """`first_working`, which remembers nothing of other tests."""
    return functools.cache(first_working.__wrapped__)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_backend_is_passed_over_with_one_line_and_refused_by_name(first, monkeypatch, caplog, broken):
    monkeypatch.setitem(backends.BACKENDS, broken, BROKEN[broken])
    monkeypatch.setitem(backends.BACKENDS, "is_full", raises(torch.OutOfMemoryError("full")))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert first((broken, "sdpa"), CPU, torch.bfloat16, 32)[1] is sdpa
    (line,) = caplog.messages
    assert f"not {broken} (" in line and "is sdpa" in line and "\n" not in line
    with pytest.raises(HeadForcingError, match=rf"'{broken}' cannot be used on cpu in .*; choose auto") as told:
        attention_function(broken, "cpu", torch.float32, 32)
    assert "\n" not in str(told.value)
    with pytest.raises(HeadForcingError, match=f"no attention backend works on cpu .*: not {broken}"):
        first((broken,), CPU, torch.float32, 32)
    with pytest.raises(torch.OutOfMemoryError):  # which says nothing about the backend
        first(("is_full", "sdpa"), CPU, torch.float32, 32)


WITH_LSE = {"flash_attn_varlen_func": lambda *given: (sequence_attention(*given), 0)}
PACKAGES = {
    "flash_attn_3": ("flash_attn_interface", WITH_LSE),
    "torch_varlen": ("torch.nn.attention.varlen", {"varlen_attn": sequence_attention}),
    "flash_attn_4": ("flash_attn.cute", WITH_LSE),
    "flash_attn_2": ("flash_attn", {"flash_attn_varlen_func": sequence_attention}),
    "sage": ("sageattention", {"sageattn": lambda q, k, v, tensor_layout: sdpa(q[0], k[0], v[0])[None] + 0.04}),
}


def test_packages_are_called_as_they_want_to_be_and_auto_never_takes_what_rounds_to_8_bits(first, monkeypatch):
    for name, (package, functions) in PACKAGES.items():
        monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(**functions))
        found = attention_function(name, "cpu", torch.bfloat16, 32)
        assert isinstance(found, backends.LayerAttention) == (name != "sage")
        assert backends.self_test(found, CPU, torch.float32, 32) < (0.05 if name == "sage" else 1e-5)
    assert isinstance(first(AUTO, CPU, torch.bfloat16, 32)[1], backends.LayerAttention)
    assert "sage" not in AUTO and set(AUTO) < set(backends.BACKENDS)
    assert attention_function("auto", "cpu", torch.bfloat16, 32) is sdpa  # nothing else is even imported there
    with pytest.raises(HeadForcingError, match="attention must be one of auto, .*sdpa, .*explicit.*'warp'"):
        attention_function("warp")


# ---------------------------------------------------------------------------------------------------------- one backend


def test_cudnn_gets_as_many_sequences_in_every_layer_a_place_without_rows_as_an_empty_one(monkeypatch):
    given = []

    def operator(q, k, v, bias, *rest):
        starts_q, starts_k, longest_q, longest_k, lse, dropout, causal, debug = rest
        assert bias is None and (lse, dropout, causal, debug) == (True, 0.0, False, False)
        given.append(len(starts_q))
        return (sequence_attention(q, k, v, starts_q, starts_k, longest_q, longest_k),)

    monkeypatch.setattr(torch.ops.aten, "_cudnn_attention_forward", operator)
    found = backends.BACKENDS["cudnn_varlen"]()
    assert backends.self_test(found, CPU, torch.float32, 32) < 1e-4
    q, k = torch.randn(3, 4, 32), torch.randn(30, 32)
    for groups in (((3, 10),), ((1, 12), (2, 9))):
        found.layer(q, k, k, LayerSizes(4, groups).spans)
    assert set(given) == {2 * 3 + 1}  # heads, each with a place for rows without keys
    starts = backends.sequence_starts(LayerSizes(7, ((2, 40),)).spans, 7, CPU)
    assert [x.tolist() for x in starts] == [[0, 7, 7, 14, 14], [0, 40, 40, 80, 80]]


def test_a_shape_that_a_growing_context_passes_through_gets_no_plan():
    """Of 17 blocks that grow by a block each, with five passes in 30 layers."""
    plans = set()

    def planned(q, k, v):
        plans.add(k.shape)
        return sdpa(q, k, v)

    attention, q = backends.PlannedAttention(planned), torch.randn(2, 4, 8)
    for block in range(17):
        k = torch.randn(2, 3 * (1 + block), 8)
        for _ in range(5 * 30):
            attention(q, k, k)
    assert not plans
    for _ in range(backends.PLAN_PAYS):
        attention(q, k, k)
    assert plans == {k.shape}


def test_groups_run_on_streams_that_begin_after_the_queries_and_end_before_the_result(monkeypatch):
    names, running, notes = iter("ab"), ["here"], []

    def stream(name: str) -> types.SimpleNamespace:
        wait = lambda other: notes.append((name, "waits for", other.name))  # noqa: E731
        return types.SimpleNamespace(name=name, wait_stream=wait)

    @contextmanager
    def entered(stream: types.SimpleNamespace):
        running.append(stream.name)
        yield
        running.pop()

    def dense(q, k, v):
        notes.append((running[-1], "attends to", k.shape[1]))
        return sdpa(q, k, v)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream("here"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream(next(names)))
    monkeypatch.setattr(torch.cuda, "stream", entered)

    sizes = LayerSizes(4, ((2, 11), (1, 7), (3, 4)))
    q, k, v = torch.randn(6, 4, 8), *torch.randn(2, 41, 8)
    found = backends.on_streams(dense).layer(q, k, v, sizes.spans)
    torch.testing.assert_close(found, backends.by_span(sdpa, q, k, v, sizes.spans))
    assert notes == [
        ("a", "waits for", "here"), ("b", "waits for", "here"),
        ("a", "attends to", 11), ("b", "attends to", 7), ("here", "attends to", 4),
        ("here", "waits for", "a"), ("here", "waits for", "b"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- waiting for a device


class Transfers(TorchDispatchMode):
    """Refuses whatever waits for the device (`meta` stands for it), and counts what is sent there."""

    def __init__(self):
        super().__init__()
        self.sent = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "is_nonzero", "unique", "masked_select"), name
        made = func(*args, **(kwargs or {}))
        devices = [x.device.type for x in (*args, made) if isinstance(x, torch.Tensor)]
        if name in ("_to_copy", "copy_") and len(set(devices)) > 1:
            assert devices[-1] == "meta", "a copy from the device waits for it"
            self.sent += 1
        return made


@pytest.mark.parametrize("way", ["layer", "measured"])
@torch.no_grad()
def test_a_pass_never_waits_for_the_device_and_sends_it_only_the_timesteps(model, way):
    def layer(q, k, v, spans):
        backends.sequence_starts(spans, q.shape[1], q.device)
        return q

    shape = CacheShape.for_model(model.config, mixed(model), CachePolicy(), 4, 6, F, 30)
    with torch.device("meta"):
        video = WanVideoModel(WanModel(model.config), torch.float32, "meta")
        x = torch.empty(F, 16, 4, 6)
    # the length of a prompt is found before it is sent to the device, where nothing could be read
    video.use_prompt(torch.cat([torch.ones(3, 10), torch.zeros(2, 10)]))
    assert video.prompt.valid_tokens == 3 and video.prompt.layers[0][0].is_meta
    cache = HeadCache(shape, torch.float32, "meta", backends.LayerAttention(layer) if way == "layer" else sdpa)
    if way == "measured":
        measure(cache)
        cache.meter._shares = cache.meter._shares.to("meta")
    cache.begin_block()
    video.denoise(x, 0.5, cache)
    video.write_clean(x, cache)
    cache.close()
    with Transfers() as opened, RefuseFloat64():  # torch's `mps` device refuses float64
        cache.begin_block()
        first = video.denoise(x, 0.5, cache)
    assert first.shape == x.shape and opened.sent > 1  # the tables of the block
    with Transfers() as passed:
        video.denoise(x, 0.5, cache)
        video.write_clean(x, cache)
    assert passed.sent == 2
    with Transfers() as closed:
        cache.close()
    assert closed.sent <= len(cache.groups)  # where kept frames go, for all layers at once


def test_a_candidate_of_episodic_memory_waits_for_the_device_once(model, monkeypatch):
    policy = replace(BUSY, episodic=replace(BUSY.episodic, center_keys=True))
    cache, waits = new_cache(model, mixed(model), policy, 12), []
    to_host = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: [to_host(x), waits.append(x.numel())][0])
    film(model, cache, 12)
    assert cache.memory.has_summary and len(waits) == 11
