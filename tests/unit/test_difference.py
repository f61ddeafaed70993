"""What a list of takes says of the difference between two videos."""

from headforcing.headforcing_core.runs.difference import Difference, difference, own_words

PROMPTS = ["a ball in the navy room", "a ball in the sand room", "a star in the navy room"]


def notes(**changed: object) -> dict[str, object]:
    plain = {
        "prompts": PROMPTS,
        "starts_seconds": [0.0, 2.0625, 4.3125],
        "seeds": [None, None, None],
        "switches": ["reset"] * 3,
    }
    return plain | changed


def test_the_first_difference_of_two_stories_is_named_with_its_scene():
    other = [*PROMPTS[:2], "a star in the maroon striped room"]
    found = {
        Difference(3, "words", "maroon striped"): notes(prompts=other),
        Difference(2, "start"): notes(starts_seconds=[0.0, 2.8125, 4.3125]),
        Difference(3, "seed"): notes(seeds=[None, None, 7]),
        Difference(2, "switch"): notes(switches=["reset", "flush", "reset"], prompts=other),
        Difference(2, "end"): notes(prompts=PROMPTS[:2]),
        Difference(4, "words", "a tower"): notes(prompts=[*PROMPTS, "a tower"]),
    }
    for expected, about in found.items():
        assert difference(about, notes()) == expected
    assert difference(notes(), notes()) is None


def test_notes_of_older_videos_without_seeds_or_switches_are_compared_by_their_words():
    older = {"prompts": PROMPTS, "starts_seconds": [0.0, 2.0625, 4.3125]}
    assert difference(notes(seeds=[1, 2, 3]), older) is None
    assert difference({"prompts": ["a fox"]}, {"prompts": ["a wolf"]}) == Difference(
        1, "words", "a fox"
    )


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
