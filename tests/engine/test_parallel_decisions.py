"""Ranks that make one video decide as one: about memory, about where to begin, about what is there already."""

from dataclasses import replace

import pytest
import small_engine
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.shape import CacheShape
from headforcing.headforcing_core.distributed.cache import ParallelCache, parallel_forward
from headforcing.headforcing_core.distributed.division import Division, head_costs, strips
from headforcing.headforcing_core.distributed.ranks import rank_place
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.render.render import Place
from headforcing.headforcing_core.rollout.schedule import Schedule
from small_engine import BUSY, F, difference, every_head
from thread_peers import ThreadPeers, together
from toy_renders import Render, rendered, toy_model

BLOCKS = 10
SIZE = (8, 6)
TURNS = (((0, 3), (1, 4), (2, 3)), ((1, 2, 4), (0, 2, 3), (0, 1, 4)))  # heads of two ranks, in turns


def film(model, cache, **options):
    """The memory decisions of a video, its entries and latents."""
    made = small_engine.film(model, cache, BLOCKS, schedule=Schedule((1.0, 0.6), F), size=SIZE, **options)
    events = [block.event.to_dict() for block in made if block.event is not None]
    return events, cache.memory.entries, torch.cat([block.latents for block in made])


def on_two_ranks(model, shape):
    def work(peers):
        division = Division(TURNS, strips(shape.rows, shape.columns, 2), head_costs(shape))
        return film(model, ParallelCache(peers, shape, torch.float32, division=division), forward=parallel_forward)

    return together(2, work)


@pytest.fixture(scope="module")
def shape(model):
    return CacheShape.for_model(model.config, every_head(model, "memory"), BUSY, *SIZE, F, BLOCKS * F)


def test_ranks_whose_heads_lie_in_turns_know_the_pooled_keys_of_all_in_the_models_order(model, shape):
    _, alone, _ = film(model, HeadCache(shape, torch.float32))
    for _, entries, _ in on_two_ranks(model, shape):
        assert [entry.sources for entry in entries] == [entry.sources for entry in alone]
        for entry, expected in zip(entries, alone, strict=True):
            assert difference(entry.pooled, expected.pooled) < 1e-4


def test_ranks_that_compute_other_similarities_take_the_decisions_of_the_first(model, shape, monkeypatch):
    """As GPUs of two kinds may, by rounding; here by much, so that it shows."""
    exchange = ThreadPeers.exchange

    def exchange_of_another_gpu(peers, parts, sizes, kind):
        got = exchange(peers, parts, sizes, kind)
        if kind != "memory" or peers.leads:
            return got
        other = torch.Generator().manual_seed(0)
        return [part + part.std() * torch.randn(part.shape, generator=other) for part in got]

    monkeypatch.setattr(ThreadPeers, "exchange", exchange_of_another_gpu)
    first, second = on_two_ranks(model, shape)
    assert first[0] == second[0]
    assert [entry.sources for entry in first[1]] == [entry.sources for entry in second[1]]
    assert any(event["merged"] for event in first[0])


def render(planned: Render, start, stop_after=None, runs=None, peers=None):
    """The latents of a render or of its first blocks, start frames included, and how many blocks were reused."""
    job = replace(planned.job, start_latents=start, start_key="s", runs=runs)
    model, place = planned.model(), Place()
    if peers is not None:
        model.forward, place = parallel_forward, rank_place(peers, torch.device("cpu"), sdpa, "sdpa")
    blocks, run = rendered(job, model, place, stop_after)
    return torch.cat(blocks), len(run.stored)


def test_all_ranks_begin_with_the_start_frames_of_the_run_folder_and_go_on_from_its_blocks(tmp_path):
    """Only rank 0 has a run folder; start frames that another GPU has encoded, or the same one later, differ."""
    start = torch.randn(3, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    planned = Render(toy_model(layers=2), tmp_path / "unused", "a red ball", seconds=3.0, start=start)
    expected, _ = render(planned, start)

    def begin(peers):
        return render(planned, start + peers.rank, 4, tmp_path / "runs" if peers.leads else None, peers)

    def go_on(peers):
        return render(planned, start + 2 + peers.rank, None, tmp_path / "runs" if peers.leads else None, peers)

    for latents, _ in together(2, begin):
        assert difference(latents, expected[: len(latents)]) < 1e-4
    for latents, reused in together(2, go_on):
        assert reused == 3 and difference(latents, expected) < 1e-4
