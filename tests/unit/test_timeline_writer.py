"""The timeline's writer, the answers that its visual editor works with, and prompts that return to
an earlier scene.
"""

import itertools
import json
import lzma
from pathlib import Path

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.rollout.schedule import LONGLIVE2
from headforcing.headforcing_core.timeline.characters import fold
from headforcing.headforcing_core.timeline.clock import BlockClock
from headforcing.headforcing_core.timeline.editor import PlacedPrompt, answer, write_timeline
from headforcing.headforcing_core.timeline.paste.paste import paste, read_any
from headforcing.headforcing_core.timeline.prompt import TimelineError
from headforcing.headforcing_core.timeline.returns import with_returns
from headforcing.headforcing_core.timeline.switch import RESET, Switch
from hypothesis import given
from hypothesis import strategies as st
from scripts import place_prompts

CLOCK = BlockClock()
CUT = Switch("flush", re_anchor=True)


def restored(
    prompts: list[PlacedPrompt], default: Switch = RESET, shared: str = ""
) -> list[PlacedPrompt]:
    """The prompts after they were written and read again; checks that there is a line for each and
    the shared words.
    """
    text = write_timeline(prompts, CLOCK, shared=shared)
    seconds = 60.0
    assert text.count("\n") == len(prompts) - (not fold(shared))
    assert paste(text).story.shared == fold(shared)
    return place_prompts(text, read_any(text, seconds, CLOCK, switch=default))


def test_the_text_is_a_line_per_prompt_with_the_time_of_its_first_frame_and_its_own_tag():
    prompts = [
        PlacedPrompt("a cat", 0),
        PlacedPrompt("a dog", 14, CUT),
        PlacedPrompt("a fox", 27, RESET),
    ]
    text = "0:00 a cat\n0:10.312 [flush, re-anchor] a dog\n0:20.062 [reset] a fox"
    assert write_timeline(prompts, CLOCK) == text
    assert restored(prompts) == prompts
    with_length = write_timeline(prompts, CLOCK, end=31.5)
    assert with_length == text.replace("0:20.062", "0:20.062-0:31.500")
    assert read_any(with_length).seconds == 31.5


HOSTILE = (
    *(
        "6:00 pm at the market",
        "pm at the market",
        "A.M. light",
        "80s disco",
        "1980s neon",
        "10s of waiting",
        "0:30 b",
    ),
    *("- 80s disco", "-", "- - a", "— dash", ": colon", "-5s", "[0:10", "0:1", "0:99", "12.5s"),
    *("[close-up] b",),
    *(
        "a | b",
        "|",
        "Scene 2: b",
        '{"prompts": ["a"]}',
        '["a"]',
        "a\nb",
        "a\r\n0:10 b",
        "a\u2028b",
        " a\tb ",
        "a\0b",
    ),
    *(
        "\ufeffa",
        "\u202eabc\u202c",
        "👩‍🚀",
        "\u0660:\u0660\u0660",
        "é" * 3000,
        "\ud800 a",
        "\\",
        '"',
        "[[flush]] a",
    ),
    *(
        "- [flush] a",
        "| a",
        "→ a",
        "=> a",
        ",a",
        ". a",
        "to 5s a",
        "- 5s: a",
        "0:05: 0:05 a",
        "---",
        "5s, a",
        "Scene 2 (0:05): a",
        "Duration: 5s",
        "1. a",
        ":) a",
        "-[flush] a",
        ":[flush] a",
        "a\x85b",
        "\x1c a",
        "pmx",
    ),
)


@pytest.mark.parametrize("default", [RESET, CUT], ids=str)
def test_no_text_is_read_as_anything_but_the_prompt(default):
    switches = ((None, None), (None, 7), (RESET, None), (Switch(blend_blocks=3), 2**64 - 1))
    for text, (switch, seed) in itertools.product(HOSTILE, switches):
        prompts = [
            PlacedPrompt(text, 0, seed=seed),
            PlacedPrompt(text, 5, switch, seed),
            PlacedPrompt("the end", 9),
        ]
        found = restored(prompts, default)
        assert [(each.text, each.start_block, each.seed) for each in found] == [
            (fold(text), 0, seed),
            (fold(text), 5, seed),
            ("the end", 9, None),
        ], text
        assert [prompt.switch or default for prompt in found[1:]] == [switch or default, default], (
            text
        )
        timeline = read_any(write_timeline(prompts[:2], CLOCK, end=20.0))
        assert (
            timeline.seconds == 20.0
            and [segment.text for segment in timeline.segments] == [fold(text)] * 2
        ), text


