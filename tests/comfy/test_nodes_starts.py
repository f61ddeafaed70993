"""Videos that begin with an image or a video file, and a small model of Wan 2.2, recognised by its
shapes.
"""

from typing import Any

import pytest
import torch
from comfy_graphs import (
    BARE,
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
    short_graph,
    text_of,
    tiny_graph,
)
from comfy_harness import ComfyServer
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from PIL import Image
from safetensors.torch import save_file
from tiny_checkpoints import wan22_vae, wan_t2v_weights

FRAMEWISE = {
    "model_family": "causal_forcing_framewise_1_step",
    "seconds": 0.5,
    "filename_prefix": "video/begun",
}


def graph(**sampler: Any) -> dict[str, Any]:
    loaders = {
        "vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors"),
        "image": node("LoadImage", image="hf_start.png"),
        "video": node("LoadVideo", file="hf_start.mp4"),
    }
    return tiny_graph(BARE, **FRAMEWISE | {"vae": ["vae", 0]} | sampler) | loaders


@pytest.fixture
def starts(tiny: ComfyServer) -> ComfyServer:
    """The server with a picture that is partly transparent, and a video, both of another size than
    the render.
    """
    if not (tiny.input_dir / "hf_start.png").exists():
        noise = [Image.effect_noise((131, 70), 80) for _ in range(4)]
        Image.merge("RGBA", noise).save(tiny.input_dir / "hf_start.png")
        still = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1))
        with VideoWriter(VideoSettings(tiny.input_dir / "hf_start.mp4", fps=24), 64, 64) as writer:
            writer.write((still + torch.linspace(0, 0.5, 30).view(-1, 1, 1, 1)).clamp(0, 1))
    return tiny


def test_a_start_image_is_what_core_nodes_would_encode_and_the_render_resumes(starts: ComfyServer):
    begun = graph(start_image=["image", 0]) | {
        "fitted": node(
            "ImageScale",
            image=["image", 0],
            upscale_method="bilinear",
            width=80,
            height=48,
            crop="center",
        ),
        "encoded": node("VAEEncode", pixels=["fitted", 0], vae=["vae", 0]),
        "native": node("SaveLatent", samples=["encoded", 0], filename_prefix="latents/native"),
    }
    result = queued(starts, begun)
    latents = saved_latents(starts, result)
    native = saved_latents(starts, result, "native")
    assert latents.shape == (1, 16, 3, 6, 10)
    torch.testing.assert_close(latents[:, :, :1], native, rtol=0, atol=1e-5)
    report = text_of(result)
    assert (
        "starts with the start image, 131x70 fitted to 80x48" in report
        and "after 1 start frames" in report
    )
    assert "reused" not in report and result.outputs["sampler"]["images"]
    longer = queued(starts, changed(begun, "sampler", seconds=0.75))
    assert "reused 2 blocks" in text_of(longer)
    torch.testing.assert_close(saved_latents(starts, longer)[:, :, :3], latents, rtol=0, atol=0)


def test_a_video_file_of_any_size_and_frame_rate_is_gone_on_from(starts: ComfyServer):
    begun = graph(start_video=["video", 0])
    result = queued(starts, begun)
    report = text_of(result)
    assert (
        "starts with the last 1.06 of 1.25 s of hf_start.mp4, 17 video frames at 16 a second"
        in report
    )
    assert saved_latents(starts, result).shape == (1, 16, 5 + 2, 6, 10)
    sliced = {
        "slice": node(
            "Video Slice", video=["video", 0], start_time=0.0, duration=0.4, strict_duration=False
        )
    }
    result = queued(starts, changed(begun | sliced, "sampler", start_video=["slice", 0]))
    assert "the last 0.31 of 0.40 s of hf_start.mp4, 5 video frames" in text_of(result)


def test_the_demo_model_goes_on_from_a_video_file(starts: ComfyServer):
    toy = short_graph(start_video=["video", 0], vae=["demo", 2], filename_prefix="video/toy")
    toy |= {"video": node("LoadVideo", file="hf_start.mp4")}
    assert saved_latents(starts, queued(starts, toy)).shape == (1, 16, 3 + 3, 8, 8)


def test_starts_that_cannot_be_used_are_one_sentence(starts: ComfyServer):
    image = {"start_image": ["image", 0]}
    several = {"several": node("RepeatImageBatch", image=["image", 0], amount=2)}
    failed(
        starts,
        graph(**image, vae=None),
        "start_image is encoded by the Wan 2.1 VAE: connect it to vae",
    )
    failed(starts, graph(start_image=["several", 0]) | several, "expected one image, got 2")
    failed(
        starts,
        graph(**image, start_video=["video", 0]),
        "start_image and start_video",
        "disconnect",
    )


