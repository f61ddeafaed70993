"""A small model of Wan 2.2 through the real server: recognised by its shapes, with sizes and frame rate of its own."""

import pytest
import torch
from comfy_graphs import (
    UNET,
    changed,
    decode,
    demo_graph,
    failed,
    node,
    opened,
    queued,
    sampled,
    saved_latents,
    text_of,
    tiny_graph,
)
from comfy_harness import ComfyServer
from PIL import Image
from safetensors.torch import save_file
from tiny_checkpoints import wan22_vae, wan_t2v_weights

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
    loader = node("HeadForcingLoadModel", checkpoint=NAME)
    made = queued(longlive2, tiny_graph(loader, **SIZE))
    report, latents = text_of(made), saved_latents(longlive2, made)
    assert "model family longlive2 (by its" in report and "48 frames = 2.00 s at 24 fps" in report
    native = node("UNETLoader", unet_name=NAME, weight_dtype="default")
    assert latents.shape == (1, 48, 16, 4, 6) and torch.equal(sampled(longlive2, tiny_graph(native, **SIZE)), latents)
    shots = sampled(longlive2, tiny_graph(loader, **SIZE, method="longlive2"))
    assert not torch.allclose(shots, latents)


def test_a_size_and_a_vae_of_the_other_model_are_refused(longlive2: ComfyServer):
    graph = tiny_graph(node("HeadForcingLoadModel", checkpoint=NAME), **SIZE)
    failed(longlive2, changed(graph, "sampler", width=80), "width must be a multiple of 32")
    vae = graph | {"vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors")}
    failed(longlive2, changed(vae, "sampler", vae=["vae", 0]), "expected the Wan 2.2 VAE", "48 latent channels")
    failed(longlive2, changed(tiny_graph(UNET), "sampler", method="longlive2"), "weights of the model family longlive2")


def test_native_sampling_gives_the_same_latents(longlive2: ComfyServer):
    own = tiny_graph(node("HeadForcingLoadModel", checkpoint=NAME), **SIZE, resume=False)
    native = {name: own[name] for name in ("model", "text", "profile")} | {
        "apply": node("HeadForcingApply", model=["model", 0], positive=["text", 0], head_profile=["profile", 0]),
        "guider": node("BasicGuider", model=["apply", 0], conditioning=["text", 0]),
        "noise": node("RandomNoise", noise_seed=4),
        "empty": node("Wan22ImageToVideoLatent", vae=["vae", 0], width=96, height=64, length=61, batch_size=1),
        "vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors"),
        "native": node(
            "SamplerCustomAdvanced", noise=["noise", 0], guider=["guider", 0], sampler=["apply", 1],
            sigmas=["apply", 2], latent_image=["empty", 0],
        ),
        "latents": node("SaveLatent", samples=["native", 0], filename_prefix="latents/native"),
    }  # fmt: skip
    made = [saved_latents(longlive2, queued(longlive2, graph)) for graph in (own, native)]
    assert torch.equal(*made) and made[0].shape == (1, 48, 16, 4, 6)


def test_the_report_says_where_a_timeline_shows_the_blocks_of_another_model(longlive2: ComfyServer):
    graph = demo_graph()
    made = [queued(longlive2, changed(graph, "timeline", model_family=name)) for name in ("self_forcing", "longlive2")]
    told = "Prompt Timeline shows blocks of 1.333 s, this model's last 0.75 s: set its model_family to self_forcing"
    assert [told in text_of(each) for each in made] == [False, True] and "reused 9 blocks" in text_of(made[1])


@pytest.mark.slow
@pytest.mark.repeat("")  # 100 s
def test_an_image_begins_a_video_that_grows_at_24_frames_a_second(longlive2: ComfyServer):
    """With a VAE of the released size, the only one that ComfyUI loads."""
    vae = longlive2.model_path("vae", "hf_wan22.safetensors")
    wan22_vae(vae, 256, 160, torch.bfloat16)
    Image.new("RGB", (90, 70), "tan").save(longlive2.input_dir / "hf_tan.png")
    small = {"width": 32, "height": 32, "seconds": 1.0, "method": "longlive2"}  # decoded in float32
    begun = {"start_image": ["image", 0], "vae": ["vae", 0], "filename_prefix": "video/shots"}
    graph = tiny_graph(node("HeadForcingLoadModel", checkpoint=NAME), **small, **begun) | {
        "vae": node("VAELoader", vae_name=vae.name),
        "image": node("LoadImage", image="hf_tan.png"),
        "decoded": decode("video/again", vae=["vae", 0]),
    }
    result = queued(longlive2, graph)
    vae.unlink()
    assert saved_latents(longlive2, result).shape == (1, 48, 8, 2, 2)
    assert "starts with the start image" in text_of(result)
    for name in ("sampler", "decoded"):
        (file,) = result.outputs[name]["images"]
        assert opened(longlive2.view(**file))[:4] == (24, 32, 32, 24.0)
