"""Videos of several rollouts become pictures as CausVid's do: each rollout is decoded as a video of
its own.
"""

import json
from pathlib import Path

import pytest
import torch
from flat_colour import decoded
from headforcing.cli.codec import load_codec
from headforcing.cli.values import EmbeddedModel
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.methods.causvid import Overlap
from headforcing.headforcing_core.timeline.clock import video_frames_of
from headforcing.headforcing_core.video.restarts import FrameCodec
from headforcing.headforcing_core.video.stream import Chunks, StreamingDecoder
from safetensors import safe_open
from tiny_checkpoints import wan_vae
from torch import Tensor


@pytest.fixture(scope="module", params=["toy", "wan"])
def codec(request: pytest.FixtureRequest, tiny: Path) -> FrameCodec:
    if request.param == "toy":
        return EmbeddedModel(assets.model_path()).codec(torch.device("cpu"), torch.float32)
    return load_codec(tiny / "wan_2.1_vae.safetensors", "cpu", torch.float32)


def noise(frames: int, seed: int = 0) -> Tensor:
    return 0.5 * torch.randn(frames, 16, 2, 4, generator=torch.Generator().manual_seed(seed))


def streamed(decoder: StreamingDecoder, latents: Tensor, frames_per_block: int) -> Tensor:
    chunks = Chunks()
    parts: list[Tensor] = []
    for block in latents.split(frames_per_block):
        parts += chunks.add(block)
    parts += chunks.rest()
    return torch.cat([decoder.decode(part) for part in parts])


def assembled(codec: FrameCodec, latents: Tensor, layout: Overlap) -> Tensor:
    """As the authors do it, but for the last rollout, which stays whole: each is decoded from its
    first frame on, its last `4 * (overlap - 1) + 1` pictures are dropped, and the first of these is
    what the next one begins with."""
    video_frames = []
    given = latents[:0]
    rollouts = len(layout.parts(len(latents) // layout.frames_per_block))
    for number in range(rollouts):
        first = number * layout.stride * layout.frames_per_block
        rollout = torch.cat([given, latents[first + len(given) : first + layout.frames]])
        decoded = codec.source_decoder().decode(rollout)
        if number + 1 < rollouts:
            assert len(decoded) == video_frames_of(layout.frames)
            kept = len(decoded) - video_frames_of(layout.overlap)
            assert codec.encode is not None
            given = torch.cat(
                [
                    codec.encode(decoded[kept : kept + 1]),
                    rollout[layout.frames - layout.overlap + 1 :],
                ]
            )
            decoded = decoded[:kept]
        video_frames.append(decoded)
    return torch.cat(video_frames)


@pytest.mark.parametrize(
    ("overlap", "frames_per_block", "frames"), [(3, 3, 57), (3, 1, 24), (6, 3, 39)]
)
@pytest.mark.repeat("wan-3-3", "wan-6-3")
def test_a_restarting_decoder_joins_the_rollouts_as_the_authors_do(
    codec, overlap, frames_per_block, frames
):
    layout = Overlap(21, overlap, frames_per_block)
    latents = noise(frames)
    expected = assembled(codec, latents, layout)
    decoder = codec.decoder({"restart_frames": layout.restart_frames(frames // frames_per_block)})
    found = streamed(decoder, latents, frames_per_block)
    assert found.shape == expected.shape and len(found) == video_frames_of(frames)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    decoder.reset()
    assert torch.equal(streamed(decoder, latents, frames_per_block), found), (
        "a video after another is like the first"
    )


def test_a_picture_encoded_anew_is_the_last_one_of_its_frames(codec):
    latents = noise(19, seed=1)
    video_frames = codec.source_decoder().decode(latents)
    first = codec.reencode(latents)
    assert first.shape == (1, 16, 2, 4) and video_frames.shape[0] == 73
    torch.testing.assert_close(first, codec.encode(video_frames[72:]), atol=1e-4, rtol=0)
    assert (first - codec.encode(video_frames[71:72])).abs().max() > 1e-3


# --------------------------------------------------------------------------------- the command line


SMALL = ("--size", "48x32", "--method", "causvid", "--seconds")


@pytest.mark.slow
def test_real_weights_make_a_video_of_several_rollouts_with_the_vaes_encoder(
    generate, tiny, tmp_path: Path
):
    vae = tiny / "wan_2.1_vae.safetensors"
    video = tmp_path / "video.mp4"
    _, made = generate(*SMALL, "6", "--vae", vae, "--out", video, prompts="an apple")
    with safe_open(tmp_path / "latents.safetensors", "pt") as file:
        about = json.loads(file.metadata()["head_forcing"])
    assert about == {"video_frames": 96, "restart_frames": [18], "starts_seconds": [0.0]}
    several = tmp_path / "latents.safetensors"
    several = several.rename(tmp_path / "several.safetensors")
    told = generate("--seconds", "1", "--start-latents", several, "--size", "48x32", prompts="x")
    assert "latents of several rollouts" in told and "--start-video" in told
    codec = load_codec(vae, "cpu", torch.float32)
    expected = assembled(codec, made, Overlap())[:96]
    through = codec.source_decoder().decode(made)[:96]
    found = torch.from_numpy(decoded(video)).float() / 255
    apart = [(found - other)[72:90].abs().mean() for other in (expected, through)]
    # H.264 of these pictures is coarse, but what lies there is clear
    assert apart[0] < apart[1] / 2 < 0.15


def test_without_a_vae_a_single_rollout_is_made_and_more_are_refused_in_one_sentence(generate):
    assert len(generate(*SMALL, "5", prompts="an apple")[1]) == 21
    (line,) = generate(*SMALL, "5.1", prompts="an apple").splitlines()
    assert line.startswith("error: vae: ") and line.endswith(
        "give --vae, the Wan 2.1 VAE, or make at most 5.06 s"
    )


def test_a_codec_is_named_by_its_weights(tmp_path: Path):
    paths = [
        wan_vae(tmp_path / f"{place}.safetensors", seed=seed)
        for place, seed in enumerate((2, 2, 3))
    ]
    names = [load_codec(path, "cpu", torch.float32).fingerprint() for path in paths]
    assert names[0] == names[1] != names[2]
