"""Pictures of head profiles: sizes, colours that follow the roles, and determinism."""

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.head_profiles.profile import ROLES, HeadProfile, classify
from headforcing.headforcing_core.head_profiles.profile_setup import ProfileSetup
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.report import page
from headforcing.headforcing_core.report import profile_plot as head_profile
from headforcing.headforcing_core.report.profile_plot import stability_panel


def a_profile(layers=6, heads=4, seed=0, name="measured"):
    draw = random.Random(seed)
    shares = []
    for _ in range(layers):
        shares.append([])
        for _ in range(heads):
            sink, current = draw.random() ** 3 / 2, draw.random() / 2
            shares[-1].append((sink, 1 - sink - current, current))
    return HeadProfile(name, layers, heads, classify(shares), shares)


def some_shares(prompts=2, blocks=9, layers=2, heads=3, frames=3, window=12, measured=None):
    """Measurements as the profiler leaves them, with random attention."""
    names = tuple(f"prompt {i}" for i in range(prompts))
    setup = ProfileSetup("f", layers, heads, names, blocks, (1.0, 0.9, 0.8, 0.6), frames, 64, 64, window_frames=window)
    shares, generator = HeadShares(setup), torch.Generator().manual_seed(1)
    for prompt in range(prompts if measured is None else measured):
        for block in range(setup.first_block, blocks):
            for step in range(4):
                there = min(window, (block + 1) * frames)
                weights = torch.rand(layers, heads, there, generator=generator, dtype=torch.float64)
                weights = weights / weights.sum(dim=-1, keepdim=True)
                sink, current = weights[..., 0], weights[..., -frames:].sum(dim=-1)
                three = torch.stack((sink, 1 - sink - current, current), dim=-1)
                shares.add(prompt, block, step, three)
    return shares


def colours(picture):
    packed = np.asarray(picture).reshape(-1, 3).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    found, counts = np.unique(packed, return_counts=True)
    return {(c >> 16, c >> 8 & 255, c & 255): n for c, n in zip(found.tolist(), counts.tolist(), strict=True)}


def rgb(text):
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def stability(shares):
    return stability_panel(shares.setup, shares.stability())


def panel(make, profile, theme="dark"):
    return page.draw_page([make(profile)], theme)


PICTURES = {
    "scatter": lambda theme: panel(head_profile._scatter_panel, a_profile(), theme),
    "map": lambda theme: panel(head_profile._map_panel, a_profile(), theme),
    "counts": lambda theme: panel(head_profile._counts_panel, a_profile(), theme),
    "stability": lambda theme: page.draw_page([stability(some_shares())], theme),
    "nothing measured": lambda theme: head_profile.profile_picture(a_profile(), some_shares(measured=0), theme),
    "comparison": lambda theme: head_profile.comparison_map(a_profile(), a_profile(seed=1), theme),
    "profile": lambda theme: head_profile.profile_picture(a_profile(), some_shares(), theme),
    "profile of roles only": lambda theme: head_profile.profile_picture(replace(a_profile(), shares=None), None, theme),
}


@pytest.fixture(scope="module")
def drawn():
    """Every picture in the dark theme, one of them in the light one."""
    return {(name, "dark"): draw("dark") for name, draw in PICTURES.items()} | {
        ("map", "light"): PICTURES["map"]("light")
    }


def test_every_picture_is_rgb_900_wide_not_blank_and_on_the_themes_background(drawn):
    for (name, theme), picture in drawn.items():
        assert picture.mode == "RGB" and picture.width == 900 and 120 <= picture.height < 2200, name
        assert len(colours(picture)) > 20, name
        edges, background = np.asarray(picture), rgb(page.THEMES[theme].background)
        assert picture.getpixel((0, 0)) == background, name
        assert (edges[:, -4:] == background).all() and (edges[-4:] == background).all(), name
    assert PICTURES["profile"]("dark").tobytes() == drawn["profile", "dark"].tobytes(), "the same each time"


@pytest.mark.parametrize(("draw", "size"), [("_map_panel", (30, 12)), ("_counts_panel", (40, 40))])
def test_the_area_of_a_role_follows_its_count(draw, size):
    profile = a_profile(*size)
    found = colours(panel(getattr(head_profile, draw), profile))
    areas = {role: found[rgb(page.THEMES["dark"].roles[role])] for role in ROLES}
    for role in ROLES:
        share = profile.counts()[role] / (size[0] * size[1])
        assert areas[role] / sum(areas.values()) == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1)])
def test_profiles_of_any_shape_and_name_can_be_drawn(size):
    profile = a_profile(*size, name="$\\frac{1$ _x_ " + "very long " * 30)
    assert head_profile.profile_picture(profile).width == 900
    assert head_profile.comparison_map(profile, a_profile(*size, seed=3)).width == 900


def test_agreement_is_faded_and_disagreement_is_not():
    a = HeadProfile("a", 2, 2, [["local", "anchor"], ["memory", "memory"]])
    b = HeadProfile("b", 2, 2, [["local", "anchor"], ["memory", "anchor"]])
    strong = [rgb(page.THEMES["dark"].roles[role]) for role in ("memory", "anchor")]
    same, different = colours(head_profile.comparison_map(a, a)), colours(head_profile.comparison_map(a, b))
    for colour in strong:  # in both, the legend's squares have it, too
        assert different[colour] > same[colour] + 5000


def test_drawing_touches_neither_pyplot_nor_global_settings():
    import matplotlib

    names = set(matplotlib.rcParams) - {"backend"}  # to ask for the backend imports pyplot
    before = {name: matplotlib.rcParams[name] for name in names}
    panel(head_profile._map_panel, a_profile())
    assert {name: matplotlib.rcParams[name] for name in names} == before
    assert not any(
        re.search(r"import.*pyplot", path.read_text("utf-8")) for path in Path(page.__file__).parent.glob("*.py")
    )


def share_scatter(profile, theme="dark"):
    return page.draw_page([head_profile._scatter_panel(profile)], theme)


@pytest.mark.filterwarnings("error")
def test_extreme_shares_and_a_hand_edited_profile_can_be_drawn():
    share_scatter(HeadProfile("zero", 1, 2, [["anchor", "local"]], [[(0, 1, 0), (0, 1, 0)]]))
    share_scatter(HeadProfile("one", 1, 2, [["local", "memory"]], [[(1, 0, 0), (0, 0, 1)]]))


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


def test_the_stability_picture_says_when_the_published_values_are_another_models():
    shares = some_shares(layers=2, heads=3), some_shares(layers=30, heads=12, blocks=4)
    panels = [stability_panel(each.setup, each.stability()) for each in shares]
    assert ["another model" in panel.subtitle for panel in panels] == [True, False]
