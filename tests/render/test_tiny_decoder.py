"""Tiny decoders: streaming against the published network run over a whole video, the latents they take, their files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.latents import WAN21, WAN22, LatentFormat
from headforcing.headforcing_core.video import tiny_decoder, wan_vae
from headforcing.headforcing_core.video.codec import decoder_memory, load_codec
from safetensors.torch import save_file
from tiny_checkpoints import wan_vae as write_wan_vae
from torch import Tensor
from torch.nn import functional as F

CPU, FRAMES, WIDTHS = torch.device("cpu"), 5, (12, 10, 8, 6)


def random_weights(dtype: torch.dtype, latents: LatentFormat = WAN21) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    empty = tiny_decoder.TinyDecoder(WIDTHS, latents).state_dict()
    return {
        name: (torch.randn(t.shape, generator=generator) * (t[0].numel() ** -0.5 if t.ndim > 1 else 0.3)).to(dtype)
        for name, t in empty.items()
    }


def whole_video(weights: dict[str, Tensor], z: Tensor) -> Tensor:
    """The network as published: all frames at once, each layer with memory reading its input one frame later."""
    w = {name.removeprefix("decoder."): tensor.float() for name, tensor in weights.items()}

    def conv(x: Tensor, name: str, pad: int = 1) -> Tensor:
        return F.conv2d(x, w[f"{name}.weight"], w.get(f"{name}.bias"), padding=pad)

    x = conv((z / 3).tanh() * 3, "1").relu()
    for start, frames in ((3, 1), (9, 2), (15, 2)):
        for layer in range(start, start + 3):
            before = F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))[:-1]
            hidden = conv(torch.cat([x, before], 1), f"{layer}.conv.0").relu()
            x = (conv(conv(hidden, f"{layer}.conv.2").relu(), f"{layer}.conv.4") + x).relu()
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = conv(x, f"{start + 4}.conv", pad=0)
        x = x.reshape(len(x) * frames, -1, *x.shape[2:])
        x = conv(x, str(start + 5))
    x = conv(x.relu(), "22")[3:].clamp(0, 1)
    return F.pixel_shuffle(x, round((x.shape[1] / 3) ** 0.5)).permute(0, 2, 3, 1)  # Wan 2.2: cells of 2x2 pixels


def write(folder: Path, dtype: torch.dtype = torch.float16, latents: LatentFormat = WAN21) -> tuple[Path, dict]:
    weights = random_weights(dtype, latents)
    save_file(weights, folder / "tiny.safetensors")
    return folder / "tiny.safetensors", weights


@pytest.mark.parametrize(("decoder", "dtype", "asked"), [
    ("taew2_1", torch.float16, "auto"), ("taew2_1", torch.bfloat16, "taew2_1"),
    ("lighttaew2_1", torch.bfloat16, "auto"), ("lighttaew2_1", torch.float16, "lighttaew2_1"),
    ("taew2_2", torch.float32, "auto"),
])  # fmt: skip
def test_every_chunking_is_the_published_network_on_the_latents_it_takes(tmp_path, decoder, dtype, asked):
    """A name decides between decoders with the same tensors, else the dtype."""
    of = WAN22 if decoder == "taew2_2" else WAN21
    path, weights = write(tmp_path, dtype, of)
    z = latents = torch.randn(FRAMES, of.channels, 3, 4, generator=torch.Generator().manual_seed(1))
    if decoder == "lighttaew2_1":  # latents as the VAE sees them
        mean, std = (torch.tensor(row).view(-1, 1, 1) for row in (wan_vae.LATENTS_MEAN, wan_vae.LATENTS_STD))
        z = latents * std + mean
    expected = whole_video(weights, z)
    assert expected.shape == (17, 3 * of.stride, 4 * of.stride, 3) and expected.std() > 0.05
    codec = load_codec(path, CPU, torch.float32, encodes=False, decoder=asked)
    videos = []
    for chunking in ([5], [1] * 5, [1, 2, 2]):
        stream = codec.decoder()
        videos.append(torch.cat([stream.decode(chunk) for chunk in latents.split(chunking)]))
    torch.testing.assert_close(videos[0], expected, atol=1e-5, rtol=0)
    assert torch.equal(videos[0], videos[1]) and torch.equal(videos[0], videos[2])
    stream.reset()
    assert torch.equal(stream.decode(latents), videos[0])


def test_what_a_file_cannot_do_is_said_before_it_is_loaded(tmp_path):
    path, weights = write(tmp_path)
    wan = write_wan_vae(tmp_path / "wan.safetensors")
    for file, asked, told in (
        (path, {"decoder": "wan"}, "tiny decoder, not the Wan 2.1 VAE"),
        (wan, {"decoder": "taew2_1"}, "no tiny decoder: give taew2_1's file"),
        (path, {"encodes": True}, "cannot encode video frames"),
        (path, {"latents": WAN22}, "for 16 latent channels, the model has 48"),
    ):
        with pytest.raises(HeadForcingError, match=told):
            decoder_memory(file, (64, 64), torch.float32, **asked)
    save_file({name: tensor for name, tensor in weights.items() if name != "decoder.22.bias"}, path)
    with pytest.raises(HeadForcingError, match=r"tiny.safetensors is not a complete tiny decoder: decoder.22.bias is"):
        load_codec(path, CPU, torch.float32, encodes=False)


def test_it_takes_a_small_part_of_the_vaes_memory(tmp_path):
    path, _ = write(tmp_path)
    assert decoder_memory(path, (480, 832), torch.bfloat16).peak > 0
    with torch.device("meta"):
        released = tiny_decoder.TinyDecoder()
    assert released.memory((60, 104), torch.bfloat16)[1] < 0.2 * decoder_memory(None, (480, 832), torch.bfloat16).peak
