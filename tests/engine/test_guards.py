"""Guards of the caches (METHOD.md, "Guards"); `test_caches.py` compares caches that have them with their reference."""

import cmath
import itertools
import math
from dataclasses import replace

import pytest
import torch
from guarded_reference import statistics, trigonometric
from headforcing.headforcing_core.cache.guards import (
    Guards,
    JitteredRotary,
    QueryScore,
    QueryStatistics,
    SinkGate,
    jittered_bases,
    query_means,
)
from headforcing.headforcing_core.cache.head_cache import CacheShape
from headforcing.headforcing_core.cache.method import VideoFacts
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.rope import RotaryEmbedding
from headforcing.headforcing_core.rollout.schedule import schedule
from small_engine import BUSY, difference, film, mixed, new_cache


def everything(model, rope="contiguous") -> CachePolicy:
    return trigonometric(model, replace(BUSY, rope=rope, guards=Guards(0.5, 0.8)))


def test_a_cache_reports_what_its_guards_did(model):
    cache = new_cache(model, mixed(model), everything(model), 11)
    film(model, cache, 11)
    gate, jitter, compression = cache.report
    assert 0 < cache.gate.left_out < cache.gate.frames and cache.memory.score.merges > 2
    assert gate.startswith(f"sink gate 0.5: left out {cache.gate.left_out:,} of ")
    assert jitter.startswith("rope jitter 0.8: rotary bases from ") and jitter.endswith(" in place of 10,000")
    assert compression.startswith(f"compression trigonometric: tokens of {cache.memory.score.merges} merges")
    assert new_cache(model, mixed(model), BUSY, 11).report == []


def test_guards_take_a_copy_of_one_group_in_one_layer_and_are_never_replayed_as_a_cuda_graph(model):
    plain, guarded = (new_cache(model, mixed(model), policy, 9) for policy in (BUSY, everything(model)))
    shape = guarded.shape
    assert guarded.bytes == plain.bytes == shape.bytes(torch.float32)
    jittered = replace(shape, policy=replace(shape.policy, guards=Guards(rope_jitter=0.8)))
    assert jittered.peak_bytes(torch.float32, False) == plain.bytes
    slots = max(row.count(role) * frames for row in mixed(model) for role, frames in (("anchor", 7), ("memory", 11)))
    assert shape.peak_bytes(torch.float32, False) == plain.bytes + 2 * 4 * 6 * 22 * slots
    plain.begin_block()
    guarded.begin_block()
    assert plain.layout is not None and guarded.layout is None


def test_a_frame_that_exactly_the_gates_share_of_heads_prefers_stays():
    q, k = torch.ones(5, 4, 2), torch.zeros(5, 4, 3, 2)  # five heads, four frames; the first two are kept frames
    k[:, 2:], k[:4, 0], k[:2, 1] = 0.5, 1.0, 1.0  # four heads prefer the first, two the second
    assert SinkGate(0.79).anomalous(q, k, 2).tolist() == [True, False]
    assert SinkGate(0.8).anomalous(q, k, 2).tolist() == [False, False]


def test_every_head_has_a_base_of_its_own_and_rotations_by_it_compose():
    bases = jittered_bases(0.8, 4, 6)
    assert bases.unique().numel() == 24 and bases.min() >= 2000 and bases.max() <= 18000
    x = torch.randn(3, 2, 6, 22, generator=torch.Generator().manual_seed(0))
    plain, same = RotaryEmbedding(22, 2, 3), JitteredRotary(jittered_bases(0.0, 1, 3)[0], 22, 2, 3)
    torch.testing.assert_close(same.rotate(x, [7, 7]), plain.rotate(x, [7, 7]), atol=1e-5, rtol=0)
    rope = JitteredRotary(bases[0, :3], 22, 2, 3)
    turned = rope.rerotate(rope.rotate(x, [4, 9]), [3, -2])
    torch.testing.assert_close(turned, rope.rotate(x, [7, 7]), atol=1e-5, rtol=0)
    assert difference(turned, plain.rotate(x, [7, 7])) > 0.1


def test_the_score_is_the_published_sum():
    heads, pairs, tokens, temporal = 3, 11, 7, 5  # head_dim 22: 5 temporal pairs, 6 spatial ones
    generator = torch.Generator().manual_seed(4)
    mean = torch.randn(1, heads, pairs, dtype=torch.complex64, generator=generator)
    size = mean.abs() + 0.3
    keys = torch.randn(heads, tokens, 2 * pairs, generator=generator)
    shape = CacheShape([["memory"] * heads], replace(BUSY, queries=QueryStatistics(mean, size)), 1, tokens, 22, 3, 60)
    score = QueryScore(shape, [torch.arange(heads)])
    distances = score.begin_merge(frame=30, source=6)
    assert distances == (8, 9, 10), "five entries and three recent frames lie before the queries"
    absolute = QueryScore(replace(shape, policy=replace(shape.policy, rope="absolute")), [])
    assert absolute.begin_merge(frame=30, source=6) == (25, 26, 28, 32, 40, 56, 88, 152)
    expected = torch.zeros(heads, tokens, dtype=torch.float64)
    for h, t, f in itertools.product(range(heads), range(tokens), range(pairs)):
        k, q = complex(*keys[h, t, 2 * f : 2 * f + 2].tolist()), complex(mean[0, h, f])
        phase = cmath.phase(q * k.conjugate())
        w = 10000.0 ** (-f / temporal) if f < temporal else 0.0
        cosines = [math.cos(w * distance + phase) for distance in distances]
        expected[h, t] += abs(q) * abs(k) * sum(cosines) / 3 + (float(size[0, h, f]) - abs(q)) * abs(k)
    expected = (expected - expected.mean(1, keepdim=True)) / expected.std(1, keepdim=True)
    assert torch.allclose(score(0, keys, distances).double(), expected.mean(0), atol=1e-4)
    q = torch.tensor([[[3.0, 4.0, 1.0, 0.0], [-3.0, 4.0, 0.0, 1.0]]])  # one head, two queries, two pairs
    assert torch.allclose(query_means(q), torch.tensor([[[0.0, 0.5], [4.0, 0.5], [5.0, 1.0]]]))


def test_query_statistics_come_from_the_profile_and_must_fit_the_model(model):
    with pytest.raises(HeadForcingError, match="chooses tokens where episodic memory merges entries"):
        PRESETS["fifo_eviction"].with_guards(Guards(), "trigonometric")
    chosen, measured = CachePolicy().with_guards(Guards(), "trigonometric"), statistics(model)
    facts = VideoFacts(schedule("self_forcing"), 3, profile="profile 'x'", queries=lambda: measured)
    assert chosen.for_video(facts).queries is measured
    narrow = QueryStatistics(torch.zeros(2, 4, 4, dtype=torch.complex64), torch.zeros(2, 4, 4))
    with pytest.raises(HeadForcingError, match="for heads 8 wide, this model's are 22 wide"):
        new_cache(model, mixed(model), replace(everything(model), queries=narrow), 3)
