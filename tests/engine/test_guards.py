"""Guards of the caches (METHOD.md, "Guards"); `test_caches.py` compares caches that have them with their reference."""

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

GATED, JITTERED = Guards(sink_gate=0.5), Guards(rope_jitter=0.8)


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
    alone = replace(shape, policy=replace(shape.policy, guards=JITTERED)).peak_bytes(torch.float32, False)
    slots = max(row.count(role) * frames for row in mixed(model) for role, frames in (("anchor", 7), ("memory", 11)))
    assert alone == plain.bytes and shape.peak_bytes(torch.float32, False) == alone + 2 * 4 * 6 * 22 * slots
    plain.begin_block()
    guarded.begin_block()
    assert plain.layout is not None and guarded.layout is None


def test_the_gate_leaves_out_a_frame_that_more_than_its_share_of_heads_prefers(model):
    q = torch.ones(5, 4, 2)  # five heads, four queries
    k = torch.zeros(5, 4, 3, 2)  # four frames of three tokens; the first two are kept frames
    k[:, 2:] = 0.5
    k[:4, 0] = 1.0  # four heads of five prefer it to the others
    k[:2, 1] = 1.0  # two
    assert SinkGate(0.79).anomalous(q, k, 2).tolist() == [True, False]
    assert SinkGate(0.8).anomalous(q, k, 2).tolist() == [False, False], "exactly the threshold's share stays"
    gate = SinkGate(0.39)
    keys, _ = gate.context(q, k, k, 2)
    assert keys.shape == (5, 6, 2) and torch.equal(keys, k[:, 2:].flatten(1, 2))
    assert (gate.passes, gate.frames, gate.left_out) == (1, 2, 2)
    cache = new_cache(model, mixed(model), replace(PRESETS["self_forcing_window_21"], guards=GATED), 9)
    film(model, cache, 9)
    assert cache.gate.passes == 0, "recent frames are never left out"


def test_every_head_has_a_base_of_its_own_and_rotations_by_it_compose():
    bases = jittered_bases(0.8, 4, 6)
    assert bases.unique().numel() == 24 and bases.min() >= 2000 and bases.max() <= 18000
    assert torch.equal(bases, jittered_bases(0.8, 4, 6)), "the same in every video"
    x = torch.randn(3, 2, 6, 22, generator=torch.Generator().manual_seed(0))
    plain, same = RotaryEmbedding(22, 2, 3), JitteredRotary(jittered_bases(0.0, 1, 3)[0], 22, 2, 3)
    assert torch.allclose(same.rotate(x, [4, 9]), plain.rotate(x, [4, 9]), atol=1e-5)
    rope = JitteredRotary(jittered_bases(0.8, 1, 3)[0], 22, 2, 3)
    turned = rope.rerotate(rope.rotate(x, [4, 9]), [3, -2])
    assert torch.allclose(turned, rope.rotate(x, [7, 7]), atol=1e-5)
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
    for h in range(heads):
        for t in range(tokens):
            for f in range(pairs):
                k, q = complex(*keys[h, t, 2 * f : 2 * f + 2].tolist()), complex(mean[0, h, f])
                phase = math.atan2((q * k.conjugate()).imag, (q * k.conjugate()).real)
                w = 10000.0 ** (-f / temporal) if f < temporal else 0.0
                cosines = [math.cos(w * distance + phase) for distance in distances]
                expected[h, t] += abs(q) * abs(k) * sum(cosines) / 3 + (float(size[0, h, f]) - abs(q)) * abs(k)
    expected = (expected - expected.mean(1, keepdim=True)) / expected.std(1, keepdim=True)
    assert torch.allclose(score(0, keys, distances).double(), expected.mean(0), atol=1e-4)
    q = torch.tensor([[[3.0, 4.0, 1.0, 0.0], [-3.0, 4.0, 0.0, 1.0]]])  # one head, two queries, two pairs
    assert torch.allclose(query_means(q), torch.tensor([[[0.0, 0.5], [4.0, 0.5], [5.0, 1.0]]]))


def test_guards_that_make_no_sense_are_refused(model):
    with pytest.raises(HeadForcingError, match="chooses tokens where episodic memory merges entries"):
        PRESETS["fifo_eviction"].with_guards(Guards(), "trigonometric")
    chosen = CachePolicy().with_guards(Guards(), "trigonometric")
    facts = VideoFacts(schedule("self_forcing"), 3, profile="profile 'x'")
    with pytest.raises(HeadForcingError, match="profile 'x' has none; measure one"):
        chosen.for_video(facts)
    measured = statistics(model)
    assert chosen.for_video(replace(facts, queries=lambda: measured)).queries is measured
    narrow = QueryStatistics(torch.zeros(3, 5, 4, dtype=torch.complex64), torch.zeros(3, 5, 4))
    with pytest.raises(HeadForcingError, match="for heads 8 wide, this model's are 22 wide"):
        new_cache(model, mixed(model), replace(everything(model), queries=narrow), 3)
