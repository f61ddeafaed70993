"""Videos that begin with an image or a video file, through the real server of both tested ComfyUI versions."""

from typing import Any

import pytest
import torch
from comfy_graphs import BARE, changed, failed, node, queued, saved_latents, short_graph, text_of, tiny_graph
from comfy_harness import ComfyServer
from headforcing.headforcing_core.video.writer import VideoWriter
from PIL import Image

pytestmark = pytest.mark.comfy

FRAMEWISE = {"model_family": "causal_forcing_framewise_1_step", "seconds": 0.5, "filename_prefix": "video/begun"}


def graph(**sampler: Any) -> dict[str, Any]:
    loaders = {
        "vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors"),
        "image": node("LoadImage", image="hf_start.png"),
        "video": node("LoadVideo", file="hf_start.mp4"),
    }
    return tiny_graph(BARE, **FRAMEWISE | {"vae": ["vae", 0]} | sampler) | loaders


@pytest.fixture
def starts(tiny: ComfyServer) -> ComfyServer:
    """The server with a picture that is partly transparent, and a video, both of another size than the render."""
    if not (tiny.input_dir / "hf_start.png").exists():
        noise = [Image.effect_noise((131, 70), 80) for _ in range(4)]
        Image.merge("RGBA", noise).save(tiny.input_dir / "hf_start.png")
        still = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1))
        with VideoWriter(tiny.input_dir / "hf_start.mp4", 64, 64, 24) as writer:
            writer.write((still + torch.linspace(0, 0.5, 30).view(-1, 1, 1, 1)).clamp(0, 1))
    return tiny


def test_a_start_image_is_what_core_nodes_would_encode_and_the_render_resumes(starts: ComfyServer):
    begun = graph(start_image=["image", 0]) | {
        "fitted": node("ImageScale", image=["image", 0], upscale_method="bilinear", width=80, height=48, crop="center"),
        "encoded": node("VAEEncode", pixels=["fitted", 0], vae=["vae", 0]),
        "native": node("SaveLatent", samples=["encoded", 0], filename_prefix="latents/native"),
    }
    result = queued(starts, begun)
    latents, native = saved_latents(starts, result), saved_latents(starts, result, "native")
    assert latents.shape == (1, 16, 3, 6, 10)
    torch.testing.assert_close(latents[:, :, :1], native, rtol=0, atol=1e-5)
    report = text_of(result)
    assert "starts with the start image, 131x70 fitted to 80x48" in report and "after 1 start frames" in report
    assert "reused" not in report and result.outputs["sampler"]["images"]
    longer = queued(starts, changed(begun, "sampler", seconds=0.75))
    assert "reused 2 blocks" in text_of(longer)
    torch.testing.assert_close(saved_latents(starts, longer)[:, :, :3], latents, rtol=0, atol=0)


def test_a_video_file_of_any_size_and_frame_rate_is_gone_on_from(starts: ComfyServer):
    begun = graph(start_video=["video", 0])
    result = queued(starts, begun)
    report = text_of(result)
    assert "starts with the last 1.06 of 1.25 s of hf_start.mp4, 17 video frames at 16 a second" in report
    assert saved_latents(starts, result).shape == (1, 16, 5 + 2, 6, 10)
    sliced = {"slice": node("Video Slice", video=["video", 0], start_time=0.0, duration=0.4, strict_duration=False)}
    result = queued(starts, changed(begun | sliced, "sampler", start_video=["slice", 0]))
    assert "the last 0.31 of 0.40 s of hf_start.mp4, 5 video frames" in text_of(result)


def test_the_demo_model_goes_on_from_a_video_file(starts: ComfyServer):
    toy = short_graph(start_video=["video", 0], vae=["demo", 2], filename_prefix="video/toy")
    toy |= {"video": node("LoadVideo", file="hf_start.mp4")}
    assert saved_latents(starts, queued(starts, toy)).shape == (1, 16, 3 + 3, 8, 8)


def test_starts_that_cannot_be_used_are_one_sentence(starts: ComfyServer):
    image = {"start_image": ["image", 0]}
    several = {"several": node("RepeatImageBatch", image=["image", 0], amount=2)}
    failed(starts, graph(**image, vae=None), "start_image is encoded by the Wan 2.1 VAE: connect it to vae")
    failed(starts, graph(start_image=["several", 0]) | several, "expected one image, got 2")
    failed(starts, graph(**image, start_video=["video", 0]), "start_image and start_video", "disconnect")


def test_a_picture_from_scene_references_is_held_in_the_scene_that_names_it(starts: ComfyServer):
    told = {"prompts": "0:00 a red ball\n0:01.3 the ball in the @hall", "seconds": 2.0}
    graph = changed(short_graph(vae=["demo", 2], seconds=0.0, seed=5), "sampler", positive=["told", 0]) | {
        "image": node("LoadImage", image="hf_start.png"),
        "pictures": node("HeadForcingReferences", image_2=["image", 0], name_2="hall"),
        "told": node("HeadForcingPromptTimeline", clip=["demo", 1], references=["pictures", 0], **told),
        "report": node("PreviewAny", source=["sampler", 1]),
    }
    shown = queued(starts, graph)
    assert "picture @hall: held in prompts 2" in text_of(shown)
    without = changed(graph, "told", prompts=told["prompts"].replace("@", ""), references=None)
    other = queued(starts, without)
    assert "reused 2 blocks" in text_of(other)
    one, two = (saved_latents(starts, result) for result in (shown, other))
    assert torch.equal(one[:, :, :6], two[:, :, :6]) and not torch.equal(one[:, :, 6:], two[:, :, 6:])
    failed(starts, changed(graph, "sampler", vae=None), "references is encoded by the Wan 2.1 VAE: connect it to vae")
    failed(starts, changed(graph, "told", prompts="the @kitchen"), "no picture is named @kitchen; there are @hall")
