"""The Wan 2.2 VAE: frames and latents of its authors' own code come out again, whole and chunk by
chunk.
"""

from pathlib import Path

import pytest
import torch
from headforcing.cli.codec import decoder_memory, load_codec
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.latents import WAN21, WAN22
from headforcing.headforcing_core.video.restarts import FrameCodec
from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder, statistics
from recorded_cases import GOLDEN, needs
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
FOLDER = GOLDEN["full"] / "longlive2"
pytestmark = needs("longlive2")


@pytest.fixture(scope="session")
def recorded() -> dict[str, torch.Tensor]:
    return load_file(FOLDER / "vae_golden.safetensors")


@pytest.fixture(scope="session")
def codec() -> FrameCodec:
    return load_codec(FOLDER / "vae.safetensors", CPU, torch.float32)


def as_pixels(x: torch.Tensor) -> torch.Tensor:
    """`[1, 3, t, H, W]` in -1..1 as it was recorded -> `[t, H, W, 3]` in 0..1."""
    return (x[0].permute(1, 2, 3, 0) / 2 + 0.5).clamp(0, 1)


def test_latents_are_normalised_with_the_recorded_means_and_deviations(recorded):
    mean, std = statistics(WAN22)
    assert torch.allclose(mean, recorded["latent_mean"], atol=1e-7)
    assert torch.allclose(std, recorded["latent_std"], atol=1e-7)


def test_decoding_gives_the_recorded_frames_however_the_latents_are_cut(codec, recorded):
    decoder = codec.decoder()
    latents = recorded["latents"][0]
    for chunks in ([5], [1, 3, 1], [2, 2, 1], [1, 1, 1, 1, 1], [1, 4]):
        decoder.reset()
        made = torch.cat([decoder.decode(chunk) for chunk in latents.split(chunks)])
        assert (made - as_pixels(recorded["decoded"])).abs().max() < 1e-5
    decoder.reset()
    assert (
        decoder.decode(latents[:1]) - as_pixels(recorded["decoded_first_frame_only"])
    ).abs().max() < 1e-5


def test_encoding_gives_the_recorded_latents_of_a_clip_and_of_an_image(codec, recorded):
    clip = as_pixels(recorded["clip"])
    for name, frames in {
        "encoded": 13,
        "encoded_first_frame_only": 1,
        "encoded_8_frames": 5,
    }.items():
        expected = recorded[name][0].transpose(0, 1)
        found = codec.encode_video(clip[:frames])  # the authors' encoder drops what is beyond 4k+1
        assert found.shape == expected.shape and (found - expected).abs().max() < 1e-5, name


def test_features_and_the_peak_of_the_released_size_are_as_estimated(codec, recorded):
    decoder = codec.decoder()
    assert isinstance(decoder, WanVideoDecoder)
    decoder.decode(recorded["latents"][0])
    held = sum(frames.nbytes for frames in decoder.features.kept.values())
    assert held == decoder_memory(FOLDER / "vae.safetensors", (48, 32), torch.float32).held
    released = decoder_memory(
        Path("absent"), (704, 1280), torch.bfloat16, encodes=True, latents=WAN22
    )
    enlarging = 16 * (2 * 1024**2 + 512**2)  # weights that are made from those of the file
    padding = 4 * 27 * 256  # of the last layer's 12 outputs to 16
    assert released.weights == 2 * (704_688_668 + enlarging + padding)
    assert released.held == pytest.approx(3.2e9, rel=0.01)


def test_a_file_that_is_not_complete_is_refused_by_the_tensor_that_is_missing(codec, tmp_path):
    weights = load_file(FOLDER / "vae.safetensors")
    del weights["decoder.upsamples.2.upsamples.3.resample.1.weight"]
    save_file(weights, tmp_path / "x.safetensors")
    with pytest.raises(
        HeadForcingError, match="not a complete Wan 2.2 VAE: .*resample.1.weight is missing"
    ):
        load_codec(tmp_path / "x.safetensors", CPU, torch.float32)
    with pytest.raises(
        HeadForcingError, match="a VAE for 48 latent channels, the model has 16: use wan_2.1_vae"
    ):
        decoder_memory(FOLDER / "vae.safetensors", (48, 32), torch.float32, latents=WAN21)
    with pytest.raises(HeadForcingError, match="latents of shape .frames, 48, h, w."):
        codec.decoder().decode(torch.zeros(1, 16, 3, 2))