switches = st.builds(
    Switch, st.sampled_from(["reset", "recache", "flush"]), st.integers(0, 16), st.booleans()
)
FRAGMENTS = (
    "[",
    "]",
    "flush",
    "seed 7",
    "0:10",
    "-",
    ":",
    "pm",
    "80s",
    " ",
    "|",
    "a",
    "\n",
    "–",
    "blend 3",
    "x",
    ",",
    "shared",
)
texts = st.one_of(
    st.text(max_size=30), st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
).filter(fold)


seeds = st.none() | st.sampled_from([0, 7, 2**64 - 1])


@given(
    st.lists(
        st.tuples(texts, st.integers(1, 9), st.none() | switches, seeds), min_size=1, max_size=6
    ),
    st.sampled_from([RESET, CUT]),
    st.just("") | texts,
)
def test_any_prompts_are_restored_or_refused(parts, default, shared):
    prompts = []
    block = 0
    for text, blocks, switch, seed in parts:
        seconds = CLOCK.start_seconds(block) // 1
        switch = switch if block else None
        prompts.append(PlacedPrompt(fold(text), block, switch, seed, asked=seconds))
        block += blocks
    try:
        found = restored(prompts, default, shared)
    except TimelineError as error:
        refused = {
            "begins with a tag": "[",
            "is not a tag": "[",
            "begin the text with": "[:",  # a time in brackets or with a fraction
            "[shared]": "[",
            "a tag belongs": "[",
            "chooses a word": "{[",
            "changes words": "[",
            "a comment": "/",
        }
        (reason,) = [reason for reason in refused if reason in str(error)]
        written = "\n".join([shared, *(prompt.text for prompt in prompts)])
        assert any(mark in written for mark in refused[reason])
        return
    for before, after in zip(prompts, found, strict=True):
        assert (before.text, before.start_block, before.seed) == (
            after.text,
            after.start_block,
            after.seed,
        )
        assert before.start_block == 0 or (before.switch or default) == (after.switch or default)


def test_impossible_prompts_are_refused_with_their_number():
    seed = "line 2: prompt 2 begins with a tag; remove it and set the switch"
    first = PlacedPrompt("a", 0)
    for prompts, words in (
        ([], "the timeline is empty"),
        ([PlacedPrompt(" \n", 0)], "line 1: prompt 1 is empty"),
        ([first, PlacedPrompt("\0", 4)], "line 2: prompt 2 is empty"),
        ([PlacedPrompt("a", 1)], "line 1: prompt 1 cannot begin at block 1"),
        ([PlacedPrompt("[0:10-0:20] b", 0)], r"line 1: \[0:10-0:20\] stands inside a prompt"),
        ([first, PlacedPrompt("b", 0)], "line 2: prompt 2 cannot begin at block 0"),
        ([first, PlacedPrompt("b", 10**4000)], "line 2: prompt 2 cannot begin at block 1000"),
        ([first, PlacedPrompt("[seed 7] b", 5, Switch("recache"))], seed),
        ([first, PlacedPrompt("[flush] b", 5)], seed),
        ([first, PlacedPrompt("[flsh] b", 5, Switch("recache"))], seed),
    ):
        with pytest.raises(TimelineError, match=words) as error:
            write_timeline(prompts, CLOCK)
        assert len(str(error.value)) < 150


NODE = {
    "seconds": 30.0,
    "shared_prompt": "noir",
    "switch": "reset",
    "blend_blocks": 2,
    "re_anchor": False,
}


