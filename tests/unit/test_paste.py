"""Translation into the written form: it loses no word, is settled at once, and reads what the reader
with all forms in one grammar read.
"""

import contextlib
import hashlib
import importlib
import json
import os
import pkgutil
import re
import time
from pathlib import Path

import pytest
from headforcing.headforcing_core.timeline.characters import clean
from headforcing.headforcing_core.timeline.clock import BlockClock
from headforcing.headforcing_core.timeline.grammar import read_story
from headforcing.headforcing_core.timeline.paste import forms
from headforcing.headforcing_core.timeline.paste.paste import paste, read_any
from headforcing.headforcing_core.timeline.paste.text import Text
from headforcing.headforcing_core.timeline.prompt import TimelineError
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from hypothesis import given, settings
from hypothesis import strategies as st
from random_stories import random_story

RECORDED = (Path(__file__).parent / "stories" / "readings.bin").read_bytes()
STORIES = len(RECORDED) // 4
REFUSED = bytes(4)
# a part of the stories is compared in each run, all of them before a release
STEP = 1 if os.environ.get("HEADFORCING_EVERYTHING") else 10


def reading(text: str, seconds: float | None):
    """What was read of a text, as it was recorded; None where it is refused."""
    try:
        timeline = read_any(text, seconds)
    except TimelineError:
        return None
    segments = [
        [each.text, each.start_block, each.end_block, str(each.switch), each.seed]
        for each in timeline.segments
    ]
    return [timeline.seconds, list(timeline.requested), segments]


NEW_FORMS = ("a list", "shots", "a screenplay", "parts of the video", "a table")  # since then


def is_new(text: str) -> bool:
    """Whether a text is of a form that was no story then, or that is refused as such; so are words
    that choose, as in [red|blue].
    """
    try:
        return paste(text).form in NEW_FORMS
    except TimelineError:
        return any(
            re.match(r"\s*(?:[-*+•>–—]|\d+[.)]|#{1,6})\s|.*\[[^\[\]]*[|｜][^\[\]]*\]", line)
            for line in text.split("\n")
        )


def digest_of(text: str) -> bytes:
    read = [reading(text, None), reading(text, 600.0)]
    if read == [None, None]:
        return REFUSED
    return hashlib.sha256(json.dumps(read).encode()).digest()[:4]


def test_random_stories_are_read_as_they_were_with_all_forms_in_one_grammar():
    others = []
    read = 0
    for number in range(0, STORIES, STEP):
        text = random_story(number)
        recorded = RECORDED[4 * number : 4 * number + 4]
        found = digest_of(text)
        read += found != REFUSED
        if found != recorded and not is_new(text):
            others.append((number, text))
    assert others == []
    assert read > 0.6 * STORIES / STEP


def check_translation(text: str) -> None:
    """A translation is in the written form, stays as it is, and holds every word of the text."""
    try:
        pasted = paste(text)
    except TimelineError as error:
        assert len(str(error)) < 300 and "\n" not in str(error)
        return
    read_story(pasted.text, BlockClock())
    assert paste(pasted.text).text == pasted.text
    assert paste(pasted.text).form == ""
    if pasted.form != "":
        assert len(pasted.lines) == pasted.text.count("\n") + 1
        kept = set(words_of(pasted.text))
        lost = [word for word in words_of(text) if word not in kept and word not in OF_FORMS]
        assert lost == [], pasted.text


OF_FORMS = set(
    "prompt one two webvtt shot sec secs szene scene prompts switch frame indices".split()
)


def words_of(text: str) -> list[str]:
    """The words of at least three letters, without those of the forms and escapes of JSON."""
    text = clean(text).replace("\\n", " ").replace('\\"', '"')
    return [
        word.lower() for word in re.findall(r"[^\W\d_]{3,}", text) if word.lower() not in OF_FORMS
    ]


@pytest.mark.parametrize("first", range(0, 3000, 500))
def test_a_translation_keeps_every_word_and_stays_as_it_is(first):
    for number in range(first, first + 500):
        check_translation(random_story(STORIES + number))


PIECES = st.sampled_from(
    [
        *("0:00 ", "0:10 ", "[0:10-0:20] ", "[0:05]: ", "Scene 1: ", "Scene 2 (0:05-0:10): "),
        *("a fox", "the wolf", " | ", "\n", "\n\n", "[cut] ", "[seed 7] ", "[shared] noir\n"),
        *(
            "- ",
            "1. ",
            "**",
            "5s: ",
            "0-5s ",
            '"',
            "{",
            "}",
            "[",
            "]",
            "10:15",
            "<",
            ">",
            "\t",
            "-->",
        ),
        *(
            "INT. ",
            "one: ",
            "two: ",
            "(1) ",
            "(2) ",
            "• ",
            "# ",
            "Shot 1: ",
            "25%: ",
            "[0][50] ",
            "{0}{50}",
            "prompt: ",
            "=",
            ",",
            ";",
        ),
    ]
)


@given(st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=40))
@settings(deadline=None)
def test_any_text_is_translated_or_refused_with_a_sentence(text):
    check_translation(text)


@given(st.lists(PIECES, max_size=14).map("".join))
@settings(deadline=None)
def test_a_text_in_the_written_form_is_read_without_a_translation(text):
    try:
        timeline = parse_timeline(text, 600.0)
    except TimelineError:
        return
    assert read_any(text, 600.0) == timeline


