"""The test harness itself, with ComfyUI's own nodes only."""

import io
from pathlib import Path

import pytest
from comfy_browser import Browser
from comfy_harness import ComfyServer, run_in_comfy
from comfy_setup import ComfyInstall
from PIL import Image
from tiny_checkpoints import wan_lora, wan_t2v, wan_vae

pytestmark = pytest.mark.comfy


def sampling_prompt(unet: str, seed: int = 1) -> dict:
    """Tiny DiT -> 4 steps -> tiny VAE -> one PNG per picture; node ids name the nodes."""
    return {
        "model": {"class_type": "UNETLoader", "inputs": {"unet_name": unet, "weight_dtype": "default"}},
        "text": {"class_type": "TestFakeText", "inputs": {"seed": 3, "words": 8}},
        "latent": {
            "class_type": "EmptyHunyuanLatentVideo",
            "inputs": {"width": 64, "height": 32, "length": 5, "batch_size": 1},
        },
        "sampler": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["model", 0],
                "positive": ["text", 0],
                "negative": ["text", 0],
                "latent_image": ["latent", 0],
                "seed": seed,
                "steps": 4,
                "cfg": 1.0,
                "sampler_name": "euler",
                "scheduler": "simple",
                "denoise": 1.0,
            },
        },
        "vae": {"class_type": "VAELoader", "inputs": {"vae_name": "tiny_vae.safetensors"}},
        "decode": {"class_type": "VAEDecode", "inputs": {"samples": ["sampler", 0], "vae": ["vae", 0]}},
        "save": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0], "filename_prefix": "tiny"}},
    }


def slow_prompt(steps: int, seconds: float) -> dict:
    return {
        "slow": {"class_type": "TestSlow", "inputs": {"steps": steps, "seconds": seconds}},
        "show": {"class_type": "PreviewImage", "inputs": {"images": ["slow", 0]}},
    }


@pytest.fixture
def with_models(comfy_server: ComfyServer) -> ComfyServer:
    wan_t2v(comfy_server.model_path("diffusion_models", "tiny.safetensors"))
    wan_vae(comfy_server.model_path("vae", "tiny_vae.safetensors"))
    return comfy_server


def test_server_lists_native_and_test_nodes(comfy_server: ComfyServer):
    nodes = comfy_server.object_info()
    assert {"UNETLoader", "KSampler", "TestFakeText", "TestFakeClip", "TestSlow"} <= set(nodes)
    assert f"ComfyUI version: {comfy_server.install.version}" in comfy_server.log()


def test_tiny_checkpoints_run_through_the_native_nodes(with_models: ComfyServer):
    result = with_models.queue(sampling_prompt("tiny.safetensors"))
    assert (result.status, result.outcome, result.error) == (200, "success", None)
    assert result.progress["sampler"][-1] == (4, 4)
    images = result.outputs["save"]["images"]
    assert len(images) == 5
    assert with_models.view(**images[0]).startswith(b"\x89PNG")
    again = with_models.queue(sampling_prompt("tiny.safetensors"))
    assert again.outcome == "success" and again.executed == []


def test_published_layout_gives_the_same_pictures_as_a_bare_one(with_models: ComfyServer):
    wan_t2v(with_models.model_path("diffusion_models", "published.pt"), layout="generator_ema")
    video_frames = []
    for name in ("tiny.safetensors", "published.pt"):
        result = with_models.queue(sampling_prompt(name, seed=5))
        assert result.outcome == "success", result.error
        video_frames.append(with_models.view(**result.outputs["save"]["images"][-1]))
    assert _pixels(video_frames[0]) == _pixels(video_frames[1])


