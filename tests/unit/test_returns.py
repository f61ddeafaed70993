"""Prompts that return to an earlier scene: found by their words, overruled by tags."""

import json
import lzma
from pathlib import Path

import pytest
from headforcing.headforcing_core.timeline.returns import with_returns
from headforcing.headforcing_core.timeline.timeline import parse_timeline

STORIES = Path(__file__).parent / "stories" / "memflow_stories.jsonl.xz"
MOST = 8

STORIES_WITH_SCENES = [  # prompts, and the scene of each
    (["a red room", "a blue room", "a red room", "A blue room."], [1, 2, 1, 2]),
    (["a", "a", "b", "a"], [1, 1, 3, 1]),
    (["A chef is cooking in a kitchen", "A street at night", "The chef cooks in the kitchen"], [1, 2, 1]),
    (["A woman cooks in a bright kitchen", "She waters roses in a garden", "Back in the kitchen, she sits"], [1, 2, 1]),
    (["a red fox in the snow", "a grey heron in a pond", "the fox is back in the snow"], [1, 2, 1]),
    (["A knight in a dark forest", "A market", "A storm", "In the dark forest again, he lights a fire"], [1, 2, 3, 1]),
    (["A long hallway", "A cafe in Paris", "The hallway again, now empty"], [1, 2, 1]),
    (["Office with plants", "A park", "Back at the office", "Back in the park, it rains"], [1, 2, 1, 2]),
    # prompts that only resemble another; in the last story the kitchen has not been left
    (["a red ball in the navy checkerboard room", "a cross", "a red ball in the navy striped room"], [1, 2, 3]),
    (["a woman in a kitchen with blue tiles", "a street", "a woman in a hallway with blue tiles"], [1, 2, 3]),
    (["a fish in deep blue water", "a reef", "he glides back into the deep blue water of the reef"], [1, 2, 3]),
    (["a bright kitchen", "a kitchen and a garden", "back in the kitchen"], [1, 2, 3]),
]


def told(prompts):
    return with_returns(parse_timeline(" | ".join(prompts)), MOST)


def scenes_of(prompts) -> list[int]:
    scenes = [1]
    for number, segment in enumerate(told(prompts).segments[1:], 2):
        switch = segment.switch
        scenes.append(scenes[-1] if switch.continues else switch.recall or number)
    return scenes


@pytest.mark.parametrize(("prompts", "scenes"), STORIES_WITH_SCENES, ids=lambda value: str(value[-1]))
def test_a_prompt_that_returns_recalls_its_scene_and_one_that_only_resembles_another_does_not(prompts, scenes):
    for count in range(1, len(prompts) + 1):  # a later prompt changes nothing before it
        assert scenes_of(prompts[:count]) == scenes[:count]


def test_no_prompt_of_a_hundred_stories_is_mistaken_for_a_return():
    stories = [json.loads(line)["prompts"] for line in lzma.open(STORIES, "rt", encoding="utf-8")]
    assert len(stories) == 100
    assert not [story for story in stories if scenes_of(story) != [1, 2, 3, 4, 5, 6]]
    assert all(scenes_of([*story, story[1]])[-1] == 2 for story in stories), "and what does return is found"


def test_tags_overrule_what_words_say():
    prompts = ["a", "b", "[new scene] a", "[recall 2] a", "[flush] a", "[re-anchor] a", "[recall] b"]
    switches = [segment.switch for segment in told(prompts).segments]
    # `flush` recalls the scene that was visited last; a cut within a scene, `re-anchor`, begins another
    expected = ["reset", "reset", "new scene", "recall 2", "flush, recall 3", "re-anchor", "recall"]
    assert list(map(str, switches)) == expected and not any(switch.continues for switch in switches)


def test_a_scene_that_was_left_too_long_ago_is_a_new_one():
    others = [f"number {number}" for number in range(MOST)]
    assert scenes_of(["a", *others[1:], "a"])[-1] == 1
    assert scenes_of(["a", *others, "a"])[-1] == MOST + 2
    assert scenes_of(["a", *others[:4], "a", *others[4:], "a"])[-1] == 1, "the last visit counts"
