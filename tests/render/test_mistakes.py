"""Whatever a person gets wrong on the command line: one sentence on stderr, exit code 2, and
nothing is written.
"""

from pathlib import Path

import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from PIL import Image
from safetensors.torch import save_file

# Commands, and what is said of them; words stand between bars, {in} is a folder with the files of
# `inputs`. `generate` is given the rest of what it needs, unless weights are named; of a render's
# settings sentences.txt has the others.
MISTAKES = {
    "generate|--weights|{in}/none.pt|--prompts|a|--latents|{out}/x": "none.pt",
    "generate|--weights|{weights}|--prompts|a": "--latents",
    "generate|--weights|{weights}|--prompts|a|--out|{out}/x.mp4": "--vae",
    "generate|--weights|{weights}|--num-heads|4|--size|64x64|--prompts|a|--latents|{out}/x": "--embeddings",
    "generate|--prompts|0:10 a\n0:05 b": "line 2: 0:05 does not come",
    "generate|--prompts|a|--size|big": "--size must look like 832x480",
    "generate|--start-image|{in}/hall.png": "a start image is one latent frame, and models of the family self_forcing",
    "generate|--start-video|{in}/clip.mp4|--start-seconds|31": "above 0 and at most 30, got 31",
    "generate|--start-video|{in}/clip.mp4|--start-seconds|0.5": "at least one block of 9 video",
    "generate|--model-family|causal_forcing_framewise|--start-image|{in}/clip.mp4": "cannot be read as an image",
    "generate|--start-video|{in}/clip.mp4": "need --vae, the Wan 2.1 VAE",
    "demo|--profile|{in}/none.json|--out|{out}": "none.json",
    "demo|--rule|auto|--out|{out}": "name it with --profile",
    "demo|--start-part|first|--out|{out}": "choose a section of --start-video FILE",
    "demo|--prompts|@{in}/none.txt|--out|{out}": "none.txt",
    "demo|--prompts|{in}/empty.txt|--out|{out}": "empty.txt is a file; @",
    "demo|--device|cuda:77|--out|{out}": "--device 'cuda:77'",
    "demo|--prompts|0:00 a\n0:01 the @kitchen|--reference|hall={in}/hall.png|--out|{out}": "line 2: no picture is named @kitchen; there are @hall",
    "demo|--reference|hall.png|--out|{out}": "--reference is NAME=FILE, such as hero=hero.png, got",
    "demo|--reference|hall={in}/hall.png|--reference|Hall={in}/clip.mp4|--out|{out}": "two pictures are named hall",
    "demo"
    + "".join(f"|--reference|{name}={{in}}/hall.png" for name in "abcde")
    + "|--out|{out}": "up to 4 pictures",
    "demo|--reference|hall={in}/none.png|--out|{out}": "none.png",
    "compare|--demo|--methods|magic|--out|{out}": "methods must be one of head_forcing, ",
    "inspect|{weights}|--num-heads|3": "num_heads",
    "report|{weights}": "model.safetensors",
    "convert|{weights}|{weights}/x": "model.safetensors/x cannot be written",
    "profile|{out}/x.safetensors|--demo": "must end in .json, got 'x.safetensors'",
    "profile|{in}/folder.json|--demo": "is a folder",
    "profile|{out}/x.json|--demo|--prompts|@{in}/empty.txt": "at least one prompt",
    "profile|{out}/x.json|--demo|--shard|5/4": "a shard must look like 2/4",
    "profile|{out}/x.json|--weights|{weights}|--num-heads|4": "--text-encoder",
    "profile|{in}/damaged.json|--demo": "damaged.safetensors is not a file of",
    "profile|{out}/x.json|--demo|--returns|--farm|local": "leave out",
    "profiles|merge|{weights}|--out|{out}/x.json": "is not a file of measured",
    "profiles|compare|toy_world|krea_14b": "different models",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "folder.json").mkdir()
    (folder / "empty.txt").write_text(" ")
    save_file({"x": torch.zeros(1)}, folder / "damaged.safetensors")
    Image.new("RGB", (130, 70)).save(folder / "hall.png")
    with VideoWriter(VideoSettings(folder / "clip.mp4", fps=24), 80, 48) as writer:
        writer.write(torch.zeros(60, 48, 80, 3))
    return folder


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2(
    command, tiny, tiny_model, inputs, tmp_path, capsys
):
    places = {"in": inputs, "out": tmp_path, "weights": tiny / "model.safetensors"}
    parts = [part.format(**places) for part in command.split("|")]
    if parts[0] == "generate" and "--weights" not in parts:
        parts[1:1] = [*tiny_model, "--prompts", "a green apple", "--latents", str(tmp_path / "x")]
    before = sorted(inputs.iterdir())
    assert main(parts) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and line.startswith("error: ") and MISTAKES[command] in line
    assert list(tmp_path.rglob("*")) == [] and sorted(inputs.iterdir()) == before, (
        "something was written"
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "COMMAND"),
        ("fly", "invalid choice: 'fly'"),
        ("generate", "--weights"),
        ("demo --prompts a --follow story.txt", "not allowed with argument"),
        ("demo --scale 65", "from 1 to 64, got '65'"),
        ("runs list nowhere", "there is no folder 'nowhere'"),
        ("demo --runs=", "the path is empty"),
        *(
            (
                f"demo --gpu-speeds {speeds}",
                "expected numbers from 0.001 to 1000 with commas between them",
            )
            for speeds in ("0.0009,1", "1,1001", "1,nan")
        ),
    ],
)
def test_values_that_no_option_has_are_explained_by_the_parser(command, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    told = capsys.readouterr().err
    assert stop.value.code == 2 and told.count("\n") == 1
    assert said in told and told.endswith(" --help)\n")
