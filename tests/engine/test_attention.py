"""Attention backends: which one is taken, and that each sees exactly the keys of every head.

Kernels that need a GPU are stood in for by plain torch with the same arguments (attention_cases.py). Everything is
float32 on CPU unless a test says otherwise; "equal" means within 1e-5.
"""

import logging
import math
import sys
import types
from dataclasses import replace

import pytest
import torch
from attention_cases import WHOLE_LAYER, sequence_attention
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy
from headforcing.headforcing_core.cache.state import unpack
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profiler import ShareMeter
from headforcing.headforcing_core.model import attention
from headforcing.headforcing_core.model.attention import (
    AUTO,
    BACKENDS,
    LayerAttention,
    Span,
    attention_function,
    explicit,
    first_working,
    sdpa,
)
from headforcing.headforcing_core.model.attention_backends import self_test, sequence_starts
from headforcing.headforcing_core.model.wan import PromptKV, WanConfig, WanModel, encode_prompt
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from small_engine import BUSY, difference
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
ROLES = [["memory", "local", "anchor", "local"], ["anchor", "local", "local", "anchor"], ["memory"] * 4]
F, ROWS, COLUMNS, HEAD_DIM = 3, 2, 3, 22
EVERY_WAY = pytest.mark.parametrize("way", WHOLE_LAYER)


def new_cache(function, blocks: int, policy: CachePolicy = BUSY, kind: type[HeadCache] = HeadCache) -> HeadCache:
    return kind(CacheShape(ROLES, policy, ROWS, COLUMNS, HEAD_DIM, F, blocks * F), torch.float32, "cpu", function)


def run(caches: list[HeadCache], blocks: int, before_block=lambda cache: None) -> list[list[torch.Tensor]]:
    """Feed the same random queries, keys and values to all caches; what each gave, pass by pass."""
    generator = torch.Generator().manual_seed(0)

    def noise(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    heads = len(ROLES[0])
    prompt = PromptKV([(noise(1, heads, 5, HEAD_DIM), noise(1, heads, 5, HEAD_DIM)) for _ in ROLES], 4)
    found: list[list[torch.Tensor]] = [[] for _ in caches]
    for _ in range(blocks):
        for cache in caches:
            cache.begin_block()
            before_block(cache)
        for layer in range(len(ROLES)):
            q, k, v = noise(3, F * ROWS * COLUMNS, heads, HEAD_DIM)
            for cache, outs in zip(caches, found, strict=True):
                cache.write(layer, k, v)
                outs.append(cache.attend(layer, q))
        for cache in caches:
            cache.commit(prompt)
    return found


@EVERY_WAY
@pytest.mark.parametrize("rope", ["contiguous", "absolute"])
def test_one_call_for_a_layer_equals_one_call_for_every_group(way, rope):
    policy = CachePolicy(rope=rope, episodic=BUSY.episodic)
    caches = [new_cache(explicit, 12, policy), new_cache(WHOLE_LAYER[way], 12, policy)]
    groups, layers = run(caches, 12)
    assert caches[0].memory.sources == caches[1].memory.sources and caches[0].memory.has_summary
    for ours, theirs in zip(layers, groups, strict=True):
        assert ours.shape == theirs.shape and difference(ours, theirs) < 1e-5


@EVERY_WAY
def test_one_call_for_a_layer_reads_no_slot_that_was_not_written(way):
    def poison(cache: HeadCache) -> None:
        for group in cache.groups:
            for buffer in (*group.k, *group.v):
                buffer[:, group.current.start :] = math.nan

    outs, expected = run([new_cache(WHOLE_LAYER[way], 8), new_cache(explicit, 8)], 8, poison)
    for out, right in zip(outs, expected, strict=True):
        assert out.isfinite().all() and difference(out, right) < 1e-5


def test_the_heads_with_most_frames_come_first_and_fill_the_buffers_without_gaps():
    cache = new_cache(sdpa, 12)
    run([cache], 11)
    cache.begin_block()
    s = ROWS * COLUMNS
    assert cache.spans(0) == (Span(1, 0, 11 * s, 11 * s), Span(1, 11 * s, 7 * s, 7 * s), Span(2, 18 * s, 4 * s, 4 * s))
    assert cache.spans(1) == (Span(2, 0, 7 * s, 7 * s), Span(2, 14 * s, 4 * s, 4 * s))
    assert cache.spans(2) == (Span(4, 0, 11 * s, 11 * s),)
    for layer, (k, v) in enumerate(zip(cache.k, cache.v, strict=True)):
        assert len(k) == len(v) == sum(span.heads * span.room // s for span in cache.spans(layer))


def refuses() -> attention.AttentionFunction:
    raise RuntimeError("no kernel image is available. Compile with other flags.\nmore lines")


def is_absent() -> attention.AttentionFunction:
    import a_package_that_is_not_there  # noqa: F401

    return sdpa


def forgets_a_key() -> attention.AttentionFunction:
    return lambda q, k, v: sdpa(q, k[:, 1:], v[:, 1:])


def gives_nan() -> attention.AttentionFunction:
    return lambda q, k, v: sdpa(q, k, v) * math.nan


def swaps_heads() -> attention.AttentionFunction:
    return LayerAttention(lambda q, k, v, spans: WHOLE_LAYER["tables"].layer(q, k, v, spans).flip(0))


def sees_every_row() -> attention.AttentionFunction:
    def layer(q, k, v, spans):
        return WHOLE_LAYER["tables"].layer(q, k, v, tuple(Span(s.heads, s.first, s.room, s.room) for s in spans))

    return LayerAttention(layer)


BROKEN = [refuses, is_absent, forgets_a_key, gives_nan, swaps_heads, sees_every_row]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch):
    """Adds a backend, for one test."""
    first_working.cache_clear()
    yield lambda function: monkeypatch.setitem(BACKENDS, function.__name__, function)
    first_working.cache_clear()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda function: function.__name__)
