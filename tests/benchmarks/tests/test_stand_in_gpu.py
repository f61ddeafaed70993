"""What can be known of a GPU without one: renders, commands and ComfyUI on a stand-in for it
(stand_in_gpu.py).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from comfy_graphs import (
    UNET,
    changed,
    demo_graph,
    node,
    queued,
    sampled,
    saved_latents,
    tiny_graph,
    video_frames_of,
)
from comfy_harness import ComfyServer
from comfy_setup import NEWEST, installed
from own_process import run_tests
from stand_in_gpu import missing
from tiny_checkpoints import FAKE_COND_NODE, FAKE_NODES_FILE, native_files, tiny_decoder

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_renders_commands_and_the_day_with_a_gpu_run(tmp_path: Path):
    """In a process of its own, since the stand-in changes PyTorch; with no times of its attention
    kept.
    """
    file = Path(__file__).with_name("on_stand_in_gpu.py")
    run_tests(file, "-p", "stand_in_gpu", XDG_CACHE_HOME=str(tmp_path))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    nodes = {FAKE_NODES_FILE: FAKE_COND_NODE}
    with ComfyServer(
        installed(NEWEST), tmp_path_factory.mktemp("comfyui"), custom_nodes=nodes, stand_in_gpu=True
    ) as server:
        native_files(server)
        yield server


def test_a_native_model_renders_and_its_vae_decodes_beside_it(gpu: ComfyServer):
    (device, *_) = gpu.get_json("/system_stats")["devices"]
    assert device["type"] == "cuda"
    graph = tiny_graph(UNET, vae=["vae", 0], filename_prefix="gpu/native", resume=False)
    result = queued(gpu, graph | {"vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors")})
    assert saved_latents(gpu, result).isfinite().all()
    assert "weight dtype torch.float16" in gpu.log(), (
        "which ComfyUI takes on a GPU for these weights"
    )
    assert "images" in result.outputs["sampler"]


def test_a_video_grows_by_a_tiny_decoder_and_is_then_decoded_by_the_vae(gpu: ComfyServer):
    draft = "taew2_1.safetensors"
    tiny_decoder(gpu.model_path("vae_approx", draft))
    vae = node("VAELoader", vae_name="hf_tiny_vae.safetensors")
    graph = tiny_graph(UNET, vae=["vae", 0], filename_prefix="live/plain", resume=False)
    graph["vae"] = vae
    expected = video_frames_of(gpu, queued(gpu, graph), "sampler")
    live = changed(graph, "sampler", live_decoder=draft, filename_prefix="live/v")
    found = video_frames_of(gpu, queued(gpu, live), "sampler")
    assert (found == expected).all()
    assert len(list((gpu.output_dir / "live").glob("v_*"))) == 1


def test_the_dtype_that_a_node_sets_is_that_of_the_caches(gpu: ComfyServer):
    graph = tiny_graph(UNET, resume=False)
    half = sampled(gpu, graph)
    single = changed(graph, "sampler", model=["dtype", 0])
    single["dtype"] = node("ModelComputeDtype", model=["model", 0], dtype="fp32")
    apart = (sampled(gpu, single) - half).abs().max()
    assert 0 < apart < 0.1


def test_the_demo_runs(gpu: ComfyServer):
    graph = demo_graph(seconds=1.5, resume=False, vae=["demo", 2], filename_prefix="gpu/demo")
    graph = {name: graph[name] for name in ("demo", "timeline", "sampler")}
    graph["timeline"] = changed(graph, "timeline", prompts="a red ball", seconds=1.5)["timeline"]
    assert queued(gpu, graph).outputs["sampler"]["images"]
