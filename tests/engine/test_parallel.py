"""One video on several ranks: the same latents and the same decisions as on one, whatever the ranks
hold.
"""

import random
from dataclasses import replace
from itertools import chain

import pytest
import small_engine
import torch
import torch.distributed as dist
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.shape import CacheShape
from headforcing.headforcing_core.distributed.cache import ParallelCache, parallel_forward
from headforcing.headforcing_core.distributed.division import (
    Division,
    assign_heads,
    check_division,
    head_costs,
    strips,
)
from headforcing.headforcing_core.distributed.ranks import RanksReport, rank_place
from headforcing.headforcing_core.distributed.sharded import shard
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.plan.request import StartLatents
from headforcing.headforcing_core.render.render import Place
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.switch import Switch
from policies import with_memory
from small_engine import BUSY, F, difference, every_head, random_roles, wan
from thread_peers import ThreadPeers, together
from toy_renders import Render, rendered, toy_model

BLOCKS = 12
SIZE = (8, 6)  # latents: 4 x 3 tokens a frame, uneven for 2 and 3 ranks
SWITCHES = {4: Switch("recache"), 8: Switch("flush", re_anchor=True)}
PROMPTS = [0] * 4 + [1] * 4 + [0] * 4


def shape_of(model, roles, method=BUSY) -> CacheShape:
    return CacheShape.for_model(model.config, roles, method, *SIZE, F, BLOCKS * F)


def make_blocks(
    model, cache, dtype=torch.float32, blocks=BLOCKS, steps=(1.0, 0.6), switches=SWITCHES, **options
):
    """Latents, memory decisions and the cache of a video with two prompt switches."""
    made = small_engine.make_blocks(
        model,
        cache,
        blocks,
        schedule=Schedule(steps, F),
        prompts=PROMPTS[:blocks],
        size=SIZE,
        switches=switches,
        dtype=dtype,
        **options,
    )
    events = [block.event.to_dict() for block in made if block.event is not None]
    return torch.cat([block.latents for block in made]), events


def on_ranks(model, shape, ranks, division=None, dtype=torch.float32, **options):
    """Per rank its latents and memory decisions, cache and peers."""

    def work(peers):
        cache = ParallelCache(peers, shape, dtype, division=division)
        return *make_blocks(model, cache, dtype, forward=parallel_forward, **options), cache, peers

    return together(ranks, work)


def without_deltas(events) -> list[dict]:
    return [{**event, "delta": 0} for event in events]


def assert_as_alone(model, shape, division=None, ranks=2, dtype=torch.float32, **options):
    """Ranks make the video and take the decisions of one cache; that cache, and the decisions."""
    alone = HeadCache(shape, dtype)
    expected, events = make_blocks(model, alone, dtype, **options)
    for latents, decided, cache, _ in on_ranks(model, shape, ranks, division, dtype, **options):
        assert difference(latents, expected) <= 1e-5
        assert without_deltas(decided) == without_deltas(events)
        assert [event["delta"] for event in decided] == pytest.approx(
            [event["delta"] for event in events], abs=1e-5
        )
        assert cache.memory.sources == alone.memory.sources
        assert (cache.occupied, cache.recalls) == (alone.occupied, alone.recalls)
        for entry, same in zip(cache.memory.entries, alone.memory.entries, strict=True):
            assert difference(entry.pooled, same.pooled) < 1e-4, (
                "pooled keys of all heads in the model's order"
            )
    return alone, events


TURNS = (((0, 3), (1,)), ((1, 2), (0, 2, 3)))  # per rank and layer
HEADS_OF = {
    "all heads on one": (((), ()), ((0, 1, 2, 3),) * 2),
    "one without memory heads": (((1, 2), ()), ((0, 3), (0, 1, 2, 3))),
    "heads in turns": TURNS,
}
# rank 0 has no memory head, and no head in a layer
ROLES = [["memory", "local", "anchor", "memory"], ["memory"] * 4]


