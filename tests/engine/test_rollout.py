"""A rollout gives the same bytes again, extends, stops where it is told and takes no more memory
when it is longer.
"""

import gc
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
import torch
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.model.wan import forward_block
from headforcing.headforcing_core.rollout.loop import RolloutInputs, WanVideoModel, rollout
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.switch import Switch
from scripts import script_of
from small_engine import (
    BUSY,
    SHAPE,
    TWO_STEPS,
    F,
    difference,
    embeds,
    latents,
    make,
    make_blocks,
    new_cache,
    random_pictures,
    random_roles,
    wan,
)
from torch.multiprocessing.reductions import StorageWeakRef


def test_the_same_seed_gives_the_same_bytes_whatever_the_length_and_another_one_does_not(model):
    roles = random_roles(model)
    once = make(model, roles, BUSY, 8)
    assert torch.equal(once, make(model, roles, BUSY, 8)) and torch.equal(
        make(model, roles, BUSY, 11)[:8], once
    )
    assert difference(once[0], make(model, roles, BUSY, 8, seed=4)[0]) > 0.1


def test_the_noise_of_the_next_block_is_drawn_ahead(model, monkeypatch):
    drawn = []
    ahead = SeededNoise.ahead
    monkeypatch.setattr(
        SeededNoise, "ahead", lambda self, *row: [drawn.append(row), ahead(self, *row)]
    )
    make(model, random_roles(model), BUSY, 3)
    assert drawn == [(1, 3), (2, 3)]


def test_the_cache_knows_clean_passes_from_others(model):
    passes = []

    def noted(*parts, write_only, inputs):
        passes.append((write_only, parts[-1].clean))
        return forward_block(*parts, write_only=write_only, inputs=inputs)

    switches = {2: Switch("recache")}
    cache = new_cache(model, random_roles(model), BUSY, 3)
    make_blocks(model, cache, 3, prompts=[0, 0, 1], switches=switches, forward=noted)
    clean = (True, True)
    block = [(False, False)] * len(TWO_STEPS.sigmas) + [clean]
    again = [clean] * cache.switch_blocks(switches[2])
    assert passes == [*block, *block, *again, *block] and again


