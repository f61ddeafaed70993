"""Subtitles as stories: words stay in the cue that FFmpeg puts them in, or their line is named."""

import pytest
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.timeline.prompt import TimelineError

FOX = "1\n00:00:00,000 --> 00:00:05,000\na fox\n"
WOLF = "2\n00:00:05,000 --> 00:00:10,000\na wolf\n"
CUES = "00:00.000 --> 00:05.000\na fox\n\n00:05.000 --> 00:10.000\na wolf\n"
BOTH = ["a fox", "a wolf"]
READ = {
    f"{FOX}\n{WOLF}": BOTH,
    f"{FOX}\nin the snow\n\n{WOLF}": ["a fox in the snow", "a wolf"],
    f"{FOX}\n\nin the\n\nsnow\n{WOLF}": ["a fox in the snow", "a wolf"],
    f"{FOX}\n{WOLF}\nand a cub\n": ["a fox", "a wolf and a cub"],
    FOX.replace("a fox", "\na fox") + WOLF: BOTH,
    FOX + WOLF.replace("2\n", "2\n\n"): BOTH,
    FOX + WOLF.replace(" --> ", "-->"): BOTH,
    (FOX + WOLF).replace(",000", ""): BOTH,
    FOX + WOLF.replace(",000", ""): BOTH,
    FOX + WOLF.replace("a wolf", "10\nwolves at 10:30"): ["a fox", "10 wolves at 10:30"],
    f"WEBVTT\n\n{CUES}": BOTH,
    f"WEBVTT - title\nKind: captions\nLanguage: en\n\n1\n{CUES}": BOTH,
    f"WEBVTT\n\nSTYLE\n::cue {{ color: red }}\n\nNOTE of\nits author\n\nend\n{CUES}": BOTH,
    "WEBVTT\n\n" + CUES.replace("a fox", " \na fox"): BOTH,
    "WEBVTT\n\n" + CUES.replace("a fox", "a fox\n \nin the snow"): ["a fox in the snow", "a wolf"],
    "WEBVTT\n\n" + CUES.replace("a fox", "a <00:01.000><c>fox</c>"): BOTH,
    "WEBVTT\n\n" + CUES.replace("a fox", "a<00:00:01.000><c.red> fox</c>"): BOTH,
    FOX + WOLF.replace("a wolf", "{\\k20}a <b>{\\k9}wolf<b\\>"): BOTH,
}
REFUSED = {
    f"{FOX}\n2\n\n{WOLF}": 5,
    f"{FOX}\n{WOLF.replace('-->', '->')}": 5,
    f"{FOX}{WOLF.replace('-->', '->')}": 5,
    f"{FOX}{WOLF.replace('-->', '→')}": 5,
    f"{FOX}{WOLF.replace(',', ':')}": 5,
    f"{FOX}00:00:05 → 00:00:10\na wolf": 4,
    f"{FOX}\n0:10 It stops at the lake.": 5,
    f"{FOX}\nScene 2: a lake": 5,
    f"WEBVTT\n\na hen\n\n{CUES}": 3,
    f"WEBVTT\na hen\n\n{CUES}": 2,
    f"WEBVTT\n\n{CUES}\nand a cub": 9,
    "WEBVTT\n\n" + CUES.replace("a fox", "a fox\n\nin the snow"): 6,
    "WEBVTT\n\n" + CUES.replace("00:05.000 -->", "00:05.000 →"): 6,
    "WEBVTT\n\n" + CUES.replace("\n\n00:05", "\n\ntwo\nnames\n00:05"): 6,
}


@pytest.mark.parametrize("text", READ)
def test_words_of_subtitles_stay_in_their_cue(text):
    assert [segment.text for segment in read_any(text).segments] == READ[text]


@pytest.mark.parametrize("text", REFUSED)
def test_a_line_of_subtitles_that_belongs_to_no_cue_is_named(text):
    with pytest.raises(TimelineError, match="subtitle") as caught:
        read_any(text)
    assert caught.value.line == REFUSED[text]
