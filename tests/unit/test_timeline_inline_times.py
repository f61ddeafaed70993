"""Several prompts on one line: what their times say, or one error; never one prompt that holds the times as words."""

import pytest
from headforcing.headforcing_core.timeline.grammar import TimelineError
from headforcing.headforcing_core.timeline.timeline import format_timeline, parse_timeline

WALKS = [("a cat walks", 0, 7), ("it jumps", 7, 14)]


@pytest.mark.parametrize("text", [
    "[0-5s] a cat walks, [5-10s] it jumps", "[0-5s] a cat walks; [5-10s] it jumps",
    "[0-5s] a cat walks [5-10s] it jumps", "[0:00-0:05] a cat walks, [0:05-0:10] it jumps",
    "[0s-5s] a cat walks\n[5s-10s] it jumps", "[0s] a cat walks, [5s-10s]: it jumps",
])  # fmt: skip
def test_times_in_brackets_on_one_line_are_times(text):
    timeline = parse_timeline(text)
    assert [(part.text, part.start_block, part.end_block) for part in timeline.segments] == WALKS
    assert parse_timeline(format_timeline(timeline)).segments == timeline.segments


@pytest.mark.parametrize(("text", "shown"), [
    ("0:00 a cat walks, 0:05 it jumps", "'0:05'"), ("0s-5s: a cat walks, 5s-10s: it jumps", "'5s-10s:'"),
    ("a cat walks [5s] it jumps", "[5s]"), ("a cat walks [10s] | it jumps [10s]", "[10s]"),
    ("a cat walks, [5-10s] it jumps", "[5-10s]"), ("Scene 1: a cat walks [0:05] it jumps", "[0:05]"),
    ('["a cat walks [5s]", "it jumps"]', "[5s]"),
])  # fmt: skip
def test_a_time_that_cannot_be_one_is_one_error(text, shown):
    with pytest.raises(TimelineError) as error:
        parse_timeline(text)
    assert f"{shown} stands inside a prompt" in str(error.value)


@pytest.mark.parametrize("words", [
    "a station clock, 12:30, people wait", "at 6:00 pm, 7:00 pm and later", "a disco, 80s style [close-up] [4k]",
    "sizes [10-20], a 16:9 screen",
])  # fmt: skip
def test_other_numbers_stay_words(words):
    assert [part.text for part in parse_timeline(words).segments] == [words]
    assert [part.text for part in parse_timeline(f"[0:00] {words}").segments] == [words]
