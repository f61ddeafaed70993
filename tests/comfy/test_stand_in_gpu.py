"""ComfyUI on a stand-in for a GPU (helpers/stand_in_gpu.py): it moves models there and chooses half precision."""

import pytest
from comfy_graphs import UNET, changed, demo_graph, node, queued, sampled, saved_latents, tiny_graph
from comfy_harness import ComfyServer
from stand_in_gpu import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_a_native_model_renders_and_its_vae_decodes_beside_it(gpu: ComfyServer):
    (device, *_) = gpu.get_json("/system_stats")["devices"]
    assert device["type"] == "cuda"
    graph = tiny_graph(UNET, vae=["vae", 0], filename_prefix="gpu/native", resume=False)
    result = queued(gpu, graph | {"vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors")})
    assert saved_latents(gpu, result).isfinite().all()
    assert "weight dtype torch.float16" in gpu.log(), "which ComfyUI takes on a GPU for these weights"
    assert "images" in result.outputs["sampler"]


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
