"""The prompt timeline: block arithmetic, every grammar, every error, and text that nobody would
write on purpose.
"""

import contextlib
import itertools
import json
import math
import re
import sys
import time
from pathlib import Path
from types import FrameType

import pytest
from headforcing.cli.batch_jobs import read_jobs
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.timeline import timeline as story_timeline
from headforcing.headforcing_core.timeline.characters import split_lines, split_prompts
from headforcing.headforcing_core.timeline.clock import video_frames_of
from headforcing.headforcing_core.timeline.editor import write_timeline
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.timeline.switch import RESET, Switch
from headforcing.headforcing_core.timeline.timeline import (
    BlockClock,
    Timeline,
    TimelineError,
    parse_timeline,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import place_prompts, switches

FRAMEWISE = BlockClock(frames_per_block=1)


def asked(text: str, seconds: float | None = None, **options) -> list[tuple[float, float, str]]:
    """What was read: (start, start of the next one or end of the video, prompt) in seconds; checks
    on the way that the blocks have no gaps.
    """
    timeline = read_any(text, seconds, **options)
    starts = [segment.start_block for segment in timeline.segments]
    assert starts[0] == 0
    assert [segment.end_block for segment in timeline.segments] == [*starts[1:], timeline.blocks]
    assert all(segment.start_block < segment.end_block for segment in timeline.segments)
    ends = [*timeline.requested[1:], timeline.seconds]
    texts = [segment.text for segment in timeline.segments]
    return list(zip(timeline.requested, ends, texts, strict=True))


def check_written(text: str, timeline: Timeline) -> None:
    """What is written of a text is read as the same prompts at the same blocks."""
    written = write_timeline(place_prompts(text, timeline), timeline.clock)
    assert read_any(written, timeline.seconds, timeline.clock).segments == timeline.segments


def test_the_first_block_gives_9_pictures_and_each_later_one_12():
    clock = BlockClock()
    assert [clock.video_frames(blocks) for blocks in range(5)] == [0, 9, 21, 33, 45]
    assert [clock.video_frames(block) for block in range(4)] == [0, 9, 21, 33]
    assert (
        clock.start_seconds(1) == 0.5625
        and clock.block_seconds == 0.75
        and clock.blocks_for(0) == 1
    )
    assert [BlockClock(continues=True).block_at(seconds) for seconds in (0.375, 0.376, 1.125)] == [
        0,
        1,
        1,
    ]
    assert (
        [FRAMEWISE.video_frames(n) for n in range(4)]
        == [video_frames_of(n) for n in range(4)]
        == [0, 1, 5, 9]
    )
    for seconds, method in itertools.product(
        (-1, math.nan, 10**400), (clock.blocks_for, clock.block_at)
    ):
        with pytest.raises(HeadForcingError, match="a time must be"):
            method(seconds)


@given(st.floats(0, 36_000), st.integers(1, 8), st.sampled_from([16, 12.5, 24, 23.976, 7]))
def test_the_smallest_number_of_blocks_and_the_nearest_edge_are_found(seconds, frames, fps):
    clock = BlockClock(frames, fps)
    blocks = clock.blocks_for(seconds)
    nearest = clock.block_at(seconds)
    assert clock.video_frames(blocks) / fps >= seconds - 1e-6
    assert blocks == 1 or clock.video_frames(blocks - 1) / fps < seconds
    distances = [
        abs(clock.start_seconds(nearest + step) - seconds)
        for step in (0, 1, -1)
        if nearest + step >= 0
    ]
    assert distances[0] <= min(distances) + 1e-9
    whole = clock.video_frames(blocks) / fps
    assert (clock.blocks_for(whole), clock.blocks_for(whole + 0.01 / fps)) == (blocks, blocks + 1)


WORDS_LIKE_TIMES = (
    "a station clock, 12:30, people wait",
    "at 6:00 pm, 7:00 pm and later",
    "sizes [10-20], a 16:9 screen",
    "a disco, 80s style [close-up] [4k]",
)
READS = {
    "lines of one prompt fold": (
        "a cat\n  on a\tmat\r\n\r\nat dusk",
        5,
        [(0, 5, "a cat on a mat at dusk")],
    ),
    "switches": (switches(39), 20, [(0, 9.562, "a"), (9.562, 20, "b")]),
    "switch snaps up": (switches(40), 20, [(0, 10.312, "a"), (10.312, 20, "b")]),
    "h:mm:ss": ("0:00:00 a\n1:00:05 b", 3700, [(0, 3605, "a"), (3605, 3700, "b")]),
    "dash": (
        "0:00 - a\n0:10 — b\n0:20: c\n0:25 -d",
        30,
        [(0, 10, "a"), (10, 20, "b"), (20, 25, "c"), (25, 30, "d")],
    ),
    "ranges": ("[00:00-00:10] a\n[00:10-00:20] b", None, [(0, 10, "a"), (10, 20, "b")]),
    "bracketed seconds": (
        "[0-10s] a\n[10-20] b\n[20.5s] c",
        30,
        [(0, 10, "a"), (10, 20.5, "b"), (20.5, 30, "c")],
    ),
    "plain seconds": ("0s a\n12.5s b\n20s c", 30, [(0, 12.5, "a"), (12.5, 20, "b"), (20, 30, "c")]),
    "the last range ends early": ("[0-5s] a", 9, [(0, 9, "a")]),
    "a gap continues": ("[0:00-0:05] a\n[0:10-0:15] b", None, [(0, 10, "a"), (10, 15, "b")]),
    "continuation lines": (
        "0:00 a\ngoes on\n\nand on\n0:10\nb\n",
        20,
        [(0, 10, "a goes on and on"), (10, 20, "b")],
    ),
    "indented": (
        "  0:00 a\n\t0:10 b\n\u00a00:15 c",
        20,
        [(0, 10, "a"), (10, 15, "b"), (15, 20, "c")],
    ),
    "a pipe between times": ("0:00 a | b\n0:10 c", 20, [(0, 10, "a | b"), (10, 20, "c")]),
    "time in prose": (
        "at 10:30 in the morning a man",
        5,
        [(0, 5, "at 10:30 in the morning a man")],
    ),
    "time of day": ("6:00 pm, a market", 5, [(0, 5, "6:00 pm, a market")]),
    "aspect ratio": ("16:9 film still | b", 20, [(0, 10, "16:9 film still"), (10, 20, "b")]),
    "a decade": ("80s disco", 5, [(0, 5, "80s disco")]),
    "other digits": ("\u0660:\u0660\u0660 a", 5, [(0, 5, "\u0660:\u0660\u0660 a")]),
    "pipes": ("a | b | c", 30, [(0, 10, "a"), (10, 20, "b"), (20, 30, "c")]),
    "uneven shares": ("a|b|c", 10, [(0, 3.333, "a"), (3.333, 6.666, "b"), (6.666, 10, "c")]),
    "scenes": ("Scene 1: a\nScene 2:\nb\nc", 20, [(0, 10, "a"), (10, 20, "b c")]),
    "scenes with times": ("Scene 1: a\nScene 2 [0:04]: b", 10, [(0, 4, "a"), (4, 10, "b")]),
    "json": ('{"prompts": ["a", "b"]}', None, [(0, 10, "a"), (10, 20, "b")]),
    "json over lines": (
        '[\n  "a | c",\n  "0:10 b"\n]',
        None,
        [(0, 10, "a | c"), (10, 20, "0:10 b")],
    ),
    "brackets in prose": ("[close-up] a cat", 5, [(0, 5, "[close-up] a cat")]),
    "bidi and emoji": (
        "0:00 \u202eabc\u202c\n0:04 👩‍🚀",
        8,
        [(0, 4, "\u202eabc\u202c"), (4, 8, "👩‍🚀")],
    ),
    "lone surrogate": ('["\\ud800 a"]', 5, [(0, 5, "? a")]),
    "the longest video": ("a", 36_000, [(0, 36_000, "a")]),
    "prompt with NUL": ("a\0b", 5, [(0, 5, "a b")]),
    **{
        text: (text, None, [(0, 5, "a cat walks"), (5, 10, "it jumps")])
        for text in (
            "[0-5s] a cat walks, [5-10s] it jumps",
            "[0-5s] a cat walks; [5-10s] it jumps",
            "[0-5s] a cat walks [5-10s] it jumps",
            "[0:00-0:05] a cat walks, [0:05-0:10] it jumps",
            "[0s-5s] a cat walks\n[5s-10s] it jumps",
            "[0s] a cat walks, [5s-10s]: it jumps",
        )
    },
    **{words: (words, None, [(0, 10, words)]) for words in WORDS_LIKE_TIMES},
    **{
        f"[0:00] {words}": (f"[0:00] {words}", None, [(0, 10, words)]) for words in WORDS_LIKE_TIMES
    },
}


@pytest.mark.parametrize("case", READS)
def test_text_is_read_as_a_person_expects(case):
    text, seconds, expected = READS[case]
    assert asked(text, seconds) == expected
    check_written(text, read_any(text, seconds))


def test_the_shared_prompt_goes_in_front_of_every_prompt():
    for shared, prompt in (
        ("", "a cat"),
        ("Noir.", "Noir. a cat"),
        (" film\n noir, ", "film noir, a cat"),
    ):
        assert [text for _, _, text in asked("a cat | a cat", 20, shared_prompt=shared)] == [
            prompt,
            prompt,
        ]
    for text in (
        "[Shared] x\nScene 1: a\nScene 2: b",
        "\n[ shared ] x\na | b",
        '[shared] x\n{"prompts": ["a", "b"]}',
    ):
        assert [prompt for _, _, prompt in asked(text, shared_prompt="noir")] == [
            "noir, x, a",
            "noir, x, b",
        ]


RECACHE = Switch("recache")
CUT = Switch("flush", re_anchor=True)
BLEND = Switch(blend_blocks=3)
TAGS = (  # a text, and the seeds of its prompts
    (
        "0:00 [seed 0] a\n0:10 [recache, seed 7] b\n0:20 - [seed 7] [flush, re-anchor] c\n0:30: "
        "[blend 3] d",
        "077",
    ),
    ("[SEED 0] a | [seed 7 recache] b | [flush re-anchor][ seed 7 ]c|[blend 3]d", "077"),
    (
        json.dumps(
            [
                "[reset, seed 0] a",
                "[seed 7] [recache] b",
                "[flush, re-anchor, seed 7] c",
                "[blend 3] d",
            ]
        ),
        "077",
    ),
    (
        "[0:00-0:10] a\n[0:10-0:20] [recache] b\n[0:20][flush, re-anchor]c\n[0:30]\n[blend\n 3 "
        "]\nd",
        "",
    ),
)


@pytest.mark.parametrize(("text", "seeds"), TAGS)
def test_a_tag_in_front_of_a_prompt_is_its_switch_and_the_seed_of_its_noise_in_every_grammar(
    text, seeds
):
    timeline = read_any(text, 40)
    found = [(segment.text, segment.switch, segment.seed) for segment in timeline.segments]
    numbers = [*map(int, seeds), None, None, None, None]
    assert found == [*zip("abcd", (RESET, RECACHE, CUT, BLEND), numbers[:4], strict=True)]
    check_written(text, timeline)


PROSE = (
    *(
        "[closeup] b",
        "[flush the toilet] b",
        "[blend x] b",
        "[blend ²] b",
        "b [flush] c",
        "(flush) b",
    ),
    *(
        "[] b",
        "[flush",
        "[[flush]] b",
        "[recache; flush] b",
        "[,flush] b",
        "flush] b",
        "[reſet] b",
        "[flash] b",
    ),
    *(
        "[blond woman] b",
        "[reset the clock] b",
        "b [flsh]",
        "[flsh",
        "[seed of doubt] b",
        "[speed 2] b",
        "b [seed 7]",
        "「reset」 b",
        "**bold** b",
        "[dissolve into mist] b",
    ),
    *("[seed 3 of 5 seeds] b", "[seed 7", "(seed 7) b"),
)


def test_a_bracket_with_other_words_belongs_to_the_prompt():
    for text in PROSE:
        first, second = read_any(f"{text} | {text}").segments
        assert (first.text, second.text, second.switch, first.seed) == (text, text, RESET, None)


def test_tags_beside_one_another_are_one_tag():
    for tags, whole in (
        ("[recache] [seed 7]", "[recache, seed 7]"),
        ("[seed 7] [recache]", "[recache, seed 7]"),
        ("[recache] [blend 2]: [seed 7]", "[recache, blend 2, seed 7]"),
    ):
        timeline = read_any(f"a | {tags} b", switch=CUT)
        assert timeline.segments == read_any(f"a | {whole} b", switch=CUT).segments
        assert timeline.segments[1].text == "b"
    segments = read_any(
        "a | [seed 7] b | [reset, seed 18446744073709551615] c", switch=CUT
    ).segments
    assert [(segment.switch, segment.seed) for segment in segments] == [
        (RESET, None),
        (CUT, 7),
        (RESET, 2**64 - 1),
    ]


def test_prompts_snap_to_the_nearest_block_of_any_clock():
    timeline = read_any("0:00 a\n0:10 b\n0:20 c", 30)
    assert [(segment.start_block, segment.end_block) for segment in timeline.segments] == [
        (0, 14),
        (14, 27),
        (27, 41),
    ]
    assert [timeline.prompt_index(block) for block in (0, 13, 14, 26, 27, 40)] == [0, 0, 1, 1, 2, 2]
    for clock in (FRAMEWISE, BlockClock(8, 24), BlockClock(continues=True)):
        assert timeline.on(clock) == read_any("0:00 a\n0:10 b\n0:20 c", 30, clock)
    with pytest.raises(HeadForcingError, match="0:00.2 falls on the same block"):
        read_any("0:00 a\n0:00.2 b", 1, FRAMEWISE).on(BlockClock())


def test_the_table_shows_asked_and_real_times_and_seeds_and_switches_where_there_are_some():
    lines = read_any("0:00 a cat\n0:10 [seed 7] a dog", 30).table().splitlines()
    assert lines[0].split() == ["no.", "asked", "starts", "frame", "block", "seed", "prompt"]
    assert lines[1].split()[4:] == ["0", "a", "cat"] and lines[1].index("a cat") == lines[2].index(
        "a dog"
    )
    assert lines[2].split() == ["2", "0:10.000", "0:10.312", "165", "14", "7", "a", "dog"]
    assert lines[3:] == ["Asked for 30 s: 41 blocks hold 30.5625 s, the video is cut to length."]
    assert "asked for at 0:05 and starts at 0:00" in read_any("0:05 a", 9).table()
    timeline = read_any("0:00 a cat\n0:10 [flush, blend 2] a dog\n0:20 a fox", 30)
    head, *rows, blended, _ = timeline.table(video_frames_before=9).splitlines()
    assert head.split()[5] == "switch" and [" ".join(row.split()[3:]) for row in rows] == [
        "9 0 - a cat",
        "174 14 flush, blend 2 a dog",
        "330 27 reset a fox",
    ]
    assert blended == "Prompt 2 is blended in over 2 blocks and used alone from frame 198 on."


def test_lines_end_at_newlines_only(tmp_path):
    """U+2028 and the like, which prompts hold, are characters of a line, in a file of jobs, too."""
    texts = [f"a cat{other}a dog" for other in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"]
    for newline in ("\n", "\r\n", "\r"):
        assert list(split_prompts(newline.join(texts) + newline)) == texts
    assert (
        len(read_any("\r\n".join(f"0:{i:02} {text}" for i, text in enumerate(texts))).segments) == 8
    )
    assert split_lines("\ufeffa\rb\r\nc\n") == ["a", "b", "c", ""]
    lines = [json.dumps({"demo": True, "prompts": text}, ensure_ascii=False) for text in texts[:3]]
    (tmp_path / "jobs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert [
        args.prompts for args in read_jobs(tmp_path / "jobs.jsonl", tmp_path).values()
    ] == texts[:3]


NO_TAGS = {  # tags that are none, and what is said of them
    **{
        tag: f"{tag} is not a tag; tags are [cut], [recache]"
        for tag in (
            *("[flsh]", "[ reanchor, flush ]", "[re_anchor]", "[blnd 5]", "[blend5]", "[blende]"),
            *("[blend]", "[recache, blend]", "[seed: 7]", "[sed 7]", "[seed7]", "[seed]"),
            *("[dissolve]", "[dissolve 1.5]", "[cut, dissolve 1,5]", "[dissolve 1500ms]"),
            *("［cutt］", "[flus re-anchor blend 2]", "[recahce, seeds 7]", "[flush, seed -1]"),
        )
    },
    **{
        tag: "[flsh] is not a tag; tags are"
        for tag in ("[seed 7] [flsh]", "[reset] [flsh]", "[recache] [seed 7] [flsh]")
    },
    "[seed 18446744073709551616]": (
        "a seed is a whole number from 0 to 18446744073709551615, got 18446744073709551616"
    ),
    "[seed 7, seed 8]": "is contradictory",
    "[seed 7] [seed 8]": "[seed 7, seed 8] is contradictory",
    "[recache] [flush]": "[recache, flush] is contradictory",
    "[cut] " * 9: "[cut] is not a tag",
    "[recall 1, new scene]": "is contradictory",
}
ERRORS = {
    "empty": ("", None, None, "timeline is empty"),
    "only shared": ("[shared] x", None, None, "timeline is empty"),
    "a second line shared": (
        "0:00 a\n0:10 [shared] x",
        None,
        2,
        "line 2: .shared. begins the first line",
    ),
    "a shared seed": (
        "[shared] [seed 7] x\n0:00 a",
        None,
        None,
        "remove it from the shared prompt",
    ),
    "a shared time": ("[shared] [0:05] x\n0:00 a", None, None, "stands inside a prompt"),
    "long shared": ("[shared] " + "x" * 4001 + "\n0:00 a", None, None, "at most 4000 characters"),
    "a mistake below": ("[shared] x\n0:00 a\n0:10 [flsh] b", None, 3, "line 3: "),
    "reversed range": (
        "0:00 a\n\n[00:20-00:10] b",
        None,
        3,
        r"line 3: '\[00:20-00:10\]' ends before it starts",
    ),
    "after the end": (
        "0:00 a\n\n\n\n0:35 b",
        30,
        5,
        r"line 5: 0:35 is after the end of the video \(30.0 s\)",
    ),
    "too close to the end": (
        "0:00 a\n0:30.4 b",
        30.5,
        2,
        "too close to the end.*blocks last 0.75 s",
    ),
    "sixty seconds": (
        "0:00 a\n0:60 b",
        None,
        2,
        "'0:60' is not a time; after a colon the numbers go from 00 to 59",
    ),
    "sixty seconds alone": ("0:60 a", None, 1, "'0:60' is not a time"),
    "a recall of itself": (
        "0:00 a\n0:10 [recall 2] b",
        None,
        2,
        r"prompts 1 to 1, got \[recall 2\]",
    ),
    "a recall of the next": ("a | [recall 3] b | c", None, 1, r"prompts 1 to 1, got \[recall 3\]"),
    "out of order": (
        "0:00 a\n0:20 b\n0:10 c",
        30,
        3,
        "line 3: 0:10 does not come after 0:20 of the prompt above",
    ),
    "empty prompt": ("0:00 a\n0:10 -\n\n0:20 c", None, 2, "line 2: prompt 2 is empty"),
    "typo in a range": ("0:00 a\n[0:10-0:2O] b", None, 2, r"line 2: '\[0:10-0:2O\] b' begins like"),
    "too many shares": (
        "|".join("abcdefgh"),
        5,
        None,
        "8 prompts do not fit into 5 s.*blocks last 0.75 s",
    ),
    "a scene without a time": (
        "Scene 1 [0:00]: a\nScene 2: b\nScene 3 [0:10]: c",
        None,
        2,
        "this scene has no time",
    ),
    "cut JSON": ('{"prompts": ["a", "b"', None, 1, "line 1: not valid JSON"),
    "first switch": (
        "[recache] a | b",
        20,
        1,
        r"line 1: the first prompt has nothing .*; remove \[recache\]",
    ),
    "two kinds": (
        "a | [flush, recache] b",
        20,
        1,
        r"line 1: \[flush, recache\] is contradictory; write one of",
    ),
    "a long blend": (
        "0:00 a\n0:10 [blend 17] b",
        20,
        2,
        "line 2: a blend takes 0 to 16 blocks, got 17",
    ),
    "JSON without prompts": ('{"prompt": "a"}', None, None, "a JSON timeline is"),
    "JSON bomb": ("[" * 100_000, None, None, "maximum recursion depth"),
    "too few switches": (
        '{"prompts": ["a", "b"], "switch_frame_indices": []}',
        None,
        None,
        "one fewer than the prompts",
    ),
    "switch at the start": (switches(0), None, None, "0:00 does not come after 0:00"),
    "switch after the end": (switches(240), 30, None, "after the end"),
    "switch as boolean": (switches(True), None, None, "latent frames in 0-"),
    "NaN seconds": ("a", math.nan, None, "at most 36000 seconds, got nan"),
    "not text": (b"a", None, None, "must be text"),
    "more than 1 MB": ("a" * ((1 << 20) + 1), None, None, "longer than 1 MB"),
    "20,000 times": ("0:00 a\n" * 20_000, None, None, "more than 10000 prompts"),
    "two blends": (
        "0:00 a\n0:10 [blend 2 blend 3] b",
        20,
        2,
        r"line 2: \[blend 2 blend 3\] is contradictory",
    ),
    "no seconds": ("a", 0, None, "above 0"),
    "more than 1 MB encoded": ("é" * (1 << 19) + "a", None, None, "longer than 1 MB"),
    **{
        text: (text, None, line, re.escape(f"{shown} stands inside a prompt"))
        for text, line, shown in (
            ("0:00 a cat walks, 0:05 it jumps", 1, "'0:05'"),
            ("0s-5s: a cat walks, 5s-10s: it jumps", 1, "'5s-10s:'"),
            ("a cat walks [5s] it jumps", None, "[5s]"),
            ("a cat walks [10s] | it jumps [10s]", 1, "[10s]"),
            ("a cat walks, [5-10s] it jumps", None, "[5-10s]"),
            ("Scene 1: a cat walks [0:05] it jumps", 1, "'[0:05]'"),
            ('["a cat walks [5s]", "it jumps"]', None, "[5s]"),
        )
    },
    **{tag: (f"0:00 a\n0:10 {tag} b", 20, 2, re.escape(told)) for tag, told in NO_TAGS.items()},
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_gives_one_sentence_with_its_line(case):
    text, seconds, line, message = ERRORS[case]
    with pytest.raises(TimelineError, match=message) as error:
        read_any(text, seconds)
    assert error.value.line == line
    assert str(error.value).startswith(f"line {line}: ") or line is None
    assert len(str(error.value)) < 250 and "\n" not in str(error.value)


def test_a_shared_prompt_with_a_tag_is_refused():
    for shared in ("[flush, seed 7] noir", "[cut] noir"):
        with pytest.raises(TimelineError, match="in front of one prompt"):
            read_any("a | b", shared_prompt=shared)


FRAGMENTS = (
    *(
        "0:00",
        "0:10",
        "[0:10-0:20]",
        "[0:20 - 0:10]",
        "1:02.5",
        "[10-20s]",
        "12.5s",
        "0s",
        "80s",
        "99:99",
        "[",
        "]",
    ),
    *(
        "|",
        " | ",
        "\n",
        "\r\n",
        " ",
        "\t",
        "-",
        "—",
        ":",
        "Scene 1:",
        "Scene 2 [0:10]:",
        "scene",
        "a cat",
        "A cat: b",
    ),
    *(
        '{"prompts": ["a", "b"]}',
        '{"prompts"',
        '["a"',
        '"',
        ",",
        "{",
        "}",
        '"switch_frame_indices": [3]',
        "\\",
        "0",
    ),
    *(
        "\0",
        "\u202e",
        "\ufeff",
        "\u0660",
        "\u2028",
        "\ud800",
        "é",
        "👩‍🚀",
        "3:30 am",
        "0:0",
        "[0:1x]",
        "9" * 20,
    ),
    *(
        "[recache]",
        "[flush, re-anchor]",
        "[blend 3]",
        "[reset] ",
        "[Blend 16 flush]",
        "[blend 99]",
        "[flush, ",
    ),
    *("[flsh]", "[recahce] ", "[blend3]", "[flash]", "[reanchor, flush] "),
    *("[seed 7]", "[seed 8] ", "[recache, seed 0]", "[seed: 7]", "[seed 7.5] ", "[sed 7]"),
)
SECONDS = (None, None, 30.0, 5.0, 0.5, 600.0)


def survives(text: str, seconds: float | None) -> None:
    """Anything but a whole timeline or a TimelineError fails the test."""
    with contextlib.suppress(TimelineError):
        segments = read_any(text, seconds).segments
        starts = [segment.start_block for segment in segments]
        assert starts == sorted(set(starts)) and all(segment.text for segment in segments)


@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=9), max_size=15).map("".join),
    st.sampled_from(SECONDS),
)
@settings(max_examples=300, deadline=None)
def test_any_mix_of_grammar_parses_or_gives_a_timeline_error(text, seconds):
    survives(text, seconds)


