"""Videos of several rollouts become pictures as CausVid's do: each rollout is decoded as a video of its own."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from flat_colour import decoded
from headforcing.headforcing_core.cache.method import Overlap
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.commands.source import toy_codec
from headforcing.headforcing_core.timeline.clock import video_frames_of
from headforcing.headforcing_core.video.codec import load_codec
from headforcing.headforcing_core.video.restarts import FrameCodec
from headforcing.headforcing_core.video.stream import Chunks, StreamingDecoder
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_checkpoints import wan_vae
from torch import Tensor

BALL = "a red ball bouncing in the teal plain room"


@pytest.fixture(scope="module", params=["toy", "wan"])
def codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FrameCodec:
    if request.param == "toy":
        return toy_codec(torch.device("cpu"))
    return load_codec(wan_vae(tmp_path_factory.mktemp("vae") / "wan_2.1_vae.safetensors"), "cpu", torch.float32)


def noise(frames: int, seed: int = 0) -> Tensor:
    return 0.5 * torch.randn(frames, 16, 2, 4, generator=torch.Generator().manual_seed(seed))


def streamed(decoder: StreamingDecoder, latents: Tensor, frames_per_block: int) -> Tensor:
    chunks = Chunks()
    parts = [chunk for block in latents.split(frames_per_block) for chunk in chunks.add(block)]
    return torch.cat([decoder.decode(chunk) for chunk in (*parts, *chunks.rest())])


def assembled(codec: FrameCodec, latents: Tensor, layout: Overlap) -> Tensor:
    """As the authors do it, but for the last rollout, which stays whole: each is decoded from its first frame on, its
    last `4 * (overlap - 1) + 1` pictures are dropped, and the first of these is what the next one begins with."""
    video_frames, given = [], latents[:0]
    rollouts = layout.rollouts(len(latents) // layout.frames_per_block)
    for number in range(rollouts):
        first = number * layout.stride * layout.frames_per_block
        rollout = torch.cat([given, latents[first + len(given) : first + layout.frames]])
        decoded = codec.new_decoder().decode(rollout)
        if number + 1 < rollouts:
            assert len(decoded) == video_frames_of(layout.frames)
            kept = len(decoded) - video_frames_of(layout.overlap)
            assert codec.encode is not None
            given = torch.cat([codec.encode(decoded[kept : kept + 1]), rollout[layout.frames - layout.overlap + 1 :]])
            decoded = decoded[:kept]
        video_frames.append(decoded)
    return torch.cat(video_frames)


@pytest.mark.parametrize(("overlap", "frames_per_block", "frames"), [
    (3, 3, 21), (3, 3, 39), (3, 3, 57), (3, 1, 24), (3, 1, 42), (6, 3, 39), (6, 3, 57),
])  # fmt: skip
@pytest.mark.repeat("wan-3-3", "wan-3-1-42", "wan-6-3-57")
def test_a_restarting_decoder_joins_the_rollouts_as_the_authors_do(codec, overlap, frames_per_block, frames):
    layout, latents = Overlap(21, overlap, frames_per_block), noise(frames)
    expected = assembled(codec, latents, layout)
    decoder = codec.decoder(layout.restart_frames(frames // frames_per_block))
    found = streamed(decoder, latents, frames_per_block)
    assert found.shape == expected.shape and len(found) == video_frames_of(frames)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    decoder.reset()
    assert torch.equal(streamed(decoder, latents, frames_per_block), found), "a video after another is like the first"


def test_a_picture_encoded_anew_is_the_last_one_of_its_frames(codec):
    latents = noise(19, seed=1)
    video_frames = codec.new_decoder().decode(latents)
    first = codec.reencode(latents)
    assert first.shape == (1, 16, 2, 4) and video_frames.shape[0] == 73
    torch.testing.assert_close(first, codec.encode(video_frames[72:]), atol=1e-4, rtol=0)
    assert (first - codec.encode(video_frames[71:72])).abs().max() > 1e-3


# ------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def generate(tiny_model: list[str]):
    """`generate` with a tiny model: called with seconds and more arguments, it gives the exit code."""
    common = ["generate", *tiny_model, "--prompts", "a green apple", "--size", "48x32", "--method", "causvid"]
    return lambda *more: main([*common, *map(str, more)])


@pytest.mark.slow
def test_real_weights_make_a_video_of_several_rollouts_with_the_vaes_encoder(generate, tmp_path: Path):
    vae = wan_vae(tmp_path / "wan_2.1_vae.safetensors")
    video, latents = tmp_path / "video.mp4", tmp_path / "latents.safetensors"
    assert generate("--seconds", "7", "--vae", vae, "--out", video, "--latents", latents) == 0
    with safe_open(latents, "pt") as file:
        made, about = file.get_tensor("latents"), json.loads(file.metadata()["head_forcing"])
    assert len(made) == 30 and about == {"video_frames": 112, "restart_frames": [18]}
    codec = load_codec(vae, "cpu", torch.float32)
    expected, through = assembled(codec, made, Overlap())[:112], codec.new_decoder().decode(made)[:112]
    found = torch.from_numpy(decoded(video)).float() / 255
    assert found.shape == expected.shape
    apart = [(found - other)[72:90].abs().mean() for other in (expected, through)]
    assert apart[0] < apart[1] / 2 < 0.15  # H.264 of these pictures is coarse, but what lies there is clear
    again = tmp_path / "again.safetensors"
    assert generate("--seconds", "7", "--vae", vae, "--latents", again) == 0  # without a video it is the same
    assert torch.equal(load_file(again)["latents"], made)


def test_without_a_vae_a_single_rollout_is_made_and_more_are_refused_in_one_sentence(generate, tmp_path: Path, capsys):
    assert generate("--seconds", "5", "--latents", tmp_path / "short.safetensors") == 0
    assert len(load_file(tmp_path / "short.safetensors")["latents"]) == 21
    capsys.readouterr()
    assert generate("--seconds", "5.1", "--latents", tmp_path / "long.safetensors") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: vae: ") and line.endswith("give --vae, the Wan 2.1 VAE, or make at most 5.06 s")
    assert not (tmp_path / "long.safetensors").exists()


@pytest.mark.slow
def test_the_demo_goes_on_extends_and_says_how_it_is_made(tmp_path: Path, capsys):
    def demo(name: str, seconds: float, *more: str) -> str:
        arguments = ["demo", "--method", "causvid", "--prompts", BALL, "--seconds", str(seconds), "--device", "cpu"]
        assert main([*arguments, "--out", str(tmp_path / name), "--scale", "1", "--sigmas", "1", *more]) == 0
        return capsys.readouterr().out

    said = demo("short", 7, "--runs", str(tmp_path / "runs"))
    assert "2 rollouts of 21 latent frames" in said and "meant for CausVid" in said and "reused" not in said
    said = demo("longer", 11, "--runs", str(tmp_path / "runs"))
    assert "3 rollouts" in said and "reused   10 blocks" in said
    demo("straight", 11)
    assert "reused   15 blocks" in demo("again", 11, "--runs", str(tmp_path / "runs"))
    videos = [decoded(tmp_path / name / "demo.mp4").astype(int) for name in ("straight", "longer", "again")]
    assert all(len(video) == 176 and np.abs(video - videos[0]).mean() < 0.1 for video in videos)  # of 255


def test_a_codec_is_named_by_its_weights(tmp_path: Path):
    paths = [wan_vae(tmp_path / f"{place}.safetensors", seed=seed) for place, seed in enumerate((2, 2, 3))]
    names = [load_codec(path, "cpu", torch.float32).fingerprint() for path in paths]
    assert names[0] == names[1] != names[2]
