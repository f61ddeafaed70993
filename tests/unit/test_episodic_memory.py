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
from headforcing.headforcing_core.cache.roles import EpisodicPolicy
from headforcing.headforcing_core.model.wan import PromptKV
from torch.utils._python_dispatch import TorchDispatchMode


def unit(degrees: float, heads: int = 1) -> torch.Tensor:
    """A pooled key `[heads, 2]` that points in this direction for every head; its length must not
    matter.
    """
    angle = math.radians(degrees)
    return torch.tensor([[math.cos(angle), math.sin(angle)]] * heads) * (1 + degrees / 10)


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def test_similarity_is_the_mean_cosine_of_heads_without_a_matrix_product_that_a_gpu_may_round_to_10_bits():
    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket.__name__ not in ("mm", "bmm", "addmm", "baddbmm", "dot"), (
                func
            )
            return func(*args, **(kwargs or {}))

    frames = [
        torch.tensor([[100.0, 0.0]]) + unit(degrees) / (1 + degrees / 10)
        for degrees in (0, 120, 240)
    ]
    with Watched():
        found = similarities([unit(0, heads=2), torch.cat([unit(10), unit(90)])])
        plain = similarities(frames, False)
        centred = similarities(frames, True)
    torch.testing.assert_close(found, torch.eye(2) + (1 - torch.eye(2)) * cosine(10) / 2)
    assert plain.min() > 0.9 and centred[0, 1] < 0, "what all frames share may be left out"


def test_the_most_similar_pair_may_lie_anywhere_behind_a_pinned_entry_and_the_most_redundant_anywhere():
    """Redundancy is the mean similarity to the neighbours in stored order."""
    for degrees, first, pair in (
        ([0, 50, 90, 94, 140], 0, (2, 3)),
        ([0, 1, 90, 99, 150], 0, (0, 1)),
        ([0, 1, 90, 99, 150], 1, (2, 3)),
        ([7, 7, 7, 7], 0, (0, 1)),  # the earliest of equal ones
    ):
        assert most_similar_pair(similarities([unit(d) for d in degrees]), first) == pair
    for degrees, entry in (
        # 2 equals 4, no neighbour; 3 is 20 degrees from both, and earlier than 4
        ([0, 60, 100, 120, 100], 3),
        ([0, 5, 90, 170], 1),  # the summary is a neighbour
        # 1 is nearer to the summary than 3 is to 2, but far from the neighbour behind it
        ([0, 9, 150, 140], 3),
        ([7, 7, 7, 7], 1),
    ):
        assert most_redundant_entry(similarities([unit(d) for d in degrees])) == entry


def test_tokens_nearest_to_the_prompt_on_average_over_heads_stay_in_their_order():
    # their prompt keys at 0 and at 90 degrees
    of_heads = ((90, 50, 10, 0, 80), (90, 95, 90, 30, 70))
    keys = torch.stack([torch.cat([*map(unit, d)]) for d in of_heads])
    prompt_key = torch.cat([unit(0), unit(90)])
    scores = token_scores(keys, prompt_key).mean(dim=0)  # halves of 1.0, 1.64, 1.98, 1.5 and 1.11
    assert best_tokens(scores, 2).tolist() == [1, 2] and best_tokens(scores, 1).tolist() == [2]
    torch.testing.assert_close(token_scores(100 * keys, prompt_key / 7).mean(dim=0), scores)


class OneKeyPerFrame:
    """A token store whose frames are given directions; a merge takes the direction it is told."""

    heads = (torch.tensor([0]),)  # per layer

    def __init__(self, degrees: dict[int, float], merged_key: torch.Tensor):
        self.degrees = degrees
        self.merged_key = merged_key
        self.calls: list[tuple] = []
        self.kept: list[torch.Tensor] = []  # of 40 tokens of one layer, per merge

    def pooled_key(self, frame):
        return unit(self.degrees[frame])

    def merge_entries(self, i, j, select):
        self.calls.append(("merge", i, j))
        self.kept.append(select(0, torch.zeros(1, 40, 2)))
        return self.merged_key

    def arrange_entries(self, order):
        self.calls.append(("arrange", order))

    def admit(self, frame):
        self.calls.append(("admit", frame))


PROMPT = PromptKV([(torch.ones(1, 1, 3, 2),) * 2], 1, torch.ones(3, 2))


