"""Pictures of head profiles: sizes, colours that follow the roles, and determinism."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import (
    ROLES,
    HeadProfile,
    bundled_profiles,
    classify,
    load_profile,
)
from headforcing.headforcing_core.head_profiles.profile_setup import ProfileSetup
from headforcing.headforcing_core.head_profiles.shares import FRAME_STEP, HeadShares
from headforcing.headforcing_core.report import page
from headforcing.headforcing_core.report import profile_plot as head_profile
from headforcing.headforcing_core.report.shares_plot import stability_panel

BOTH_THEMES = pytest.mark.parametrize("theme", sorted(page.THEMES))


def a_profile(layers=6, heads=4, seed=0, name="measured"):
    draw = random.Random(seed)
    shares = []
    for _ in range(layers):
        shares.append([])
        for _ in range(heads):
            sink, current = draw.random() ** 3 / 2, draw.random() / 2
            shares[-1].append((sink, 1 - sink - current, current))
    return HeadProfile(name, layers, heads, classify(shares), shares)


def some_shares(prompts=2, blocks=9, layers=2, heads=3, frames=3, window=12, measured=None, focus=None):
    """Measurements as the profiler leaves them, with random attention or all of it on frame `focus` of the cache."""
    names = tuple(f"prompt {i}" for i in range(prompts))
    setup = ProfileSetup("f", layers, heads, names, blocks, (1.0, 0.9, 0.8, 0.6), frames, 64, 64, window_frames=window)
    shares, generator = HeadShares(setup), torch.Generator().manual_seed(1)
    for prompt in range(prompts if measured is None else measured):
        for block in range(setup.first_block, blocks):
            for step in range(4):
                there = min(window, (block + 1) * frames)
                weights = torch.rand(layers, heads, there, generator=generator, dtype=torch.float64)
                if focus is not None:
                    weights = torch.eye(there, dtype=torch.float64)[focus].expand(layers, heads, there)
                weights = weights / weights.sum(dim=-1, keepdim=True)
                sink, current = weights[..., 0], weights[..., -frames:].sum(dim=-1)
                three = torch.stack((sink, 1 - sink - current, current), dim=-1)
                by_frame = torch.nn.functional.pad(weights, (window - there, 0))
                shares.add(prompt, block, step, three)
                if step == FRAME_STEP:
                    shares.add_frames(block, by_frame)
    return shares


def colours(picture):
    found, counts = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(int(part) for part in colour): int(count) for colour, count in zip(found, counts, strict=True)}


def rgb(text):
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def share_scatter(profile, theme="dark"):
    return page.draw_page([head_profile._scatter_panel(profile)], theme)


def role_map(profile, theme="dark"):
    return page.draw_page([head_profile._map_panel(profile)], theme)


def role_counts(profile, theme="dark"):
    return page.draw_page([head_profile._counts_panel(profile)], theme)


def stability_bars(shares, theme="dark"):
    return page.draw_page([stability_panel(shares.setup, shares.stability())], theme)


PICTURES = {
    "scatter": lambda theme: share_scatter(a_profile(), theme),
    "map": lambda theme: role_map(a_profile(), theme),
    "counts": lambda theme: role_counts(a_profile(), theme),
    "stability": lambda theme: stability_bars(some_shares(), theme),
    "profile of nothing measured": lambda theme: head_profile.profile_picture(
        a_profile(), some_shares(measured=0), theme
    ),
    "head": lambda theme: head_profile.head_over_time(some_shares(), 1, 2, theme),
    "head of nothing": lambda theme: head_profile.head_over_time(some_shares(measured=0), 0, 0, theme),
    "framewise head": lambda theme: head_profile.head_over_time(some_shares(frames=1, window=3), 0, 0, theme),
    "comparison": lambda theme: head_profile.comparison_map(a_profile(), a_profile(seed=1), theme),
    "profile": lambda theme: head_profile.profile_picture(a_profile(), some_shares(), theme),
    "profile of roles only": lambda theme: head_profile.profile_picture(replace(a_profile(), shares=None), None, theme),
}


@pytest.mark.slow
@BOTH_THEMES
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.filterwarnings("error")
def test_every_picture_is_rgb_900_wide_not_blank_and_on_the_themes_background(name, theme):
    picture = PICTURES[name](theme)
    assert picture.mode == "RGB" and picture.width == 900 and 120 <= picture.height < 2200
    found = colours(picture)
    assert len(found) > 20
    assert picture.getpixel((0, 0)) == picture.getpixel((899, picture.height - 1)) == rgb(page.THEMES[theme].background)
    edges = np.asarray(picture)
    assert (edges[:, -4:] == edges[0, 0]).all() and (edges[-4:] == edges[0, 0]).all()  # nothing runs out of the picture


@pytest.mark.parametrize("name", PICTURES)
def test_the_same_input_gives_the_same_picture(name):
    assert PICTURES[name]("dark").tobytes() == PICTURES[name]("dark").tobytes()


@pytest.mark.slow
@BOTH_THEMES
@pytest.mark.parametrize("size", [(30, 12), (6, 4), (40, 40)])
def test_the_area_of_a_role_in_the_map_follows_its_count(size, theme):
    profile = a_profile(*size)
    found = colours(role_map(profile, theme))
    areas = {role: found[rgb(page.THEMES[theme].roles[role])] for role in ROLES}
    total, counts = sum(areas.values()), profile.counts()
    for role in ROLES:
        assert areas[role] / total == pytest.approx(counts[role] / (size[0] * size[1]), abs=0.04)


def test_the_area_of_a_role_in_the_bars_follows_its_count():
    profile = a_profile(40, 40)
    found = colours(role_counts(profile))
    areas = {role: found[rgb(page.THEMES["dark"].roles[role])] for role in ROLES}
    for role in ROLES:
        assert areas[role] / sum(areas.values()) == pytest.approx(profile.counts()[role] / 1600, abs=0.03)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (40, 40), (30, 12)])
def test_profiles_of_any_shape_can_be_drawn(size):
    profile = a_profile(*size)
    assert head_profile.profile_picture(profile).width == 900
    assert head_profile.comparison_map(profile, a_profile(*size, seed=3)).width == 900


@pytest.mark.parametrize("name", sorted(bundled_profiles()))
def test_the_bundled_profiles_can_be_drawn(name):
    assert head_profile.profile_picture(load_profile(bundled_profiles()[name])).height < 2200


@pytest.mark.filterwarnings("error")
def test_extreme_shares_and_a_hand_edited_profile_can_be_drawn():
    share_scatter(HeadProfile("zero", 1, 2, [["anchor", "local"]], [[(0, 1, 0), (0, 1, 0)]]))
    share_scatter(HeadProfile("one", 1, 2, [["local", "memory"]], [[(1, 0, 0), (0, 0, 1)]]))


def test_a_name_is_drawn_as_it_is_however_odd():
    profile = a_profile(name="$\\frac{1$ _x_ " + "very long " * 30)
    assert head_profile.profile_picture(profile).width == 900
    assert head_profile.comparison_map(profile, profile).width == 900


def test_heads_that_the_sources_dispute_are_hatched_in_the_map():
    plain = a_profile()
    disputed = replace(plain, provenance={"disputed": [[0, 0], [3, 2], [99, 0], "no place", [1, True, 2]]})
    assert disputed.disputed == {(0, 0), (3, 2)} and not plain.disputed
    (panel, same) = (head_profile._map_panel(profile) for profile in (disputed, plain))
    assert "2 heads (8%) about which the sources of the profile disagree" in panel.subtitle
    drawn, before = (np.asarray(page.draw_page([replace(p, subtitle="")], "dark")) for p in (panel, same))
    changed = (drawn != before).any(axis=-1)
    columns = [changed[:, layer].any() for layer in np.linspace(96, 96 + 776, 6, endpoint=False).astype(int) + 60]
    assert columns == [True, False, False, True, False, False]
    everywhere = head_profile.comparison_map(disputed, plain)
    assert np.array_equal(everywhere, head_profile.comparison_map(plain, plain))


def test_agreement_is_faded_and_disagreement_is_not():
    a = HeadProfile("a", 2, 2, [["local", "anchor"], ["memory", "memory"]])
    b = HeadProfile("b", 2, 2, [["local", "anchor"], ["memory", "anchor"]])
    strong = [rgb(page.THEMES["dark"].roles[role]) for role in ("memory", "anchor")]
    same, different = colours(head_profile.comparison_map(a, a)), colours(head_profile.comparison_map(a, b))
    for colour in strong:  # in both, the legend's squares have it, too
        assert different[colour] > same[colour] + 5000


def test_profiles_of_different_models_are_not_compared():
    with pytest.raises(HeadForcingError, match="different models"):
        head_profile.comparison_map(a_profile(2, 3), a_profile(3, 2))


def test_the_stability_picture_says_when_the_published_values_are_another_models():
    shares = some_shares(layers=2, heads=3), some_shares(layers=30, heads=12, blocks=4)
    panels = [stability_panel(each.setup, each.stability()) for each in shares]
    assert ["another model" in panel.subtitle for panel in panels] == [True, False]


def test_every_row_of_a_heads_picture_begins_with_the_first_frame():
    """A head that sees nothing else: one bright cell a row, in the fourth of 12 columns while 3 frames are missing."""
    picture = head_profile.head_over_time(some_shares(blocks=5, frames=3, window=12, focus=0), 0, 0, "light")
    distance = np.abs(np.asarray(picture)[:, :600].astype(int) - np.array([254, 232, 56])).sum(axis=-1)
    bright = [np.flatnonzero(row) for row in distance < 40]  # the upper end of the colour scale
    starts = [int(row[0]) for row in bright if 30 < len(row) < 60]
    left, cell = 96, (900 - 96 - 310) / 12
    assert starts == sorted(starts, reverse=True)
    assert starts[0] == pytest.approx(left + 3 * cell, abs=2) and starts[-1] == pytest.approx(left, abs=2)
    assert np.mean(np.array(starts) > 150) == pytest.approx(1 / 3, abs=0.02)  # one block of three


@pytest.mark.parametrize("place", [(2, 0), (0, 3), (-1, 0), (0, -1)])
def test_a_head_that_is_not_there_is_refused(place):
    with pytest.raises(HeadForcingError, match="layer and head must be in 0-1 and 0-2"):
        head_profile.head_over_time(some_shares(), *place)


def test_an_unknown_theme_is_refused():
    with pytest.raises(HeadForcingError, match="theme must be dark or light, got 'pink'"):
        role_map(a_profile(), "pink")


@pytest.mark.slow
def test_several_threads_draw_the_same_as_one():
    wanted = [role_map(a_profile(seed=seed)).tobytes() for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda seed: role_map(a_profile(seed=seed)).tobytes(), range(6)))
    assert found == wanted


@pytest.mark.slow
def test_drawing_touches_neither_pyplot_nor_global_settings():
    program = (
        "import sys, headforcing.headforcing_core.report.profile_plot as plots\n"
        "from headforcing.headforcing_core.head_profiles.profile import HeadProfile\n"
        "assert not any(name.startswith('matplotlib') for name in sys.modules)\n"
        "import matplotlib\n"
        "names = set(matplotlib.rcParams) - {'backend'}\n"  # to ask for the backend imports pyplot
        "before = {name: matplotlib.rcParams[name] for name in names}\n"
        "plots.profile_picture(HeadProfile('x', 1, 2, [['local', 'anchor']]))\n"
        "assert {name: matplotlib.rcParams[name] for name in names} == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