def test_a_broken_backend_is_passed_over_with_one_line_in_the_log_and_an_error_where_it_is_asked_for(
    added, caplog, broken
):
    added(broken)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert first_working((broken.__name__, "sdpa"), CPU, torch.bfloat16, 32) is sdpa
    (line,) = caplog.messages
    assert f"not {broken.__name__} (" in line and "is sdpa" in line and "\n" not in line
    words = rf"'{broken.__name__}' cannot be used on cpu in .*; choose auto"
    with pytest.raises(HeadForcingError, match=words) as told:
        attention_function(broken.__name__, "cpu", torch.float32, 32)
    assert "\n" not in str(told.value)


def test_out_of_memory_is_not_taken_for_a_broken_backend(added):
    def is_full():
        raise torch.OutOfMemoryError("full")

    added(is_full)
    with pytest.raises(torch.OutOfMemoryError):
        first_working(("is_full", "sdpa"), CPU, torch.float32, 32)


PACKAGES = {
    "flash_attn_3": (
        "flash_attn_interface",
        {"flash_attn_varlen_func": lambda *given: (sequence_attention(*given), 0)},
    ),
    "torch_varlen": ("torch.nn.attention.varlen", {"varlen_attn": sequence_attention}),
    "flash_attn_4": ("flash_attn.cute", {"flash_attn_varlen_func": lambda *given: (sequence_attention(*given), 0)}),
    "flash_attn_2": ("flash_attn", {"flash_attn_varlen_func": sequence_attention}),
    "sage": ("sageattention", {"sageattn": lambda q, k, v, tensor_layout: sdpa(q[0], k[0], v[0])[None] + 0.04}),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_are_called_as_they_want_to_be(added, monkeypatch, name):
    package, functions = PACKAGES[name]
    monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(**functions))
    found = attention_function(name, "cpu", torch.bfloat16, 32)
    assert isinstance(found, LayerAttention) == (name != "sage")
    assert self_test(found, CPU, torch.bfloat16, 32) < 0.1
    outs, expected = run([new_cache(found, 5), new_cache(explicit, 5)], 5)
    assert max(difference(a, b) for a, b in zip(outs, expected, strict=True)) < (0.05 if name == "sage" else 1e-5)


def test_auto_takes_all_heads_in_one_call_where_it_can_and_never_rounds_to_8_bits(added, monkeypatch):
    for package, functions in PACKAGES.values():
        monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(**functions))
    assert isinstance(first_working(AUTO, CPU, torch.bfloat16, 32), LayerAttention)
    assert "sage" not in AUTO and set(AUTO) < set(BACKENDS)
    assert attention_function("auto", "cpu", torch.bfloat16, 32) is sdpa  # nothing else is even imported there


