"""Timelines that are refused, each with one sentence and its line, and text that nobody would write on purpose."""

from __future__ import annotations

import math
import re
import time

import pytest
from headforcing.headforcing_core.timeline.timeline import BlockClock, TimelineError, parse_timeline
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import switches

TAGS = {  # tags that are none, and what is said of them
    **{tag: f"{tag} is not a tag; did you mean {meant}?" for tag, meant in {
        "[flsh]": "[flush]", "[Recahce]": "[recache]", "[ reanchor, flush ]": "[re-anchor, flush]",
        "[re_anchor]": "[re-anchor]", "[blnd 5]": "[blend 5]", "[blend5]": "[blend 5]",
        "[flus re-anchor blend 2]": "[flush, re-anchor, blend 2]", "[blende]": "[blend 3]",
    }.items()},
    "[sed 7]": "did you mean [seed 7]?", "[seed7]": "did you mean [seed 7]?",
    "[recahce, seeds 7]": "did you mean [recache, seed 7]?", "[seed]": "did you mean [seed 1]?",
    "[seed 7] [flsh]": "[flsh] is not a tag; did you mean [flush]?",
    "[seed: 7]": "[seed: 7] is not a tag; did you mean [seed 7]?", "[flush, seed -1]": "did you mean [flush, seed 1]?",
    "[seed 18446744073709551616]": "a seed is a whole number from 0 to 18446744073709551615, got 18446744073709551616",
    "[seed 7, seed 8]": "[seed 7, seed 8] is contradictory",
    "[recall 1, new scene]": "[recall 1, new scene] is contradictory",
}  # fmt: skip
ERRORS = {
    "empty": ("", None, None, "timeline is empty"),
    "reversed range": ("0:00 a\n\n[00:20-00:10] b", None, 3, r"line 3: '\[00:20-00:10\]' ends before it starts"),
    "after the end": ("0:00 a\n\n\n\n0:35 b", 30, 5, r"line 5: 0:35 is after the end of the video \(30.0 s\)"),
    "too close to the end": ("0:00 a\n0:30.4 b", 30.5, 2, "too close to the end.*blocks last 0.75 s"),
    "out of order": ("0:00 a\n0:20 b\n0:10 c", 30, 3, "line 3: 0:10 does not come after 0:20 of the prompt above"),
    "one block": ("0:00 a\n0:10 b\n0:10.2 c", 30, 3, "line 3: 0:10.2 falls on the same block.*blocks last 0.75 s"),
    "empty prompt": ("0:00 a\n0:10 -\n\n0:20 c", None, 2, "line 2: prompt 2 is empty"),
    "typo in a range": ("0:00 a\n[0:10-0:2O] b", None, 2, r"line 2: '\[0:10-0:2O\]' is not a time"),
    "ten hours and more": ("0:00 a\n999999:00 b", None, 2, "after the end of the longest video"),
    "empty pipe on line 3": ("a |\nb\n| ", 30, 3, "line 3: prompt 3 is empty"),
    "too many shares": ("|".join("abcdefgh"), 5, None, "8 prompts do not fit into 5 s.*blocks last 0.75 s"),
    "a scene without a time": ("Scene 1 [0:00]: a\nScene 2: b\nScene 3 [0:10]: c", None, 2, "this scene has no time"),
    "cut JSON": ('{"prompts": ["a", "b"', None, 1, "line 1: not valid JSON"),
    "comma in JSON": ('{"prompts": [\n"a",\n"b",\n]}', None, 4, "line 4: not valid JSON"),
    "first switch": ("[recache] a | b", 20, 1, r"line 1: the first prompt has nothing .*; remove \[recache\]"),
    "two kinds": ("a | [flush, recache] b", 20, 1, r"line 1: \[flush, recache\] is contradictory; write one of"),
    "a long blend": ("0:00 a\n0:10 [blend 17] b", 20, 2, "line 2: a blend takes 0 to 16 blocks, got 17"),
    "only a tag": ("0:00 a\n0:10 [flush]", 20, 2, "line 2: prompt 2 is empty"),
    "JSON without prompts": ('{"prompt": "a"}', None, None, "a JSON timeline is"),
    "JSON bomb": ("[" * 100_000, None, None, "nested too deeply"),
    "JSON huge number": ('{"prompts": ' + "1" * 100_000 + "}", None, None, "not valid JSON|a JSON timeline is"),
    "too few switches": ('{"prompts": ["a", "b"], "switch_frame_indices": []}', None, None, "must be a list of 1"),
    "switch of 300 digits": (switches(10**300), None, None, "latent frames in 0-"),
    "switch at the start": (switches(0), None, None, "0:00 does not come after 0:00"),
    "switch after the end": (switches(240), 30, None, "after the end"),
    "NaN seconds": ("a", math.nan, None, "at most 36000 seconds, got nan"),
    "not text": (b"a", None, None, "must be text"),
    "more than 1 MB": ("a" * ((1 << 20) + 1), None, None, "longer than 1 MB"),
    "100,000 times": ("0:00 a\n" * 100_000, None, None, "more than 10000 prompts"),
    "two blends": ("0:00 a\n0:10 [blend 2 blend 3] b", 20, 2, r"line 2: \[blend 2 blend 3\] is contradictory"),
    "switch as boolean": (switches(True), None, None, "latent frames in 0-"),
    "no seconds": ("a", 0, None, "above 0"),
    "more than 1 MB encoded": ("é" * (1 << 19) + "a", None, None, "longer than 1 MB"),
    "10,001 pipes": ("a|" * 10_000 + "a", 36_000, None, "more than 10000 prompts"),
    **{text: (text, None, line, re.escape(f"{shown} stands inside a prompt")) for text, line, shown in (
        ("0:00 a cat walks, 0:05 it jumps", 1, "'0:05'"), ("0s-5s: a cat walks, 5s-10s: it jumps", 1, "'5s-10s:'"),
        ("a cat walks [5s] it jumps", None, "[5s]"), ("a cat walks [10s] | it jumps [10s]", 1, "[10s]"),
        ("a cat walks, [5-10s] it jumps", None, "[5-10s]"), ("Scene 1: a cat walks [0:05] it jumps", 1, "[0:05]"),
        ('["a cat walks [5s]", "it jumps"]', None, "[5s]"),
    )},
    **{tag: (f"0:00 a\n0:10 {tag} b", 20, 2, re.escape(told)) for tag, told in TAGS.items()},
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_gives_one_sentence_with_its_line(case):
    text, seconds, line, message = ERRORS[case]
    with pytest.raises(TimelineError, match=message) as error:
        parse_timeline(text, seconds)
    assert error.value.line == line
    assert str(error.value).startswith(f"line {line}: ") or line is None
    assert len(str(error.value)) < 250 and "\n" not in str(error.value)


def test_a_shared_prompt_with_a_seed_is_refused_and_a_misspelt_tag_after_a_whole_one_is_text():
    with pytest.raises(TimelineError, match="in front of one prompt"):
        parse_timeline("a | b", shared_prompt="[flush, seed 7] noir")
    for tag in TAGS:
        assert parse_timeline(f"a | [reset] {tag} b").segments[1].text == f"{tag} b"


FRAGMENTS = (
    *("0:00", "0:10", "[0:10-0:20]", "[0:20 - 0:10]", "1:02.5", "[10-20s]", "12.5s", "0s", "80s", "99:99", "[", "]"),
    *("|", " | ", "\n", "\r\n", " ", "\t", "-", "—", ":", "Scene 1:", "Scene 2 [0:10]:", "scene", "a cat", "A cat: b"),
    *('{"prompts": ["a", "b"]}', '{"prompts"', '["a"', '"', ",", "{", "}", '"switch_frame_indices": [3]', "\\", "0"),
    *("\0", "\u202e", "\ufeff", "\u0660", "\u2028", "\ud800", "é", "👩‍🚀", "3:30 am", "0:0", "[0:1x]", "9" * 20),
    *("[recache]", "[flush, re-anchor]", "[blend 3]", "[reset] ", "[Blend 16 flush]", "[blend 99]", "[flush, "),
    *("[flsh]", "[recahce] ", "[blend3]", "[flash]", "[reanchor, flush] "),
    *("[seed 7]", "[seed 8] ", "[recache, seed 0]", "[seed: 7]", "[seed 7.5] ", "[sed 7]"),
)  # fmt: skip
SECONDS = (None, None, 30.0, 5.0, 0.5, 600.0)


def survives(text: str, seconds: float | None, clock: BlockClock) -> bool:
    """Whether the text parses; anything but a whole timeline or a TimelineError fails the test."""
    try:
        timeline = parse_timeline(text, seconds, clock)
    except TimelineError:
        return False
    starts = [segment.start_block for segment in timeline.segments]
    assert starts == sorted(set(starts)) and all(segment.text for segment in timeline.segments)
    return True


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=9), max_size=15).map("".join), st.sampled_from(SECONDS))
@settings(max_examples=300, deadline=None)
def test_any_mix_of_grammar_parses_or_gives_a_timeline_error(text, seconds):
    survives(text, seconds, BlockClock())


@pytest.mark.slow
def test_the_time_for_awkward_text_goes_with_its_length():
    """Eight times the text takes about eight times as long, and would take 64 times if time went with its square."""
    pieces = ("[flush ", "[flush, ", "flush ", "a | [flush, " + "flush " * 99, "[", "0:", "0:00 ", "[0:00-", " ", "\n",
              "a\n", "0:00 \n", "|", "Scene 1", "9", '["', "[0:00         ")  # fmt: skip
    for piece in pieces:
        seconds = []
        for size in (1 << 16, 1 << 19):
            text = piece * (size // len(piece) - 50)
            start = time.process_time()
            survives(text, 30, BlockClock())
            survives("0:00 a\n" + text, 30, BlockClock())
            seconds.append(time.process_time() - start)
        assert seconds[1] < 32 * max(seconds[0], 0.01), piece
