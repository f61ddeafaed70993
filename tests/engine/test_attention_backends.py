"""Attention within one backend: sequences, plans for shapes that come back, and groups on streams of their own."""

import torch
from attention_cases import sequence_attention
from headforcing.headforcing_core.model.attention import BACKENDS, LayerSizes, sdpa
from headforcing.headforcing_core.model.attention_backends import (
    PLAN_PAYS,
    PlannedAttention,
    by_span,
    on_streams,
    self_test,
    sequence_starts,
)

CPU = torch.device("cpu")


def test_cudnn_gets_as_many_sequences_in_every_layer(monkeypatch):
    given = []

    def operator(q, k, v, bias, *rest):
        starts_q, starts_k, longest_q, longest_k, lse, dropout, causal, debug = rest
        assert bias is None and (lse, dropout, causal, debug) == (True, 0.0, False, False)
        given.append(len(starts_q))
        return (sequence_attention(q, k, v, starts_q, starts_k, longest_q, longest_k),)

    monkeypatch.setattr(torch.ops.aten, "_cudnn_attention_forward", operator)
    found = BACKENDS["cudnn_varlen"]()
    assert self_test(found, CPU, torch.float32, 32) < 1e-4
    q, k = torch.randn(3, 4, 32), torch.randn(30, 32)
    for spans in (LayerSizes(4, ((3, 10),)).spans, LayerSizes(4, ((1, 12), (2, 9))).spans):
        found.layer(q, k, k, spans)
    assert set(given) == {2 * 3 + 1}  # heads, each with a place for rows without keys


def test_a_place_without_rows_is_an_empty_sequence():
    starts = sequence_starts(LayerSizes(7, ((2, 40),)).spans, 7, CPU)
    assert [x.tolist() for x in starts] == [[0, 7, 7, 14, 14], [0, 40, 40, 80, 80]]


def test_a_shape_that_a_growing_context_passes_through_gets_no_plan():
    """Of 17 blocks that grow by a block each, with five passes in 30 layers."""
    plans = set()

    def planned(q, k, v):
        plans.add(k.shape)
        return sdpa(q, k, v)

    attention, q = PlannedAttention(planned), torch.randn(2, 4, 8)
    for block in range(17):
        k = torch.randn(2, 3 * (1 + block), 8)
        for _ in range(5 * 30):
            attention(q, k, k)
    assert not plans
    for _ in range(PLAN_PAYS):
        attention(q, k, k)
    assert plans == {k.shape}


class FakeStream:
    """A stream that notes what waits for what, and what runs where."""

    current: "FakeStream"
    told: list = []

    def __init__(self, name):
        self.name = name

    def wait_stream(self, other):
        self.told.append((self.name, "waits for", other.name))

    def __enter__(self):
        self.before, FakeStream.current = FakeStream.current, self

    def __exit__(self, *_):
        FakeStream.current = self.before


def test_groups_run_on_streams_that_begin_after_the_queries_and_end_before_the_result(monkeypatch):
    here, names = FakeStream("here"), iter("ab")
    FakeStream.current, FakeStream.told = here, []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream.current)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(next(names)))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)

    def dense(q, k, v):
        FakeStream.told.append((FakeStream.current.name, "attends to", k.shape[1]))
        return sdpa(q, k, v)

    sizes = LayerSizes(4, ((2, 11), (1, 7), (3, 4)))
    q, k, v = torch.randn(6, 4, 8), *torch.randn(2, 41, 8)
    torch.testing.assert_close(on_streams(dense).layer(q, k, v, sizes.spans), by_span(sdpa, q, k, v, sizes.spans))
    assert FakeStream.told == [
        ("a", "waits for", "here"), ("b", "waits for", "here"),
        ("a", "attends to", 11), ("b", "attends to", 7), ("here", "attends to", 4),
        ("here", "waits for", "a"), ("here", "waits for", "b"),
    ]  # fmt: skip