@pytest.mark.slow
def test_the_time_for_awkward_text_goes_with_its_length():
    """Eight times the text takes about eight times as long, and would take 64 times if time went
    with its square.
    """
    pieces = (
        "[flush ",
        "[flush, ",
        "flush ",
        "a | [flush, " + "flush " * 99,
        "[",
        "0:",
        "0:00 ",
        "[0:00-",
        " ",
        "\n",
        "a\n",
        "0:00 \n",
        "|",
        "Scene 1",
        "9",
        '["',
        "[0:00         ",
        "- - - ",
        "0-",
        "0:00,",
        "1 min ",
        "0:00:00:",
        "Scene 1: a (0:00 ",
        "Scene 1: a (0:00-",
        "Time: 0:00-",
        "**[cut]** ",
        "1. a\n",
    )
    for piece in pieces:
        seconds = []
        for size in (1 << 15, 1 << 18):
            text = piece * (size // len(piece) - 50)
            start = time.process_time()
            survives(text, 30)
            survives("0:00 a\n" + text, 30)
            seconds.append(time.process_time() - start)
        assert seconds[1] < 32 * max(seconds[0], 0.01), piece


@pytest.mark.parametrize(
    ("tag", "written"),
    [
        ("cut", "re-anchor"),
        ("keep going", "reset"),
        ("dissolve 1.5s", "blend 2"),
        ("Dissolve 2 s", "blend 3"),
        ("cut, dissolve 0.1s", "re-anchor, blend 1"),
    ],
)
def test_tags_in_plain_words_are_those_of_the_engine(tag, written):
    plain = read_any(f"0:00 a fox\n0:10 [{tag}] a wolf", 20.0)
    assert plain.segments == read_any(f"0:00 a fox\n0:10 [{written}] a wolf", 20.0).segments
    assert plain.segments[1].text == "a wolf"


def test_a_dissolve_is_rounded_to_the_blocks_of_the_model():
    story = "0:00 a fox\n0:10 [dissolve 4s] a wolf"
    blends = [
        read_any(story, 20.0, clock).segments[1].switch.blend_blocks
        for clock in (BlockClock(), BlockClock(8, 24))
    ]
    assert blends == [5, 3]


@pytest.mark.parametrize(
    ("tag", "written"),
    [
        ("[dissolve 1,5s]", "blend 2"),
        ("[dissolve 2 seconds]", "blend 3"),
        ("**[cut]**", "re-anchor"),
        ("**[cut]:**", "re-anchor"),
        ("`[cut]`", "re-anchor"),
        ("［cut］", "re-anchor"),
        ("【cut】", "re-anchor"),
        ("［cut］：", "re-anchor"),
        ("[cut]:", "re-anchor"),
        ("[cut] -", "re-anchor"),
        ("[cut] |", "re-anchor"),
        ("[cut],", "re-anchor"),
        ("[cut]。", "re-anchor"),
        ("**[seed 7]**: [cut]:", "seed 7] [re-anchor"),
    ],
)
def test_a_tag_may_stand_in_marks_or_other_brackets_and_before_a_separator(tag, written):
    timeline = read_any(f"0:00 a fox\n0:10 {tag} a **red** wolf", 20.0)
    plain = read_any(f"0:00 a fox\n0:10 [{written}] a **red** wolf", 20.0)
    assert timeline.segments == plain.segments
    assert timeline.segments[1].text == "a **red** wolf"
    bold = read_any("0:00 a fox\n**0:10 [cut] a wolf**\n**0:15** **[cut] a cat**", 20.0)
    assert [(s.text, s.switch.re_anchor) for s in bold.segments[1:]] == [
        ("a wolf", True),
        ("a cat", True),
    ]


def test_a_written_story_is_read_once_in_few_steps():
    """Calls of three prompts, over how many files, and how often the file changes."""
    text = "0:00 a red fox trots\n0:10 the fox stops\n0:20 the fox sleeps"
    parse_timeline(text)
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "headforcing_core" in frame.f_code.co_filename:
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    parse_timeline(text)
    sys.setprofile(None)
    changes = sum(one != other for one, other in itertools.pairwise(files))
    assert len(set(files)) <= 4 and len(files) <= 60 and changes <= 15, (len(files), changes)
    grammar = Path(story_timeline.__file__).with_name("grammar.py")
    assert grammar.read_text("utf-8").count("\n") <= 250
