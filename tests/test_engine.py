"""Properties of the engine on small random models with awkward sizes: what must hold whatever the weights are.

Everything is float32 on CPU unless a test says otherwise. "Equal" means the same bytes where the arithmetic is the
same, and within 1e-4 where only its order differs.
"""

import gc
import math
import random

import pytest
import torch
from attention_cases import WHOLE_LAYER
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.memory import (
    EpisodicMemory,
    candidate_frame,
    most_redundant_entry,
    most_similar_pair,
    random_tokens,
    select_tokens,
    similarities,
)
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy, EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.cache.reference import ReferenceCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model import rope as rope_module
from headforcing.headforcing_core.model.attention import BACKENDS, attention_function, explicit
from headforcing.headforcing_core.model.rope import RotaryEmbedding, axis_dims
from headforcing.headforcing_core.model.wan import PromptKV, WanConfig, WanModel, encode_prompt, forward_block
from headforcing.headforcing_core.rollout.loop import rollout, split_start_latents
from headforcing.headforcing_core.rollout.noise import SeededNoise
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from no_float64 import RefuseFloat64
from switching_reference import SwitchingReferenceCache

F = 3
HEIGHT, WIDTH = 4, 6  # latents; 2 x 3 tokens a frame
TWO_STEPS = Schedule((1.0, 0.7), F)
SELF_FORCING = PRESETS["self_forcing"]
# admits every candidate after every block, so that memory is full and merging soon
BUSY = CachePolicy(episodic=EpisodicPolicy(novelty_threshold=2.0, update_interval=1))