def test_a_text_is_answered_with_its_segments_and_what_places_them():
    got = answer(NODE | {"text": "0:00 a | b\n0:10 [recache] c"})
    expected = {"blocks": 41, "seconds": 30.0, "block_seconds": 0.75, "first_block_seconds": 0.5625}
    expected |= {"fps": 16}
    assert expected.items() <= got.items() and json.loads(json.dumps(got)) == got
    assert got["default"]["kind"] == "reset" and got["default"]["blend_blocks"] == 2
    first, second = got["segments"]
    assert first["text"] == "a | b" and first["tag"] is None and first["switch"] is None
    recache = {
        "kind": "recache",
        "blend_blocks": 0,
        "re_anchor": False,
        "recall": None,
        "new_scene": False,
    }
    placed = {"start_block": 14, "end_block": 41, "start": 10.3125, "end": 30.0}
    assert (placed | {"text": "c", "tag": "recache", "switch": recache}).items() <= second.items()


def test_blocks_and_the_switch_without_a_tag_are_those_of_the_model():
    node = NODE | {"blend_blocks": 0}
    own = (LONGLIVE2.clock, Switch(re_anchor=True))
    read = answer(node | {"text": "a | b | [reset] c"}, *own)
    assert (read["blocks"], read["block_seconds"], read["first_block_seconds"]) == (
        23,
        32 / 24,
        29 / 24,
    )
    assert read["default"]["re_anchor"] and not answer(node | {"text": "a"})["default"]["re_anchor"]
    read["segments"][1]["start_block"] = 9
    assert (
        answer(node | {"segments": read["segments"]}, *own)["text"]
        == "0:00 a\n0:11.875 b\n0:19.875 [reset] c"
    )


def test_segments_are_answered_with_their_text_and_read_back_from_it():
    read = answer(NODE | {"text": "a | [flush] b | c"})
    read["segments"][2]["start_block"] = 20
    got = answer(NODE | {"segments": read["segments"]})
    assert got["text"] == "0:00 a\n0:10.312 [flush] b\n0:14.812 c"
    assert [segment["start_block"] for segment in got["segments"]] == [0, 14, 20]
    assert answer(NODE | {"text": got["text"]}) == got
    # the largest seed goes there and back as text
    text = f"0:00 [seed 7] a\n0:10.312 [flush, seed {2**64 - 1}] b"
    read = answer(NODE | {"text": text})
    assert [segment["seed"] for segment in read["segments"]] == ["7", str(2**64 - 1)]
    assert answer(NODE | {"segments": read["segments"]})["text"] == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00 a\n0:10 b\n0:40 c", 30.0),  # begins after the end
        ("0:00 a\n0:30 b", 30.0),  # at the end
        ("0:00 a\n0:30.4 b", 30.5),  # too close to it for a block of its own
        ("0:00 a\n0:10-0:40 b", 30.0),  # ends after it
        (" | ".join("a" * 30), 2.0),  # more prompts than blocks
    ],
)
def test_a_story_longer_than_the_video_is_answered_with_its_prompts_and_why_it_is_not_rendered(
    text, seconds
):
    with pytest.raises(TimelineError) as error:
        read_any(text, seconds)
    got = answer(NODE | {"text": text, "seconds": seconds})
    assert (got["beyond"], got["refusal"]) == (seconds, str(error.value)) and "error" not in got
    assert got["segments"] == answer(NODE | {"text": text, "seconds": 0})["segments"]
    assert (
        answer(NODE | {"segments": got["segments"][:1], "seconds": seconds}).get("beyond") is None
    )
    for broken in (text.replace("a", "[flsh] a", 1), f"{text}\n0:05 again"):
        assert "error" in answer(NODE | {"text": broken, "seconds": seconds}) or "|" in broken


