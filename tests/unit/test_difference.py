"""What a list of takes says of the difference between two videos."""

from headforcing.headforcing_core.runs.difference import (
    WHOLE_VIDEO,
    Difference,
    differences,
    own_words,
)

PROMPTS = ["a ball in the navy room", "a ball in the sand room", "a star in the navy room"]


def notes(**changed: object) -> dict[str, object]:
    plain = {
        "prompts": PROMPTS,
        "starts_seconds": [0.0, 2.0625, 4.3125],
        "seed": 3,
        "seeds": [None, None, None],
        "switches": ["reset"] * 3,
    }
    return plain | changed


def test_all_differences_of_two_stories_are_named_with_their_scenes_words_first():
    other = [*PROMPTS[:2], "a star in the maroon striped room"]
    words = Difference(3, "words", "maroon striped")
    cases: list[tuple[dict[str, object], list[Difference]]] = [
        (notes(prompts=other), [words]),
        (notes(starts_seconds=[0.0, 2.8125, 4.3125]), [Difference(2, "start")]),
        (notes(seeds=[None, None, 7]), [Difference(3, "seed")]),
        (
            notes(switches=["reset", "flush", "reset"], prompts=other),
            [words, Difference(2, "switch")],
        ),
        # other words bring another scene back
        (notes(switches=["reset", "reset", "recall 1"], prompts=other), [words]),
        (notes(prompts=other, seed=4), [words, Difference(WHOLE_VIDEO, "seed")]),
        (notes(prompts=PROMPTS[:2]), [Difference(2, "end")]),
        (notes(prompts=[*PROMPTS, "a tower"]), [Difference(4, "words", "a tower")]),
        # all after a scene that was put in are other scenes
        (notes(prompts=["a tower", *PROMPTS]), [Difference(1, "words", "a tower")]),
        (notes(), []),
    ]
    for about, expected in cases:
        assert differences(about, notes()) == expected, about


def test_another_seed_is_that_of_the_whole_video_or_of_the_scene_from_which_it_counts():
    whole = [Difference(WHOLE_VIDEO, "seed")]
    assert differences(notes(seeds=[7, None, None]), notes()) == whole
    assert differences(notes(seed=4), notes()) == whole
    assert differences(notes(seeds=[3, None, None]), notes()) == [], "it is the video's"
    assert differences(notes(seed=4, seeds=[None, 5, None]), notes(seeds=[None, 5, None])) == [
        Difference(1, "seed")
    ]
    assert differences(notes(seeds=[7, 8, None]), notes()) == [
        Difference(1, "seed"),
        Difference(2, "seed"),
    ]


def test_notes_of_older_videos_without_seeds_or_switches_are_compared_by_their_words():
    older = {"prompts": PROMPTS, "starts_seconds": [0.0, 2.0625, 4.3125]}
    assert differences(notes(seeds=[1, 2, 3]), older) == []
    assert differences({"prompts": ["a fox"]}, {"prompts": ["a wolf"]}) == [
        Difference(1, "words", "a fox")
    ]


def test_words_of_a_prompt_are_those_that_the_other_one_lacks_with_a_noun():
    for text, other, expected in (
        (
            "a red ball in the navy striped room",
            "a red ball in the sand striped room",
            "navy striped",
        ),
        ("a red ball", "a red ball in snow", "red ball"),
        ("a red ball in snow", "a red ball", "in snow"),
        ("fox fox fox", "fox fox", "fox fox"),
        ("x", "y", "x"),
        ("", "y", ""),
    ):
        assert own_words(text, other) == expected, (text, other)
