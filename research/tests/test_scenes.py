"""The world of rooms: what is hidden stays, what changes changes, and the detector sees all of
it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.demo.word_hash import (
    TEXT_LEN,
    advice,
    split_words,
)
from headforcing.headforcing_core.demo.words import CHOICES, Look
from headforcing.research.rooms.detector import (
    camera_words,
    label,
    mark_of,
    sightings,
)
from headforcing.research.rooms.scenes import (
    CLOCK,
    camera_path,
    looks_of_frames,
    render,
)
from headforcing.research.rooms.stories import (
    BLOCKS,
    random_story,
    returning_story,
    returns,
)
from tiny_files import TEAL

SAND = replace(TEAL, background="sand", pattern="plain")
BACK = (TEAL, SAND, TEAL)


@pytest.fixture(scope="module")
def clip():
    return render(BACK, seed=3)


def frames_of(block):
    return slice(CLOCK.video_frames(block), CLOCK.video_frames(block + 1))


def wall_of(clip, block):
    """The pixels of a block's first video frame that the actor never covers in blocks 0 and 2."""
    free = (clip.shape[frames_of(0)].amax(0) == 0) & (clip.shape[frames_of(2)].amax(0) == 0)
    shadow = torch.nn.functional.max_pool2d((~free).float()[None], 11, 1, 5)[0] > 0
    return clip.video_frames[frames_of(block)][0][~shadow]


def test_a_prompt_is_parsed_to_its_look_and_other_text_is_refused():
    rng = np.random.default_rng(0)
    for camera in CHOICES["camera"]:
        look = replace(Look.draw(rng), camera=camera)
        assert Look.parse(look.prompt) == look
        assert len(split_words(look.prompt)) <= TEXT_LEN and advice(look.prompt) is None
    for prompt in (
        "a red ball",
        "a red ball gliding in the teal velvet room",
        "a dog",
    ):
        with pytest.raises(ValueError, match="world of rooms"):
            Look.parse(prompt)


def test_a_room_comes_back_as_it_was_and_is_another_one_in_another_video(clip):
    other = render(BACK, seed=4)
    assert torch.equal(wall_of(clip, 2), wall_of(clip, 0))
    assert (wall_of(clip, 1) - wall_of(clip, 0)).abs().mean() > 0.1
    assert torch.equal(render(BACK, seed=3).video_frames, clip.video_frames)
    assert clip.layouts[0].pictures() != other.layouts[0].pictures()
    assert not np.allclose(clip.layouts[0].tint, other.layouts[0].tint)


def test_a_version_changes_the_past_alone_and_the_emblem_is_mostly_hidden_after_the_first_block(
    clip,
):
    """Need of the counterfactual test of memory: the last block is the same, pixel by pixel."""
    changed = render(BACK, seed=3, versions=(1, 0, 0))
    same = (changed.video_frames == clip.video_frames).flatten(1).all(1)
    assert not same[frames_of(0)].any() and same[frames_of(1)].all() and same[frames_of(2)].all()
    long = render([TEAL] * 24, seed=5)
    assert (long.facing[frames_of(0)] == 1).all()
    assert 0.2 < (long.facing[CLOCK.video_frames(1) :] > 0).double().mean() < 0.4


def test_the_camera_begins_anew_in_every_room_and_is_seen_in_both_directions():
    panning = replace(TEAL, camera="panning right")
    path = camera_path(looks_of_frames([panning, SAND, panning]))
    assert [path[frame] for frame in (8, 9, 21, -1)] == [16, 0, 0, 22]
    for camera in CHOICES["camera"]:
        moving = render([replace(TEAL, camera=camera)], seed=6)
        assert set(camera_words(moving.video_frames)) == {camera}


def test_stories_come_back_often_after_gaps_of_all_lengths_and_some_rooms_share_their_colour():
    """Demand on training: a fifth of all blocks is drawn from memory, after 3 frames and more."""
    gaps = np.array([returns(random_story(np.random.default_rng(seed))) for seed in range(400)])
    assert gaps.shape[1] == BLOCKS and 0.15 < (gaps > 0).mean() < 0.3 and (gaps >= 5).sum() > 50
    stories = [returning_story(np.random.default_rng(seed), 1, 2) for seed in range(20)]
    confused = 0
    for looks in stories:
        backgrounds = {look.background for look in looks}
        confused += len(backgrounds) < len({look.room for look in looks})
    assert 3 < confused < 17


def test_the_detector_sees_no_actor_in_a_bare_wall_and_two_where_there_are_two():
    bare = torch.full((1, 64, 64, 3), 0.3)
    nothing = sightings(bare)[0]
    assert (nothing.count, nothing.colour, nothing.shape, nothing.place) == (
        0,
        None,
        None,
        None,
    )
    bare[0, 5:20, 5:20] = bare[0, 30:50, 30:50] = torch.tensor([0.92, 0.14, 0.14])
    found = sightings(bare)[0]
    assert (found.count, found.area, found.colour, found.shape, found.place) == (
        2,
        400,
        "red",
        "square",
        (40.0, 40.0),
    )
    mask = torch.tensor(
        [[[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]]], dtype=torch.bool
    )
    labels = label(mask)[0]
    assert labels[0, 0] == labels[1, 1] != 0 and labels[0, 3] == labels[1, 3], (
        "regions touch at corners"
    )
    assert len(labels.unique()) == 5  # four regions and the rest
    shown = [
        replace(nothing, mark=mark, mark_area=area)
        for mark, area in (("red", 12), ("red", 15), ("cyan", 60))
    ]
    assert [mark_of(part) for part in ([nothing, *shown], shown[:2], [nothing])] == [
        "cyan",
        "red",
        None,
    ]
