"""A small model of Wan 2.2 through the real server: recognised by its shapes, with sizes and frame rate of its own."""

import pytest
import torch
from comfy_graphs import changed, failed, node, queued, saved_latents, tiny_graph
from comfy_harness import ComfyServer
from safetensors.torch import save_file
from tiny_checkpoints import wan_t2v_weights

pytestmark = pytest.mark.comfy
NAME = "hf_tiny_22.safetensors"
SIZE = {"width": 96, "height": 64, "seconds": 2.0}


@pytest.fixture
def longlive2(tiny: ComfyServer) -> ComfyServer:
    """The server with a model of 48 latent channels."""
    path = tiny.model_path("diffusion_models", NAME)
    if not path.exists():
        save_file(wan_t2v_weights(channels=48), path)
    return tiny


def test_a_model_of_wan_22_runs_in_its_own_blocks_whatever_loads_it(longlive2: ComfyServer):
    loaders = (
        node("HeadForcingLoadModel", checkpoint=NAME),
        node("UNETLoader", unet_name=NAME, weight_dtype="default"),
    )
    made = [queued(longlive2, tiny_graph(loader, **SIZE)) for loader in loaders]
    latents = [saved_latents(longlive2, result) for result in made]
    assert latents[0].shape == (1, 48, 16, 4, 6)
    torch.testing.assert_close(*latents, rtol=0, atol=0)
    report = made[0].outputs["report"]["text"][0]
    assert "model family longlive2 (by its" in report and "48 frames = 2.00 s at 24 fps" in report
    shots = changed(tiny_graph(loaders[0], **SIZE), "sampler", method="longlive2")
    assert not torch.allclose(saved_latents(longlive2, queued(longlive2, shots)), latents[0])


def test_a_size_and_a_vae_of_the_other_model_are_refused(longlive2: ComfyServer):
    graph = tiny_graph(node("HeadForcingLoadModel", checkpoint=NAME), **SIZE)
    failed(longlive2, changed(graph, "sampler", width=80), "width must be a multiple of 32")
    vae = graph | {"vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors")}
    failed(longlive2, changed(vae, "sampler", vae=["vae", 0]), "expected the Wan 2.2 VAE", "48 latent channels")