@pytest.mark.parametrize("start_blocks", [1, 4, 9])
def test_extending_a_video_is_the_same_as_never_having_stopped(model, start_blocks):
    roles = random_roles(model)
    prompts = [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    switches = {4: Switch("recache"), 8: Switch("flush", re_anchor=True)}
    whole = make(model, roles, BUSY, 11, prompts=prompts, switches=switches)
    cache = new_cache(model, roles, BUSY, 11)
    start = whole[:start_blocks].flatten(0, 1)
    extended = make_blocks(model, cache, 11, prompts=prompts, switches=switches, start=start)
    assert [block.index for block in extended] == list(range(11)) and torch.equal(
        latents(extended), whole
    )


CHANGES = {  # of a script with two start blocks, and the first of its made blocks whose key changes
    "the embedding of the second prompt": (lambda script: script.embeds["1"].mul_(2), 3),
    "the picture of the first prompt": (lambda script: change_picture(script, "picture0_0"), 0),
    "the picture of the second prompt": (lambda script: change_picture(script, "picture5_0"), 3),
    "the seed": (lambda script: change_row(script, 4, seed=8), 2),
    "the noise levels": (lambda script: change_row(script, 4, sigmas=(1.0, 0.5)), 2),
    "the kind of the switch": (lambda script: change_row(script, 5, switch=Switch("flush")), 3),
    "a cut": (lambda script: change_row(script, 5, switch=Switch("recache", re_anchor=True)), 3),
    "a recall": (lambda script: change_row(script, 5, recall_key=(1, 0)), 3),
    "a window": (lambda script: change_row(script, 4, window_frames=7), 2),
}


def change_picture(script, name):
    script.pictures[name] = replace(script.pictures[name], key="of another picture")


def change_row(script, block, **fields):
    script.rows = (
        *script.rows[:block],
        replace(script.rows[block], **fields),
        *script.rows[block + 1 :],
    )


@pytest.mark.parametrize("change", CHANGES)
def test_the_keys_of_all_blocks_from_a_change_on_are_others(model, change):
    script = script_of(
        [0] * 5 + [1] * 3,
        TWO_STEPS,
        [rows.clone() for rows in embeds(model)],
        start_blocks=2,
        switches={5: Switch("recache")},
        pictures={0: random_pictures(), 5: random_pictures()},
    )
    before = script.keys("setup")
    apply, first = CHANGES[change]
    apply(script)
    after = script.keys("setup")
    assert [a == b for a, b in zip(before, after, strict=True)] == [True] * first + [False] * (
        6 - first
    )


@pytest.mark.parametrize("start_blocks", range(4))
def test_the_key_of_the_first_made_block_has_the_pictures_that_start_blocks_were_written_behind(
    model, start_blocks
):
    script = script_of(
        [0] * 5,
        TWO_STEPS,
        embeds(model),
        start_blocks=start_blocks,
        pictures={0: random_pictures()},
    )
    before = script.keys("setup")
    change_picture(script, "picture0_0")
    assert not set(before) & set(script.keys("setup"))


class CountingModel(WanVideoModel):
    calls = 0

    def flow(self, *args, **options):
        self.calls += 1
        return super().flow(*args, **options)


def counting_rollout(model, switches=None, **options):
    video = CountingModel(model, torch.float32)
    script = script_of([0] * 6, TWO_STEPS, embeds(model), switches=switches)
    cache = new_cache(model, random_roles(model), HeadForcing(), 6)
    return video, rollout(video, cache, RolloutInputs(script, SeededNoise(SHAPE), **options))


@pytest.mark.parametrize(
    ("block", "step", "at", "start_blocks", "calls"),
    [
        (0, 0, 0, 0, 0),
        (0, 2, 0, 0, 2),
        (2, 1, 0, 0, 7),
        (3, 0, 0, 0, 9),
        # before both passes of a recache, and before the first step
        (4, 0, 0, 0, 12),
        (4, 0, 1, 0, 13),
        (4, 0, 2, 0, 14),
        (2, 0, 0, 4, 2),  # between two start blocks
    ],
)
def test_raising_from_on_step_stops_before_the_next_model_call(
    model, block, step, at, start_blocks, calls
):
    seen = []

    def stop(at_block, at_step, clean):
        assert (clean is None) == (at_step == 0)
        seen.append((at_block, at_step))
        if seen.count((block, step)) > at:
            raise KeyboardInterrupt

    given = [torch.zeros(SHAPE)] * start_blocks
    video, blocks = counting_rollout(model, {4: Switch("recache")}, on_step=stop, given=given)
    with pytest.raises(KeyboardInterrupt):
        list(blocks)
    assert video.calls == calls  # two steps and a clean pass a block


def test_no_block_is_made_that_is_not_taken(model):
    video, blocks = counting_rollout(model)
    assert (
        video.calls == 0 and [next(blocks).index for _ in range(2)] == [0, 1] and video.calls == 6
    )
    blocks.close()
    assert video.calls == 6


@pytest.mark.parametrize("loop", ["rollout", "rolling_forcing", "causvid"])
def test_finished_blocks_are_put_on_the_device_one_at_a_time(loop):
    """Those of a long video would take gigabytes of a GPU."""
    there = MagicMock(device=torch.device("meta"), block=0)  # a model and a cache
    there.switch_blocks.return_value = 0
    there.shape.frames_per_block = 3
    there.write_clean = lambda latents, cache: written.append(latents.device.type)
    written = []
    alive = []
    made = [torch.zeros(3, 16, 2, 2) for _ in range(5)]
    script = script_of([0] * 8, TWO_STEPS, [torch.zeros(1, 1)])
    extra = {"unfinished": torch.zeros(1, 3, 16, 2, 2)} if loop == "rolling_forcing" else {}
    if loop == "rollout":
        blocks = rollout(there, there, RolloutInputs(script, None, made))
    else:
        inputs = RolloutInputs(script, None, given=made, extra=extra)
        blocks = method_named(loop).rollout(there, there, inputs)
    for _ in made:
        latents = next(blocks).latents
        assert latents.device == there.device
        alive.append(StorageWeakRef(latents.untyped_storage()))
        del latents
        assert sum(not block.expired() for block in alive) <= (5 if loop == "causvid" else 1)
    assert written == ["meta"] * 5 and {block.device.type for block in made} == {"cpu"}


def tensor_bytes() -> int:
    gc.collect()
    # no compiled code's
    tensors = (x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter))
    return sum(
        {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "roles", "size", "blocks", "first"),
    [
        (BUSY, [["local", "anchor", "memory"]], (2, 4), 400, 39),
        # its chunks have one size here, and by block 98 64 tables of positions are kept
        (method_named("forcing_kv"), [["local", "memory"]] * 2, (4, 12), 200, 98),
    ],
    ids=["head_forcing", "forcing_kv"],
)
def test_a_long_video_stays_finite_and_holds_no_more_than_a_short_one(
    method, roles, size, blocks, first
):
    model = wan(
        len(roles), len(roles[0]), head_dim=6, ffn_dim=8, freq_dim=8, text_dim=4, text_len=3
    )
    cache = method.make_cache(
        method.shape(model.config, roles, *size, F, blocks * F), torch.float32, "cpu", sdpa
    )
    script = script_of(
        [block // 50 % 2 for block in range(blocks)], Schedule((1.0,), F), embeds(model)
    )
    held = []
    for block in rollout(
        WanVideoModel(model, torch.float32),
        cache,
        RolloutInputs(script, SeededNoise((F, 16, *size))),
    ):
        assert block.latents.isfinite().all()
        if block.index in (first, blocks - 2):  # the last one has no noise of a next one beside it
            held.append((cache.occupied, tensor_bytes()))
    assert held[0] == held[1]
