"""Pictures of head profiles and of drift: sizes, colours that follow the roles, and determinism."""

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from headforcing.headforcing_core import page
from headforcing.headforcing_core.head_profiles.profile import ROLES, HeadProfile, classify
from headforcing.headforcing_core.head_profiles.profile_plot import (
    comparison_map,
    profile_picture,
)
from headforcing.headforcing_core.head_profiles.shares import PUBLISHED_STABILITY
from headforcing.headforcing_core.report.drift import report_frames
from headforcing.headforcing_core.report.drift_plot import drift_picture
from headforcing.headforcing_core.report.video_tags import VideoTags
from recorded_clips import scene

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.slow]


def a_profile(layers=6, heads=4, name="measured"):
    draw = random.Random(0)

    def shares_of_a_head():
        sink = draw.random() ** 3 / 2
        return (sink, (1 - sink) * 0.6, (1 - sink) * 0.4)

    shares = []
    for _ in range(layers):
        shares.append([shares_of_a_head() for _ in range(heads)])
    return HeadProfile(name, layers, heads, classify(shares), shares)


def changed_cells(differs, rows: int, columns: int) -> list[list[int]]:
    """The row and column of each cell of a map inside which a pixel differs, `differs [y, x]`."""
    found = []
    for row, strip in enumerate(np.array_split(differs, rows)):
        for column, cell in enumerate(np.array_split(strip, columns, axis=1)):
            if cell[5:-5, 5:-5].any():
                found.append([row, column])
    return found


def colours(picture):
    """The pixels of each colour."""
    packed = np.asarray(picture).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    found, counts = np.unique(packed, return_counts=True)
    return {
        (int(x) >> 16, int(x) >> 8 & 255, int(x) & 255): int(n)
        for x, n in zip(found, counts, strict=True)
    }


def rgb(text):
    return tuple(bytes.fromhex(text[1:]))


PROFILE = a_profile()
ZERO = HeadProfile("zero", 1, 2, [["anchor", "local"]], [[(0, 1, 0), (0, 1, 0)]])
PROFILES = {
    "roles only": replace(PROFILE, shares=None),
    "measured": PROFILE,
    "zero": ZERO,
    **{
        str(size): a_profile(*size, name="$\\frac{1$ _x_ " + "very long " * 30)
        for size in ((1, 12), (40, 1))
    },
}
ODD = VideoTags("$\\frac{1$", 1, 3, tuple((i * 0.7, "$x_ " * 20) for i in range(9)))
VIDEOS = {
    "two frames": lambda: report_frames(
        [np.stack([scene(0), scene(1)])], name="$\\frac" * 20, tags=ODD
    ),
    "many prompts": lambda: report_frames((scene(i)[None] for i in range(99)), tags=ODD),
    "still and black": lambda: report_frames([np.zeros((100, 8, 8, 3), np.uint8)], fps=24),
}


@pytest.mark.parametrize(
    ("name", "theme"), [*zip([*PROFILES, *VIDEOS], itertools.cycle(page.THEMES))]
)
def test_every_picture_is_rgb_900_wide_not_blank_and_nothing_runs_out_of_it(name, theme):
    if name in VIDEOS:
        report = VIDEOS[name]()
        assert report.text() and json.dumps(report.to_dict(), allow_nan=False)
        drawn = drift_picture(report, theme)
    else:
        drawn = profile_picture(PROFILES[name], theme)
    assert drawn.mode == "RGB" and drawn.width == 900 and 120 <= drawn.height < 3300
    assert len(colours(drawn)) > 20
    background = rgb(page.THEMES[theme].background)
    edges = np.asarray(drawn)
    assert (edges[:, -4:] == background).all() and (edges[-4:] == background).all()


def test_each_kind_of_measurement_has_a_panel_and_a_picture_is_the_same_each_time():
    some = {"steps": PUBLISHED_STABILITY["steps"]}
    cases = [(PROFILES["roles only"], None), (PROFILE, {}), (PROFILE, some), (PROFILE, some)]
    pictures = [profile_picture(profile, stability=stability) for profile, stability in cases]
    heights = [picture.height for picture in pictures]
    assert heights[0] + 400 < heights[1] and heights[1] + 260 < heights[2]
    assert pictures[2].tobytes() == pictures[3].tobytes()


def test_stability_bars_are_as_high_as_the_ratios():
    """And nothing of them runs out of the picture, in each theme."""
    for theme, look in page.THEMES.items():
        plain = profile_picture(PROFILE, theme)
        areas = []
        for ratio in (0.4, 0.8):
            ratios = {**dict.fromkeys(ROLES, 0.0), "memory": ratio, "mean": 0.5}
            drawn = profile_picture(PROFILE, theme, dict.fromkeys(PUBLISHED_STABILITY, ratios))
            added = np.asarray(drawn)[plain.height :]
            assert (added[:, -4:] == rgb(look.background)).all()
            areas.append((added == rgb(look.roles["memory"])).all(axis=-1).sum())
        assert areas[1] == pytest.approx(2 * areas[0], rel=0.2)


def test_the_area_of_a_role_follows_its_count():
    profile = replace(a_profile(30, 12), shares=None)
    found = colours(profile_picture(profile))
    areas = {role: found[rgb(page.THEMES["dark"].roles[role])] for role in ROLES}
    for role in ROLES:
        assert areas[role] / sum(areas.values()) == pytest.approx(
            profile.counts()[role] / 360, abs=0.04
        )


def test_two_profiles_are_drawn_below_each_other_and_where_they_differ_heads_are_hatched():
    a = HeadProfile("a", 2, 2, [["local", "anchor"], ["memory", "memory"]])
    b = HeadProfile("b", 2, 2, [["local", "anchor"], ["memory", "anchor"]])
    drawn = np.asarray(comparison_map(a, b))
    half = (len(drawn) - page.MARGIN) // 2
    # two rows of 60 pixels above the labels of each half, two columns
    for bottom, profile in ((78 + half, a), (78, b)):
        part = slice(-bottom - 120, -bottom)
        plain = np.asarray(comparison_map(profile, profile))
        differs = (drawn != plain).any(axis=-1)[part, 96:872]
        assert changed_cells(differs, rows=2, columns=2) == [[1, 1]]


def test_heads_that_the_sources_dispute_are_hatched_in_the_map():
    plain = replace(PROFILE, shares=None)
    disputed = replace(
        plain, provenance={"disputed": [[0, 0], [3, 2], [99, 0], "no place", [1, True, 2]]}
    )
    assert disputed.disputed == {(0, 0), (3, 2)} and not plain.disputed
    # 4 rows of 60 pixels, 6 columns
    maps = [
        np.asarray(profile_picture(each))[-78 - 240 : -78, 96 : 96 + 776]
        for each in (disputed, plain)
    ]
    differs = (maps[0] != maps[1]).any(axis=-1)
    assert changed_cells(differs, rows=4, columns=6) == [[0, 0], [2, 3]]
