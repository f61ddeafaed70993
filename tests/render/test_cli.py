"""The command line: what it writes and prints, wherever to; a story in a file that is followed
while it is rendered.
"""

import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import av
import pytest
import torch
from headforcing.cli.cli import _parser, main
from headforcing.cli.texts import FollowedFile
from headforcing.cli.values import find_profile, render_options
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import bundled_profiles
from headforcing.headforcing_core.head_profiles.rules import with_rule
from headforcing.headforcing_core.model import attention_backends
from headforcing.headforcing_core.names import versions
from headforcing.headforcing_core.render.sinks import ProgressBar
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.video.writer import VideoWriter
from headforcing.headforcing_core.weights.checkpoint import load_state_dict
from PIL import Image
from safetensors.torch import load_file

BALL = "a red ball bouncing in the teal plain room"


@pytest.fixture
def weights(golden: Path) -> Path:
    return golden / "self_forcing_tiny_d32" / "model.safetensors"


def test_demo_writes_a_playable_film_a_sheet_and_json(tmp_path):
    """In a process of its own, as a user runs it. The folder is made; nothing else is left in
    it.
    """
    command = [sys.executable, "-m", "headforcing", "demo"]
    command += ["--seconds", "1", "--out", str(tmp_path / "a" / "b"), "--json", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    with av.open(result["video"]) as container:
        assert container.streams.video[0].average_rate == 16
        video_frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert result["video_frames"] == 16 == len(video_frames) and video_frames[0].shape == (
        256,
        256,
        3,
    )
    assert video_frames[-1].std() > 5, "the film is one flat colour"
    with Image.open(result["contact_sheet"]) as sheet:
        sheet.verify()
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "demo.mp4",
        "demo.png",
    ]


def test_demo_takes_a_story_from_a_file_and_names_words_it_does_not_know_and_when_prompts_took_effect(
    tmp_path, capsys
):
    story = tmp_path / "story.txt"
    story.write_text(f"0:00 {BALL}\n0:02 [recache, blend 1] a purple dinosaur", encoding="utf-8")
    folder = ["--scale", "2", "--out", str(tmp_path), "--device", "cpu"]
    assert main(["demo", "--prompts", f"@{story}", "--seconds", "4", "--sigmas", "1", *folder]) == 0
    captured = capsys.readouterr()
    assert "does not know" in captured.err and "dinosaur" in captured.err
    assert (
        "64 frames" in captured.out
        and "33      3  recache, blend 1  a purple dinosaur" in captured.out
    )
    with av.open(str(tmp_path / "demo.mp4")) as container:
        assert container.streams.video[0].width == 512
        assert json.loads(container.metadata["head_forcing"])["starts_seconds"] == [0, 33 / 16]


