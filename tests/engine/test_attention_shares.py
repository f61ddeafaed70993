"""Shares of attention measured beside it: sums over the attention map, which is never held."""

import pytest
import torch
from counted_memory import CountsMemory, RefuseFloat64
from headforcing.headforcing_core.model.attention import explicit, sdpa, with_shares

HEADS, QUERIES, KEYS, DIM = 2, 600, 6000, 32
OUTPUT, MAP = HEADS * QUERIES * DIM * 4, HEADS * QUERIES * KEYS * 4  # 0.15 MB, 29 MB


def some_heads(heads=3, queries=7, keys=31, dim=22, seed=0, dtype=torch.float32):
    """Queries and keys long enough for attention to have an opinion."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(heads, n, dim, generator=generator, dtype=dtype) for n in (queries, keys, keys))
    return 2 * q, k, v


def attention_map(q, k):
    """The definition, in float64: `[heads, queries, keys]`."""
    return (q.double() @ k.double().transpose(1, 2) / q.shape[-1] ** 0.5).softmax(dim=-1)


@pytest.mark.parametrize(("first", "last"), [(5, 7), (1, 29), (29, 1)])
def test_shares_are_sums_over_the_attention_map(first, last):
    """From values as wide as keys: a narrower call would leave the fast kernels."""
    (q, k, v), seen = some_heads(), []
    out, shares = with_shares(lambda q, k, v: [seen.append(v.shape), sdpa(q, k, v)][1], q, k, v, first, last)
    exact = attention_map(q, k).mean(dim=1)
    expected = [exact[:, :first].sum(-1), exact[:, first : 31 - last].sum(-1), exact[:, 31 - last :].sum(-1)]
    assert shares.dtype == torch.float64 and shares.shape == (3, 3) and seen == [v.shape] * 2
    torch.testing.assert_close(shares, torch.stack(expected, dim=-1), rtol=0, atol=1e-6)
    torch.testing.assert_close(out, explicit(q, k, v), rtol=0, atol=1e-5)


@pytest.mark.parametrize("part", [0, 2])
def test_a_head_that_looks_at_one_place_alone_has_shares_a_profile_accepts(part):
    """Rounding must not make the empty middle negative: a profile refuses that, after hours of measuring."""
    q, k, v = some_heads(heads=50, queries=11, keys=64, dim=32)
    looked_at = slice(0, 8) if part == 0 else slice(56, None)
    k[:, looked_at] += 5 * q.mean(dim=1, keepdim=True)
    q = q + 20 * q.mean(dim=1, keepdim=True)
    _, shares = with_shares(sdpa, q, k, v, 8, 8)
    assert shares[:, part].max() > 0.9999
    assert shares.min() >= 0 and (shares.sum(dim=-1) - 1).abs().max() < 1e-6


def test_bf16_shares_sum_to_one_and_nothing_is_float64_on_the_device(monkeypatch):
    """Even attention over 21 frames, where each share by itself is off by up to 0.2 % in bfloat16."""
    q, k, v = (torch.zeros(2, n, 32, dtype=torch.bfloat16) for n in (30, 210, 210))
    _, shares = with_shares(sdpa, q, k, v, 10, 30)
    torch.testing.assert_close(shares, torch.tensor([[1, 17, 3]] * 2).double() / 21, rtol=0, atol=2e-3)
    assert (shares.sum(dim=-1) - 1).abs().max() < 1e-6
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    q, k, v = (torch.empty(2, n, 16, device="meta") for n in (6, 24, 24))
    with RefuseFloat64():
        with_shares(sdpa, q, k, v, 3, 6)


def extra_bytes(measure) -> int:
    """The most that is held beside the inputs and the output of attention, which is one allocation here."""
    q, k, v = (torch.empty(HEADS, n, DIM, device="meta") for n in (QUERIES, KEYS, KEYS))
    with CountsMemory([q, k, v]) as counted:
        measure(q, k, v)
    return counted.peak - OUTPUT


def test_no_attention_map_is_held():
    """From one-hot values: two outputs, and the values themselves, which all heads share, with their indices."""
    allowed = 2 * OUTPUT + 2 * KEYS * DIM * 4 + 8 * HEADS * QUERIES * 8
    one_output = lambda q, k, v: torch.empty_like(q)  # noqa: E731
    assert extra_bytes(lambda q, k, v: with_shares(one_output, q, k, v, 200, QUERIES)) < allowed < MAP / 10
    assert extra_bytes(explicit) > MAP / HEADS  # the yardstick sees a map