def test_lora_and_text_change_the_pictures(with_models: ComfyServer):
    wan_lora(with_models.model_path("loras", "tiny_lora.safetensors"))
    plain = sampling_prompt("tiny.safetensors", seed=6)
    lora = {"model": ["model", 0], "lora_name": "tiny_lora.safetensors", "strength_model": 1.0}
    with_lora = plain | {"lora": {"class_type": "LoraLoaderModelOnly", "inputs": lora}}
    with_lora["sampler"] = {**plain["sampler"], "inputs": plain["sampler"]["inputs"] | {"model": ["lora", 0]}}
    with_text = plain | {
        "clip": {"class_type": "TestFakeClip", "inputs": {}},
        "text": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["clip", 0], "text": "a red fox"}},
    }
    video_frames = set()
    for prompt in (plain, with_lora, with_text):
        result = with_models.queue(prompt)
        assert result.outcome == "success", result.error
        video_frames.add(_pixels(with_models.view(**result.outputs["save"]["images"][-1])))
    assert len(video_frames) == 3
    assert "lora key not loaded" not in with_models.log()


def test_previews_and_progress_arrive_per_node(comfy_server: ComfyServer):
    result = comfy_server.queue(slow_prompt(steps=5, seconds=0.1))
    assert result.outcome == "success"
    assert result.progress == {"slow": [(i, 5) for i in range(1, 6)]}
    assert [node for node, _ in result.previews] == ["slow"] * 5
    assert all(image.startswith(b"\xff\xd8") for _, image in result.previews)


def test_interrupt_stops_a_running_node(comfy_server: ComfyServer):
    result = comfy_server.queue(slow_prompt(steps=400, seconds=40), interrupt_after_progress=3)
    assert result.outcome == "interrupted"
    assert result.seconds < 20 and len(result.progress["slow"]) < 100


def test_refused_and_failing_prompts_are_told_apart(comfy_server: ComfyServer):
    refused = comfy_server.queue(slow_prompt(steps=0, seconds=0.0))
    assert (refused.status, refused.outcome, list(refused.node_errors)) == (400, "invalid", ["slow"])
    failing = comfy_server.queue(slow_prompt(steps=1, seconds=-1.0))
    assert failing.outcome == "error" and "non-negative" in (failing.error or "")


def test_code_runs_inside_comfy_with_the_pack_importable(comfy_install: ComfyInstall):
    code = """
import comfy.model_management, sys
print(comfy.model_management.get_torch_device(), sys.argv[1], load_pack().comfy_entrypoint.__name__)
"""
    assert run_in_comfy(comfy_install, code, "hello").split() == ["cpu", "hello", "comfy_entrypoint"]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_in_comfy(comfy_install, "1 / 0")


def test_server_that_cannot_start_says_why(comfy_install: ComfyInstall, tmp_path: Path):
    with pytest.raises(RuntimeError, match="unrecognized arguments: --no-such-option"):
        ComfyServer(comfy_install, tmp_path, pack_dir=None, args=["--no-such-option"]).__enter__()


def test_editor_loads_queues_and_reports_missing_nodes(comfy_server: ComfyServer, tmp_path: Path):
    with Browser(comfy_server) as editor:
        editor.load_api(slow_prompt(steps=3, seconds=0.1))
        assert sorted(editor.node_types()) == ["PreviewImage", "TestSlow"]
        assert editor.missing_nodes() == []
        assert editor.widgets("TestSlow")["steps"] == 3
        assert {node["class_type"] for node in editor.api_prompt().values()} == {"TestSlow", "PreviewImage"}
        editor.queue()
        assert editor.wait_done(30) == "success"
        editor.fit_view()
        assert editor.screenshot(tmp_path / "editor.png").stat().st_size > 5000
        unknown = tmp_path / "unknown.json"
        unknown.write_text('{"version": 0.4, "nodes": [{"id": 1, "type": "NoSuchNode", "pos": [0, 0]}], "links": []}')
        editor.load_workflow(unknown)
        assert editor.missing_nodes() == ["NoSuchNode"]
        assert editor.page_errors == [] and editor.blocked == []


def _pixels(png: bytes) -> bytes:
    return Image.open(io.BytesIO(png)).tobytes()
