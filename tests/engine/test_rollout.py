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
from headforcing.headforcing_core.timeline.switch import Switch
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


def test_the_same_seed_gives_the_same_bytes_whatever_the_length_and_another_one_does_not(model):
    roles = mixed(model)
    once = make(model, roles, BUSY, 8)
    assert torch.equal(once, make(model, roles, BUSY, 8)) and torch.equal(make(model, roles, BUSY, 11)[:8], once)
    assert difference(once[0], make(model, roles, BUSY, 8, seed=4)[0]) > 0.1


def test_the_noise_of_the_next_block_is_drawn_ahead(model, monkeypatch):
    drawn, ahead = [], SeededNoise.ahead
    monkeypatch.setattr(SeededNoise, "ahead", lambda self, *row: [drawn.append(row), ahead(self, *row)])
    make(model, mixed(model), BUSY, 3)
    assert drawn == [(1, 3), (2, 3)]


@pytest.mark.parametrize("switches", [{}, {4: Switch("recache"), 8: Switch("flush", re_anchor=True)}], ids=len)
@pytest.mark.parametrize("start_blocks", [1, 4, 9])
def test_extending_a_video_is_the_same_as_never_having_stopped(model, start_blocks, switches):
    roles, prompts = mixed(model), [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    whole = make(model, roles, BUSY, 11, prompts=prompts, switches=switches)
    cache, start = new_cache(model, roles, BUSY, 11), whole[:start_blocks].flatten(0, 1)
    extended = film(model, cache, 11, prompts=prompts, switches=switches, start=start)
    assert [block.index for block in extended] == list(range(11)) and torch.equal(latents(extended), whole)

    stopped, resumed = (new_cache(model, roles, BUSY, 11) for _ in range(2))
    told = dict(prompts=prompts[:start_blocks], switches={b: s for b, s in switches.items() if b < start_blocks})
    film(model, stopped, start_blocks, **told)
    nothing_more = film(model, resumed, start_blocks, start=start, **told)
    assert torch.equal(latents(nothing_more), whole[:start_blocks])
    assert_same_contents(stopped, resumed)


@pytest.mark.parametrize(("frames", "drop"), [(4, 1), (2, 2), (11, 2), (0, 0)])
def test_start_frames_that_do_not_fill_blocks_are_refused(frames, drop):
    with pytest.raises(HeadForcingError, match=rf"whole blocks of 3 latent frames, got {frames}; drop {drop} from"):
        split_start_latents(torch.zeros(frames, 16, HEIGHT, WIDTH), F)


class Stop(Exception):
    pass


class CountingModel(WanVideoModel):
    calls = 0

    def flow(self, *args, **options):
        self.calls += 1
        return super().flow(*args, **options)


def counting_rollout(model, blocks, switches=None, **options):
    video, script = (
        CountingModel(model, torch.float32),
        script_of([0] * blocks, TWO_STEPS, embeds(model), switches=switches),
    )
    cache = new_cache(model, mixed(model), CachePolicy(), blocks)
    return video, rollout(video, cache, script, SeededNoise((F, 16, HEIGHT, WIDTH)), **options)


@pytest.mark.parametrize(("block", "step", "at", "calls"), [
    (0, 0, 0, 0), (0, 1, 0, 1), (0, 2, 0, 2), (2, 1, 0, 7), (3, 0, 0, 9),
    (4, 0, 0, 12), (4, 0, 1, 13), (4, 0, 2, 14),  # before both passes of a recache, and before the first step
])  # fmt: skip
def test_raising_from_on_step_stops_before_the_next_model_call(model, block, step, at, calls):
    seen = []

    def stop(at_block, at_step, clean):
        assert (clean is None) == (at_step == 0)
        seen.append((at_block, at_step))
        if seen.count((block, step)) > at:
            raise Stop

    video, blocks = counting_rollout(model, 6, {4: Switch("recache")}, on_step=stop)
    with pytest.raises(Stop):
        list(blocks)
    assert video.calls == calls  # two steps and a clean pass a block


def test_a_start_video_can_be_stopped_between_its_blocks_and_no_block_is_made_that_is_not_taken(model):
    def stop(block, step, clean):
        if block == 2:
            raise Stop

    video, blocks = counting_rollout(model, 6, given=torch.zeros(12, 16, HEIGHT, WIDTH).split(F), on_step=stop)
    with pytest.raises(Stop):
        list(blocks)
    assert video.calls == 2
    video, blocks = counting_rollout(model, 6)
    assert video.calls == 0 and [next(blocks).index for _ in range(2)] == [0, 1] and video.calls == 6
    blocks.close()
    assert video.calls == 6 and list(blocks) == []


class Elsewhere:
    """A cache and a model on a device that holds no data, which count what is written."""

    device, block, prompt, backbone = torch.device("meta"), 0, None, None

    def __init__(self):
        self.written = []

    def begin(self, *args, **options):
        pass

    use_prompt = begin_block = rewind = commit = begin

    def switch_blocks(self, switch):
        return 0

    def write_clean(self, latents, cache):
        self.written.append(latents.device.type)


def unread(blocks):
    return script_of([0] * blocks, TWO_STEPS, [torch.zeros(1, 1)])


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


def tensor_bytes() -> int:
    gc.collect()
    tensors = (x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter))  # no compiled code's
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


