"""The Wan VAE of the command line decodes as ComfyUI's own."""

from pathlib import Path

import pytest
import torch
from comfy_harness import run_in_comfy
from comfy_setup import ComfyInstall
from headforcing.headforcing_core.video.wan_vae import load_codec
from safetensors.torch import load_file, save_file
from tiny_checkpoints import wan_vae

COMFY_DECODE = Path(__file__).parent / "programs" / "decode_with_vae.py"


@pytest.mark.comfy
def test_pictures_are_those_of_comfyuis_own_vae(tmp_path: Path, comfy_install: ComfyInstall):
    """The same file and the same normalised latents, un-normalised by ComfyUI's own constants."""
    vae_path = wan_vae(tmp_path / "wan_2.1_vae.safetensors")
    latents = 0.3 * torch.randn(10, 16, 3, 5, generator=torch.Generator().manual_seed(0))
    save_file({"latents": latents}, tmp_path / "latents.safetensors")
    out = tmp_path / "pictures.safetensors"
    run_in_comfy(comfy_install, COMFY_DECODE, vae_path, tmp_path / "latents.safetensors", out)
    decoder = load_codec(vae_path, "cpu", torch.float32, encodes=False).decoder()
    video_frames = torch.cat([decoder.decode(chunk) for chunk in latents.split([1, 2, 3, 3, 1])])
    torch.testing.assert_close(video_frames, load_file(out)["pictures"], atol=1e-3, rtol=0)