def wan(layers=3, heads=5, head_dim=22, seed=0, **dims) -> WanModel:
    """A random model that looks at its context: queries and keys are long enough for attention to have an opinion."""
    config = WanConfig(
        **{"ffn_dim": 48, "freq_dim": 32, "text_dim": 10, "text_len": 7}
        | dims
        | {"dim": heads * head_dim, "num_layers": layers, "num_heads": heads}
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = WanModel(config).requires_grad_(False)
        for block in model.blocks:
            block.modulation.normal_(0, 0.3)
            for attention in (block.self_attn, block.cross_attn):
                attention.norm_q.weight.uniform_(0.8, 2.0)
                attention.norm_k.weight.uniform_(0.8, 2.0)
                attention.o.weight.mul_(2)
        model.head.modulation.normal_(0, 0.3)
    return model


def embeds(model: WanModel, count=2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(4 + i % 3, model.config.text_dim, generator=generator) for i in range(count)]


def every_head(model: WanModel, role: str) -> list[list[str]]:
    return [[role] * model.config.num_heads for _ in model.blocks]


def mixed(model: WanModel, seed=1) -> list[list[str]]:
    chooser = random.Random(seed)
    return [[chooser.choice(("local", "anchor", "memory")) for _ in row] for row in every_head(model, "memory")]


def new_cache(model, roles, policy, blocks, kind=HeadCache, dtype=torch.float32, f=F, size=(HEIGHT, WIDTH)):
    return kind(CacheShape.for_model(model.config, roles, policy, *size, f, blocks * f), dtype)


def film(model, cache, blocks, *, seed=3, schedule=TWO_STEPS, prompts=None, size=(HEIGHT, WIDTH), **options):
    """The finished blocks of one video, start blocks not among them."""
    noise = SeededNoise(seed, (schedule.frames_per_block, 16, *size))
    video = WanVideoModel(model, embeds(model), torch.float32)
    return list(rollout(video, cache, schedule, noise, prompts or [0] * blocks, **options))


def latents(blocks) -> torch.Tensor:
    return torch.stack([block.latents for block in blocks])


def make(model, roles, policy, blocks, **options) -> torch.Tensor:
    return latents(film(model, new_cache(model, roles, policy, blocks), blocks, **options))


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@pytest.fixture(scope="module")
def model() -> WanModel:
    return wan()


# ------------------------------------------------------------------------------------------- what each head sees


@pytest.mark.parametrize("role", ["local", "anchor", "memory", "mixed"])
def test_the_first_block_is_plain_self_forcing_whatever_the_roles(model, role):
    plain = make(model, every_head(model, "memory"), SELF_FORCING, 3)
    roles = mixed(model) if role == "mixed" else every_head(model, role)
    ours = make(model, roles, CachePolicy(), 3)
    assert difference(ours[0], plain[0]) < 1e-5
    assert difference(ours[2], plain[2]) > 1e-3


def test_memory_heads_equal_plain_self_forcing_in_the_second_block_too(model):
    plain = make(model, every_head(model, "memory"), SELF_FORCING, 2)
    assert difference(make(model, every_head(model, "memory"), CachePolicy(), 2), plain) < 1e-5
    assert difference(make(model, every_head(model, "local"), CachePolicy(), 2)[1], plain[1]) > 1e-3


def test_no_frame_is_twice_in_a_context_and_contexts_are_numbered_from_zero(model):
    cache = new_cache(model, mixed(model), BUSY, 40)
    seen = []

    def inspect(block, step, clean):
        for group in cache.groups:
            frames = [frame for sources in group.sources for frame in sources]
            assert len(frames) == len(set(frames))
            assert group.sources[-F:] == [[F * block + i] for i in range(F)]
            assert group.indices == list(range(group.frames))
        seen.append(len(cache.memory.sources))

    film(model, cache, 40, on_step=inspect)
    assert max(seen) == 5 and cache.memory.has_summary


def test_each_role_sees_as_many_frames_as_the_paper_says(model):
    cache = new_cache(model, mixed(model), BUSY, 12)
    counts: dict[str, list[int]] = {"local": [], "anchor": [], "memory": []}

    def count(block, step, clean):
        if step == 0:
            for role, frames in counts.items():
                frames += [g.frames for g in cache.groups if g.policy == BUSY.of(role)]

    film(model, cache, 12, on_step=count)
    assert counts["local"] == [3] + 11 * [4]
    assert counts["anchor"] == [3, 6] + 10 * [7]  # in block 1 the last of the first three frames is the last frame
    assert counts["memory"] == [3, 6, 7, 8, 9, 10] + 6 * [11]


def test_anchor_heads_keep_the_first_frames_and_memory_heads_do_not(model):
    cache = new_cache(model, mixed(model), CachePolicy(episodic=EpisodicPolicy(novelty_threshold=-1.0)), 7)
    film(model, cache, 7)
    by_policy = {group.policy: group.sources for group in cache.groups}
    assert by_policy[CachePolicy().local] == [[20]]
    assert by_policy[CachePolicy().anchor] == [[0], [1], [2], [20]]
    assert by_policy[CachePolicy().memory] == [[0], [18], [19], [20]]  # only an empty memory admits at -1


def test_the_papers_setting_takes_3096_frame_slots_and_2_47_gb():
    flat = 90 * ["anchor"] + 72 * ["local"] + 198 * ["memory"]
    random.Random(0).shuffle(flat)
    roles = [flat[12 * layer : 12 * layer + 12] for layer in range(30)]
    shape = CacheShape.for_model(WanConfig(), roles, CachePolicy(), 480 // 8, 832 // 8, 3, 243)
    assert shape.frame_slots == 3096 == 90 * 7 + 72 * 4 + 198 * 11
    assert shape.bytes(torch.bfloat16) == 3096 * 1560 * 128 * 2 * 2
    assert round(shape.bytes(torch.bfloat16) / 1e9, 2) == 2.47


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_buffers_are_as_large_as_was_announced(model, dtype):
    cache = new_cache(model, mixed(model), CachePolicy(), 9, dtype=dtype)
    assert cache.bytes == cache.shape.bytes(dtype)
    assert cache.bytes == sum(b.nbytes for group in cache.groups for b in (*group.k, *group.v))


def test_roles_that_do_not_fit_the_model_are_refused_by_their_numbers(model):
    with pytest.raises(HeadForcingError, match=r"3 layers x 5 heads, got \[\(2, 5\)\]"):
        new_cache(model, every_head(model, "local")[:2], CachePolicy(), 2)
    with pytest.raises(HeadForcingError, match="3 layers x 5 heads"):
        new_cache(model, [["local"] * 5, ["local"] * 4, ["local"] * 5], CachePolicy(), 2)


def test_episodic_memory_needs_recent_frames_in_whole_blocks(model):
    policy = CachePolicy(memory=RolePolicy(recent_frames=4, episodic_frames=5))
    with pytest.raises(HeadForcingError, match="whole blocks of 3, got 4"):
        new_cache(model, mixed(model), policy, 2)


# --------------------------------------------------------------------------------------- nothing unwritten is read


def poison(group, first: int) -> None:
    for buffer in (*group.k, *group.v):
        buffer[:, first:] = math.nan


@pytest.mark.parametrize("preset", ["head_forcing", "busy", "no_rope_reencoding", "fifo_eviction", "self_forcing"])
def test_a_context_never_reads_a_slot_that_was_not_written(model, preset):
    policy = BUSY if preset == "busy" else PRESETS[preset]
    roles = mixed(model)
    cache = new_cache(model, roles, policy, 14)
    for group in cache.groups:
        poison(group, 0)

    def poison_everything_behind_the_history(block, step, clean):
        if step == 0:
            for group in cache.groups:
                poison(group, group.current.start)

    ours = latents(film(model, cache, 14, on_step=poison_everything_behind_the_history))
    assert ours.isfinite().all()
    assert torch.equal(ours, make(model, roles, policy, 14))


def test_the_passes_of_a_block_leave_no_trace_but_the_clean_one(model):
    """History comes from clean passes only: other noise levels inside a block change nothing that is stored of it."""
    start = make(model, mixed(model), BUSY, 2).flatten(0, 1)
    caches = [new_cache(model, mixed(model), BUSY, 3) for _ in range(2)]
    for cache, passes in zip(caches, (0, 3), strict=True):
        video = WanVideoModel(model, embeds(model), torch.float32)
        video.use_prompt(0)
        for block in start.split(F):
            cache.begin_block()
            for sigma in (1.0, 0.6, 0.2)[:passes]:
                video.denoise(torch.randn(block.shape, generator=torch.Generator().manual_seed(1)), sigma, cache)
            video.write_clean(block, cache)
            cache.commit(video.prompt)
    assert_same_contents(*caches)


# ------------------------------------------------------------------------------------------------------ repeatable


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(model):
    roles = mixed(model)
    once = make(model, roles, BUSY, 8)
    assert torch.equal(once, make(model, roles, BUSY, 8))
    assert difference(once[0], make(model, roles, BUSY, 8, seed=4)[0]) > 0.1


def test_a_changed_later_prompt_leaves_every_earlier_block_byte_identical(model):
    roles = mixed(model)
    before = make(model, roles, BUSY, 8)
    after = make(model, roles, BUSY, 8, prompts=[0, 0, 0, 0, 0, 1, 1, 1])
    assert torch.equal(before[:5], after[:5])
    for block in (5, 6, 7):
        assert difference(before[block], after[block]) > 1e-3


def test_a_longer_video_begins_with_the_bytes_of_the_shorter_one(model):
    roles = mixed(model)
    assert torch.equal(make(model, roles, BUSY, 11)[:7], make(model, roles, BUSY, 7))


def test_videos_of_a_batch_differ(model):
    one, other = (SeededNoise(3, (F, 16, HEIGHT, WIDTH), video) for video in (0, 1))
    assert difference(one.initial(0), other.initial(0)) > 0.5


def assert_same_contents(one: HeadCache, other: HeadCache) -> None:
    assert one.block == other.block
    assert one.memory.sources == other.memory.sources
    assert one.memory.has_summary == other.memory.has_summary
    for a, b in zip(one.memory.entries, other.memory.entries, strict=True):
        assert torch.equal(a.pooled, b.pooled)
    for a, b in zip(one.groups, other.groups, strict=True):
        assert (a.sources, a.indices, a.entries) == (b.sources, b.indices, b.entries)
        for x, y in zip((*a.k, *a.v), (*b.k, *b.v), strict=True):
            assert torch.equal(x[:, : a.frames], y[:, : b.frames])


@pytest.mark.parametrize("start_blocks", [1, 4, 9])
def test_extending_a_video_is_the_same_as_never_having_stopped(model, start_blocks):
    roles, prompts = mixed(model), [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    whole = make(model, roles, BUSY, 11, prompts=prompts)
    cache = new_cache(model, roles, BUSY, 11)
    extended = film(model, cache, 11, prompts=prompts, start_latents=whole[:start_blocks].flatten(0, 1))
    assert [block.index for block in extended] == list(range(start_blocks, 11))
    assert torch.equal(latents(extended), whole[start_blocks:])

    stopped, resumed = (new_cache(model, roles, BUSY, 11) for _ in range(2))
    film(model, stopped, start_blocks, prompts=prompts[:start_blocks])
    nothing_more = film(
        model, resumed, start_blocks, prompts=prompts[:start_blocks], start_latents=whole[:start_blocks].flatten(0, 1)
    )
    assert not nothing_more
    assert_same_contents(stopped, resumed)


@pytest.mark.parametrize(("frames", "drop"), [(4, 1), (2, 2), (11, 2)])
def test_start_frames_that_do_not_fill_blocks_are_refused_before_the_model_runs(model, frames, drop):
    start = torch.zeros(frames, 16, HEIGHT, WIDTH)
    calls = []
    with pytest.raises(HeadForcingError, match=rf"whole blocks of 3 latent frames, got {frames}; drop {drop} from"):
        film(
            model,
            new_cache(model, mixed(model), CachePolicy(), 5),
            5,
            start_latents=start,
            on_step=lambda *step: calls.append(step),
        )
    assert not calls
    with pytest.raises(HeadForcingError, match="got 0"):
        split_start_latents(start[:0], F)


class Stop(Exception):
    pass


class CountingModel(WanVideoModel):
    calls = 0

    def flow(self, *args, **options):
        self.calls += 1
        return super().flow(*args, **options)


def counting_rollout(model, blocks, **options):
    video = CountingModel(model, embeds(model), torch.float32)
    noise = SeededNoise(0, (F, 16, HEIGHT, WIDTH))
    cache = new_cache(model, mixed(model), CachePolicy(), blocks)
    return video, rollout(video, cache, TWO_STEPS, noise, [0] * blocks, **options)


@pytest.mark.parametrize(("block", "step", "calls"), [(0, 0, 0), (0, 1, 1), (0, 2, 2), (2, 1, 7), (3, 0, 9)])
def test_raising_from_on_step_stops_before_the_next_model_call(model, block, step, calls):
    def stop(at_block, at_step, clean):
        assert (clean is None) == (at_step == 0)
        if (at_block, at_step) == (block, step):
            raise Stop

    video, blocks = counting_rollout(model, 6, on_step=stop)
    with pytest.raises(Stop):
        list(blocks)
    assert video.calls == calls  # two steps and a clean pass a block


def test_a_start_video_can_be_stopped_between_its_blocks_too(model):
    def stop(block, step, clean):
        if block == 2:
            raise Stop

    video, blocks = counting_rollout(model, 6, start_latents=torch.zeros(12, 16, HEIGHT, WIDTH), on_step=stop)
    with pytest.raises(Stop):
        next(blocks)
    assert video.calls == 2


def test_a_rollout_makes_no_block_that_is_not_taken(model):
    video, blocks = counting_rollout(model, 6)
    assert video.calls == 0
    assert next(blocks).index == 0
    assert next(blocks).index == 1
    assert video.calls == 6
    blocks.close()
    assert video.calls == 6
    assert list(blocks) == []


# ------------------------------------------------------------------------------------------------- length is free


def tensor_bytes() -> int:
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def test_1200_latent_frames_need_no_more_memory_than_120_and_stay_finite():
    model = wan(layers=1, heads=3, head_dim=6, ffn_dim=8, freq_dim=8, text_dim=4, text_len=3)
    size = (2, 4)
    cache = new_cache(model, [["local", "anchor", "memory"]], BUSY, 400, size=size)
    video = WanVideoModel(model, embeds(model), torch.float32)
    noise = SeededNoise(0, (F, 16, *size))
    prompts = [block // 50 % 2 for block in range(400)]
    held = {}
    for block in rollout(video, cache, Schedule((1.0,), F), noise, prompts):
        assert block.latents.isfinite().all()
        if block.index in (39, 399):
            slots = [len(group.sources) for group in cache.groups]
            held[block.index] = (cache.bytes, slots, len(cache.memory.entries), tensor_bytes())
    assert held[39] == held[399]
    assert cache.shape.frame_slots == 4 + 7 + 11


def test_a_video_of_1200_frames_ends_as_it_would_have_without_a_position_limit():
    """Contiguous contexts of a window without sink are the absolute ones shifted, also beyond index 1024."""
    model = wan(layers=1, heads=2, head_dim=6, ffn_dim=8, freq_dim=8, text_dim=4, text_len=3)
    roles = every_head(model, "local")
    absolute, contiguous = (
        film(
            model,
            new_cache(model, roles, CachePolicy.uniform(RolePolicy(recent_frames=2), rope), 380, size=(2, 4)),
            380,
            schedule=Schedule((1.0,), F),
            size=(2, 4),
        )
        for rope in ("absolute", "contiguous")
    )
    assert difference(latents(absolute), latents(contiguous)) < 1e-4


# ------------------------------------------------------------------------- the fast cache against the specification


def random_setting(seed: int):
    """A model, roles and policy drawn from everything the policies allow."""
    chooser = random.Random(seed)
    f = chooser.choice((1, 2, 3))
    layers, heads = chooser.choice(((1, 3), (2, 5), (3, 4)))
    model = wan(layers, heads, head_dim=chooser.choice((6, 22, 26)), seed=seed, ffn_dim=16)
    names = chooser.choice((("local", "anchor", "memory"), ("memory",), ("memory", "memory", "anchor")))
    roles = [[chooser.choice(names) for _ in range(heads)] for _ in range(layers)]
    if layers > 1 and chooser.random() < 0.4:
        roles[chooser.randrange(layers)] = ["anchor"] * heads  # a layer without memory heads
    episodic = EpisodicPolicy(
        novelty_threshold=chooser.choice((0.3, 0.8, 0.97, 2.0)),
        update_interval=chooser.choice((1, 1, 2, 3)),
        admission=chooser.choice(("novelty", "novelty", "uniform")),
        eviction=chooser.choice(("summary", "summary", "fifo")),
        token_selection=chooser.choice(("prompt", "prompt", "random")),
        center_keys=chooser.random() < 0.3,
        pin_first=chooser.random() < 0.3,
    )
    policy = CachePolicy(
        local=RolePolicy(recent_frames=chooser.choice((0, 1, 2))),
        anchor=RolePolicy(sink_frames=chooser.choice((0, 1, 3, 4)), recent_frames=chooser.choice((0, 1, 5, None))),
        memory=RolePolicy(
            recent_frames=f * chooser.choice((0, 1, 1, 2)), episodic_frames=chooser.choice((0, 2, 3, 3, 5))
        ),
        rope=chooser.choice(("contiguous", "contiguous", "absolute")),
        episodic=episodic,
    )
    prompts = [chooser.randrange(2) for _ in range(4)]
    return model, roles, policy, f, [prompts[block // 3] for block in range(12)]


@pytest.mark.parametrize("seed", range(30))
def test_head_cache_equals_the_specification_for_random_roles_and_policies(seed):
    assert_as_specified(seed)


def assert_as_specified(seed: int, **options) -> None:
    model, roles, policy, f, prompts = random_setting(seed)
    specification = SwitchingReferenceCache if "switches" in options else ReferenceCache
    films, caches = (
        [],
        [new_cache(model, roles, policy, 12, kind, f=f) for kind in (HeadCache, specification, HeadCache)],
    )
    caches[2].attention = WHOLE_LAYER["sequences" if seed % 2 else "tables"]  # all heads in one call
    for cache in caches:
        films.append(film(model, cache, 12, schedule=Schedule((1.0, 0.6), f), prompts=prompts, **options))
    ours, specified, in_one_call = films
    for made in (ours, in_one_call):
        assert difference(latents(made), latents(specified)) < 1e-4 * float(latents(specified).abs().max())
    for a, b in zip(ours, specified, strict=True):
        assert (a.event is None) == (b.event is None)
        if a.event is not None:
            assert a.event.delta == pytest.approx(b.event.delta, abs=1e-4)
            assert {**a.event.to_dict(), "delta": 0} == {**b.event.to_dict(), "delta": 0}
    assert caches[0].memory.sources == caches[1].memory.sources == caches[2].memory.sources


def test_the_random_settings_reach_every_branch():
    settings = [random_setting(seed) for seed in range(30)]
    policies = [policy for _, _, policy, _, _ in settings]
    memory = [p.episodic for p in policies if p.memory.episodic_frames]
    assert {p.rope for p in policies} == {"contiguous", "absolute"}
    assert {e.eviction for e in memory} == {"summary", "fifo"}
    assert {e.token_selection for e in memory} == {"prompt", "random"}
    assert {e.admission for e in memory} == {"novelty", "uniform"}
    assert {e.center_keys for e in memory} == {e.pin_first for e in memory} == {True, False}
    assert {f for _, _, _, f, _ in settings} == {1, 2, 3}


def test_a_pinned_entry_is_never_merged_and_a_free_one_is(model):
    pinned = CachePolicy(episodic=EpisodicPolicy(novelty_threshold=2.0, update_interval=1, pin_first=True))
    cache = new_cache(model, mixed(model), pinned, 30)
    film(model, cache, 30)
    assert cache.memory.sources[0] == [0]
    assert len(cache.memory.sources[1]) > 10
    assert len(cache.memory.sources) == 5


def test_fifo_forgets_the_oldest_entry_and_says_so(model):
    policy = CachePolicy(episodic=EpisodicPolicy(update_interval=1, admission="uniform", eviction="fifo"))
    cache = new_cache(model, mixed(model), policy, 9)
    events = [block.event for block in film(model, cache, 9) if block.event]
    assert cache.memory.sources == [[9], [12], [15], [18], [21]]
    assert [event.dropped for event in events] == 5 * [None] + [[0], [3], [6]]
    assert "dropped" in events[-1].to_dict() and "dropped" not in events[0].to_dict()


def test_uniform_admission_takes_every_candidate_and_a_low_threshold_only_the_first(model):
    for admission, threshold, entries in (("uniform", -1.0, 4), ("novelty", -1.0, 1), ("novelty", 2.0, 4)):
        episodic = EpisodicPolicy(threshold, update_interval=2, admission=admission)
        cache = new_cache(model, mixed(model), CachePolicy(episodic=episodic), 8)
        events = [block.event for block in film(model, cache, 8) if block.event]
        assert [event.frame for event in events] == [0, 6, 12, 18]
        assert len(cache.memory.sources) == entries
        assert events[0].delta == -1.0 and all(-1 <= event.delta <= 1.0001 for event in events[1:])


def test_candidates_are_the_first_frames_of_every_third_block_once_it_left_fast_memory():
    frames = [candidate_frame(block, 3, 3, 3) for block in range(8)]
    assert frames == [None, 0, None, None, 9, None, None, 18]
    assert [candidate_frame(block, 1, 2, 2) for block in range(6)] == [None, None, 0, None, 2, None]


@pytest.mark.parametrize("kind", [HeadCache, ReferenceCache])
def test_a_model_without_memory_heads_keeps_no_episodic_memory(model, kind):
    roles = [[role if role != "memory" else "anchor" for role in row] for row in mixed(model)]
    cache = new_cache(model, roles, BUSY, 6, kind)
    blocks = film(model, cache, 6)
    assert all(block.event is None for block in blocks)
    assert cache.memory.sources == []


def test_memory_heads_of_all_layers_share_one_decision(model):
    """Layers without memory heads have no say and hold no entries; the others hold the same frames."""
    roles = mixed(model)
    roles[1] = ["anchor"] * 5
    cache = new_cache(model, roles, BUSY, 10)
    film(model, cache, 10)
    group = cache.memory_group
    assert [len(k) for k in group.k] == [row.count("memory") for row in roles]
    assert len(cache.memory.entries[0].pooled) == sum(row.count("memory") for row in roles)
    assert group.sources[: group.entries] == cache.memory.sources


# ------------------------------------------------------- episodic decisions, on numbers small enough to do by hand


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


def test_centred_keys_forget_what_all_frames_share():
    common = torch.tensor([[100.0, 0.0]])
    frames = [common + unit(degrees) / (1 + degrees / 10) for degrees in (0, 120, 240)]
    assert similarities(frames).min() > 0.9
    assert similarities(frames, center=True)[0, 1] < 0


@pytest.mark.parametrize(
    ("degrees", "first", "pair"),
    [([0, 50, 90, 94, 140], 0, (2, 3)), ([0, 1, 90, 99, 150], 0, (0, 1)), ([0, 1, 90, 99, 150], 1, (2, 3))],
)
def test_the_most_similar_pair_may_lie_anywhere_behind_a_pinned_entry(degrees, first, pair):
    assert most_similar_pair(similarities([unit(d) for d in degrees]), first) == pair


def test_the_earliest_pair_wins_a_tie():
    assert most_similar_pair(torch.ones(4, 4)) == (0, 1)
    assert most_redundant_entry(torch.ones(4, 4)) == 1


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
    assert select_tokens(keys, prompt_key, 2).tolist() == [1, 2]  # sums: 1.0, 1.64, 1.98, 1.5 and 1.11
    assert select_tokens(keys, prompt_key, 1).tolist() == [2]
    assert select_tokens(100 * keys, prompt_key / 7, 2).tolist() == [1, 2]


def test_random_tokens_are_ascending_distinct_and_a_function_of_their_seed():
    once, again, other = (random_tokens(40, 20, seed) for seed in (7, 7, 8))
    assert torch.equal(once, again) and not torch.equal(once, other)
    assert once.tolist() == sorted(set(once.tolist())) and len(once) == 20 and once.max() < 40


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


def test_a_rejected_candidate_merges_nothing():
    memory, events, calls = remember([0, 60, 120, 61], EpisodicPolicy(0.9))
    assert not events[-1].admitted and events[-1].merged is None
    assert calls == [("admit", 0), ("admit", 3), ("admit", 6)]


# ------------------------------------------------------------------------------------------------------ attention


def works(name: str) -> bool:
    try:
        attention_function(name)
    except HeadForcingError:
        return False
    return True


WORKING = [name for name in BACKENDS if works(name)]


@pytest.mark.parametrize("name", ["auto", *WORKING])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_every_backend_gives_softmax_attention(name, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, n, 22, generator=generator, dtype=torch.float64) for n in (7, 31, 31))
    scores = torch.einsum("hqd,hkd->hqk", q, k) / math.sqrt(22)
    expected = torch.einsum("hqk,hkd->hqd", scores.softmax(-1), v)
    out = attention_function(name)(q.to(dtype), k.to(dtype), v.to(dtype))
    assert out.dtype == dtype
    assert difference(out.double(), expected) < tolerance


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(HeadForcingError, match="attention must be one of auto, .*sdpa, .*explicit.*'warp'"):
        attention_function("warp")


@pytest.mark.parametrize("shift", [1, 17, 5000, -3])
def test_attention_does_not_change_when_all_indices_are_shifted_alike(shift):
    rope = RotaryEmbedding(26, 2, 3)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(4, n, 6, 26, generator=generator) for n in (3, 8, 8))

    def attend(offset: int) -> torch.Tensor:
        keys = rope.rotate_temporal(k, [offset + i for i in range(8)])
        queries = rope.rotate_temporal(q, [offset + i for i in (5, 6, 7)])
        return explicit(queries.flatten(1, 2), keys.flatten(1, 2), v.flatten(1, 2))

    assert difference(attend(0), attend(shift)) < 1e-5
    moved = rope.rotate_temporal(q, [8, 9, 10])  # queries alone must not move
    keys = rope.rotate_temporal(k, range(8))
    assert difference(attend(0), explicit(moved.flatten(1, 2), keys.flatten(1, 2), v.flatten(1, 2))) > 1e-2


def test_re_encoding_changes_nothing_in_a_sliding_window_and_something_behind_a_sink(model):
    roles = every_head(model, "memory")
    for sinks, same in ((0, True), (1, False)):
        policies = [CachePolicy.uniform(RolePolicy(sinks, 4), rope) for rope in ("absolute", "contiguous")]
        absolute, contiguous = (make(model, roles, policy, 9) for policy in policies)
        assert (difference(absolute, contiguous) < 1e-4) == same
        assert difference(absolute[:2], contiguous[:2]) < 1e-5


# ----------------------------------------------------------------------------------------------- rotary embedding


def complex_rotation(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The definition, in float64: `x [..., d]` as complex pairs times e^(i angle `[..., d/2]`)."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def frequencies(dim: int) -> torch.Tensor:
    return torch.tensor([10000.0 ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)


@pytest.fixture
def keys() -> torch.Tensor:
    return torch.randn(4, 3, 6, 26, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("head_dim", "dims"), [(128, (44, 42, 42)), (32, (12, 10, 10)), (26, (10, 8, 8)), (6, (2, 2, 2))]
)
def test_channels_are_split_between_time_height_and_width(head_dim, dims):
    assert axis_dims(head_dim) == dims


@pytest.mark.parametrize("head_dim", [0, 4, 7, 27, -6])
def test_a_head_too_narrow_or_odd_for_three_axes_is_refused(head_dim):
    with pytest.raises(HeadForcingError, match=f"head_dim must be even and at least 6.*got {head_dim}"):
        axis_dims(head_dim)


@pytest.mark.parametrize("index", [0, 3, 1023, 1024, 5000, 240_000, -7])
def test_temporal_angles_are_exact_at_any_index(keys, index):
    """A float32 angle at index 5000 would be off by 3e-4, a table would have ended at 1024."""
    rope = RotaryEmbedding(26, 2, 3)
    turned = rope.rotate_temporal(keys, [index, index + 1, index + 2])
    positions = torch.arange(index, index + 3, dtype=torch.float64)
    expected = complex_rotation(keys[..., :10], positions[:, None, None] * frequencies(10))
    assert difference(turned[..., :10].double(), expected) < 2e-6
    assert torch.equal(turned[..., 10:], keys[..., 10:])


def test_spatial_rotation_follows_row_and_column_of_each_token(keys):
    turned = RotaryEmbedding(26, 2, 3).rotate_spatial(keys)
    rows = torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.float64)[:, None] * frequencies(8)
    columns = torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.float64)[:, None] * frequencies(8)
    assert difference(turned[..., 10:18].double(), complex_rotation(keys[..., 10:18], rows)) < 2e-6
    assert difference(turned[..., 18:].double(), complex_rotation(keys[..., 18:], columns)) < 2e-6
    assert torch.equal(turned[..., :10], keys[..., :10])


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 5e-7), (torch.bfloat16, 0.02), (torch.float16, 2e-3)])
def test_one_complex_multiplication_rotates_as_pair_after_pair(keys, dtype, off, monkeypatch):
    """Devices without complex numbers take the other way; each in place and into strided memory, too."""
    x = keys.to(dtype).permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)

    def ways() -> list[torch.Tensor]:
        rope = RotaryEmbedding(26, 2, 3)
        into, rerotated = torch.zeros(4, 5, 6, 26, dtype=dtype), x.clone()
        rope.rotate(x, [3, 1, 7], out=into[:, 1:4])
        return [rope.rotate(x, [3, 1, 7]), into, rope.rerotate(rerotated, [3, 1, 7]), rope.rotate_spatial(x)]

    at_once = ways()
    monkeypatch.setattr(rope_module, "COMPLEX_DEVICES", ())
    for one, other in zip(at_once, ways(), strict=True):
        assert one.dtype == dtype and difference(one.float(), other.float()) <= off


