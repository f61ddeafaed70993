"""The same job gives the same bits, whatever the process has done before, also with a backend that
needs plans.
"""

import hashlib
import sys
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.model import attention_backends as backends
from headforcing.headforcing_core.model.attention import attention_function, sdpa
from own_process import run
from small_engine import BUSY, latents, make_blocks, new_cache, random_roles, wan

BLOCKS = 30
CALLS = []  # shapes of the keys that the backend with plans was given


def in_another_order(q, k, v):
    """Stands in for cuDNN: sums keys in another order, so that the last bits differ."""
    CALLS.append(tuple(k.shape))
    return sdpa(q, k.flip(1), v.flip(1))


def video(model, given=()):
    cache = new_cache(model, random_roles(model), BUSY, BLOCKS)
    cache.attention = attention_function("cudnn", "cpu", torch.float32, model.config.head_dim)
    return latents(make_blocks(model, cache, BLOCKS, given=given)), cache


def digest(blocks) -> str:
    return hashlib.sha256(blocks.numpy().tobytes()).hexdigest()


@pytest.fixture
def cudnn(monkeypatch):
    monkeypatch.setitem(backends.BACKENDS, "cudnn", lambda: in_another_order)
    CALLS.clear()


@pytest.mark.slow
def test_a_video_has_the_same_bits_twice_in_a_process_once_in_another_and_resumed(model, cudnn):
    first, cache = video(model)
    spans = [*cache.spans(0), *cache.spans(1)]
    full = {(span.heads, span.room) for span in spans}
    self_test = {(1, 160), (2, 88)}
    assert {(heads, keys) for heads, keys, _ in CALLS} == full | self_test, (
        "no plan for a context that grows"
    )
    again, _ = video(model)
    assert torch.equal(again, first)
    for stopped in (3, 17, 29):
        resumed, _ = video(model, given=first[:stopped])
        assert torch.equal(resumed, first)
    assert run(Path(__file__)).strip() == digest(first)


def test_the_chosen_backend_computes_all_full_contexts_from_the_first_call_and_is_named(cudnn):
    found = attention_function("cudnn", "cpu", torch.float32, 32)
    q = torch.randn(2, 5, 32)
    k, v = torch.randn(2, 2, 7, 32)
    CALLS.clear()
    assert torch.equal(found(q, k, v), sdpa(q, k.flip(1), v.flip(1))) and CALLS == [(2, 7, 32)]
    assert found.name == "cudnn, and sdpa until contexts are full"


if __name__ == "__main__":
    backends.BACKENDS["cudnn"] = lambda: in_another_order
    torch.set_num_threads(1)
    sys.stdout.write(digest(video(wan())[0]))