def divided(shape: CacheShape, heads) -> Division:
    return Division(heads, strips(4, 3, 2), head_costs(shape))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["3 ranks", "unequal GPUs", "sinks beside entries", *HEADS_OF])
def test_several_ranks_make_the_video_of_one(model, case):
    memory = BUSY.memory
    if case == "sinks beside entries":
        memory = replace(memory, sink_frames=3, episodic_frames=2)
    roles = ROLES if "memory" in case else random_roles(model)
    shape = shape_of(model, roles, replace(BUSY, memory=memory))
    division = divided(shape, HEADS_OF[case]) if case in HEADS_OF else None
    if case == "unequal GPUs":
        division = Division.of(shape, 2, speeds=[1, 3])
        assert len(list(chain(*division.heads[0]))) < len(list(chain(*division.heads[1])))
        assert [strip.tokens for strip in division.strips] == [3, 9]
    _, events = assert_as_alone(model, shape, division, 3 if case == "3 ranks" else 2)
    assert sum(event["merged"] is not None for event in events) >= 2


def test_ranks_that_compute_other_similarities_take_the_decisions_of_the_first(model, monkeypatch):
    """As GPUs of two kinds may, by rounding; here by much, so that it shows."""
    exchange = ThreadPeers.exchange

    def exchange_of_another_gpu(peers, parts, sizes, kind):
        got = exchange(peers, parts, sizes, kind)
        if kind != "memory" or peers.leads:
            return got
        other = torch.Generator().manual_seed(0)
        return [part + part.std() * torch.randn(part.shape, generator=other) for part in got]

    monkeypatch.setattr(ThreadPeers, "exchange", exchange_of_another_gpu)
    shape = shape_of(model, every_head(model, "memory"))
    first, second = on_ranks(model, shape, 2, divided(shape, TURNS))
    assert first[1] == second[1] and any(event["merged"] for event in first[1])
    assert first[2].memory.sources == second[2].memory.sources


def test_a_scene_comes_back_on_every_rank_and_holds_a_picture(model):
    shape = shape_of(model, ROLES, replace(BUSY, kept_scenes=3, picture_frames=5))
    division = divided(shape, HEADS_OF["one without memory heads"])
    switches = {
        3: Switch(),
        6: Switch(recall=1),
        8: Switch("flush"),
        10: Switch("recache", recall=2),
    }
    pictures = {10: [torch.randn(F, 16, *SIZE, generator=torch.Generator().manual_seed(0))]}
    alone, _ = assert_as_alone(model, shape, division, switches=switches, pictures=pictures)
    assert [recall.frames for recall in alone.recalls] == [[0, 1, 2, 3, 6], [9, 10, 11, 12, 15]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["random_tokens", "fifo_eviction", "one recent frame", "in bf16"]
)
def test_every_policy_of_the_grouped_cache_runs_on_several_ranks(method):
    model = wan(heads=3)
    dtype = torch.float32
    recent = 1 if method == "one recent frame" else 3
    settings = with_memory(PRESETS.get(method, BUSY), 5, recent, 2.0, 1)
    if method == "in bf16":
        model = model.to(torch.bfloat16)
        dtype = torch.bfloat16
        model.patch_embedding.float()
    assert_as_alone(
        model, shape_of(model, random_roles(model), settings), dtype=dtype, steps=(1.0,)
    )


@pytest.mark.usefixtures("fused")
def test_fused_kernels_run_on_several_ranks(model):
    shape = shape_of(model, ROLES)
    assert_as_alone(
        model, shape, divided(shape, HEADS_OF["one without memory heads"]), steps=(1.0,)
    )


