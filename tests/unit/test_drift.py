"""Drift metrics on videos whose numbers are known beforehand."""

import itertools
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from headforcing.headforcing_core.report.meter import (
    DriftMeter,
    color_drift,
    hue,
    hue_distance,
    hue_histogram,
    laplacian_variance,
    levels,
)
from headforcing.headforcing_core.report.metrics import METRICS, Numbers, numbers_of
from headforcing.headforcing_core.report.thumbnails import Thumbnails, repetition, self_similarity
from headforcing.headforcing_core.timeline.clock import BlockClock
from recorded_clips import recordings, turning_red_to_green

SHAPE = (36, 64)  # height, width
FPS = 16


def flat(level: float) -> np.ndarray:
    return np.full((*SHAPE, 3), round(level), np.uint8)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*SHAPE, 3), dtype=np.uint8)


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
    video_frame: Callable[[int], np.ndarray], count: int, per_block=3, switches=(), first=0
) -> DriftMeter:
    meter = DriftMeter(FPS, per_block, switches, first)
    for start in range(first, count, 7):  # chunks that fit neither seconds nor blocks
        meter.add(np.stack([video_frame(i) for i in range(start, min(start + 7, count))]))
    return meter


def numbers(video_frame: Callable[[int], np.ndarray], count: int, **options) -> Numbers:
    return numbers_of(measured(video_frame, count, **options))


def rising(jumps, count: int, by: float) -> Callable[[int], np.ndarray]:
    """Brighter by one level from frame to frame, and by `by` levels at the frames in `jumps`."""
    levels = np.cumsum([0, *(by if i in jumps else 1 for i in range(1, count))])
    return lambda i: flat(levels[i])


def starts(frames_per_block: int) -> set[int]:
    """The video frames with which blocks begin, without the first."""
    clock = BlockClock(frames_per_block)
    return {clock.video_frames(block) for block in range(1, 60)}