def test_a_picture_from_scene_references_is_held_in_the_scene_that_names_it(starts: ComfyServer):
    told = {"prompts": "0:00 a red ball\n0:01.3 the ball in the @hall", "seconds": 2.0}
    graph = changed(
        short_graph(vae=["demo", 2], seconds=0.0, seed=5), "sampler", positive=["told", 0]
    ) | {
        "image": node("LoadImage", image="hf_start.png"),
        "pictures": node("HeadForcingReferences", image_2=["image", 0], name_2="hall"),
        "told": node(
            "HeadForcingPromptTimeline", clip=["demo", 1], references=["pictures", 0], **told
        ),
        "report": node("PreviewAny", source=["sampler", 1]),
    }
    result = queued(starts, graph)
    assert "picture @hall: held in prompts 2" in text_of(result)
    without = changed(graph, "told", prompts=told["prompts"].replace("@", ""), references=None)
    other = queued(starts, without)
    assert "reused 2 blocks" in text_of(other)
    one = saved_latents(starts, result)
    two = saved_latents(starts, other)
    assert torch.equal(one[:, :, :6], two[:, :, :6]) and not torch.equal(
        one[:, :, 6:], two[:, :, 6:]
    )
    failed(
        starts,
        changed(graph, "sampler", vae=None),
        "references is encoded by the Wan 2.1 VAE: connect it to vae",
    )
    failed(
        starts,
        changed(graph, "told", prompts="the @kitchen"),
        "no picture is named @kitchen; there are @hall",
    )


# ------------------------------------------------------------------------------------------ Wan 2.2

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
    report = text_of(made)
    latents = saved_latents(longlive2, made)
    assert "model family longlive2 (by its" in report and "48 frames = 2.00 s at 24 fps" in report
    native = node("UNETLoader", unet_name=NAME, weight_dtype="default")
    assert latents.shape == (1, 48, 16, 4, 6) and torch.equal(
        sampled(longlive2, tiny_graph(native, **SIZE)), latents
    )
    shots = sampled(longlive2, tiny_graph(loader, **SIZE, method="longlive2"))
    assert not torch.allclose(shots, latents)


def test_a_size_and_a_vae_of_the_other_model_are_refused(longlive2: ComfyServer):
    graph = tiny_graph(node("HeadForcingLoadModel", checkpoint=NAME), **SIZE)
    failed(longlive2, changed(graph, "sampler", width=80), "width must be a multiple of 32")
    vae = graph | {"vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors")}
    failed(
        longlive2,
        changed(vae, "sampler", vae=["vae", 0]),
        "expected the Wan 2.2 VAE",
        "48 latent channels",
    )
    failed(
        longlive2,
        changed(tiny_graph(UNET), "sampler", method="longlive2"),
        "weights of the model family longlive2",
    )


def test_native_sampling_gives_the_same_latents(longlive2: ComfyServer):
    own = tiny_graph(node("HeadForcingLoadModel", checkpoint=NAME), **SIZE, resume=False)
    native = {name: own[name] for name in ("model", "text", "profile")} | {
        "apply": node(
            "HeadForcingApply",
            model=["model", 0],
            positive=["text", 0],
            head_profile=["profile", 0],
        ),
        "guider": node("BasicGuider", model=["apply", 0], conditioning=["text", 0]),
        "noise": node("RandomNoise", noise_seed=4),
        "empty": node(
            "Wan22ImageToVideoLatent", vae=["vae", 0], width=96, height=64, length=61, batch_size=1
        ),
        "vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors"),
        "native": node(
            "SamplerCustomAdvanced",
            noise=["noise", 0],
            guider=["guider", 0],
            sampler=["apply", 1],
            sigmas=["apply", 2],
            latent_image=["empty", 0],
        ),
        "latents": node("SaveLatent", samples=["native", 0], filename_prefix="latents/native"),
    }
    made = [saved_latents(longlive2, queued(longlive2, graph)) for graph in (own, native)]
    assert torch.equal(*made) and made[0].shape == (1, 48, 16, 4, 6)


def test_the_report_says_where_a_timeline_shows_the_blocks_of_another_model(comfy: ComfyServer):
    graph = demo_graph()
    made = [
        queued(comfy, changed(graph, "timeline", model_family=name))
        for name in ("self_forcing", "longlive2")
    ]
    told = (
        "Prompt Timeline shows blocks of 1.333 s, this model's last 0.75 s: set its model_family "
        "to self_forcing"
    )
    assert [told in text_of(each) for each in made] == [
        False,
        True,
    ] and "reused 9 blocks" in text_of(made[1])


@pytest.mark.thorough
@pytest.mark.slow
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
