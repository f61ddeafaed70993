"""The Wan VAE on the command line: streaming against diffusers' one-shot decode and against ComfyUI's own VAE."""

from __future__ import annotations

import gc
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from comfy_harness import run_in_comfy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video import chunks_for_wan, pictures_of, write_video
from headforcing.headforcing_core.wan_vae import LATENTS_MEAN, LATENTS_STD, load_streaming_decoder
from safetensors.torch import load_file, save_file
from tiny_checkpoints import wan_t2v, wan_vae
from torch import Tensor

FRAMES, HEIGHT, WIDTH = 10, 3, 5
CHUNKINGS = {
    "all at once": [10],
    "one by one": [1] * 10,
    "blocks of three": [3, 3, 3, 1],
    "as the video writer cuts": [1, 2, 3, 3, 1],
    "uneven": [2, 5, 1, 2],
}

COMFY_DECODE = """
import torch
import comfy.latent_formats, comfy.sd, comfy.utils
from safetensors.torch import load_file, save_file
vae_path, latents_path, out_path = sys.argv[1:]
vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(vae_path))
assert vae.vae_dtype == torch.float32, vae.vae_dtype
latents = load_file(latents_path)["latents"].movedim(0, 1)[None]
pictures = vae.decode(comfy.latent_formats.Wan21().process_out(latents))
save_file({"pictures": pictures.flatten(0, -4).float().contiguous()}, out_path)
"""


@pytest.fixture(scope="module")
def vae_path(tmp_path_factory) -> Path:
    return wan_vae(tmp_path_factory.mktemp("vae") / "wan_2.1_vae.safetensors")


@pytest.fixture(scope="module")
def latents() -> Tensor:
    return 0.3 * torch.randn(FRAMES, 16, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def library(vae_path):
    """The complete VAE in diffusers, every tensor of the file in its place."""
    diffusers = pytest.importorskip("diffusers")
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    vae = diffusers.AutoencoderKLWan(base_dim=8)
    vae.load_state_dict(convert_wan_vae_to_diffusers(load_file(vae_path)))
    return vae.eval()


@pytest.fixture(scope="module")
def one_shot(library, latents) -> Tensor:
    mean, std = (torch.tensor(library.config[f"latents_{name}"]).view(1, -1, 1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        decoded = library.decode(latents.movedim(0, 1)[None] * std + mean).sample[0]
    return (decoded.movedim(0, -1) + 1) / 2


def stream(path: Path, latents: Tensor, chunking: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    decoder = load_streaming_decoder(path, "cpu", dtype)
    return torch.cat([decoder.decode(chunk) for chunk in latents.split(chunking)])


@pytest.mark.parametrize("chunking", CHUNKINGS.values(), ids=CHUNKINGS)
def test_every_chunking_equals_the_librarys_one_shot_decode(vae_path, latents, one_shot, chunking):
    pictures = stream(vae_path, latents, chunking)
    assert pictures.shape == (pictures_of(FRAMES), 8 * HEIGHT, 8 * WIDTH, 3)
    assert pictures.dtype == torch.float32 and pictures.device.type == "cpu"
    assert 0 <= pictures.min() and pictures.max() <= 1 and one_shot.std() > 0.05
    torch.testing.assert_close(pictures, one_shot, atol=1e-5, rtol=0)


def test_the_past_matters(vae_path, latents, one_shot):
    """Otherwise the test above would pass without a feature cache."""
    decoder = load_streaming_decoder(vae_path, "cpu", torch.float32)
    decoder.decode(latents[:1])
    forgetful = [decoder]
    alone = []
    for chunk in latents[1:].split(3):
        forgetful[0].reset()
        alone.append(forgetful[0].decode(chunk))
    assert sum(map(len, alone)) != len(one_shot) - 1


def test_reset_starts_a_new_video(vae_path, latents):
    decoder = load_streaming_decoder(vae_path, "cpu", torch.float32)
    first = decoder.decode(latents[:4])
    decoder.reset()
    assert torch.equal(decoder.decode(latents[:4]), first)


@pytest.mark.parametrize("version", ["0.30.0", "0.3.75"])
@pytest.mark.comfy
def test_pictures_are_those_of_comfyuis_own_vae(vae_path, latents, tmp_path, request, version):
    """The same file and the same normalised latents, un-normalised by ComfyUI's own constants."""
    pytest.importorskip("diffusers")
    from conftest import _install

    install = _install(version)
    save_file({"latents": latents}, tmp_path / "latents.safetensors")
    out = tmp_path / "pictures.safetensors"
    run_in_comfy(install, COMFY_DECODE, vae_path, tmp_path / "latents.safetensors", out)
    expected = load_file(out)["pictures"]
    pictures = stream(vae_path, latents, [1, 2, 3, 3, 1])
    torch.testing.assert_close(pictures, expected, atol=1e-3, rtol=0)
