"""Words on the command line, and numbers in stories, that nobody means: one sentence each."""

import argparse
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headforcing.cli import cli, loaded
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.timeline.paste.paste import read_any
from malformed import bounded, run
from path_arguments import commands

WORDS = [
    *("", " ", "-1", "0", "1", "nan", "inf", "1e308", "9" * 400, "٣", "\0", "\ud800", "a\nb"),
    *("\x1b[2J", "@", "@empty", "@junk", "@folder", "empty", "junk", "folder", "story.txt"),
    *("con", "a" * 300, "=", "a=", "=b", "a=b", "a.b=1", "[]", "{}", "null", "1x1", "64x64"),
    *("99999x99999", "64x", "1,1", "1,,0", "1,nan", "auto", "cpu", "cuda:99", "meta", "%s", "{0}"),
    *("$HOME", "*", "--", "-x", "/dev/null", "pipe"),
]
OTHERS = {"gpus", "rank_timeout", "help"}  # which start other processes, or end the parser
LEFT_OUT = {"profile", "compare"}  # which render although nothing is asked for


@pytest.fixture
def nothing_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands stop before their render, in a folder with a few files."""

    def stop(*args: object, **options: object) -> None:
        raise HeadForcingError("nothing is rendered here")

    monkeypatch.setattr(loaded, "make_video", stop)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "junk").write_bytes(random.Random(1).randbytes(4000))
    (tmp_path / "story.txt").write_text("0:00 a red ball\n0:05 a blue cross")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")


def some_words(action: argparse.Action, rng: random.Random) -> str:
    if action.choices and rng.random() < 0.5:
        return str(rng.choice(list(action.choices)))
    return rng.choice(WORDS)


def command_line(name: str, parser: argparse.ArgumentParser, rng: random.Random) -> list[str]:
    """A command with what it needs, and up to three options."""
    known = [action for action in parser._actions if action.dest not in OTHERS]
    optional = [action for action in known if action.option_strings and not action.required]
    chosen = rng.sample(optional, min(len(optional), rng.randint(1, 3)))
    words = name.split()
    for action in known:
        if action in chosen or action.required:
            word = some_words(action, rng)
            option = action.option_strings[-1:]
            if not option:
                words.append(word if not word.startswith("-") else "x")
            else:
                words.append(option[0] if action.nargs == 0 else f"{option[0]}={word}")
    return words


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with a name")
def test_whatever_words_a_command_gets_it_answers_with_a_result_or_one_sentence(
    nothing_renders: None, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(17)
    found = [each for each in commands(cli._parser()) if each[0].split()[0] not in LEFT_OUT]
    tries = 0
    for name, parser in found:
        for _ in range(8):
            words = command_line(name, parser, rng)
            with bounded():
                code, err = run(*words)
            told = [line for line in err.split("\n") if line and not line.startswith("note: ")]
            assert code in (0, 2), (words, err)
            assert all(line.isprintable() for line in told), (words, err)
            if code == 2:
                assert len([line for line in told if "error: " in line]) == 1, (words, err)
            tries += 1
    record_property("malformed files and texts tried", tries)


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "show", "9" * 300),
        ("runs", "prune", "a" * 300, "--keep-gb=1"),
        ("export", "a" * 300, "story.srt"),
        ("decode", "a" * 300, "v.mp4", "--demo"),
        ("budget", "--size=--"),
        ("generate", "--weights=--"),
        ("demo", "--method=--"),
        ("demo", "--runs=--"),
    ],
)
def test_a_name_that_no_file_can_have_and_a_value_of_two_dashes_are_one_sentence(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, err = run(*words)
    assert code == 2 and err.count("\n") == 1 and "error: " in err, err


NUMBERS = [
    *("0", "5", "99", "-1", "00", "1e999", "nan", "inf", "9" * 30, "9" * 5000, "1.5", "1,5"),
    *("٣", "²", "½", "0x10", "", ".", "-0", "+1", "1_0", "36001", "100000000"),
]
FORMS = [  # of stories; each has numbers in its place
    "1\n#:#:#,# --> #:#:#,#\na fox\n\n2\n#:#:#,# --> #:#:#,#\na wolf\n",
    "WEBVTT\n\n#:#.# --> #:#.#\na fox\n\n#:#.# --> #:#.#\na wolf\n",
    "{#}{#}a fox\n{#}{#}a wolf",
    "{1}{1}#\n{#}{#}a fox",
    "[#][#]a fox\n[#][#]a wolf",
    "#\t#\ta fox\n#\t#\ta wolf",
    "[#:#.#]a fox\n[#:#.#]a wolf",
    "#:#:#.#,#:#:#.#\na fox",
    "#% a fox\n#% a wolf",
    "#s-#s: a fox\n#s-#s: a wolf",
    "Scene # (#:#-#:#): a fox",
    '"#": "a fox", "#": "a wolf"',
    "time,prompt\n#,a fox\n#,a wolf",
    "#:# a fox\n# s a wolf",
    "0:00 [seed #] a fox\n0:05 [blend #] a wolf",
    '{"prompts": ["a", "b"], "switch_frame_indices": [#]}',
]


def filled(form: str, rng: random.Random) -> Iterator[str]:
    for part in form.split("#"):
        yield part
        yield rng.choice(NUMBERS)


@pytest.mark.parametrize("form", FORMS)
def test_whatever_numbers_a_story_has_it_is_read_or_refused_with_a_sentence(form: str) -> None:
    rng = random.Random(form)
    for _ in range(12):
        *parts, _ = filled(form, rng)
        with bounded():
            try:
                story = read_any("".join(parts))
            except HeadForcingError as refusal:
                assert str(refusal).isprintable() and len(str(refusal)) < 1000
            else:
                assert all(segment.text for segment in story.segments)
