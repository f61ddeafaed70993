"""Attention backends: which one is taken, how each is called, and that nothing waits for a device.

Kernels that need a GPU are stood in for by plain torch with the same arguments
(attention_cases.py).
"""

import functools
import logging
import math
import sys
import types
from dataclasses import replace

import pytest
import torch
from attention_cases import WHOLE_LAYER, sequence_attention
from counted_memory import RefuseFloat64
from headforcing.cli.cli import main
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.model import attention_backends as backends
from headforcing.headforcing_core.model.attention import (
    AUTO,
    LayerSizes,
    attention_function,
    first_working,
    sdpa,
)
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from small_engine import BUSY, F, make_blocks, measure, new_cache, random_roles
from torch.nn import functional as F_
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
FLOAT32 = backends.Operands(CPU, torch.float32, 32)
BFLOAT16 = backends.Operands(CPU, torch.bfloat16, 32)


def raises(error: Exception):
    def load():
        raise error

    return load


def every_row(spans):
    return tuple(replace(span, rows=span.room) for span in spans)


TABLES = WHOLE_LAYER["tables"].layer
BROKEN = {
    "refuses": raises(
        RuntimeError("no kernel image is available. Compile with other flags.\nmore lines")
    ),
    "is_absent": raises(ModuleNotFoundError("No module named 'sageattention'")),
    "forgets_a_key": lambda: lambda q, k, v: sdpa(q, k[:, 1:], v[:, 1:]),
    "gives_nan": lambda: lambda q, k, v: sdpa(q, k, v) * math.nan,
    "swaps_heads": lambda: backends.LayerAttention(lambda *given: TABLES(*given).flip(0)),
    "sees_every_row": lambda: backends.LayerAttention(
        lambda q, k, v, spans: TABLES(q, k, v, every_row(spans))
    ),
}


@pytest.fixture
def first():
    """`first_working`, which remembers nothing of other tests."""
    return functools.cache(first_working.__wrapped__)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_backend_is_passed_over_with_one_line_and_refused_by_name(
    first, monkeypatch, caplog, broken
):
    monkeypatch.setitem(backends.BACKENDS, broken, BROKEN[broken])
    monkeypatch.setitem(backends.BACKENDS, "is_full", raises(torch.OutOfMemoryError("full")))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert first((broken, "sdpa"), BFLOAT16)[1] is sdpa
    (line,) = caplog.messages
    assert f"not {broken} (" in line and "is sdpa" in line and "\n" not in line
    with pytest.raises(
        HeadForcingError, match=rf"'{broken}' cannot be used on cpu in .*; choose auto"
    ) as refusal:
        attention_function(broken, "cpu", torch.float32, 32)
    assert "\n" not in str(refusal.value)
    with pytest.raises(
        HeadForcingError, match=f"no attention backend works on cpu .*: not {broken}"
    ):
        first((broken,), FLOAT32)
    with pytest.raises(torch.OutOfMemoryError):  # which says nothing about the backend
        first(("is_full", "sdpa"), FLOAT32)


WITH_LSE = {"flash_attn_varlen_func": lambda *given: (sequence_attention(*given), 0)}
PACKAGES = {
    "torch.nn.attention.varlen": ("torch_varlen", {"varlen_attn": sequence_attention}),
    "flash_attn": ("flash_attn", {"flash_attn_varlen_func": sequence_attention}),
    "flash_attn_interface": ("flash_attn", WITH_LSE),
    "flash_attn.cute": ("flash_attn", WITH_LSE),
    "sageattention": (
        "sage",
        {"sageattn": lambda q, k, v, tensor_layout: sdpa(q[0], k[0], v[0])[None] + 0.04},
    ),
}


def install(monkeypatch, package, functions):
    monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(**functions))


def test_packages_are_called_as_they_want_to_be_and_auto_never_takes_what_rounds_to_8_bits(
    first, monkeypatch
):
    for package, (name, functions) in PACKAGES.items():
        install(monkeypatch, package, functions)
        found = attention_function(name, "cpu", torch.bfloat16, 32)
        assert isinstance(found, backends.LayerAttention) == (name != "sage")
        assert backends.self_test(found, FLOAT32) < (0.05 if name == "sage" else 1e-5)
    assert isinstance(first(AUTO, BFLOAT16)[1], backends.LayerAttention)
    assert "sage" not in AUTO and set(AUTO) < set(backends.BACKENDS)
    # nothing else is even imported there
    assert attention_function("auto", "cpu", torch.bfloat16, 32) is sdpa


def unsuited(*_):
    raise RuntimeError("FlashAttention-3 needs Hopper. More")


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_2", "flash_attn_3", "flash_attn_4"])
def test_of_flash_attn_the_newest_version_that_works_is_taken_whatever_number_is_asked_for(
    monkeypatch, name
):
    called = []

    def version(package, *given):
        called.append(package)
        return sequence_attention(*given)

    packages = ["flash_attn", "flash_attn_interface", "flash_attn.cute"]
    for package in packages:
        install(
            monkeypatch, package, {"flash_attn_varlen_func": functools.partial(version, package)}
        )
        assert attention_function(name, "cpu", torch.bfloat16, 32).name == "flash_attn"
    assert called == packages
    install(monkeypatch, "flash_attn.cute", {"flash_attn_varlen_func": unsuited})
    attention_function(name, "cpu", torch.bfloat16, 32)
    assert called[3:] == ["flash_attn_interface"], "the next one works here"