def tiny(**sizes):
    return wan(**sizes, head_dim=6, ffn_dim=8, freq_dim=8, text_dim=4, text_len=3)


def held_at(model, cache, blocks, places, size):
    """The memory that is held after some blocks of a video: frame-slots, entries, and bytes of all tensors."""
    script = script_of([block // 50 % 2 for block in range(blocks)], Schedule((1.0,), F), embeds(model))
    held = []
    for block in rollout(WanVideoModel(model, torch.float32), cache, script, SeededNoise((F, 16, *size))):
        assert block.latents.isfinite().all()
        if block.index in places:  # not the last one, which has no noise of a next one beside it
            held.append((cache.occupied, tensor_bytes()))
    return held


@pytest.mark.slow
def test_1200_latent_frames_need_no_more_memory_than_120_and_stay_finite():
    model, size = tiny(layers=1, heads=3), (2, 4)
    cache = new_cache(model, [["local", "anchor", "memory"]], BUSY, 400, size=size)
    first, last = held_at(model, cache, 400, (39, 398), size)
    assert first == last and cache.shape.frame_slots == 4 + 7 + 11 and len(cache.memory.entries) == 5


def test_what_forcing_kv_holds_does_not_grow():
    """Its chunks have one size here. Their lists leave gaps in a CPU's memory, so that the process may look larger."""
    model, policy, size = tiny(layers=2, heads=2), method_policy("forcing_kv"), (4, 12)
    shape = policy.shape(model.config, [["local", "memory"]] * 2, *size, F, 200 * F)
    cache = policy.make_cache(shape, torch.float32, "cpu", sdpa)
    first, last = held_at(model, cache, 200, (98, 198), size)  # by the first, 64 tables of positions are kept
    assert first == last


@pytest.mark.slow
def test_a_video_of_1200_frames_ends_as_it_would_have_without_a_position_limit():
    """Contiguous contexts of a window without sink are the absolute ones shifted, also beyond index 1024."""
    model, size = tiny(layers=1, heads=2), (2, 4)
    absolute, contiguous = (
        film(
            model,
            new_cache(
                model,
                every_head(model, "local"),
                CachePolicy.uniform(RolePolicy(recent_frames=2), rope),
                380,
                size=size,
            ),
            380,
            schedule=Schedule((1.0,), F),
            size=size,
        )
        for rope in ("absolute", "contiguous")
    )
    assert difference(latents(absolute), latents(contiguous)) < 1e-4