def test_rotations_add_up_keep_norms_and_commute(keys):
    rope = RotaryEmbedding(26, 2, 3)
    a, b = [2, 0, 700], [-9, 4, 31]
    both = rope.rotate_temporal(rope.rotate_temporal(keys, a), b)
    assert difference(both, rope.rotate_temporal(keys, [x + y for x, y in zip(a, b, strict=True)])) < 5e-6
    assert difference(rope.rotate_temporal(rope.rotate_temporal(keys, a), [-x for x in a]), keys) < 5e-6
    assert difference(both.norm(dim=-1), keys.norm(dim=-1)) < 5e-6
    assert difference(both, keys) > 0.1
    one, other = rope.rotate_spatial(rope.rotate_temporal(keys, a)), rope.rotate_temporal(rope.rotate_spatial(keys), a)
    assert torch.equal(one, other)


def test_keys_kept_in_bf16_are_turned_in_place_for_60_blocks_with_a_bounded_error():
    """Against one float32 rotation of the raw key: within 2% of a key's size, and no worse late than early.

    Values carry the frame and token they came from, so that every slot is checked, a summary's mixed tokens too.
    """
    blocks, tokens, layers, heads = 60, 6, 2, 3
    config = WanConfig(dim=heads * 26, num_layers=layers, num_heads=heads, ffn_dim=8)
    roles = [["memory", "anchor", "memory"]] * layers
    cache = HeadCache(CacheShape.for_model(config, roles, BUSY, HEIGHT, WIDTH, F, blocks * F), torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(layers, blocks * F, tokens, heads, 26, generator=generator).bfloat16()
    prompt = PromptKV([(torch.randn(1, heads, 4, 26, generator=generator),) * 2] * layers, 4)
    values = torch.zeros(blocks * F, tokens, heads, 26)
    values[..., 0] = torch.arange(blocks * F)[:, None, None]
    values[..., 1] = torch.arange(tokens)[None, :, None]
    rope = RotaryEmbedding(26, 2, 3)
    in_place = rope.rotate_spatial(raw.float().transpose(2, 3))  # [layers, frames, heads, tokens, d]

    def error(group, layer: int, slot: int) -> float:
        frame, token = group.v[layer][:, slot, :, :2].long().unbind(-1)  # [heads, tokens] each
        assert set(frame.flatten().tolist()) <= set(group.sources[slot])
        exact = rope.rotate_temporal(
            in_place[layer, frame, group.heads[layer][:, None], token][:, None], [group.indices[slot]]
        )[:, 0]
        return float(((group.k[layer][:, slot].float() - exact).norm(dim=-1) / exact.norm(dim=-1)).max())

    errors = []
    for block in range(blocks):
        cache.begin_block()
        frames = slice(F * block, F * block + F)
        for layer in range(layers):
            cache.write(layer, raw[layer, frames].flatten(0, 1), values[frames].flatten(0, 1).bfloat16())
        errors.append(max(error(g, layer, slot) for g in cache.groups for layer in (0, 1) for slot in range(g.frames)))
        cache.commit(prompt)
    assert cache.memory.has_summary and len(cache.memory.sources[0]) > 40
    assert 1e-4 < max(errors) < 0.02
    assert max(errors[40:]) < 1.5 * max(errors[10:30])


# --------------------------------------------------------------------------------------------------- forward pass


class KeptKeysAndValues:
    """A cache that only remembers what was written: attention sees the block itself."""

    def __init__(self):
        self.written = {}

    def write(self, layer, k, v):
        self.written[layer] = (k, v)

    def attend(self, layer, q):
        k, v = (x.transpose(0, 1) for x in self.written[layer])
        return explicit(q.transpose(0, 1), k, v).transpose(0, 1)


def block_input(seed=0) -> torch.Tensor:
    return torch.randn(F, 16, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(seed))


def run_block(model, timesteps, write_only=False, prompt=None, x=None):
    cache = KeptKeysAndValues()
    prompt = prompt or encode_prompt(model, embeds(model)[0], torch.float32)
    times = torch.tensor(timesteps, dtype=torch.float64)
    flow = forward_block(model, block_input() if x is None else x, times, prompt, cache, write_only=write_only)
    return flow, cache.written


def test_the_clean_pass_stores_what_a_full_pass_stores_and_stops_after_the_last_keys_and_values(model):
    called = []
    last = model.blocks[-1]
    hooks = [
        m.register_forward_hook(lambda *_: called.append(1)) for m in (last.self_attn.q, last.ffn, model.head.head)
    ]
    try:
        flow, full = run_block(model, [0.0] * F)
        assert flow.shape == (F, 16, HEIGHT, WIDTH)
        assert len(called) == 3
        nothing, clean = run_block(model, [0.0] * F, write_only=True)
        assert nothing is None
        assert len(called) == 3
    finally:
        for hook in hooks:
            hook.remove()
    assert list(clean) == list(full) == [0, 1, 2]
    for layer in full:
        for a, b in zip(clean[layer], full[layer], strict=True):
            assert torch.equal(a, b)


def test_every_frame_has_its_own_timestep(model):
    """Before attention mixes frames (layer 0), a frame's keys are those of a block that is all at its timestep."""
    mixed_flow, mixed_written = run_block(model, [900.0, 400.0, 0.0])
    for frame, t in enumerate((900.0, 400.0, 0.0)):
        flow, written = run_block(model, [t] * F)
        rows = slice(6 * frame, 6 * frame + 6)
        for a, b in zip(mixed_written[0], written[0], strict=True):
            assert difference(a[rows], b[rows]) < 1e-5
            assert difference(a, b) > 1e-3
        assert difference(flow[frame], mixed_flow[frame]) > 1e-3  # the other frames have changed what it sees


class OwnFrameOnly(KeptKeysAndValues):
    """Attention that never crosses frames, so that every frame is a video of its own."""

    def attend(self, layer, q):
        k, v = self.written[layer]
        by_frame = (x.unflatten(0, (-1, 6)).transpose(1, 2) for x in (q, k, v))
        return torch.cat([explicit(*frame).transpose(0, 1) for frame in zip(*by_frame, strict=True)])


def test_every_modulation_and_gate_belongs_to_its_own_frame(model):
    """With attention kept inside frames, a block at three timesteps is three one-frame blocks, to the last layer."""
    prompt = encode_prompt(model, embeds(model)[0], torch.float32)
    times = torch.tensor([900.0, 400.0, 0.0], dtype=torch.float64)
    x = block_input()
    together = forward_block(model, x, times, prompt, OwnFrameOnly())
    alone = [forward_block(model, x[i : i + 1], times[i : i + 1], prompt, OwnFrameOnly()) for i in range(F)]
    assert difference(together, torch.cat(alone)) < 1e-5


def test_a_frames_timestep_changes_the_first_layers_keys_of_that_frame_only(model):
    _, before = run_block(model, [900.0, 400.0, 10.0])
    _, after = run_block(model, [900.0, 500.0, 10.0])
    changed = (before[0][0] - after[0][0]).abs().amax(dim=(1, 2)) > 1e-6
    assert changed.tolist() == 6 * [False] + 6 * [True] + 6 * [False]


def test_a_noise_level_is_a_thousandth_of_the_timestep_and_scales_the_flow_taken_off(model):
    video = WanVideoModel(model, embeds(model), torch.float32)
    video.use_prompt(0)
    flow = video.flow(block_input(), 0.8333, KeptKeysAndValues())
    assert difference(flow, run_block(model, [833.3] * F)[0]) < 1e-6
    clean = video.denoise(block_input(), 0.8333, KeptKeysAndValues())
    assert difference(clean, block_input() - 0.8333 * flow) < 1e-6


@pytest.mark.parametrize(
    ("rows", "zero_rows", "valid"),
    [(4, [], 4), (4, [3], 3), (5, [1, 4], 4), (7, [], 7), (12, [], 7), (12, [5, 6], 5), (3, [0, 1, 2], 1), (0, [], 1)],
)
def test_trailing_zero_rows_of_a_prompt_are_padding_and_inner_ones_are_not(model, rows, zero_rows, valid):
    text = torch.randn(rows, 10, generator=torch.Generator().manual_seed(0))
    text[zero_rows] = 0
    prompt = encode_prompt(model, text, torch.float32)
    assert prompt.valid_tokens == valid
    assert all(k.shape == v.shape == (1, 5, 7, 22) for k, v in prompt.layers)
    expected = prompt.layers[1][0][0, :, :valid].mean(dim=1)
    assert difference(prompt.mean_key(1), expected) < 1e-6


def test_explicit_padding_rows_equal_missing_ones_and_take_part_in_cross_attention(model):
    text = embeds(model)[0]
    padded = torch.cat([text, torch.zeros(7 - len(text), 10)])
    short, long = encode_prompt(model, text, torch.float32), encode_prompt(model, padded, torch.float32)
    assert short.valid_tokens == long.valid_tokens == 4
    for a, b in zip(short.layers, long.layers, strict=True):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    without = PromptKV([(k[:, :, :4], v[:, :, :4]) for k, v in short.layers], 4)
    assert (
        difference(run_block(model, [500.0] * F, prompt=short)[0], run_block(model, [500.0] * F, prompt=without)[0])
        > 1e-3
    )


def test_only_the_active_prompt_is_kept(model):
    video = WanVideoModel(model, embeds(model), torch.float32)
    video.use_prompt(0)
    first = video.prompt
    video.use_prompt(1)
    assert video.prompt is not first
    assert difference(video.prompt.layers[0][0], first.layers[0][0]) > 1e-2


def test_weights_that_do_not_fill_the_model_are_named(model):
    state = dict(model.state_dict())
    bias = state.pop("blocks.1.ffn.2.bias")
    with pytest.raises(HeadForcingError, match=r"lack 1 tensors of a Wan model, first 'blocks\.1\.ffn\.2\.bias'"):
        WanModel.from_state_dict(model.config, state, torch.float32)
    with pytest.raises(HeadForcingError, match="1 unknown tensors, first 'extra'"):
        WanModel.from_state_dict(model.config, {**state, "blocks.1.ffn.2.bias": bias, "extra": bias}, torch.float32)


def test_a_bf16_model_keeps_its_patch_embedding_in_float32(model):
    copy = WanModel.from_state_dict(model.config, dict(model.state_dict()), torch.bfloat16)
    assert copy.patch_embedding.weight.dtype == torch.float32
    assert copy.blocks[0].ffn[0].weight.dtype == torch.bfloat16


def test_nothing_is_float64_on_the_device(model):
    """Torch's `mps` device refuses float64, so a rollout on a Mac would stop at the first step."""
    config = model.config
    with torch.device("meta"):
        empty_model = WanModel(config)
        video = WanVideoModel(empty_model, [], torch.float32, "meta")
        video.prompt = PromptKV([(torch.empty(1, 5, 7, 22),) * 2] * 3, 2)
        x = torch.empty(F, 16, HEIGHT, WIDTH)
    shape = CacheShape.for_model(config, mixed(model), CachePolicy(), HEIGHT, WIDTH, F, 9)
    cache = HeadCache(shape, torch.float32, "meta")
    cache.begin_block()
    with RefuseFloat64():
        assert video.denoise(x, 0.5, cache).shape == x.shape


@pytest.mark.parametrize("heads", [0, 7])
def test_heads_that_do_not_divide_the_width_are_refused(heads):
    with pytest.raises(HeadForcingError, match=f"num_heads must divide the model width 110, got {heads}"):
        WanConfig(dim=110, num_heads=heads)


def test_a_bf16_rollout_follows_the_float32_one_for_a_while(model):
    """bf16 end to end: the first block within 5% of the latents' size, and the dtypes never leak into the latents."""
    roles = mixed(model)
    exact = make(model, roles, BUSY, 6)
    copy = WanModel.from_state_dict(model.config, dict(model.state_dict()), torch.bfloat16)
    video = WanVideoModel(copy, embeds(model), torch.bfloat16)
    cache = new_cache(model, roles, BUSY, 6, dtype=torch.bfloat16)
    blocks = list(rollout(video, cache, TWO_STEPS, SeededNoise(3, (F, 16, HEIGHT, WIDTH)), [0] * 6))
    assert blocks[0].latents.dtype == torch.float32
    assert difference(blocks[0].latents, exact[0]) < 0.05 * float(exact[0].abs().max())
    assert latents(blocks).isfinite().all()
