"""The command line: what it writes, what it prints, and one sentence on stderr for anything a person gets wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import av
import pytest
import torch
from headforcing.headforcing_core.commands.cli import MOVED, _parser, main
from headforcing.headforcing_core.commands.values import find_profile, render_options
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import bundled_profiles
from headforcing.headforcing_core.head_profiles.rules import with_rule
from headforcing.headforcing_core.names import versions
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.video.writer import VideoWriter
from headforcing.headforcing_core.weights.checkpoint import load_state_dict
from PIL import Image
from safetensors.torch import load_file

BALL = "a red ball bouncing in the teal plain room"
CHANGE = "0:00 a green apple\n0:01 a red apple"


@pytest.fixture
def weights(golden: Path) -> Path:
    return golden / "self_forcing_tiny_d32" / "model.safetensors"


@pytest.fixture
def generate(tiny_model: list[str], tmp_path: Path, capsys):
    """Run `generate --latents` on the tiny model at 96x64 and return the latents."""

    def run(*more: str, prompts=CHANGE) -> torch.Tensor:
        out = tmp_path / "latents.safetensors"
        code = main(["generate", *tiny_model, "--prompts", prompts, "--latents", str(out), "--json", *more])
        assert code == 0, capsys.readouterr().err
        return load_file(out)["latents"]

    return run


def test_demo_writes_a_playable_film_a_sheet_and_json(tmp_path):
    """In a process of its own, as a user runs it. The folder is made; nothing else is left in it."""
    command = [sys.executable, "-m", "headforcing.headforcing_core", "demo"]
    command += ["--seconds", "1", "--out", str(tmp_path / "a" / "b"), "--json", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    with av.open(result["video"]) as container:
        assert container.streams.video[0].average_rate == 16
        video_frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert result["video_frames"] == 16 == len(video_frames) and video_frames[0].shape == (384, 384, 3)
    assert video_frames[-1].std() > 5, "the film is one flat colour"
    with Image.open(result["contact_sheet"]) as sheet:
        sheet.verify()
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["demo.mp4", "demo.png"]


def test_demo_takes_a_story_from_a_file_and_names_words_it_does_not_know_and_when_prompts_took_effect(tmp_path, capsys):
    story = tmp_path / "story.txt"
    story.write_text(f"0:00 {BALL}\n0:02 [recache, blend 1] a purple dinosaur", encoding="utf-8")
    folder = ["--scale", "2", "--out", str(tmp_path), "--device", "cpu"]
    assert main(["demo", "--prompts", f"@{story}", "--seconds", "4", "--sigmas", "1", *folder]) == 0
    captured = capsys.readouterr()
    assert "does not know" in captured.err and "dinosaur" in captured.err
    assert "64 frames" in captured.out and "33      3  recache, blend 1  a purple dinosaur" in captured.out
    with av.open(str(tmp_path / "demo.mp4")) as container:
        assert container.streams.video[0].width == 128
        assert json.loads(container.metadata["head_forcing"])["starts_seconds"] == [0, 33 / 16]


def test_a_video_that_cannot_be_written_costs_no_latents(tmp_path, capsys, monkeypatch):
    """A disk that is full in the middle of the video."""

    def full(*args):
        raise HeadForcingError("no space left")

    demo = ["demo", "--prompts", BALL, "--seconds", "2", "--scale", "1", "--device", "cpu", "--out", str(tmp_path)]
    latents = tmp_path / "latents.safetensors"
    monkeypatch.setattr(VideoWriter, "write", full)
    assert main([*demo, "--sigmas", "1", "--latents", str(latents), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["failure"], told["video"], told["contact_sheet"]) == ("no space left", None, None)
    assert told["latents"] == str(latents) and len(load_file(latents)["latents"]) == 9
    assert not (tmp_path / "demo.mp4").exists() and not (tmp_path / "demo.png").exists()


def test_a_video_that_is_made_on_the_cpu_unasked_says_so(generate, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for device in ("cpu", "auto"):
        generate("--seconds", "0.5", "--device", device, prompts="an apple")
        said = "finds no GPU, so the video is made on the CPU" in capsys.readouterr().err
        assert said == (device == "auto")


def test_a_rule_makes_the_roles_of_a_profile_that_is_named():
    args = _parser().parse_args("demo --profile toy_world --rule function".split())
    known = find_profile("toy_world")
    assert render_options(args, (64, 64)).profile == with_rule(known, "function") != known


def test_generate_goes_on_from_latents_and_notes_when_prompts_start_in_the_finished_video(generate, tmp_path, capsys):
    whole = generate("--seconds", "4.3", prompts="an apple")
    assert whole.shape == (18, 16, 8, 12) and whole.dtype == torch.float32 and whole.isfinite().all()
    result = json.loads(capsys.readouterr().out)
    assert result["video"] is None and result["cache_bytes"] > 0
    generate("--seconds", "2", prompts="an apple")
    part = (tmp_path / "latents.safetensors").rename(tmp_path / "part.safetensors")
    extended = generate("--seconds", "2.25", "--start-latents", str(part), prompts="an apple")
    assert len(extended) == 18 and torch.equal(extended, whole)
    generate("--seconds", "2", "--start-latents", str(part), "--runs", str(tmp_path / "runs"))
    (video,) = stored_videos(tmp_path / "runs")
    assert video.about["starts_seconds"] == [33 / 16, 45 / 16] and video.about["switches"] == ["reset", "reset"]
    assert video.about["attention"] == "sdpa" and video.about["versions"] == versions()
    (note,) = (tmp_path / "runs").glob("*/run-*.json")
    assert json.loads(note.read_text())["about"] == video.about


def test_inspect_says_what_a_checkpoint_and_a_head_profile_are(weights, capsys):
    assert main(["inspect", str(weights), "--num-heads", "4"]) == 0
    text = capsys.readouterr().out
    assert all(p in text for p in ("4 layers x 4 heads", "bfloat16", "to be found in the first seconds", "KV cache"))
    assert main(["inspect", str(weights), "--num-heads", "4", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["parameters"] == sum(tensor.numel() for tensor in load_file(weights).values())
    path = str(bundled_profiles()["toy_world"])
    assert main(["inspect", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["counts"].values()) == 48 and found["provenance"]["source"] and main(["inspect", path]) == 0
    assert "8 layers x 6 heads" in capsys.readouterr().out


def test_convert_writes_the_same_weights_from_the_published_pt_layout(weights, tmp_path, capsys):
    published = {f"model.{name}": tensor for name, tensor in load_file(weights).items()}
    torch.save({"generator_ema": published}, tmp_path / "published.pt")
    out = tmp_path / "clean.safetensors"
    assert main(["convert", str(tmp_path / "published.pt"), str(out), "--num-heads", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == out.stat().st_size
    state, original = (load_state_dict(file, num_heads=4)[0] for file in (out, weights))
    assert state.keys() == original.keys() and all(torch.equal(state[name], original[name]) for name in state)


INTERRUPTED = {
    "kept": ("head_forcing", True, r"3 of 5 blocks are kept in .+, repeat the command to go on; the video so"),
    "stored state": ("deep_forcing", True, r"3 of 5 blocks are kept in .+, repeat the command to go on from where the"),
    "not kept": ("head_forcing", False, r"without --runs FOLDER no block is kept; the video so far is "),
}


@pytest.mark.parametrize("case", INTERRUPTED)
def test_an_interrupted_command_says_what_is_kept_and_how_to_go_on(case, tmp_path, capsys, monkeypatch):
    method, kept, expected = INTERRUPTED[case]
    denoise, calls = WanVideoModel.denoise, []

    def pressed(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return denoise(*arguments)

    command = f"demo --seconds 3.5 --sigmas 1 --out {tmp_path} --scale 1 --device cpu --method {method}".split()
    command += ["--runs", str(tmp_path / "runs")] if kept else []
    with monkeypatch.context() as patch:
        patch.setattr(WanVideoModel, "denoise", pressed)
        assert main(command) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match(f"interrupted; {expected}", said) and said.endswith("demo.part.mp4")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reused_blocks"] == (3 if case == "kept" else 0)


# a command with placeholders, `generate` has weights besides, and what the sentence says; of the settings of a render
# sentences.txt has the others
WRONG = {
    "generate|--weights|{tmp}/none.safetensors|--prompts|a|--latents|{tmp}/x": "none.s",
    "demo|--profile|{tmp}/none.json|--out|{tmp}/new": "none.json",
    "demo|--rule|auto|--out|{tmp}/new": "name it with --profile",
    "demo|--start-part|first|--out|{tmp}/new": "choose a section of --start-video FILE",
    "demo|--prompts|@{tmp}/none.txt|--out|{tmp}/new": "none.txt",
    "compare|--demo|--methods|magic|--out|{tmp}/new": "methods must be one of head_forcing, ",
    "inspect|{weights}|--num-heads|3": "num_heads",
    "generate|--prompts|0:10 a\n0:05 b|--latents|{tmp}/x": "line 2: 0:05 does not come",
    "generate|--prompts|a|--latents|{tmp}/x|--size|big": "--size must look like 832x480",
    "generate|--prompts|a": "--latents", "generate|--prompts|a|--out|{tmp}/x.mp4": "--vae",
    "generate|--prompts|a|--latents|{tmp}/x|--method|self_forcing|--size|64x64|--num-heads|4": "--embeddings",
    "demo|--device|cuda:77|--out|{tmp}": "--device 'cuda:77'",
    "demo|--cuda-graph|--device|cpu|--out|{tmp}": "--cuda-graph needs a CUDA device",
    "report|{weights}": "model.safetensors", "convert|{weights}|{weights}/x": "x",
}  # fmt: skip


@pytest.mark.parametrize("command", WRONG)
def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2(command, weights, tmp_path, capsys):
    parts = [part.format(tmp=tmp_path, weights=weights) for part in command.split("|")]
    if parts[0] == "generate" and "--weights" not in parts:
        parts += ["--weights", str(weights)]
    assert main(parts) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and line.startswith("error: ") and WRONG[command] in line
    assert list(tmp_path.rglob("*")) == [], "something was written"


def test_a_wrong_method_is_refused_before_torch_is_imported(tmp_path):
    program = "import sys; from headforcing.headforcing_core.commands.cli import main; "
    program += "sys.exit(main(['demo', '--method', 'magic']) + 100 * ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "method must be one of" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("command", "said"), [
    ("", "COMMAND"), ("fly", "invalid choice: 'fly'"), ("generate", "--weights"),
    ("demo --prompts a --follow story.txt", "not allowed with argument"), ("demo --scale 65", "from 1 to 64, got '65'"),
    ("runs list nowhere", "there is no folder 'nowhere'"),
    *((f"demo --gpu-speeds {speeds}", "expected numbers from 0.001 to 1000 with commas between them")
      for speeds in ("0.0009,1", "1,1001", "1,nan")),
])  # fmt: skip
def test_values_that_no_option_has_are_explained_by_the_parser(command, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    told = capsys.readouterr().err
    assert stop.value.code == 2 and "usage: headforcing" in told and said in told.splitlines()[-1]


@pytest.mark.parametrize("name", MOVED)
def test_a_command_that_moved_to_research_says_where_it_is(name, repo_root, capsys):
    assert main([name, "--help"]) == 2
    assert capsys.readouterr().err.endswith(f"in a checkout: python -m headforcing.research {MOVED[name]}\n")
    assert f"`{MOVED[name]}`" in (repo_root / "research" / "README.md").read_text(encoding="utf-8")
