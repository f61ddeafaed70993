"""The toy world: what is rendered is what the prompt says, and the detector sees it; what was remembered is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.demo import word_hash
from headforcing.headforcing_core.demo.detector import Sighting, label, score, sightings
from headforcing.headforcing_core.demo.judge import landmarks_found, remembered, there_and_back
from headforcing.headforcing_core.demo.world import (
    CHOICES,
    SHAPES,
    Look,
    camera_path,
    distance_to,
    looks_of_frames,
    random_looks,
    render,
)

BALL = Look("red", "ball", "bouncing", "teal", "floor")
STAR = Look("yellow", "star", "gliding", "navy", "checkerboard", "panning right")


def test_a_prompt_says_everything_about_a_look_and_only_known_words():
    for seed in range(50):
        look = Look.draw(np.random.default_rng(seed))
        assert Look.parse(look.prompt) == look
        assert word_hash.check_prompt(look.prompt) == []
        assert len(look.prompt.split()) <= word_hash.TEXT_LEN
    assert Look.parse("A red ball bouncing on a teal floor") == BALL


@pytest.mark.parametrize(
    "prompt", ["", "a red ball", "a red dog bouncing on a teal floor", "a red ball bouncing on a teal floor panning up"]
)
def test_what_is_no_sentence_of_the_world_is_refused(prompt):
    with pytest.raises(ValueError, match="toy world"):
        Look.parse(prompt)


def test_looks_drawn_at_random_use_every_word_and_change_now_and_then():
    rng = np.random.default_rng(0)
    clips = [random_looks(rng, 7) for _ in range(300)]
    for name, words in CHOICES.items():
        assert {getattr(look, name) for looks in clips for look in looks} == set(words)
    changes = [sum(a != b for a, b in zip(looks, looks[1:], strict=False)) for looks in clips]
    assert {0, 1, 2} == set(changes)


def test_a_clip_is_the_same_every_time_and_another_for_another_seed():
    first, again, other = render((STAR,) * 3, 5), render((STAR,) * 3, 5), render((STAR,) * 3, 6)
    assert first.video_frames.shape == (33, 64, 64, 3) and first.shape.shape == (33, 64, 64)
    assert torch.equal(first.video_frames, again.video_frames) and not torch.equal(
        first.video_frames, other.video_frames
    )
    assert 0 <= first.video_frames.min() and first.video_frames.max() <= 1


def test_a_new_look_begins_with_its_block():
    clip = render((BALL, STAR), 1)
    seen = sightings(clip.video_frames)
    assert [s.shape for s in seen] == ["ball"] * 9 + ["star"] * 12


def test_all_shapes_cover_about_the_same_area():
    steps = torch.arange(64) - 31.5
    areas = [(distance_to(shape, steps, steps[:, None], torch.tensor(0.1), 12.0) < 0).sum().item() for shape in SHAPES]
    assert max(areas) < 1.3 * min(areas)


def test_the_wall_that_comes_back_is_the_wall_that_was_there():
    away, back = Look.parse(STAR.prompt), Look.parse(STAR.prompt.replace("right", "left"))
    clip = render((away, away, back, back), 3)
    returned = {int(x): i for i, x in enumerate(clip.camera)}  # the last visit of every place
    wall = clip.shape == 0
    compared = 0
    for i, x in enumerate(clip.camera.tolist()):
        both = wall[i] & wall[returned[x]]
        for shadow in (clip.shape[i], clip.shape[returned[x]]):
            both = both & (torch.nn.functional.max_pool2d(shadow[None], 13, 1, 6)[0] == 0)
        torch.testing.assert_close(clip.video_frames[i][both], clip.video_frames[returned[x]][both])
        compared += returned[x] != i
    assert compared > 15


@pytest.mark.slow
def test_the_detector_is_right_about_rendered_pictures():
    """600 pictures of 100 clips; a model can be no better than this detector says of the truth."""
    found = []
    for seed in range(100):
        clip = render(random_looks(np.random.default_rng(seed), 3), seed)
        shown = slice(0, None, 6)
        found.append(score(sightings(clip.video_frames[shown]), looks_of_frames(clip.looks)[shown]))
    right = {key: np.concatenate([getattr(s, key) for s in found]) for key in vars(found[0])}
    assert len(right["present"]) == 600
    for key in ("background", "pattern", "present", "shape", "single"):
        assert right[key].mean() >= 0.995, key
    assert np.nanmax(right["colour_error"]) < 0.1


def test_the_detector_sees_no_shape_in_a_bare_wall_and_two_where_there_are_two():
    bare = torch.full((1, 64, 64, 3), 0.3)
    nothing = sightings(bare)[0]
    assert (nothing.count, nothing.colour, nothing.shape, nothing.place) == (0, None, None, None)
    two = bare.clone()
    two[0, 5:20, 5:20] = two[0, 30:50, 30:50] = torch.tensor([0.92, 0.14, 0.14])
    found = sightings(two)[0]
    assert (found.count, found.area, found.colour, found.shape, found.place) == (2, 400, "red", "square", (40.0, 40.0))


def test_regions_touch_at_corners_and_have_numbers_of_their_own():
    mask = torch.tensor([[[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]]], dtype=torch.bool)
    labels = label(mask)[0]
    assert labels[0, 0] == labels[1, 1] != 0 and labels[0, 3] == labels[1, 3]
    assert len(labels.unique()) == 5  # four regions and the rest


def look_at(*landmarks, place=None, area=0):
    return Sighting(0 if place is None else 1, area, None, None, place, "teal", "floor", landmarks, None)


def test_a_landmark_is_found_within_four_pixels_but_not_elsewhere_or_behind_the_shape():
    before = look_at((20.0, 20.0), (40.0, 50.0))
    assert landmarks_found(before, look_at((22.0, 21.0), (41.0, 48.0))) == (2, 2)
    assert landmarks_found(before, look_at((20.0, 20.0))) == (1, 2)
    assert landmarks_found(before, look_at((20.0, 32.0), (40.0, 38.0))) == (0, 2)
    assert landmarks_found(before, look_at((40.0, 50.0), place=(21.0, 21.0), area=300)) == (1, 1)
    assert landmarks_found(before, look_at((20.0, 44.0)), upside_down=True) == (1, 2)
    assert landmarks_found(look_at((3.0, 20.0)), look_at((3.0, 20.0))) == (0, 0)


@pytest.mark.slow
def test_the_truth_itself_remembers_its_landmarks_and_is_told_from_chance():
    near, far, chance = [], [], []
    for seed, story in enumerate(there_and_back(8, blocks=16)):
        looks = [Look.parse(story.segments[story.prompt_index(block)].text) for block in range(16)]
        shown = range(0, 189, 4)
        clip = render(tuple(looks), seed)
        per_frame = looks_of_frames(looks)
        found = remembered(sightings(clip.video_frames[::4]), camera_path([per_frame[i] for i in shown]) * 4)
        near.append(found["remembered_near"])
        far.append(found["remembered_far"])
        chance.append(found["by_chance"])
    assert np.mean(near) > 0.9 and np.mean(far) > 0.9
    assert np.mean(chance) < 0.55


def test_a_camera_that_never_leaves_asks_nothing_of_memory():
    seen = sightings(render((BALL,) * 3, 0).video_frames[::4])
    assert set(remembered(seen, torch.zeros(len(seen))).values()) == {None}