def test_an_even_division_sends_the_formula_to_the_byte_and_parts_of_the_cache_add_up(model):
    shape = shape_of(model, every_head(model, "local"), PRESETS["self_forcing_sink"])
    messages = 2 * 4 * 2 + 2 * (4 * 2 - 2)  # of 2 blocks with one step and one clean pass
    for *_, peers in on_ranks(model, shape, 2, steps=(1.0,), blocks=2):
        assert peers.sent["tokens"] == messages * (1 / 2) * (F * 12 / 2) * model.config.dim * 4
        assert peers.sent["memory"] == 0
    shape = shape_of(model, random_roles(model))
    parts = [cache.bytes for *_, cache, _ in on_ranks(model, shape, 2, blocks=1)]
    assert sum(parts) == HeadCache(shape, torch.float32).bytes and max(parts) <= 0.6 * sum(parts)


def test_stopping_one_rank_stops_all_after_the_same_pass(model):
    shape = shape_of(model, random_roles(model))
    seen = [0, 0]

    def work(peers):
        def forward(*arguments, **options):
            seen[peers.rank] += 1
            peers.stopping = peers.rank == 1 and seen[1] == 5
            return parallel_forward(*arguments, **options)

        try:
            make_blocks(model, ParallelCache(peers, shape, torch.float32), forward=forward)
        except KeyboardInterrupt:
            return "stopped"

    assert together(2, work) == ["stopped"] * 2 and seen == [5, 5]


def render(planned: Render, start, stop_after=None, runs=None, peers=None):
    """The latents of a render or of its first blocks, start frames included, and how many blocks
    were reused.
    """
    begins_with = None if start is None else StartLatents(start[None], "s")
    job = planned.job.with_request(start=begins_with, runs=runs)
    model = planned.model()
    place = Place()
    if peers is not None:
        model.forward, place = (
            parallel_forward,
            rank_place(peers, torch.device("cpu"), sdpa, "sdpa"),
        )
    blocks, run = rendered(job, model, place, stop_after)
    return torch.cat(blocks), len(run.stored)