def test_a_time_stays_as_it_was_written_until_its_prompt_is_moved_and_so_does_the_length_of_a_text():
    first, second, third = answer(NODE | {"text": "0:00 a\n0:10 b\n[0:20.25] c"})["segments"]
    assert (first["asked"], second["asked"], third["asked"]) == (0.0, 10.0, 20.25)
    later = second | {"start_block": second["start_block"] + 1}
    at_the_beginning = second | {"start_block": 0}
    for segments, text in (
        ([first, second | {"text": "d"}, third], "0:00 a\n0:10 d\n0:20.25 c"),
        ([first, later, third], "0:00 a\n0:11.062 b\n0:20.25 c"),
        ([at_the_beginning, third], "0:00 b\n0:20.25 c"),
    ):
        assert answer(NODE | {"segments": segments})["text"] == text
    node = NODE | {"seconds": 0}
    read = answer(node | {"text": "0:00 a\n[0:10-0:23.4] b"})
    read["segments"][1]["start_block"] = 4
    got = answer(node | {"segments": read["segments"], "length": read["seconds"]})
    assert (got["seconds"], got["text"]) == (23.4, "0:00 a\n0:02.812-0:23.400 b")


def test_words_of_all_prompts_are_written_once_before_the_first_time():
    text = "[shared] A red fox,\n  35 mm\n\n0:00 trots\n0:10 [flush] rests"
    read = answer(NODE | {"text": text})
    assert (read["text"], read["shared"]) == (text, "A red fox, 35 mm")
    assert [segment["text"] for segment in read["segments"]] == ["trots", "rests"]
    for shared, first in (("A dog. ", "[shared] A dog.\n"), ("", "")):
        got = answer(NODE | {"segments": read["segments"], "shared": shared})
        assert got["text"] == f"{first}0:00 trots\n0:10 [flush] rests"


def test_a_ratio_on_a_line_of_shared_words_is_no_time():
    for ratio in ("16:9 wide", "2.39:1 wide", "35 mm"):
        text = f"[shared] noir\n{ratio}\n0:00 a"
        assert paste(text).story.shared == f"noir {ratio}"


def of_a(**segment):
    return {"segments": [{"text": "a", "start_block": 0} | segment]}


BODIES = (
    None,
    [],
    {},
    {"text": 5},
    {"segments": {}},
    {"segments": ["a"]},
    of_a(start_block=0.5),
    of_a(start_block=True),
    of_a(switch={"kind": "cut"}),
    of_a(switch="flush"),
    of_a(seed=7),
    of_a(seed="-1"),
    of_a(seed=str(2**64)),
    of_a() | {"length": 10**400},
    {"text": "a", "blend_blocks": 99},
    {"text": "a", "shared_prompt": 1},
    {"text": "a", "seconds": float("nan")},
    {"text": "a", "seconds": -1},
    {"text": "a", "seconds": "30"},
)


def test_a_request_of_another_form_is_refused_in_a_sentence():
    for body in BODIES:
        with pytest.raises(HeadForcingError) as error:
            answer(body)
        assert len(str(error.value)) < 200 and "\n" not in str(error.value)
    sentence = "line 2: 0:35 is after the end of the video (30.0 s)"
    assert answer(NODE | {"text": "0:00 a\n0:35 b"})["refusal"] == sentence
    sentence = "line 2: '0:20-0:10' ends before it starts"
    assert answer(NODE | {"text": "0:00 a\n0:20-0:10 b"}) == {"error": sentence, "line": 2}


STORIES = Path(__file__).parent / "stories" / "memflow_stories.jsonl.xz"
MOST = 8

STORIES_WITH_SCENES = [  # prompts, and the scene of each
    (["a red room", "a blue room", "a red room", "A blue room."], [1, 2, 1, 2]),
    (["a", "a", "b", "a"], [1, 1, 3, 1]),
    (
        ["A chef is cooking in a kitchen", "A street at night", "The chef cooks in the kitchen"],
        [1, 2, 1],
    ),
    (
        [
            "A woman cooks in a bright kitchen",
            "She waters roses in a garden",
            "Back in the kitchen, she sits",
        ],
        [1, 2, 1],
    ),
    (["a red fox in the snow", "a grey heron in a pond", "the fox is back in the snow"], [1, 2, 1]),
    (
        [
            "A knight in a dark forest",
            "A market",
            "A storm",
            "In the dark forest again, he lights a fire",
        ],
        [1, 2, 3, 1],
    ),
    (["A long hallway", "A cafe in Paris", "The hallway again, now empty"], [1, 2, 1]),
    (
        ["Office with plants", "A park", "Back at the office", "Back in the park, it rains"],
        [1, 2, 1, 2],
    ),
    # prompts that only resemble another; in the last story the kitchen has not been left
    (
        [
            "a red ball in the navy checkerboard room",
            "a cross",
            "a red ball in the navy striped room",
        ],
        [1, 2, 3],
    ),
    (
        [
            "a woman in a kitchen with blue tiles",
            "a street",
            "a woman in a hallway with blue tiles",
        ],
        [1, 2, 3],
    ),
    (
        [
            "a fish in deep blue water",
            "a reef",
            "he glides back into the deep blue water of the reef",
        ],
        [1, 2, 3],
    ),
    (["a bright kitchen", "a kitchen and a garden", "back in the kitchen"], [1, 2, 3]),
]


