"""Drift metrics on videos whose numbers are known beforehand."""

import math
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.report.learned.base import Numbers
from headforcing.headforcing_core.report.meter import (
    DriftMeter,
    colour,
    detail_share,
    flicker,
    laplacian_variance,
    motion,
)
from headforcing.headforcing_core.report.metrics import GROUPS, numbers_of, ratio, slope_per_minute
from headforcing.headforcing_core.report.thumbnails import Thumbnails, repetition, self_similarity
from headforcing.headforcing_core.timeline.clock import BlockClock

SHAPE = (36, 64)  # height, width
FPS = 16


def flat(level: float, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    return np.full((*shape, 3), round(level), np.uint8)


def noise(seed: int, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def texture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Grey hills that do not repeat, `[height, width]`, 0 to 255."""
    y, x = np.mgrid[:height, :width].astype(float)
    draw = np.random.default_rng(seed)
    waves = (np.sin(a * x + b * y + c) for a, b, c in draw.uniform(-0.5, 0.5, (24, 3)) * (1, 1, 12))
    total = sum(waves, np.zeros((height, width)))
    return (total - total.min()) / np.ptp(total) * 255


def grey(luma: np.ndarray) -> np.ndarray:
    return np.repeat(luma.round().clip(0, 255).astype(np.uint8)[..., None], 3, axis=-1)


def measured(
    video_frame: Callable[[int], np.ndarray], count: int, frames_per_block: int = 3, switches: tuple[int, ...] = ()
) -> DriftMeter:
    meter = DriftMeter(FPS, frames_per_block, switches)
    for start in range(0, count, 7):  # chunks that fit neither seconds nor blocks
        meter.add(np.stack([video_frame(i) for i in range(start, min(start + 7, count))]))
    return meter


def numbers(video_frame: Callable[[int], np.ndarray], count: int, **options) -> Numbers:
    return numbers_of(measured(video_frame, count, **options))


def test_a_still_video_does_not_flicker():
    found = numbers(lambda i: noise(3), 40)
    assert found["flicker"] == 1.0 and found["mean_change"] == 0.0 and found["motion"] == 0.0
    assert found["edge_ratio"] is None and found["frame_ratio"] is None  # nothing over nothing


def test_flicker_is_vbenchs_formula_over_all_channels():
    video_frames = [noise(i) for i in range(5)]
    changes = [
        np.abs(b.astype(float) - a.astype(float)).mean() for a, b in zip(video_frames, video_frames[1:], strict=False)
    ]
    assert numbers(lambda i: video_frames[i], 5)["flicker"] == pytest.approx((255 - np.mean(changes)) / 255, abs=1e-12)


def test_the_first_block_has_9_pictures_and_the_others_12():
    """One level up at 9, 21, 33: nothing changes inside, so the sums themselves tell."""
    table = measured(lambda i: flat(60 * sum(i >= edge for edge in (9, 21, 33))), 48).seconds()
    assert table["edge"].sum() == 3 * 60 and table["edge_changes"].sum() == 4 and table["inside"].sum() == 0  # 45, too
    assert table["frame_changes"].sum() == 8  # 1, 5, 13, 17, 25, 29, 37, 41
    assert table["inside_changes"].sum() == 47 - 4
    for frames_per_block in (1, 3):
        begins = {BlockClock(frames_per_block).start_video_frame(block) for block in range(1, 200)}
        levels = np.cumsum([0, *(3 if i in begins else 1 for i in range(1, 100))])
        found = numbers(lambda i, levels=levels: flat(levels[i]), 100, frames_per_block=frames_per_block)
        assert found["edge_ratio"] == pytest.approx(3.0)


def test_every_21_latent_frames_there_may_be_a_seam():
    begins = {81, 165}  # 4 * 21 - 3, 4 * 42 - 3
    levels = np.cumsum([0, *(11 if i in begins else 1 for i in range(1, 200))])
    found = numbers(lambda i: flat(levels[i]), 200)
    assert found["period_ratio"] == pytest.approx(11.0)


def test_a_prompt_switch_is_no_seam():
    levels = np.cumsum([0, *(81 if i == 33 else 1 for i in range(1, 96))])
    found = numbers(lambda i: flat(levels[i]), 96, switches=(33,))
    assert (found["switch_ratio"], found["edge_ratio"]) == pytest.approx((81.0, 1.0))
    assert numbers(lambda i: flat(levels[i]), 96)["edge_ratio"] > 10


def test_a_ramp_of_brightness_has_its_slope_and_ends_where_it_ends():
    found = numbers(lambda i: flat(20 + i // 16 * 4), 30 * FPS)  # 4 levels a second for 30 s
    assert found["y_slope_per_minute"] == pytest.approx(240.0)
    assert found["y_max_deviation"] == pytest.approx(29 * 4 - 2, abs=1e-3)  # the first 2 s have 20 and 24
    assert found["histogram_distance_max"] == pytest.approx(29 * 4 - 2, abs=1e-6)
    assert found["cb_slope_per_minute"] == pytest.approx(0, abs=1e-4)
    assert found["saturation_max_deviation"] == 0


def test_what_a_prompt_changes_is_deviation_but_not_slope():
    meter = measured(lambda i: flat(50 if i < 165 else 150), 20 * FPS, switches=(165,))
    found = numbers_of(meter, [165 / FPS])
    assert found["y_slope_per_minute"] == pytest.approx(0, abs=1e-6)
    assert found["y_max_deviation"] == pytest.approx(100)
    assert numbers_of(meter)["y_slope_per_minute"] > 100


def test_colour_of_known_pixels():
    y, cb, cr, y_std, cb_std, cr_std, saturation = colour(np.array([[[255, 0, 0], [0, 0, 0]]], np.uint8))
    assert (y, y_std) == pytest.approx((0.299 * 255 / 2,) * 2)
    assert cr == pytest.approx(128 + 127.5 / 2) and cr_std == pytest.approx(127.5 / 2)
    assert cb == pytest.approx(128 - cb_std) and saturation == 0.5


@pytest.mark.slow
def test_a_blurred_second_half_is_less_sharp_and_has_less_detail():
    sharp = grey(noise(0)[..., 0].astype(float))
    luma = sharp[..., 0].astype(float)
    blurred = grey(sum(np.roll(luma, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1)) / 9)
    found = numbers(lambda i: sharp if i < 12 * FPS else blurred, 24 * FPS)
    assert found["sharpness_ratio"] < 0.1 and found["contrast_ratio"] == pytest.approx(1 / 3, rel=0.1)
    assert found["detail_ratio"] < 0.9
    back = numbers(lambda i: blurred if i < 12 * FPS else sharp, 24 * FPS)
    assert back["sharpness_ratio"] == pytest.approx(1 / found["sharpness_ratio"])


def test_sharpness_and_detail_of_known_pictures():
    assert laplacian_variance(np.full((9, 9), 77, np.uint8)) == 0.0
    board = (np.indices((8, 8)).sum(axis=0) % 2 * 100).astype(np.uint8)  # the Laplacian is +-400 everywhere
    assert laplacian_variance(board) == pytest.approx(160_000)
    assert detail_share(board) == pytest.approx(1.0)
    assert detail_share(np.repeat(np.repeat(np.array([[0, 200], [90, 10]], np.uint8), 4, 0), 4, 1)) == 0.0
    assert detail_share(np.zeros((2, 2), np.uint8)) == laplacian_variance(np.zeros((2, 2), np.uint8)) == 0.0


@pytest.mark.parametrize("step", [(2, -5), (1.3, -2.6)])
def test_a_camera_pan_is_no_motion(step: tuple[float, float]):
    whole = texture(400, 400)
    y, x = np.mgrid[:72, :128]

    def part(i: int) -> np.ndarray:
        down, right = 150 + step[0] * i, 150 + step[1] * i
        corner, (v, u) = (math.floor(down), math.floor(right)), (down % 1, right % 1)
        rows, columns = y + corner[0], x + corner[1]
        above = whole[rows, columns] * (1 - u) + whole[rows, columns + 1] * u
        below = whole[rows + 1, columns] * (1 - u) + whole[rows + 1, columns + 1] * u
        return above * (1 - v) + below * v

    changes = [np.abs(part(i + 1) - part(i)).mean() for i in range(5)]
    left = [motion(part(i), part(i + 1)) for i in range(5)]
    blur = 0.04 if all(isinstance(part, int) for part in step) else 0.25  # of parts of a pixel between pixels
    assert max(left) < blur * min(changes)


def test_a_ball_that_moves_before_a_still_camera_is_motion():
    y, x = np.mgrid[:72, :128]
    before, after = (np.where((x - c) ** 2 + (y - 36) ** 2 < 81, 120.0, 0.0) + texture(72, 128) / 2 for c in (40, 60))
    assert motion(before, after) > 0.7 * np.abs(after - before).mean() > 1


def test_frozen_pictures_are_counted_exactly():
    def video_frame(i: int) -> np.ndarray:
        return noise(min(i, 40) if i < 80 else i)  # 41 to 79 repeat picture 40

    found = numbers(video_frame, 160)
    assert found["longest_freeze_seconds"] == 39 / FPS
    assert found["frozen_share"] == pytest.approx(39 / 159)
    meter = measured(lambda i: noise(min(i, 40) if i < 120 else i), 160)  # across the end of the reference
    assert numbers_of(meter, seconds=5)["longest_freeze_seconds"] == 39 / FPS
    assert numbers_of(meter)["longest_freeze_seconds"] == 79 / FPS


def test_the_beginning_of_a_video_has_the_numbers_of_a_video_that_ends_there():
    def video_frame(i: int) -> np.ndarray:
        return grey(texture(*SHAPE, seed=i // 5) * 0.8 + i % 40)

    assert numbers_of(measured(video_frame, 130), seconds=5) == numbers(video_frame, 80)


def test_a_loop_of_4_seconds_is_found_at_4_seconds():
    loop = [grey(texture(*SHAPE, seed=i // 4)) for i in range(64)]
    found = numbers(lambda i: loop[i % 64], 30 * FPS)
    assert found["repetition_lag_seconds"] == 4.0 and found["repetition"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("kind", ["still", "noise"])
def test_what_never_comes_back_does_not_repeat(kind: str):
    makers = {"still": lambda i: noise(0), "noise": noise}
    found = numbers(makers[kind], 20 * FPS)
    assert (found["repetition"], found["repetition_lag_seconds"]) == (0.0, None)


def test_at_most_600_thumbnails_are_kept_evenly():
    kept = Thumbnails()
    for i in range(5000):
        kept.add(np.full((1, 1, 3), i % 251, np.uint8))
    assert kept.spacing == 16 and len(kept.stack()) == 313
    assert [int(small[0, 0, 0]) for small in kept.stack()] == [i % 251 for i in range(0, 5000, 16)]
    assert len(kept.stack(33)) == 3  # 0, 16, 32
    assert repetition(self_similarity(kept.stack(1)), 1.0).lag_seconds is None


def test_an_exponential_answer_reaches_80_percent_after_its_time():
    tau_seconds, old, new, switch = 0.3, texture(*SHAPE, seed=1), texture(*SHAPE, seed=2), 57

    def video_frame(i: int) -> np.ndarray:
        share = 1 - math.exp(-max(i - switch, 0) / FPS / tau_seconds)
        return grey(old * (1 - share) + new * share)

    (found,) = measured(video_frame, 20 * FPS, switches=(switch,)).responses()
    assert found.video_frame == switch and found.seconds_to_80 == pytest.approx(tau_seconds * math.log(5), rel=0.03)
    first_block = 1 - np.exp(-np.arange(12) / FPS / tau_seconds).mean()
    assert found.by_block[0] == pytest.approx(first_block, abs=0.02) and found.by_block[-1] == pytest.approx(
        1, abs=0.01
    )


def test_a_switch_that_changes_nothing_or_comes_last_has_no_time():
    for switch, count in ((45, 200), (93, 100)):
        (found,) = measured(lambda i: noise(0), count, switches=(switch,)).responses()
        assert found.seconds_to_80 is None and found.by_block == ()
    assert measured(lambda i: noise(0), 50, switches=(93,)).responses() == []


def test_every_number_has_a_line_and_every_line_a_number():
    found = numbers(noise, 50)
    assert {row.key for rows in GROUPS.values() for row in rows} == set(found)
    assert all(value is None or type(value) is float for value in found.values())
    assert ratio(3.0, -2.0) == 1.5 and ratio(1.0, 0.0) is None and ratio(None, 1.0) is None


def test_pictures_that_alternate_flicker_by_their_difference():
    assert numbers(lambda i: flat(100 + 51 * (i % 2)), 33)["flicker"] == pytest.approx((255 - 51) / 255, abs=1e-12)
    assert flicker(255.0) == 0.0


def test_pictures_that_cannot_be_measured_are_refused():
    meter = DriftMeter(FPS)
    with pytest.raises(HeadForcingError, match="video frames must be uint8"):
        meter.add(np.zeros((1, 8, 8, 3), np.float32))
    meter.add(np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(HeadForcingError, match="must have one size: 8x8 is followed by 6x8"):
        meter.add(np.zeros((1, 8, 6, 3), np.uint8))


def test_edges_of_latent_frames_inside_blocks_are_counted_apart():
    levels = np.cumsum([0, *(4 if i % 4 == 1 else 1 for i in range(1, 90))])
    found = numbers(lambda i: flat(levels[i]), 90)
    assert found["frame_ratio"] == pytest.approx(4.0)
    assert found["edge_ratio"] == pytest.approx(4 / ((82 + 3 * 16) / 82))  # 82 changes inside, 16 of them by 4


def test_seams_of_a_part_lie_where_they_lie_in_the_whole():
    video_frames = [flat(levels) for levels in np.cumsum([3 if (i + 3) % 12 == 0 else 1 for i in range(120)])]
    meter = DriftMeter(FPS, 3, first_video_frame=14)
    meter.add(np.stack(video_frames[14:]))
    assert numbers_of(meter)["edge_ratio"] == pytest.approx(3.0)


def test_a_slope_needs_two_seconds_and_weighs_a_short_last_one():
    assert slope_per_minute(np.array([3.0]), np.array([16.0])) is None
    assert slope_per_minute(np.array([1.0, 2.0, 3.0]), np.array([16.0, 16.0, 1.0])) == pytest.approx(60.0)


@pytest.mark.slow
def test_a_long_loop_is_found_after_thumbnails_were_thinned_out():
    loop = [flat(level, (8, 8)) for level in 128 + 100 * np.sin(np.arange(320) * 2 * np.pi / 320)]  # 20 s
    found = numbers(lambda i: loop[i % 320], 90 * FPS)  # 1440 pictures: every fourth is kept
    assert found["repetition_lag_seconds"] == pytest.approx(20.0, abs=0.25)


def test_a_cut_is_answered_at_once_and_each_switch_by_itself():
    levels = [40, 100, 230]
    meter = measured(lambda i: flat(levels[(i >= 81) + (i >= 165)]), 260, switches=(81, 165))
    assert [(r.video_frame, r.change, r.seconds_to_80) for r in meter.responses()] == [
        (81, 60.0, 0.0),
        (165, 130.0, 0.0),
    ]


@pytest.mark.slow
def test_memory_does_not_grow_with_length():
    def video_frames(count: int) -> Iterator[np.ndarray]:
        for i in range(count):
            yield np.full((1, 24, 32, 3), i % 256, np.uint8)

    def peak(count: int) -> int:
        tracemalloc.start()
        meter = DriftMeter(FPS, switches=range(45, 9999, 480))
        for video_frame in video_frames(count):
            meter.add(video_frame)
        numbers_of(meter)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(40)
    short, long = peak(320), peak(640)  # both keep 320 thumbnails
    assert long < short + 300_000  # 320 more such pictures have 740 kB