def remember(degrees: list[float], policy: EpisodicPolicy, capacity=3, merged: float = 0.0):
    store = OneKeyPerFrame({3 * i: d for i, d in enumerate(degrees)}, unit(merged))
    memory = EpisodicMemory(capacity, policy, store)
    events = [memory.consider(block, 3 * block, PROMPT) for block in range(len(degrees))]
    return memory, events, store


def test_a_candidate_is_compared_with_the_nearest_entry_and_admitted_below_the_threshold():
    memory, events, store = remember([0, 60, 64, 31, 61], EpisodicPolicy(novelty_threshold=0.9))
    assert [event.delta for event in events] == pytest.approx(
        [-1, *map(cosine, (60, 4, 29, 1))], abs=1e-6
    )
    assert [event.admitted for event in events] == [True, True, False, True, False]
    assert memory.sources == [[0], [3], [9]] and events[-1].merged is None
    assert store.calls == [("admit", 0), ("admit", 3), ("admit", 9)], (
        "a rejected candidate merges nothing"
    )
    assert not remember([0, 60], EpisodicPolicy(events[1].delta))[1][1].admitted, (
        "equal to the threshold"
    )
    assert len(remember([0, 0, 0], EpisodicPolicy(-1.0, admission="uniform"), 5)[0].sources) == 3
    assert len(remember([0, 180, 90], EpisodicPolicy(-1.0), 5)[0].sources) == 1, (
        "only an empty memory admits at -1"
    )


def test_overflow_first_merges_the_closest_pair_and_then_feeds_the_summary():
    memory, events, store = remember([0, 40, 45, 90, 95], EpisodicPolicy(2.0), merged=180)
    assert [event.merged for event in events] == [None, None, None, [[3], [6]], [[3, 6], [9]]]
    assert memory.sources == [[3, 6, 9], [0], [12]] and memory.has_summary
    assert store.calls[3:6] == [("merge", 1, 2), ("arrange", [1, 0]), ("admit", 9)]
    # summary at 180, entries at 0 and 90: the last is nearer to its only neighbour than the middle
    # one to both
    assert store.calls[6:] == [("merge", 0, 2), ("arrange", [0, 1]), ("admit", 12)]
    memory.forget()
    assert memory.sources == [] and not memory.has_summary


def test_a_pinned_entry_stays_in_front_of_the_summary_and_first_in_first_out_says_what_it_drops():
    pinned = EpisodicPolicy(2.0, pin_first=True)
    memory, events, _ = remember([0, 1, 45, 90, 95], pinned, merged=180)
    assert memory.sources == [[0], [3, 6, 9], [12]] and events[3].merged == [[3], [6]]
    assert remember([0, 1, 45], pinned, capacity=2)[0].sources == [[0, 3], [6]], (
        "of two entries none is pinned"
    )
    for policy, kept, dropped in (
        (EpisodicPolicy(2.0, eviction="fifo"), [[6], [9], [12]], [[0], [3]]),
        (EpisodicPolicy(2.0, eviction="fifo", pin_first=True), [[0], [9], [12]], [[3], [6]]),
    ):
        memory, events, _ = remember([0, 40, 45, 90, 95], policy)
        assert memory.sources == kept and [event.dropped for event in events] == [
            None,
            None,
            None,
            *dropped,
        ]
        assert [("dropped" in event.to_dict()) for event in events] == [
            False,
            False,
            False,
            True,
            True,
        ]


def test_random_tokens_are_ascending_distinct_and_the_same_in_every_render():
    rules = EpisodicPolicy(2.0, token_selection="random")
    _, _, one = remember([0, 40, 45, 90, 95], rules)
    _, _, again = remember([0, 40, 45, 90, 95], rules)
    for kept, same in zip(one.kept, again.kept, strict=True):
        assert torch.equal(kept, same)
        assert kept.tolist() == sorted(set(kept.tolist()))
        assert len(kept) == 20
        assert kept.max() > 19, "of both parts"
    assert not torch.equal(*one.kept), "blocks differ"


def test_after_a_recall_no_entry_is_a_summary_and_the_closest_pair_is_merged():
    memory, *_ = remember([0, 40, 45, 90], EpisodicPolicy(2.0))
    memory.replace(
        [MemoryEntry([frame], unit(degrees)) for frame, degrees in ((30, 0), (33, 80), (36, 85))]
    )
    memory.store = OneKeyPerFrame({39: 170}, unit(180))
    event = memory.consider(13, 39, PROMPT)
    assert event.merged == [[33], [36]]
