"""A rollout gives the same bytes again, extends, stops where it is told and takes no more memory when it is longer."""

import gc

import pytest
import torch
from headforcing.headforcing_core.cache.method import RolloutInputs
from headforcing.headforcing_core.cache.policy import CachePolicy
from headforcing.headforcing_core.cache.roles import RolePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.causvid import CausVid
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.methods.rolling_forcing import RollingForcing
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.rollout.loop import WanVideoModel, rollout, split_start_latents
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import Schedule
from scripts import script_of
from small_engine import (
    BUSY,
    HEIGHT,
    TWO_STEPS,
    WIDTH,
    F,
    assert_same_contents,
    difference,
    embeds,
    every_head,
    film,
    latents,
    make,
    mixed,
    new_cache,
    wan,
)
from torch.multiprocessing.reductions import StorageWeakRef


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(model):
    roles = mixed(model)
    once = make(model, roles, BUSY, 8)
    assert torch.equal(once, make(model, roles, BUSY, 8))
    assert difference(once[0], make(model, roles, BUSY, 8, seed=4)[0]) > 0.1


def test_a_longer_video_begins_with_the_bytes_of_the_shorter_one(model):
    roles = mixed(model)
    assert torch.equal(make(model, roles, BUSY, 11)[:7], make(model, roles, BUSY, 7))


def test_the_noise_of_the_next_block_is_drawn_ahead(model, monkeypatch):
    drawn, ahead = [], SeededNoise.ahead
    monkeypatch.setattr(SeededNoise, "ahead", lambda self, *row: [drawn.append(row), ahead(self, *row)])
    make(model, mixed(model), BUSY, 3)
    assert drawn == [(1, 3), (2, 3)]


@pytest.mark.parametrize("start_blocks", [1, 4, 9])
def test_extending_a_video_is_the_same_as_never_having_stopped(model, start_blocks):
    roles, prompts = mixed(model), [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    whole = make(model, roles, BUSY, 11, prompts=prompts)
    cache = new_cache(model, roles, BUSY, 11)
    extended = film(model, cache, 11, prompts=prompts, start=whole[:start_blocks].flatten(0, 1))
    assert [block.index for block in extended] == list(range(11))
    assert torch.equal(latents(extended), whole)

    stopped, resumed = (new_cache(model, roles, BUSY, 11) for _ in range(2))
    film(model, stopped, start_blocks, prompts=prompts[:start_blocks])
    start = whole[:start_blocks]
    nothing_more = film(model, resumed, start_blocks, prompts=prompts[:start_blocks], start=start.flatten(0, 1))
    assert torch.equal(latents(nothing_more), start)
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
            start=start,
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
    video, script = CountingModel(model, torch.float32), script_of([0] * blocks, TWO_STEPS, embeds(model))
    cache = new_cache(model, mixed(model), CachePolicy(), blocks)
    return video, rollout(video, cache, script, SeededNoise((F, 16, HEIGHT, WIDTH)), **options)


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


class Elsewhere:
    """A cache and a model on a device that holds no data, which count what is written."""

    device, block, prompt, backbone = torch.device("meta"), 0, None, None

    def __init__(self):
        self.written = []

    def use_prompt(self, prompt):
        pass

    def begin(self, *args, **options):
        pass

    begin_block = rewind = begin

    def switch_blocks(self, switch):
        return 0

    def write_clean(self, latents, cache):
        self.written.append(latents.device.type)

    def commit(self, prompt):
        return None


def unread(blocks, steps=TWO_STEPS):
    return script_of([0] * blocks, steps, [torch.zeros(1, 1)])


LOOPS = {
    "rollout": lambda there, made: rollout(there, there, unread(6), None, made),
    "rolling_forcing": lambda there, made: RollingForcing().rollout(
        there, there, RolloutInputs(unread(6), None, given=made, unfinished=[torch.zeros_like(made[0])])
    ),
    "causvid": lambda there, made: CausVid().rollout(there, there, RolloutInputs(unread(8), None, given=made)),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_finished_blocks_are_put_on_the_device_one_at_a_time(loop):
    """Those of a long video would take gigabytes of a GPU."""
    there, made = Elsewhere(), [torch.zeros(3, 16, 2, 2) for _ in range(5)]
    blocks, alive = LOOPS[loop](there, made), []
    for _ in made:
        latents = next(blocks).latents
        assert latents.device == there.device
        alive.append(StorageWeakRef(latents.untyped_storage()))
        del latents
        assert sum(not block.expired() for block in alive) <= (5 if loop == "causvid" else 1)
    assert there.written == ["meta"] * 5 and {block.device.type for block in made} == {"cpu"}


def test_a_rollout_makes_no_block_that_is_not_taken(model):
    video, blocks = counting_rollout(model, 6)
    assert video.calls == 0
    assert next(blocks).index == 0
    assert next(blocks).index == 1
    assert video.calls == 6
    blocks.close()
    assert video.calls == 6
    assert list(blocks) == []


def tensor_bytes() -> int:
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):  # not the stand-ins of compiled code
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.slow
def test_1200_latent_frames_need_no_more_memory_than_120_and_stay_finite():
    model = wan(layers=1, heads=3, head_dim=6, ffn_dim=8, freq_dim=8, text_dim=4, text_len=3)
    size = (2, 4)
    cache = new_cache(model, [["local", "anchor", "memory"]], BUSY, 400, size=size)
    script = script_of([block // 50 % 2 for block in range(400)], Schedule((1.0,), F), embeds(model))
    held = {}
    for block in rollout(WanVideoModel(model, torch.float32), cache, script, SeededNoise((F, 16, *size))):
        assert block.latents.isfinite().all()
        if block.index in (39, 398):  # the last block has no noise of a next one beside it
            slots = [len(group.sources) for group in cache.groups]
            held[block.index] = (cache.bytes, slots, len(cache.memory.entries), tensor_bytes())
    assert held[39] == held[398]
    assert cache.shape.frame_slots == 4 + 7 + 11


def test_what_forcing_kv_holds_does_not_grow():
    """Its chunks have one size here. Their lists leave gaps in a CPU's memory, so that the process may look larger."""
    model = wan(layers=2, heads=2, head_dim=6, ffn_dim=8, freq_dim=8, text_dim=4, text_len=3)
    policy, size = method_policy("forcing_kv"), (4, 12)
    shape = policy.shape(model.config, [["local", "memory"]] * 2, *size, F, 200 * F)
    cache = policy.make_cache(shape, torch.float32, "cpu", sdpa)
    script, held = script_of([0] * 200, Schedule((1.0,), F), embeds(model)), {}
    for block in rollout(WanVideoModel(model, torch.float32), cache, script, SeededNoise((F, 16, *size))):
        if block.index in (98, 198):  # by the first, 64 tables of positions are kept
            held[block.index] = (cache.occupied, tensor_bytes())
    assert held[98] == held[198]


def test_a_start_video_can_be_stopped_between_its_blocks_too(model):
    def stop(block, step, clean):
        if block == 2:
            raise Stop

    start = torch.zeros(12, 16, HEIGHT, WIDTH).split(F)
    video, blocks = counting_rollout(model, 6, given=start, on_step=stop)
    with pytest.raises(Stop):
        list(blocks)
    assert video.calls == 2


@pytest.mark.slow
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