def test_a_video_that_cannot_be_written_costs_no_latents(tmp_path, capsys, monkeypatch):
    """A disk that is full in the middle of the video."""

    def full(*args):
        raise HeadForcingError("no space left")

    demo = [
        "demo",
        "--prompts",
        BALL,
        "--seconds",
        "2",
        "--scale",
        "1",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
    ]
    latents = tmp_path / "latents.safetensors"
    monkeypatch.setattr(VideoWriter, "write", full)
    assert main([*demo, "--sigmas", "1", "--latents", str(latents), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["failure"], told["video"], told["contact_sheet"]) == ("no space left", None, None)
    assert told["latents"] == str(latents) and len(load_file(latents)["latents"]) == 9
    assert not (tmp_path / "demo.mp4").exists() and not (tmp_path / "demo.png").exists()


def test_a_video_that_is_made_on_the_cpu_unasked_says_so(tiny_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    command = [
        "generate",
        *tiny_model,
        "--prompts",
        "an apple",
        "--latents",
        str(tmp_path / "x"),
        "--seconds",
        "0.5",
    ]
    for device in ("cpu", "auto"):
        assert main([*command, "--device", device]) == 0
        said = "finds no GPU, so the video is made on the CPU" in capsys.readouterr().err
        assert said == (device == "auto")


def test_a_rule_makes_the_roles_of_a_profile_that_is_named():
    args = _parser().parse_args("demo --profile toy_world --rule function".split())
    known = find_profile("toy_world")
    assert render_options(args, (64, 64)).profile == with_rule(known, "function") != known


def test_generate_goes_on_from_latents_and_notes_when_prompts_start_in_the_finished_video(
    generate, tmp_path
):
    result, whole = generate("--seconds", "4.3", prompts="an apple")
    assert (
        whole.shape == (18, 16, 8, 12) and whole.dtype == torch.float32 and whole.isfinite().all()
    )
    assert result["video"] is None and result["cache_bytes"] > 0
    generate("--seconds", "2", prompts="an apple")
    part = (tmp_path / "latents.safetensors").rename(tmp_path / "part.safetensors")
    _, extended = generate("--seconds", "2.25", "--start-latents", part, prompts="an apple")
    assert torch.equal(extended, whole)
    generate("--seconds", "2", "--start-latents", part, "--runs", tmp_path / "runs")
    (video,) = stored_videos(tmp_path / "runs")
    assert video.about["starts_seconds"] == [33 / 16, 45 / 16] and video.about["switches"] == [
        "reset",
        "reset",
    ]
    assert video.about["attention"] == "sdpa" and video.about["versions"] == versions()


def test_inspect_says_what_a_checkpoint_and_a_head_profile_are(weights, capsys):
    assert main(["inspect", str(weights), "--num-heads", "4"]) == 0
    text = capsys.readouterr().out
    assert all(
        p in text
        for p in ("4 layers x 4 heads", "bfloat16", "to be measured before the render", "KV cache")
    )
    assert main(["inspect", str(weights), "--num-heads", "4", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["parameters"] == sum(
        tensor.numel() for tensor in load_file(weights).values()
    )
    path = str(bundled_profiles()["toy_world"])
    assert main(["inspect", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        sum(found["counts"].values()) == 48
        and found["provenance"]["source"]
        and main(["inspect", path]) == 0
    )
    assert "8 layers x 6 heads" in capsys.readouterr().out


def test_convert_writes_the_same_weights_from_the_published_pt_layout(weights, tmp_path, capsys):
    published = {f"model.{name}": tensor for name, tensor in load_file(weights).items()}
    torch.save({"generator_ema": published}, tmp_path / "published.pt")
    out = tmp_path / "clean.safetensors"
    assert (
        main(["convert", str(tmp_path / "published.pt"), str(out), "--num-heads", "4", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["bytes"] == out.stat().st_size
    state, _ = load_state_dict(out, num_heads=4)
    original, _ = load_state_dict(weights, num_heads=4)
    assert state.keys() == original.keys()
    assert all(torch.equal(state[name], original[name]) for name in state)


INTERRUPTED = {
    "kept": (
        "head_forcing",
        True,
        r"3 of 5 blocks are kept in .+, repeat the command to go on; the video so",
    ),
    "stored state": (
        "deep_forcing",
        True,
        r"3 of 5 blocks are kept in .+, repeat the command to go on from where the",
    ),
    "not kept": (
        "head_forcing",
        False,
        r"without --runs FOLDER no block is kept; the video so far is ",
    ),
}


@pytest.mark.parametrize("case", INTERRUPTED)
def test_an_interrupted_command_says_what_is_kept_and_how_to_go_on(
    case, tmp_path, capsys, monkeypatch
):
    method, kept, expected = INTERRUPTED[case]
    denoise = WanVideoModel.denoise
    calls = []

    def pressed(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return denoise(*arguments)

    command = (
        f"demo --seconds 3.5 --sigmas 1 --out {tmp_path} --scale 1 --device cpu --method {method}"
    ).split()
    command += ["--runs", str(tmp_path / "runs")] if kept else []
    with monkeypatch.context() as patch:
        patch.setattr(WanVideoModel, "denoise", pressed)
        assert main(command) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match(f"interrupted; {expected}", said) and said.endswith("demo.part.mp4")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reused_blocks"] == (3 if case == "kept" else 0)


def test_a_wrong_method_is_refused_before_torch_is_imported(tmp_path):
    program = "import sys; from headforcing.cli.cli import main; "
    program += "sys.exit(main(['demo', '--method', 'magic']) + 100 * ('torch' in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert (
        done.returncode == 2
        and "method must be one of" in done.stderr
        and not list(tmp_path.iterdir())
    )


linux = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="streams are closed and full as in Linux"
)
SHORT = "demo --seconds 1 --scale 2 --sigmas 1 --device cpu --json --prompts 'a red ball' --out ."
FULL = "error: the result cannot be printed: No space left on device\n"


@linux
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"{SHORT} <&- >&- 2>&-", 0, ""),
        ("runs list . >/dev/full", 1, FULL),
        ("runs list nowhere 2>/dev/full", 2, ""),
        ("budget | true; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_a_command_needs_no_place_to_talk_to(
    command: str, code: int, said: str, tmp_path: Path
) -> None:
    program = f'"{sys.executable}" -m headforcing {command}'
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)
    if "demo" in command:
        with av.open(str(tmp_path / "demo.mp4")) as container:
            assert sum(1 for _ in container.decode(video=0)) == 16


@linux
def test_what_libraries_write_to_a_closed_stderr_reaches_no_file(tmp_path: Path) -> None:
    program = """
import os, sys
from headforcing.cli.cli import usable_streams
with usable_streams(), open("file", "w") as file:
    os.write(2, b"of a library")
    print("lost", file=sys.stderr)
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(["bash", "-c", f'"{sys.executable}" program.py 2>&-'], cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_character_that_the_console_lacks_is_written_as_an_escape(
    stream: str, tmp_path: Path
) -> None:
    program = f"""
import sys
from headforcing.cli.cli import usable_streams
before = sys.{stream}.errors
with usable_streams():
    print("fox \\u72d0", file=sys.{stream})
assert sys.{stream}.errors == before
"""
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert getattr(done, stream) == b"fox \\u72d0\n"


RED = "a red ball"
CROSS = "a yellow cross"
CUBE = "a blue cube"
PLANNED = f"0:00 {RED}\n0:03 {CROSS}\n0:06 {CUBE}"  # blocks 0, 4 and 8 of 10
CHANGED = f"0:00 {RED}\n0:03 {CROSS}\n0:04.5 [blend 1] {CUBE}\n0:06 {RED}"  # 0, 4, 6 and 8


@pytest.fixture
def written(tmp_path):
    """Writes a file so that it seems to rest since."""

    def write(text: str, age=10.0):
        path = tmp_path / "story.txt"
        path.write_text(text, encoding="utf-8")
        os.utime(path, (time.time() - age, time.time() - age))
        return path

    return write


@pytest.mark.slow
def test_a_followed_file_is_taken_when_it_changes_and_the_final_story_lies_beside_the_video(
    written, tmp_path, monkeypatch, capsys
):
    path = written(PLANNED)
    out = tmp_path / "out"
    wrong = "0:00 a\n0:00 b"
    begun = PLANNED.replace(RED, CROSS)
    # a block
    after = {1: partial(written, wrong), 2: partial(written, begun), 3: partial(written, CHANGED)}
    monkeypatch.setattr(ProgressBar, "add", lambda bar, block: after.get(block.index, path.touch)())
    options = f"--out {out} --seconds 7 --scale 1 --device cpu --json --sigmas 1".split()
    assert main(["demo", "--follow", str(path), *options]) == 0
    told = capsys.readouterr()
    assert [
        line.removeprefix(str(path)) for line in told.err.splitlines() if line.startswith(str(path))
    ] == [
        " is not taken: line 2: 0:00 does not come after 0:00 of the prompt above",
        " is not taken: prompt 1 has begun and its finished blocks stay: leave everything before "
        "0:02.062 (block 4 of 10) as it was, and change what comes after",
        " is taken from 0:04.312 on (block 7 of 10)",
    ]
    assert sorted(file.name for file in out.iterdir()) == ["demo.mp4", "demo.png", "demo.story.txt"]
    assert (
        (out / "demo.story.txt").read_text(encoding="utf-8")
        == CHANGED
        == json.loads(told.out)["story"]
    )
    with av.open(str(out / "demo.mp4")) as container:
        tags = json.loads(container.metadata["head_forcing"])
    assert tags["story"] == CHANGED and tags["prompts"] == [RED, CROSS, CUBE, RED]


def test_a_file_is_read_once_for_each_change_and_only_when_it_rests(written):
    file = FollowedFile(written("one"))
    seen = []
    for text, age in (("two", 10.0), ("three", 0.0), ("three", 1.0), ("one", 10.0)):
        written(text, age=age)
        seen += [file.changed(), file.changed()]
    assert seen == ["two", None, None, None, "three", None, None, None], (
        "not while an editor may be writing still"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_missing_file_and_a_pipe_are_refused_once_and_never_waited_for(written):
    path = written("one")
    file = FollowedFile(path)
    path.unlink()
    with pytest.raises(HeadForcingError, match="was not found"):
        file.changed()
    assert file.changed() is None
    os.mkfifo(path)
    os.utime(path, (1, 1))
    with pytest.raises(HeadForcingError, match="is a pipe or a device, not a file"):
        file.changed()


def test_blocks_of_8_bit_attention_are_kept_apart_and_the_report_says_so(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(attention_backends.BACKENDS, "sage", lambda: attention_backends.explicit)
    runs = tmp_path / "runs"
    told = {}
    for name in ("sage", "explicit", "sdpa"):
        command = f"demo --seconds 0.5 --attention {name} --runs {runs} --out {tmp_path / name}"
        assert main(command.split()) == 0
        told[name] = capsys.readouterr().out
    assert len([path for path in runs.iterdir() if path.is_dir()]) == 2
    assert "rounds to 8 bits" in told["sage"] and "rounds to 8 bits" not in told["sdpa"]