def test_flash_attn_that_does_not_work_here_says_why(monkeypatch):
    with pytest.raises(
        HeadForcingError, match="'flash_attn' cannot be used on cpu .*No module named 'flash_attn"
    ):
        attention_function("flash_attn_3")
    install(monkeypatch, "flash_attn_interface", {"flash_attn_varlen_func": unsuited})
    with pytest.raises(HeadForcingError, match="FlashAttention-3 needs Hopper; choose auto"):
        attention_function("flash_attn_3")


@pytest.mark.parametrize(
    "name", ["warp", "sdpa_streams", "cudnn_streams", "cudnn_varlen", "flash_attn_5"]
)
def test_a_name_that_is_unknown_or_was_removed_is_refused_with_those_that_there_are(name, capsys):
    with pytest.raises(
        HeadForcingError, match=f"attention (must be one of auto, .*explicit.*)?'{name}'"
    ):
        attention_function(name)
    with pytest.raises(SystemExit):
        main(["demo", "--attention", name])
    assert f"invalid choice: '{name}' (choose from" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- one backend


def test_every_head_is_a_sequence_and_rows_without_keys_are_one_without_queries():
    starts = backends.sequence_starts(LayerSizes(7, ((2, 40),)).spans, 7, CPU)
    assert [x.tolist() for x in starts] == [[0, 7, 7, 14, 14], [0, 40, 40, 80, 80]]


def test_cudnn_is_called_by_its_operator_and_no_other_thread_notices(monkeypatch):
    """`sdpa_kernel` would switch the backends of all threads; one that decodes at the same time may
    need another.
    """
    seen = []

    def operator(q, k, v, bias, compute_log_sumexp):
        assert bias is None and not compute_log_sumexp and q.ndim == 4
        seen.append(
            torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.math_sdp_enabled()
        )
        return F_.scaled_dot_product_attention(q, k, v), None

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", operator)
    found = attention_function("cudnn", "cpu", torch.float32, 32)
    assert backends.self_test(found, FLOAT32) < 1e-4
    # both groups of the first self-test; the one that is full of the second
    assert all(seen) and len(seen) == 3


def test_plain_sdpa_never_computes_by_cudnn_whose_plans_would_be_made_again_in_every_growing_block(
    monkeypatch,
):
    """PyTorch's choice on an H100 is cuDNN: a block with new numbers of keys took 0.35 s longer."""
    called = []

    def operator(q, k, v, *_, **options):
        called.append(q.shape)
        return F_.scaled_dot_product_attention(q, k, v), None

    monkeypatch.setattr(backends, "_would_choose_cudnn", lambda *_: True)
    for name, available in (("flash", True), ("efficient", False)):
        monkeypatch.setattr(
            torch.backends.cuda, "is_flash_attention_available", lambda is_so=available: is_so
        )
        monkeypatch.setattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention", operator)
        assert backends.self_test(sdpa, FLOAT32) < 1e-4
        assert len(called) == 2, "each group of heads once"
        called.clear()


def test_a_backend_with_plans_is_called_for_full_rooms_alone_and_the_other_one_for_all_rows_of_a_group():
    given = []

    def dense(q, k, v):
        given.append(("planned", *k.shape[:2]))
        return sdpa(q, k, v)

    def layer(q, k, v, spans):
        given.append(("meanwhile", len(k), spans))
        return TABLES(q, k, v, spans)

    for meanwhile in (backends.LayerAttention(layer), sdpa):
        found = backends.planned(dense, meanwhile)
        assert backends.self_test(found, FLOAT32) < 1e-4
    grown = (backends.Span(2, first=0, room=160, rows=88),)
    assert given == [("planned", 1, 160), ("meanwhile", 320, grown), ("planned", 1, 160)]


# ----------------------------------------------------------------------------- waiting for a device


class Transfers(TorchDispatchMode):
    """Refuses whatever waits for the device (`meta` stands for it), and counts what is sent
    there.
    """

    def __init__(self):
        super().__init__()
        self.sent = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in (
            "_local_scalar_dense",
            "nonzero",
            "is_nonzero",
            "unique",
            "masked_select",
        ), name
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

    shape = CacheShape.for_model(model.config, random_roles(model), HeadForcing(), 4, 6, F, 30)
    with torch.device("meta"):
        video = WanVideoModel(WanModel(model.config), torch.float32, "meta")
        x = torch.empty(F, 16, 4, 6)
    # the length of a prompt is found before it is sent to the device, where nothing could be read
    video.use_prompt(torch.cat([torch.ones(3, 10), torch.zeros(2, 10)]))
    assert video.prompt.valid_tokens == 3 and video.prompt.layers[0][0].is_meta
    cache = HeadCache(
        shape, torch.float32, "meta", backends.LayerAttention(layer) if way == "layer" else sdpa
    )
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
    method = replace(BUSY, episodic=replace(BUSY.episodic, center_keys=True))
    cache = new_cache(model, random_roles(model), method, 12)
    waits = []
    to_host = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: [to_host(x), waits.append(x.numel())][0])
    make_blocks(model, cache, 12)
    assert cache.memory.has_summary and len(waits) == 11
