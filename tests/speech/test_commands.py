"""A portrait that speaks from the command line, on the weights of the recorded case."""

import json
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from PIL import Image
from safetensors.torch import load_file, save_file
from sound_files import RATE, write_wave
from tiny_checkpoints import wan_vae

MODEL = Path(__file__).parents[1] / "golden" / "livetalk" / "model.safetensors"
PROMPT = "a woman speaks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    generator = torch.Generator().manual_seed(1)
    save_embeddings(folder / "texts.safetensors", {PROMPT: torch.randn(9, 48, generator=generator)})
    wan_vae(folder / "vae.safetensors")
    features = torch.randn(45, 112, generator=generator)
    save_file({"features": features}, folder / "features.safetensors")
    save_file({"features": features[:40]}, folder / "short.safetensors")
    save_file({"feature": features}, folder / "other.safetensors")
    rng = np.random.default_rng(3)
    Image.fromarray(rng.integers(0, 255, (90, 64, 3), dtype=np.uint8)).save(folder / "face.png")
    return folder


@pytest.fixture
def generate(folder: Path, capsys):
    """`generate` with the small model; its exit code and what it says."""

    def run(*more: object, speech: str | None = "features.safetensors", image: bool = True):
        arguments = ["generate", "--weights", MODEL, "--num-heads", 2, "--prompts", PROMPT]
        arguments += ["--embeddings", folder / "texts.safetensors", "--size", "48x32"]
        arguments += ["--vae", folder / "vae.safetensors", "--dtype", "fp32", "--device", "cpu"]
        arguments += ["--method", "livetalk"]
        if speech is not None:
            arguments += ["--speech", folder / speech]
        if image:
            arguments += ["--start-image", folder / "face.png"]
        code = main([str(part) for part in [*arguments, *more]])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.mark.slow
def test_a_portrait_and_stored_features_become_a_video_that_goes_on(generate, tmp_path):
    paths = [tmp_path / f"{name}.safetensors" for name in ("part", "whole", "louder")]
    common = ("--runs", tmp_path / "runs", "--latents")
    code, said = generate("--seconds", 1.3, *common, paths[0])
    assert code == 0, said
    assert "model family livetalk (by its 33 input channels)" in said
    assert "it and the speech drive every block" in said and "method livetalk:" in said
    code, said = generate("--seconds", 2.8, "--out", tmp_path / "x.mp4", *common, paths[1])
    assert code == 0 and "reused 2 blocks" in said, said
    part = load_file(paths[0])["latents"]
    whole = load_file(paths[1])["latents"]
    assert len(part) == 6 and len(whole) == 12 and torch.equal(part, whole[:6])
    with av.open(str(tmp_path / "x.mp4")) as file:
        assert sum(1 for _ in file.decode(video=0)) == 45
    code, said = generate("--seconds", 1.3, "--speech-scale", 2, *common, paths[2])
    assert code == 0 and not torch.equal(load_file(paths[2])["latents"][3:], part[3:])


@pytest.mark.parametrize(
    "options, more, why",
    [
        ({"speech": None}, (), "got no speech"),
        ({"image": False}, (), "give one picture to start with"),
        ({"speech": "short.safetensors"}, (), "speech: it lasts 2.50 s"),
        ({"speech": "other.safetensors"}, (), "has no tensor `features`"),
        ({"speech": "face.png"}, (), "cannot be read as sound"),
        ({}, ("--speech-encoder", "."), "--speech-encoder is for sound"),
        ({}, ("--method", "rolling_forcing"), "a sampler of its own"),
        ({}, ("--model-family", "livetalk", "--profile", "auto"), ""),
    ],
)
def test_a_mistake_is_one_sentence(generate, tmp_path, options, more, why):
    code, said = generate(
        "--seconds", 2.8, "--latents", tmp_path / "x.safetensors", *more, **options
    )
    if not why:  # a window needs no head profile
        assert code == 0, said
        return
    assert code != 0 and why in said and "Traceback" not in said


@pytest.mark.slow
def test_a_sound_drives_the_picture_and_is_that_of_a_video_as_long_as_it(
    generate, folder, tmp_path
):
    write_wave(folder / "talk.wav", np.sin(np.arange(2 * RATE) / 20).astype(np.float32))
    asked = ("--latents", tmp_path / "x.safetensors", "--out", tmp_path / "x.mp4")
    code, said = generate(*asked, "--speech-encoder", folder, speech="talk.wav")
    assert code != 0 and "expected config.json" in said
    code, said = generate(*asked, speech="talk.wav")
    assert code != 0 and "give --speech-encoder" in said
    code, said = generate(*asked, "--audio-offset", 0.5, speech="talk.wav")
    assert code != 0 and "away from the lips" in said
    transformers = pytest.importorskip("transformers")
    sizes = json.loads((MODEL.parent / "config.json").read_text())["wav2vec2"]
    known = {name: sizes[name] for name in sizes if name in transformers.Wav2Vec2Config().to_dict()}
    torch.manual_seed(2)
    encoder = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**known))
    encoder.save_pretrained(tmp_path / "encoder")
    code, said = generate(*asked, "--speech-encoder", tmp_path / "encoder", speech="talk.wav")
    assert code == 0 and "sound    talk.wav, 0:02" in said, said
    with av.open(str(tmp_path / "x.mp4")) as file:
        assert file.streams.audio and sum(1 for _ in file.decode(video=0)) == 32
    assert len(load_file(tmp_path / "x.safetensors")["latents"]) == 9


def test_inspect_names_the_model_and_the_cache_of_a_minute(capsys):
    assert main(["inspect", str(MODEL), "--num-heads", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["family"] == "livetalk-custom" and found["model_family"] == "livetalk"
    # 15 frames of 1024 tokens in 12 heads of 32, keys and values in bf16
    assert found["cache_bytes_512x512"] == 15 * 1024 * 12 * 32 * 2 * 2


def test_commands_without_speech_refuse_the_model(folder, tmp_path, capsys):
    weights = ["--weights", str(MODEL), "--num-heads", "2"]
    files = ["--embeddings", str(folder / "texts.safetensors")]
    compare = [
        "compare",
        *weights,
        *files,
        "--prompts",
        PROMPT,
        "--size",
        "48x32",
        "--seconds",
        "1",
    ]
    compare += ["--vae", str(folder / "vae.safetensors"), "--out", str(tmp_path / "c")]
    assert main([*compare, "--methods", "livetalk"]) != 0
    assert "got no speech" in capsys.readouterr().err
    profile = ["profile", *weights, *files, "--prompts", PROMPT, "--model-family", "livetalk"]
    assert main([*profile, str(tmp_path / "p.json")]) != 0
    assert "cannot be measured" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_makes_videos_of_several_portraits_and_sounds(folder, tmp_path, capsys):
    line = {
        "name": "first",
        "weights": str(MODEL),
        "num-heads": 2,
        "prompts": PROMPT,
        "embeddings": str(folder / "texts.safetensors"),
        "vae": str(folder / "vae.safetensors"),
        "size": "48x32",
        "dtype": "fp32",
        "device": "cpu",
        "method": "livetalk",
        "seconds": 0.6,
        "start-image": str(folder / "face.png"),
        "speech": str(folder / "features.safetensors"),
    }
    second = {**line, "name": "second", "speech-scale": 0.5}
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("\n".join(json.dumps(each) for each in (line, second)))
    assert main(["batch", str(jobs), "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").glob("*.mp4")) == [
        "first.mp4",
        "second.mp4",
    ]