@pytest.mark.parametrize("name", ["auto", "sdpa", "explicit"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_every_backend_gives_softmax_attention(name, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, n, 22, generator=generator, dtype=torch.float64) for n in (7, 31, 31))
    scores = torch.einsum("hqd,hkd->hqk", q, k) / math.sqrt(22)
    expected = torch.einsum("hqk,hkd->hqd", scores.softmax(-1), v)
    out = attention_function(name)(q.to(dtype), k.to(dtype), v.to(dtype))
    assert out.dtype == dtype
    assert difference(out.double(), expected) < tolerance


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(HeadForcingError, match="attention must be one of auto, .*sdpa, .*explicit.*'warp'"):
        attention_function("warp")


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


@pytest.mark.parametrize("way", ["groups", "layer", "measured"])
@torch.no_grad()
def test_a_pass_never_waits_for_the_device_and_sends_it_only_the_timesteps(way):
    def layer(q, k, v, spans):
        sequence_starts(spans, q.shape[1], q.device)
        return q

    config = WanConfig(dim=88, num_layers=3, num_heads=4, ffn_dim=48, freq_dim=32, text_dim=10, text_len=7)
    shape = CacheShape.for_model(config, ROLES, CachePolicy(), 4, 6, F, 30)
    with torch.device("meta"):
        video = WanVideoModel(WanModel(config), torch.float32, "meta")
        video.prompt = PromptKV([(torch.empty(1, 4, 7, 22),) * 2] * 3, 2)
        x = torch.empty(F, 16, 4, 6)
    cache = HeadCache(shape, torch.float32, "meta", LayerAttention(layer) if way == "layer" else sdpa)
    if way == "measured":
        cache.meter = ShareMeter(3, 4, 6)
        cache.meter._shares = cache.meter._shares.to("meta")
        cache.meter.active = True
    cache.begin_block()
    video.denoise(x, 0.5, cache)
    video.write_clean(x, cache)
    cache.close()
    with Transfers() as opened:
        cache.begin_block()
        first = video.denoise(x, 0.5, cache)
    assert first.shape == x.shape and opened.sent > 1  # the tables of the block
    for _ in range(3):
        with Transfers() as passed:
            video.denoise(x, 0.5, cache)
            video.write_clean(x, cache)
        assert passed.sent == 2
    with Transfers() as closed:
        cache.close()
    assert closed.sent <= len(cache.groups)  # where kept frames go, for all layers at once


@torch.no_grad()
def test_the_length_of_a_prompt_is_found_before_it_is_sent_to_the_device():
    config = WanConfig(dim=88, num_layers=1, num_heads=4, ffn_dim=48, freq_dim=32, text_dim=10, text_len=7)
    with torch.device("meta"):
        model = WanModel(config)
    embeds = torch.cat([torch.ones(3, 10), torch.zeros(2, 10)])
    prompt = encode_prompt(model, embeds, torch.float32, "meta")  # there is nothing that could be read on this device
    assert prompt.valid_tokens == 3 and prompt.layers[0][0].device.type == "meta"


@pytest.mark.parametrize("center", [False, True])
def test_a_candidate_of_episodic_memory_waits_for_the_device_once(monkeypatch, center):
    policy = replace(BUSY, episodic=replace(BUSY.episodic, center_keys=center))
    cache, waits = new_cache(explicit, 12, policy), []
    to_host = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: [to_host(x), waits.append(x.numel())][0])
    run([cache], 12)
    assert cache.memory.has_summary and len(waits) == 11


def test_a_stored_state_has_the_used_slots_of_every_group():
    cache = new_cache(sdpa, 12)
    run([cache], 11)
    groups = unpack(cache.state(), torch.device("cpu"))["groups"]
    assert [len(group["sources"]) for group in groups] == [8, 4, 1]
    for group, (heads, frames) in zip(groups, ((1, 8), (1, 4), (2, 1)), strict=True):
        assert group["k"][0].shape == group["v"][0].shape == (heads, frames, ROWS * COLUMNS, HEAD_DIM)


def test_a_context_is_a_view_of_the_buffers_at_every_fill():
    cache = new_cache(sdpa, 12)

    def look(cache: HeadCache) -> None:
        for group in cache.groups:
            for buffer, context in zip((group.k[0], group.v[0]), group.context(0), strict=True):
                assert context.data_ptr() == buffer.data_ptr() and context.shape[1] == group.frames * ROWS * COLUMNS

    run([cache], 9, look)