def test_all_ranks_begin_with_the_start_frames_of_the_run_folder_and_go_on_from_its_blocks(
    tmp_path,
):
    """Only rank 0 has a run folder; start frames that another GPU has encoded, or the same one
    later, differ.
    """
    start = torch.randn(3, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    planned = Render(
        toy_model(layers=2), tmp_path / "unused", "a red ball", seconds=3.0, start=start
    )
    expected, _ = render(planned, start)
    for offset, stop_after in ((0, 4), (2, None)):
        made = together(
            2,
            lambda peers, offset=offset, stop=stop_after: render(
                planned,
                start + offset + peers.rank,
                stop,
                tmp_path / "runs" if peers.leads else None,
                peers,
            ),
        )
        for latents, reused in made:
            assert (
                reused == (0 if stop_after else 3)
                and difference(latents, expected[: len(latents)]) < 1e-4
            )


def test_heads_by_cost_and_speed_beat_equal_runs_and_divide_the_memory():
    chooser = random.Random(7)
    layers = 30
    heads = 12
    for profile in range(25):
        ranks = 2 + profile % 5
        flat = ["local"] * 72 + ["anchor"] * 90 + ["memory"] * 198
        chooser.shuffle(flat)
        roles = [flat[layer * heads : (layer + 1) * heads] for layer in range(layers)]
        shape = CacheShape(roles, HeadForcing(), 30, 52, 128, F, 240)
        division = Division.of(shape, ranks)
        by_speed = Division.of(shape, 2, [3, 1])
        equal = Division.of(shape, 2)
        equal = replace(equal, speeds=[3, 1])
        assert 1 <= by_speed.worst_over_mean < equal.worst_over_mean
        runs = tuple(
            (tuple(range(heads * r // ranks, heads * (r + 1) // ranks)),) * layers
            for r in range(ranks)
        )
        assert (
            division.worst_over_mean
            <= Division(runs, division.strips, division.costs).worst_over_mean
        )
        held = [division.share_of_cache(rank) for rank in range(ranks)]
        assert sum(held) == pytest.approx(1) and max(held) * ranks <= 1.05


@pytest.mark.parametrize(
    "speeds", [(1.2, 1.0), (0.06, 0.06), (0.1, 0.1, 0.1), (0.7, 1.7, 0.3, 2.9)], ids=str
)
def test_no_token_and_no_head_is_left_to_nobody(speeds):
    ranks = len(speeds)
    costs = [[11] * 3 + [7] * 4 + [4] * 5] * 3
    for rows, columns in ((30, 52), (52, 30), (45, 80), (22, 40), (17, 31), (60, 104)):
        for parts in (strips(rows, columns, ranks, speeds), strips(rows, columns, ranks)):
            covered = torch.zeros(rows, columns)
            for strip in parts:
                strip.of_frames(covered).add_(1)
            assert (covered == 1).all() and min(strip.tokens for strip in parts) > 0, (
                rows,
                columns,
            )
    for layer in zip(*assign_heads(costs, ranks, speeds), strict=True):
        assert sorted(chain(*layer)) == list(range(12))
    if len(set(speeds)) == 1:
        assert strips(30, 52, ranks, speeds) == strips(30, 52, ranks)
        assert assign_heads(costs, ranks, speeds) == assign_heads(costs, ranks)


def test_strips_of_832x480_are_even_or_as_the_speeds_are():
    for ranks in (2, 4, 8):
        assert len({strip.tokens for strip in strips(30, 52, ranks)}) == 1
    assert [strip.tokens // 260 for strip in strips(30, 52, 4, [2, 1, 2, 1])] == [2, 1, 2, 1]


def test_the_report_names_the_speeds_the_ideal_share_and_the_rank_that_the_others_waited_for():
    about = dict(
        device="cpu", heads=[[0]], weight_bytes=1, cache_bytes=1, sent_bytes={"tokens": 2_000_000}
    )
    ranks = [{**about, "waited_seconds": seconds} for seconds in (0.5, 0.1)]
    report = RanksReport(ranks, 1.25, 1.0, (2.0, 0.5))
    said = report.describe()
    assert said[0].startswith(
        "ranks    2 with speeds 2,0.5; attention of the worst layer 1.250 of the ideal share"
    )
    assert said[0].endswith("slowest rank 1") and report.to_dict()["slowest_rank"] == 1
    assert said[1].startswith("rank 0   cpu: 1 heads, ") and said[1].endswith(
        "sent 2.0 MB, 0.5 of 1.0 s in exchanges"
    )
    assert RanksReport(ranks, 1.25, 1.0).describe()[0].startswith("ranks    2; attention")


def test_what_cannot_be_divided_is_refused_with_what_fits(model):
    shape = shape_of(model, random_roles(model))
    check_division(shape, 4)
    rolling = method_named("rolling_forcing").shape(
        model.config, random_roles(model), *SIZE, F, BLOCKS * F
    )
    for arguments, said in (
        ((shape, 6), r"6 GPUs leave one .* \(4 heads, 4x3 tokens a frame\); choose --gpus 1, 2"),
        ((shape, 2, [1, 9]), r"--gpu-speeds 1,9 leave one GPU .* \(4x3 tokens\)"),
        ((rolling, 2), "has a cache of its own"),
    ):
        with pytest.raises(HeadForcingError, match=said):
            check_division(*arguments)


def test_sharded_weights_make_the_video_of_whole_ones():
    """In a group of one process: what is gathered for a layer is freed after it, and gathered anew
    in the next pass.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = wan()
        shard(sharded, torch.device("cpu"))
        whole = wan()
        sharded.config = whole.config  # which tells the video's prompts their width
        shape = shape_of(whole, every_head(whole, "memory"))
        made = [
            make_blocks(one, HeadCache(shape, torch.float32), blocks=2, switches={})[0]
            for one in (sharded, whole)
        ]
    finally:
        dist.destroy_process_group()
    assert difference(*made) < 1e-5