def story_of(prompts):
    return with_returns(read_any(" | ".join(prompts)), MOST)


def scenes_of(prompts) -> list[int]:
    scenes = [1]
    for number, segment in enumerate(story_of(prompts).segments[1:], 2):
        switch = segment.switch
        scenes.append(scenes[-1] if switch.continues else switch.recall or number)
    return scenes


@pytest.mark.parametrize(
    ("prompts", "scenes"), STORIES_WITH_SCENES, ids=lambda value: str(value[-1])
)
def test_a_prompt_that_returns_recalls_its_scene_and_one_that_only_resembles_another_does_not(
    prompts, scenes
):
    for count in range(1, len(prompts) + 1):  # a later prompt changes nothing before it
        assert scenes_of(prompts[:count]) == scenes[:count]


def test_no_prompt_of_a_hundred_stories_is_mistaken_for_a_return():
    stories = [json.loads(line)["prompts"] for line in lzma.open(STORIES, "rt", encoding="utf-8")]
    assert len(stories) == 100
    assert not [story for story in stories if scenes_of(story) != [1, 2, 3, 4, 5, 6]]
    assert all(scenes_of([*story, story[1]])[-1] == 2 for story in stories), (
        "and what does return is found"
    )


def test_tags_overrule_what_words_say():
    prompts = [
        "a",
        "b",
        "[new scene] a",
        "[recall 2] a",
        "[flush] a",
        "[re-anchor] a",
        "[recall] b",
    ]
    switches = [segment.switch for segment in story_of(prompts).segments]
    # `flush` recalls the scene that was visited last; a cut within a scene, `re-anchor`, begins
    # another
    expected = ["reset", "reset", "new scene", "recall 2", "flush, recall 3", "re-anchor", "recall"]
    assert list(map(str, switches)) == expected and not any(switch.continues for switch in switches)


def test_a_prompt_cannot_return_to_the_scene_that_the_story_is_in():
    """The last prompt of the kitchen's scene does not name it, so that "back in the kitchen" has
    nowhere to return.
    """
    story = ["A woman cooks in a bright kitchen", "A garden with roses", "[recall 1] she sings"]
    assert scenes_of([*story, "Back in the kitchen, she sits"]) == [1, 2, 1, 4]
    assert scenes_of([*story, "Back in the garden, she sits"]) == [1, 2, 1, 2]


def test_a_scene_that_was_left_too_long_ago_is_a_new_one():
    others = [f"number {number}" for number in range(MOST)]
    assert scenes_of(["a", *others[1:], "a"])[-1] == 1
    assert scenes_of(["a", *others, "a"])[-1] == MOST + 2
    assert scenes_of(["a", *others[:4], "a", *others[4:], "a"])[-1] == 1, "the last visit counts"


@pytest.mark.parametrize(
    "text", ["a | b | c", '["a", "b", "c"]', "a", "0:00 a\n0:10 b", "Scene 1: a\nScene 2: b"]
)
def test_the_first_writing_is_the_second(text):
    written = [text]
    for _ in range(2):
        read = answer({"text": written[-1], "seconds": 0})
        written.append(answer({**read, "length": read["seconds"]})["text"])
    assert written[1] == written[2]
