"""Decisions of episodic memory, on numbers small enough to work out by hand."""

import math

import pytest
import torch
from headforcing.headforcing_core.cache.memory import (
    EpisodicMemory,
    MemoryEntry,
    best_tokens,
    most_redundant_entry,
    most_similar_pair,
    similarities,
    token_scores,
)
from headforcing.headforcing_core.cache.policy import EpisodicPolicy
from headforcing.headforcing_core.model.wan import PromptKV
from small_engine import difference
from torch.utils._python_dispatch import TorchDispatchMode


def unit(degrees: float, heads: int = 1) -> torch.Tensor:
    """A pooled key `[heads, 2]` that points in this direction for every head; its length must not matter."""
    angle = math.radians(degrees)
    return torch.tensor([[math.cos(angle), math.sin(angle)]] * heads) * (1 + degrees / 10)


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def test_similarity_is_the_cosine_of_each_head_averaged_over_heads():
    mixed_heads = torch.cat([unit(10), unit(90)])
    found = similarities([unit(0, heads=2), mixed_heads])
    assert float(found[0, 1]) == pytest.approx((cosine(10) + 0) / 2, abs=1e-6)
    assert difference(found, found.T) < 1e-6 and difference(found.diag(), torch.ones(2)) < 1e-6


def test_similarities_hold_no_matrix_product_that_a_gpu_may_round_to_10_bits():
    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket.__name__ not in ("mm", "bmm", "addmm", "baddbmm", "dot"), func
            return func(*args, **(kwargs or {}))

    with Watched():
        similarities([torch.randn(3, 8) for _ in range(4)], center=True)


@pytest.mark.parametrize(("degrees", "first", "pair"), [
    ([0, 50, 90, 94, 140], 0, (2, 3)), ([0, 1, 90, 99, 150], 0, (0, 1)), ([0, 1, 90, 99, 150], 1, (2, 3)),
])  # fmt: skip
def test_the_most_similar_pair_may_lie_anywhere_behind_a_pinned_entry(degrees, first, pair):
    assert most_similar_pair(similarities([unit(d) for d in degrees]), first) == pair


def test_redundancy_is_the_mean_similarity_to_the_neighbours_in_stored_order():
    """Entry 2 equals entry 4, but they are no neighbours; entry 3, between them, is 20 degrees from both."""
    degrees = [0, 60, 100, 120, 100]
    similarity = similarities([unit(d) for d in degrees])
    means = [(cosine(60) + cosine(40)) / 2, (cosine(40) + cosine(20)) / 2, cosine(20), cosine(20)]
    assert means[2] > max(means[:2])
    assert most_redundant_entry(similarity) == 3  # as redundant as entry 4, and earlier
    assert most_redundant_entry(similarities([unit(d) for d in [0, 5, 90, 170]])) == 1  # the summary is a neighbour
    # entry 1 is nearer to the summary than 3 is to 2, but far from the neighbour behind it
    assert most_redundant_entry(similarities([unit(d) for d in [0, 9, 150, 140]])) == 3


def test_tokens_nearest_to_the_prompt_on_average_over_heads_stay_in_their_order():
    keys = torch.stack(
        [
            torch.cat([unit(d) for d in (90, 50, 10, 0, 80)]),  # head 0, its prompt key at 0 degrees
            torch.cat([unit(d) for d in (90, 95, 90, 30, 70)]),  # head 1, its prompt key at 90 degrees
        ]
    )
    prompt_key = torch.cat([unit(0), unit(90)])
    scores = token_scores(keys, prompt_key).mean(dim=0)  # halves of 1.0, 1.64, 1.98, 1.5 and 1.11
    assert best_tokens(scores, 2).tolist() == [1, 2] and best_tokens(scores, 1).tolist() == [2]
    torch.testing.assert_close(token_scores(100 * keys, prompt_key / 7).mean(dim=0), scores)


