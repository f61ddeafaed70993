"""Malformed and hostile arguments, prompts and videos on the command line: one short sentence, no traceback."""

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.commands import cli, values
from headforcing.headforcing_core.commands.parser import seed_number, whole_number
from headforcing.headforcing_core.commands.source import Source
from headforcing.headforcing_core.errors import MAX_MESSAGE, HeadForcingError
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.render.sinks import load_latents
from headforcing.headforcing_core.timeline.timeline import MAX_TEXT_BYTES
from headforcing.headforcing_core.video import sheets
from headforcing.headforcing_core.video.writer import VideoWriter
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint
from headforcing.headforcing_core.weights.umt5 import load_embeddings
from malformed import bounded, damaged, refusal, run
from path_arguments import commands
from safetensors.torch import save_file


def test_a_message_is_one_short_line_whatever_it_quotes() -> None:
    message = str(HeadForcingError("no file 'a\nerror: forged\x1b[2J\r\u2028b' here"))
    assert message == r"no file 'a\nerror: forged\x1b[2J\r\u2028b' here"
    assert str(HeadForcingError("größer, 一　二, …")) == "größer, 一　二, …"
    str(HeadForcingError("\ud800")).encode()
    for value in ("9" * 5000, "a cat " * 900):
        message = str(HeadForcingError(f"--size must look like 832x480, got {value!r}: choose another"))
        assert len(message) < 300 and message.startswith(f"--size must look like 832x480, got '{value[:50]}")
        assert message.endswith(f"{value[-20:]}': choose another")


def test_latents_that_say_something_absurd_of_themselves_are_not_decoded(tmp_path: Path) -> None:
    file, digits = tmp_path / "latents.safetensors", "9" * 5000
    for about in (f'{{"video_frames": {digits}}}', '{"video_frames": 10}', '{"restart_frames": [3]}', "[]"):
        save_file({"latents": torch.zeros(3, 16, 8, 8)}, file, {"head_forcing": about})
        code, err = run("decode", str(file), str(tmp_path / "video.mp4"), "--demo", "--device", "cpu")
        assert code == 2 and "does not say what its latents are of" in err


@pytest.mark.parametrize("argv", [
    ("profiles", "compare", "x\nerror: forged\x1b[31m", "y"), ("demo", "--method", "x\nerror: forged" * 10_000),
    ("inspect", "x" * 100_000), ("demo", "--prompts", "@" + "x" * 100_000), ("x\n" * 100_000,),
    ("generate", "--weights", "x" * 100_000, "--prompts", "a", "--latents", "x.safetensors"),
])  # fmt: skip
def test_the_command_line_answers_in_one_short_line(argv: tuple[str, ...]) -> None:
    code, err = run(*argv)
    *before, last = err.splitlines()
    assert code == 2 and "error:" in last and len(last) < MAX_MESSAGE + 100
    assert not any("error:" in line for line in before) and "\x1b" not in err


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes and devices in its file system")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "x.safetensors"
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    uses = (inspect_checkpoint, load_embeddings, load_latents, HeadShares.load, values.find_profile)
    for use in (*uses, lambda path: values.read_text(f"@{path}")):
        assert path.name in refusal(lambda use=use: use(str(path)))
    generate = ["generate", "--prompts", "a", "--latents", str(tmp_path / "out"), "--weights"]
    assert [run(*words, str(path))[0] for words in (["report"], ["inspect"], generate)] == [2, 2, 2]


def test_a_prompt_file_of_more_than_1_mb_or_of_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    for data, said in ((b"a" * (MAX_TEXT_BYTES + 1), "1 MB"), (b"\xff\xfe\x00", "UTF-8")):
        path.write_bytes(data)
        assert said in refusal(lambda: values.read_text(f"@{path}"))


def video(path: Path, **tags: str) -> bytes:
    pictures = torch.randint(0, 256, (24, 48, 64, 3), generator=torch.Generator().manual_seed(0)).byte()
    with VideoWriter(path, 64, 48, 16, metadata=tags) as writer:
        writer.write(pictures)
    return path.read_bytes()


@pytest.mark.slow
def test_damage_anywhere_in_a_video_is_one_sentence_or_harmless(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    own = json.dumps({"prompts": ["a", "b"], "starts_seconds": [0, 1], "seed": 3})
    good = video(tmp_path / "good.mp4", head_forcing=own, title="x" * 99)
    rng, codes = random.Random(7), []
    for number in range(150):
        (tmp_path / "bad.mp4").write_bytes(damaged(good, rng, number))
        with bounded():
            code, err = run("report", str(tmp_path / "bad.mp4"), "--json")
        assert code in (0, 2) and (code == 0 or (err.count("\n") == 1 and err.startswith("error: ")))
        codes.append(code)
    record_property("malformed files and texts tried", len(codes))
    assert codes.count(0) > 10 and codes.count(2) > 10


def test_a_videos_tags_forge_no_lines_of_a_report_and_stop_none(tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.mp4"
    for own in ('{"prompts": ["a\\u001b[2J\\nb"], "method": "x\\ny"}', "[" * 100_000):
        data = video(path, head_forcing=own, title="tuvwxyz")
        assert cli.main(["report", str(path)]) == 0
        told = capsys.readouterr().out
        assert "\x1b" not in told and "\ny" not in told
    assert data.count(b"tuvwxyz") == 1
    path.write_bytes(data.replace(b"tuvwxyz", b"\xff\xfe\x80\xc0\xc1\xf5\xff"))
    assert run("report", str(path), "--json") == (0, "")


def test_a_prompt_of_any_length_is_cut_at_once_to_what_fits_on_a_sheet() -> None:
    text, width = sheets.fit_text("a quick brown fox " * 280, 14, 300), sheets.font(14).getlength
    assert text.endswith("...") and width(text) <= 300 < width(text + "mm")
    assert sheets.fit_text("a fox", 14, 300) == "a fox" and sheets.fit_text("fox", 14, 0) == "..."
    begun = time.process_time()
    sheets.fit_text("\u0301" * 1_000_000, 14, 300)
    assert time.process_time() - begun < 1, "not measured letter by letter"


def test_a_user_without_a_home_can_use_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    for given, folder in (([], None), (["--found-profiles", "x"], Path("x"))):
        assert Source.of(cli._parser().parse_args(["demo", *given])).machine.found_profiles == folder
    assert run("budget", "--seconds", "60")[0] == 0


def test_an_argument_that_takes_a_number_takes_no_other_text_and_none_that_overflows() -> None:
    numbers = [(one, action) for _, one in commands(cli._parser()) for action in one._actions if is_number(action)]
    assert len(numbers) > 50
    for one, action in numbers:
        for value in ("9" * 5000, "-" + "9" * 5000, "nan", "1e400", "-inf"):
            with pytest.raises(argparse.ArgumentError, match="must be a"):
                one._get_values(action, [value])
    for seed in (str(2**64), "1.5", "", "٣", "1_0"):
        with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 18446744073709551615"):
            seed_number(seed)
    assert seed_number(str(2**64 - 1)) == 2**64 - 1


def is_number(action: argparse.Action) -> bool:
    return action.type in (int, float) or getattr(action.type, "func", None) is whole_number
