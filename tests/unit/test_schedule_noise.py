"""Noise levels and noise: fixed numbers, pure functions, and one clear error for anything a person
can mistype.
"""

import itertools
from dataclasses import replace
from itertools import product

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import MAX_STEPS, SCHEDULES, Schedule, schedule

SHAPE = (3, 16, 4, 6)


def test_self_forcing_has_four_published_levels_and_framewise_families_fewer_after_the_first_block():
    published = SCHEDULES["self_forcing"].sigmas
    assert [1000 * sigma for sigma in published] == pytest.approx(
        [1000, 937.5, 833.3333129882812, 625], abs=2.5e-5
    )
    row = schedule("causal_forcing_framewise_1_step")
    assert row.frames_per_block == 1 and row.for_block(0) == published
    assert row.for_block(1) == row.for_block(50) == (1.0,)
    assert len(schedule("causal_forcing_framewise_2_steps").for_block(1)) == 2
    assert schedule("causal_forcing_chunkwise").for_block(0) == schedule(
        "causal_forcing_chunkwise"
    ).for_block(9)


def test_noise_levels_are_read_as_a_person_types_them_or_refused_in_one_short_line():
    hundred = " ".join(str(1 - i / 200) for i in range(MAX_STEPS))
    own = SCHEDULES["self_forcing"].sigmas
    for text, sigmas in (
        ("1, 0.9375, 0.8333", (1.0, 0.9375, 0.8333)),
        ("1 0.5 0", (1.0, 0.5)),
        ("\t1,0.5,\n.25,0.0 ", (1.0, 0.5, 0.25)),
        ("1e-3", (0.001,)),
        (f"{hundred} 0", tuple(1 - i / 200 for i in range(100))),
        ("", own),
        (" \n", own),
    ):
        row = schedule("causal_forcing_framewise", text)
        assert (row.sigmas, row.frames_per_block) == (sigmas, 1)
    for text in (
        "__import__('os')",
        "1, 1",
        ",",
        "1 0 0",
        "1, 0.5\x00",
        "1," * 5000,
        "9" * 100_000,
        f"{hundred} 0.1",
    ):
        with pytest.raises(HeadForcingError, match="sigmas") as error:
            Schedule.parse(text)
        assert "\n" not in str(error.value) and len(str(error.value)) < 2500


def test_steps_of_equal_distance_can_be_given_by_their_number():
    assert schedule("self_forcing", "4 steps") == SCHEDULES["self_forcing"]
    assert (
        schedule("causal_forcing_framewise_1_step", "2 steps").for_block(0)
        == Schedule.warped([1000, 500]).sigmas
    )
    two = schedule("longlive2", "2 steps")
    assert two == replace(SCHEDULES["longlive2"], sigmas=Schedule.unipc(2, 8).sigmas)
    assert [int(1000 * sigma) for sigma in two.sigmas] == [999, 833]
    assert len(schedule("longlive2", "1 step").sigmas) == 1
    for text, told in (
        ("0 steps", "1 to 12 steps .* got 0"),
        ("13 steps", "1 to 12 steps .* got 13"),
        ("1, 0.5", "UniPC takes .* below 1"),
    ):
        with pytest.raises(HeadForcingError, match=told):
            schedule("longlive2", text)


def test_noise_is_a_pure_function_of_seed_block_and_step_also_where_it_was_drawn_ahead():
    one = SeededNoise(SHAPE)
    other = SeededNoise(SHAPE)
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    calls = list(product(range(4), (None, 0, 2)))  # blocks and steps

    def draw(noise, b, s):
        return noise.initial(b, 5) if s is None else noise.renoise(b, 5, s)

    forwards = {call: draw(one, *call) for call in calls}
    other.ahead(2, 5)
    assert all(
        torch.equal(draw(other, *call), forwards[call]) for call in [*reversed(calls), (2, None)]
    )
    other.ahead(2, 5)
    assert torch.equal(other.initial(2, 6), one.initial(2, 6)), "another seed has noise of its own"
    assert torch.equal(torch.randn(3), expected), "torch's own generator is left alone"


def test_no_two_seeds_videos_blocks_or_steps_share_noise_and_that_of_a_seed_stays_as_it_is():
    drawn = []
    for seed, video in itertools.product((0, 1, 2, 1000, 2**40, 2**63 - 1, -1), (0, 1)):
        noise = SeededNoise((1, 2, 2, 2), video)
        for block in (0, 1, 2, 1000):
            drawn += [
                noise.initial(block, seed),
                *(noise.renoise(block, seed, step) for step in range(3)),
            ]
    assert len({tuple(x.flatten().tolist()) for x in drawn}) == len(drawn) == 7 * 2 * 4 * 4
    noise = SeededNoise((1, 1, 4, 4))
    assert noise.initial(0, 42).flatten()[:3].tolist() == pytest.approx(
        [-0.047152, -1.048696, 0.949249], abs=1e-6
    )
    assert noise.renoise(7, 42, 2).flatten()[:3].tolist() == pytest.approx(
        [-0.173082, 0.902312, 0.676551], abs=1e-6
    )
