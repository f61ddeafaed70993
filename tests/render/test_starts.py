"""Videos that begin with an image or with a part of another video, from the command line."""

import json
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.start import Start, image_frames
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.video.codec import load_codec
from headforcing.headforcing_core.video.reader import fit, read_image
from headforcing.headforcing_core.video.section import read_section
from headforcing.headforcing_core.video.writer import VideoWriter
from PIL import Image
from safetensors.torch import load_file, save_file

FRAMEWISE = ("--model-family", "causal_forcing_framewise_2_steps")
STORY, VAE = "0:00 a green apple\n0:01 a red apple", "wan_2.1_vae.safetensors"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a picture, another one, and a video."""
    folder = tmp_path_factory.mktemp("starts")
    for name, radius in (("cat.png", 60), ("dog.png", 100)):
        Image.merge("RGB", [Image.effect_noise((130, 70), radius)] * 3).save(folder / name)
    still = torch.rand(1, 48, 80, 3, generator=torch.Generator().manual_seed(1))
    with VideoWriter(folder / "clip.mp4", 80, 48, 24) as writer:
        writer.write((still + torch.linspace(0, 0.5, 60).view(-1, 1, 1, 1)).clamp(0, 1))
    return folder


@pytest.fixture
def generate(tiny: Path, tiny_model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Run `generate --latents` at 96x64; what it printed and the latents, or what it said of a mistake."""

    def run(*more: object, vae=("--vae", tiny / VAE)):
        out = tmp_path / "latents.safetensors"
        command = ["generate", *tiny_model, "--prompts", STORY, "--latents", out, "--seconds", "1.5", "--json"]
        code = main([*map(str, [*command, *vae, *more])])
        said = capsys.readouterr()
        return (json.loads(said.out), load_file(out)["latents"]) if code == 0 else said.err

    return run


def test_an_image_becomes_the_first_frame_and_its_clean_pass_begins_the_cache(generate, tiny, files, tmp_path):
    result, latents = generate(*FRAMEWISE, "--start-image", files / "cat.png", "--out", tmp_path / "a.mp4")
    assert result["start"] == "the image cat.png, 130x70 fitted to 96x64" and result["video_frames"] == 1 + 24
    codec = load_codec(tiny / VAE, torch.device("cpu"), torch.float32)
    first = codec.encode_video(fit(read_image(files / "cat.png")[None], 96, 64))
    assert len(latents) == 1 + 6 and torch.equal(latents[:1], first)
    # the plain loop over given latents, which recorded cases test
    save_file({"latents": first.contiguous()}, tmp_path / "given.safetensors")
    _, same = generate(*FRAMEWISE, "--start-latents", tmp_path / "given.safetensors")
    assert torch.equal(same, latents)
    _, other = generate(*FRAMEWISE, "--start-image", files / "dog.png")
    assert all(not torch.equal(a, b) for a, b in zip(other, latents, strict=True))


def test_a_render_that_begins_with_an_image_is_resumed_and_extended(generate, files, tmp_path, monkeypatch):
    """Also where another device encodes the image slightly otherwise."""
    runs = (*FRAMEWISE, "--runs", tmp_path / "runs", "--start-image")
    _, whole = generate(*runs, files / "cat.png", "--seconds", "2")
    encoded = Start.encoded
    monkeypatch.setattr(Start, "encoded", lambda self, codec: encoded(self, codec) + 1e-4)
    longer, extended = generate(*runs, files / "cat.png", "--seconds", "2.5")
    assert longer["reused_blocks"] == 8 and torch.equal(extended[:9], whole) and len(extended) == 11
    other, _ = generate(*runs, files / "dog.png", "--seconds", "2")
    assert other["reused_blocks"] == 0
    stored = [(video.about["start"], video.finished) for video in stored_videos(tmp_path / "runs")]
    cat, dog = (f"the image {name}.png, 130x70 fitted to 96x64" for name in ("cat", "dog"))
    assert sorted(stored) == [(cat, 8), (cat, 10), (dog, 8)]


def test_a_video_goes_on_from_a_part_of_another_one(generate, tiny, files):
    result, last = generate("--start-video", files / "clip.mp4")
    assert result["start"].startswith("the last 2.06 of 2.50 s of clip.mp4, 33 video frames at 16 a second")
    assert len(last) == 9 + 6
    codec = load_codec(tiny / VAE, torch.device("cpu"), torch.float32)
    part = Start(*read_section(files / "clip.mp4", (96, 64), 4.0, "last", 3))
    assert torch.equal(last[:9], codec.encode_video(part.video_frames))
    _, first = generate("--start-video", files / "clip.mp4", "--start-part", "first", "--start-seconds", "1")
    assert len(first) == 3 + 6 and not torch.equal(first[:3], last[:3])
    _, framewise = generate(*FRAMEWISE, "--start-video", files / "clip.mp4", "--start-seconds", "0.1")
    assert len(framewise) == 1 + 6


def test_the_demo_model_goes_on_from_a_video(files, tmp_path, capsys):
    command = f"demo --seconds 1 --scale 1 --device cpu --json --sigmas 1 --out {tmp_path} --start-seconds 1.4".split()
    assert main([*command, "--start-video", str(files / "clip.mp4")]) == 0
    assert json.loads(capsys.readouterr().out)["video_frames"] == 21 + 16


MISTAKES = {
    "an image for a chunkwise model": (["--start-image", "cat.png"], "a start image is one latent frame, and models"),
    "too many seconds": (["--start-video", "clip.mp4", "--start-seconds", "31"], "above 0 and at most 30, got 31"),
    "less than a block": (["--start-video", "clip.mp4", "--start-seconds", "0.5"], "at least one block of 9 video"),
    "a video as image": ([*FRAMEWISE, "--start-image", "clip.mp4"], "clip.mp4 cannot be read as an image"),
    "no VAE": (["--start-video", "clip.mp4"], "need --vae, the Wan 2.1 VAE"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_start_that_cannot_be_used_is_one_sentence(generate, files, mistake, monkeypatch):
    monkeypatch.chdir(files)
    more, sentence = MISTAKES[mistake]
    said = generate(*more, **({"vae": ()} if mistake == "no VAE" else {}))
    assert sentence in said and len(said.splitlines()) == 1 and said.startswith("error: ")


def test_an_image_is_shown_for_as_many_latent_frames_as_the_method_was_trained_with():
    picture = torch.rand(32, 48, 3)
    for method, family, frames in (
        ("self_gradient_forcing", "self_gradient_forcing", 3), ("longlive2", "longlive2", 1),
        ("self_gradient_forcing_framewise", "self_gradient_forcing_framewise", 1),
    ):  # fmt: skip
        options = RenderOptions(method=method, model_family=family)
        assert image_frames(options.cache_policy, options.schedule, family, "") == frames
        start = Start.image(picture, (48, 32), "a picture", frames)
        assert start.frames == frames and torch.equal(start.video_frames[-1], picture)