STARTS = {frames: starts(frames) for frames in (1, 3)}
VIDEOS = {  # a video, how many frames, options, and its numbers
    "still": (
        lambda i: noise(3),
        40,
        {},
        {
            "flicker": 1.0,
            "mean_change": 0,
            "edge_ratio": None,
            "repetition": 0,
            "repetition_lag_seconds": None,
        },
    ),
    "alternating": (lambda i: flat(100 + 51 * (i % 2)), 33, {}, {"flicker": (255 - 51) / 255}),
    "seams of blocks of 3": (rising(STARTS[3], 70, 3), 70, {}, {"edge_ratio": 3.0}),
    "seams of blocks of 1": (rising(STARTS[1], 70, 3), 70, {"per_block": 1}, {"edge_ratio": 3.0}),
    "seams of a part": (rising(STARTS[3], 70, 3), 70, {"first": 14}, {"edge_ratio": 3.0}),
    "a switch is no seam": (
        rising({33}, 96, 81),
        96,
        {"switches": (33,)},
        {"edge_ratio": 1},
    ),
    "jumps at edges of latent frames, too": (
        rising(range(1, 90, 4), 90, 4),
        90,
        {},
        {"edge_ratio": 4 / ((82 + 3 * 16) / 82)},
    ),
    "a ramp": (
        lambda i: flat(20 + i // FPS * 4),
        10 * FPS,
        {},
        {
            "y_slope_per_minute": 240,
            "saturation_slope_per_minute": 0,
        },
    ),
    "two freezes": (
        lambda i: noise(min(i, 40) if i < 80 else min(i, 100) if i < 111 else i),
        160,
        {},
        {"longest_freeze_seconds": 39 / FPS, "frozen_share": 49 / 159},
    ),
    "never the same": (noise, 6 * FPS, {}, {"repetition": 0, "repetition_lag_seconds": None}),
    "still and black": (
        lambda i: flat(0),
        40,
        {},
        {"longest_freeze_seconds": 39 / FPS, "sharpness_ratio": None},
    ),
    "a loop of 4 s": (
        lambda i: noise(i % 64 // 4),
        15 * FPS,
        {},
        {"repetition": 1.0, "repetition_lag_seconds": 4.0},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VIDEOS)
def test_a_video_has_the_numbers_that_it_was_made_with(name):
    video, count, options, expected = VIDEOS[name]
    found = numbers(video, count, **options)
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-3)
    assert [row.key for row in METRICS] == list(found)
    assert all(value is None or type(value) is float for value in found.values())


def test_the_first_block_has_9_video_frames_and_flicker_is_vbenchs_formula_over_all_channels():
    """One level up at 9, 21, 33: nothing changes inside, so the sums themselves tell."""
    table = measured(lambda i: flat(60 * sum(i >= edge for edge in (9, 21, 33))), 48).seconds()
    counts = [
        int(table[name].sum()) for name in ("edge", "edge_changes", "inside", "inside_changes")
    ]
    # edges at 9, 21, 33, 45
    assert counts == [3 * 60, 4, 0, 47 - 4]
    changes = [
        np.abs(b.astype(float) - a.astype(float)).mean() for a, b in pairwise(map(noise, range(5)))
    ]
    assert numbers(noise, 5)["flicker"] == pytest.approx((255 - np.mean(changes)) / 255, abs=1e-12)


def test_a_prompts_change_is_no_slope():
    meter = measured(lambda i: flat(50 if i < 81 else 150), 10 * FPS, switches=(81,))
    found = numbers_of(meter, [81 / FPS])
    assert found["y_slope_per_minute"] == pytest.approx(0, abs=1e-6)
    assert numbers_of(meter)["y_slope_per_minute"] > 100
    assert numbers(lambda i: flat(3), FPS)["y_slope_per_minute"] is None


def test_brightness_saturation_and_sharpness_of_known_pictures():
    y, y_std, saturation, sharpness = levels(np.array([[[255, 0, 0], [0, 0, 0]]], np.uint8))
    assert (y, y_std) == pytest.approx((0.299 * 255 / 2, 0.299 * 255 / 2))
    assert (saturation, sharpness) == (0.5, 0.0)
    # the Laplacian is +-400 everywhere
    board = (np.indices((8, 8)).sum(axis=0) % 2 * 100).astype(np.uint8)
    assert laplacian_variance(board) == pytest.approx(160_000)
    assert laplacian_variance(np.full((9, 9), 77, np.uint8)) == 0.0
    luma = noise(0)[..., 0].astype(float)
    sharp = grey(luma)
    shifts = itertools.product((-1, 0, 1), repeat=2)
    blurred = grey(sum(np.roll(luma, shift, (0, 1)) for shift in shifts) / 9)
    found = numbers(lambda i: sharp if i < 4 * FPS else blurred, 8 * FPS)
    assert found["sharpness_ratio"] < 0.1 and found["contrast_ratio"] == pytest.approx(
        1 / 3, rel=0.1
    )


def test_the_beginning_of_a_video_has_the_numbers_of_a_video_that_ends_there():
    def video_frame(i: int) -> np.ndarray:
        return noise(i // 5) // 2 + i % 40

    assert numbers_of(measured(video_frame, 130), seconds=5) == numbers(video_frame, 80)
    # a freeze across the end of the beginning
    meter = measured(lambda i: noise(min(i, 40) if i < 120 else i), 130)
    assert numbers_of(meter, seconds=5)["longest_freeze_seconds"] == 39 / FPS


def test_at_most_600_thumbnails_are_kept_evenly():
    kept = Thumbnails()
    for i in range(5000):
        kept.add(np.full((1, 1, 3), i % 251, np.uint8))
    assert [int(small[0, 0, 0]) for small in kept.stack()] == [i % 251 for i in range(0, 5000, 16)]
    assert len(kept.stack(33)) == 3  # 0, 16, 32
    assert repetition(self_similarity(kept.stack(1)), 1.0) == (0.0, None)


def test_an_exponential_response_reaches_80_percent_after_its_time():
    tau_seconds = 0.3
    old = texture(*SHAPE, seed=1)
    new = texture(*SHAPE, seed=2)
    switch = 57

    def video_frame(i: int) -> np.ndarray:
        share = 1 - math.exp(-max(i - switch, 0) / FPS / tau_seconds)
        return grey(old * (1 - share) + new * share)

    (found,) = measured(video_frame, 10 * FPS, switches=(switch,)).watch.responses()
    assert found.video_frame == switch and found.seconds_to_80 == pytest.approx(
        tau_seconds * math.log(5), rel=0.03
    )


def test_a_cut_is_followed_at_once_and_a_switch_that_changes_nothing_or_comes_last_has_no_time():
    meter = measured(
        lambda i: flat([40, 100, 230][(i >= 81) + (i >= 165)]), 210, switches=(81, 165)
    )
    found = [
        (response.video_frame, response.change, response.seconds_to_80)
        for response in meter.watch.responses()
    ]
    assert found == [(81, 60.0, 0.0), (165, 130.0, 0.0)]
    for switch in (45, 93):
        (response,) = measured(lambda i: noise(0), 100, switches=(switch,)).watch.responses()
        assert response.seconds_to_80 is None
    assert measured(lambda i: noise(0), 50, switches=(93,)).watch.responses() == []


@pytest.mark.parametrize("end", [0, 30])
def test_hues_are_opencvs_and_color_drift_is_the_authors(repo_root, shared_dir, end):
    for config, recorded in recordings(repo_root, shared_dir):
        assert np.array_equal(hue(recorded["hue_table/rgb"]), recorded["hue_table/hue"])
        found = config["results"]["color_end30" if end else "color"]
        for clip, expected in found["per_clip"].items():
            frames = recorded[f"clips/{clip}"][: end or None]
            histograms = [hue_histogram(frames[place]) for place in (0, -1)]
            if not end:
                assert np.abs(np.stack(histograms) - recorded[f"hist/{clip}"]).max() < 1e-12
            assert hue_distance(*histograms) == pytest.approx(expected["l1"], abs=1e-6)
        if "color_drift" in found:
            assert color_drift(found["mean_l1"]) == pytest.approx(found["color_drift"], abs=1e-6)


def test_a_report_measures_the_colour_drift_of_its_own_video():
    frames = turning_red_to_green()
    meter = DriftMeter(16.0)
    meter.add(frames)
    expected = color_drift(hue_distance(hue_histogram(frames[0]), hue_histogram(frames[-1])))
    whole = numbers_of(meter)["color_drift"]
    first = numbers_of(meter, seconds=2)["color_drift"]
    assert whole == pytest.approx(expected) and whole < 60 < first