def test_the_error_of_a_translated_story_names_the_line_of_the_text():
    for text, line in (
        ("- **0:00** a\n\n- **0:20** b\n- **0:10** c", 4),
        ("1\n00:00:00,000 --> 00:00:09,000\na\n\n2\n00:00:05,000 --> 00:00:10,000\nb", 6),
        ("[shared] x\n0-5s: a\n\n\n700-710s: b", 5),
    ):
        with pytest.raises(TimelineError) as error:
            read_any(text, 600.0)
        assert error.value.line == line, str(error.value)


def test_a_line_of_another_form_is_refused_by_the_reader_of_the_written_form():
    for text, line in (
        ("0:00 a fox\n- 0:05 a wolf", 2),
        ("0:00 a fox\n[cut a wolf", 2),
        ("Scene 1: a fox\nSzene 2: a wolf", 2),
        ("0:00 a fox\n5s a wolf", 2),
        ("0:00 a fox\n\n场景2：a wolf", 3),
        ("1. a fox\n2. a wolf", 1),
    ):
        sentence = (
            "looks like the beginning of something else; paste it into Prompt Timeline, or run"
        )
        with pytest.raises(TimelineError, match=sentence) as error:
            parse_timeline(text)
        assert error.value.line == line


def test_a_text_without_times_is_on_one_line_in_the_written_form():
    for text in ("a fox\n\nin the snow", "[shared] noir\na fox\nin the snow", "a fox |\na wolf"):
        with pytest.raises(TimelineError, match="stands below a text without times; write the"):
            parse_timeline(text)
        assert len(read_any(text).segments) == 1 + ("|" in text)


def test_a_translation_says_what_it_was_made_of():
    subtitles = "1\n00:00:00,000 --> 00:00:10,000\na\n\n2\n00:00:10,000 --> 00:01:12,000\nb"
    assert paste(subtitles).sentence == "read as 2 prompts from subtitles; 0:00 to 1:12"
    assert paste(subtitles).text == "[0:00-0:10] a\n[0:10-1:12] b"
    assert paste('["a", "b"]').sentence == "read as 2 prompts from JSON"
    assert paste('["a", "b"]').text == "Scene 1: a\nScene 2: b"
    assert not paste("5 cats run").is_translated


@pytest.mark.parametrize("form", ["{0} a fox", "**{0}** a fox", "{1}s: a fox", "Scene: {0} a fox"])
def test_an_hour_s_story_takes_40_milliseconds_at_most(form):
    words = " trots through the snow at dawn, its breath is white, and it looks back at the hut"
    times = [(f"{number // 6}:{number % 6}0", 10 * number) for number in range(360)]
    text = "\n".join(form.format(*time) + words for time in times)
    took = []
    for _ in range(7):
        begin = time.process_time()
        with contextlib.suppress(TimelineError):
            paste(text)
        took.append(time.process_time() - begin)
    assert min(took) < 0.04


READERS = {
    name: importlib.import_module(f"{forms.__name__}.{name}")
    for _, name, _ in pkgutil.iter_modules(forms.__path__)
}
EXAMPLES = [
    (name, text, read) for name, reader in READERS.items() for text, read in reader.EXAMPLES.items()
]
REFUSED_TEXTS = [
    (name, text, line) for name, reader in READERS.items() for text, line in reader.REFUSED.items()
]


def readers_that_claim(text: str, seconds: float) -> list[str]:
    """The readers that are asked for a text, up to the first that reads or refuses it."""
    asked = []
    source = Text(text, BlockClock(), seconds)
    for _, read in forms.READERS:
        asked.append(read.__module__.rpartition(".")[2])
        with contextlib.suppress(TimelineError):
            if read(source) is None:
                continue
        break
    return asked


def test_every_file_of_forms_holds_one_reader_that_is_asked():
    asked = [read.__module__.rpartition(".")[2] for _, read in forms.READERS]
    assert sorted(asked) == sorted(READERS)
    assert all(reader.REFUSED for reader in READERS.values())
    assert [name for name, reader in READERS.items() if not reader.EXAMPLES] == [
        "names",
        "preambles",
        "programs",
        "titles",
    ]


@pytest.mark.parametrize(("name", "text", "expected"), EXAMPLES)
def test_the_examples_beside_a_reader_are_what_it_reads(name, text, expected):
    assert readers_that_claim(text, 20.0)[-1] == name
    pasted = paste(text, seconds=20.0)
    tags = [
        f"[{each.switch}] ".replace("re-anchor", "cut") if each.switch else ""
        for each in pasted.story.prompts
    ]
    found = [
        (each.start, tag + each.text) for each, tag in zip(pasted.story.prompts, tags, strict=True)
    ]
    assert found == expected
    assert pasted.is_translated or name == "words"
    assert paste(pasted.text, seconds=20.0).text == pasted.text


@pytest.mark.parametrize(("name", "text", "line"), REFUSED_TEXTS)
def test_what_a_reader_refuses_is_named_by_its_line(name, text, line):
    assert readers_that_claim(text, 20.0)[-1] == name
    with pytest.raises(TimelineError) as error:
        paste(text, seconds=20.0)
    assert error.value.line == line


@pytest.mark.parametrize(
    "text", ["- a fox", "1. a fox", "a fox\ta wolf", "3 dogs run\n2 cats sit", "0% fat milk"]
)
def test_what_only_begins_as_a_list_is_one_prompt(text):
    assert len(read_any(text).segments) == 1


def test_the_stories_of_the_page_on_stories_are_in_the_written_form():
    page = Path(__file__).parents[2] / "docs" / "writing_a_story.md"
    fences = re.findall(r"(?ms)^ *```\n(.*?)^ *```$", page.read_text("utf-8"))
    stories = [text for text in fences if re.match(r" *\[shared\]", text)]
    assert len(stories) == 2
    assert [len(parse_timeline(text).segments) for text in stories] == [3, 3]