class OneKeyPerFrame:
    """A token store whose frames are given directions; a merge takes the direction it is told."""

    def __init__(self, degrees: dict[int, float], merged_key: torch.Tensor):
        self.degrees, self.merged_key = degrees, merged_key
        self.calls: list[tuple] = []

    def pooled_key(self, frame):
        return unit(self.degrees[frame])

    def merge_entries(self, i, j, select):
        self.calls.append(("merge", i, j))
        return self.merged_key

    def arrange_entries(self, order):
        self.calls.append(("arrange", order))

    def admit(self, frame):
        self.calls.append(("admit", frame))


def remember(degrees: list[float], policy: EpisodicPolicy, capacity=3, merged: float = 0.0):
    store = OneKeyPerFrame({3 * i: d for i, d in enumerate(degrees)}, unit(merged))
    memory = EpisodicMemory(capacity, policy)
    prompt = PromptKV([], 1)
    events = [memory.consider(block, 3 * block, prompt, [], store) for block in range(len(degrees))]
    return memory, events, store.calls


def test_a_candidate_is_compared_with_the_nearest_entry_and_admitted_below_the_threshold():
    memory, events, _ = remember([0, 60, 64, 31], EpisodicPolicy(novelty_threshold=0.9), capacity=5)
    assert [event.delta for event in events] == pytest.approx([-1, cosine(60), cosine(4), cosine(29)], abs=1e-6)
    assert [event.admitted for event in events] == [True, True, False, True]
    assert memory.sources == [[0], [3], [9]]


def test_a_similarity_equal_to_the_threshold_is_not_novel():
    delta = remember([0, 60], EpisodicPolicy(2.0))[1][1].delta
    assert not remember([0, 60], EpisodicPolicy(delta))[1][1].admitted
    assert remember([0, 60], EpisodicPolicy(math.nextafter(delta, 2.0)))[1][1].admitted


def test_overflow_first_merges_the_closest_pair_and_then_feeds_the_summary():
    memory, events, calls = remember([0, 40, 45, 90, 95], EpisodicPolicy(2.0), merged=180)
    assert [event.merged for event in events] == [None, None, None, [[3], [6]], [[3, 6], [9]]]
    assert memory.sources == [[3, 6, 9], [0], [12]]
    assert calls[3:6] == [("merge", 1, 2), ("arrange", [1, 0]), ("admit", 9)]
    # summary at 180, entries at 0 and 90: the last is nearer to its only neighbour than the middle one to both
    assert calls[6:] == [("merge", 0, 2), ("arrange", [0, 1]), ("admit", 12)]


def test_after_a_recall_no_entry_is_a_summary_and_the_closest_pair_is_merged():
    memory, _, _ = remember([0, 40, 45, 90], EpisodicPolicy(2.0))
    assert memory.has_summary
    memory.replace([MemoryEntry([frame], unit(degrees)) for frame, degrees in ((30, 0), (33, 80), (36, 85))])
    event = memory.consider(13, 39, PromptKV([], 1), [], OneKeyPerFrame({39: 170}, unit(180)))
    assert event.merged == [[33], [36]]


def test_centred_keys_forget_what_all_frames_share():
    common = torch.tensor([[100.0, 0.0]])
    frames = [common + unit(degrees) / (1 + degrees / 10) for degrees in (0, 120, 240)]
    assert similarities(frames).min() > 0.9
    assert similarities(frames, center=True)[0, 1] < 0


def test_the_earliest_pair_wins_a_tie():
    assert most_similar_pair(torch.ones(4, 4)) == (0, 1)
    assert most_redundant_entry(torch.ones(4, 4)) == 1


def test_a_rejected_candidate_merges_nothing():
    memory, events, calls = remember([0, 60, 120, 61], EpisodicPolicy(0.9))
    assert not events[-1].admitted and events[-1].merged is None
    assert calls == [("admit", 0), ("admit", 3), ("admit", 6)]
