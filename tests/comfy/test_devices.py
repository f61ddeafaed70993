"""Core's nodes that choose devices and dtypes, before our sampler."""

import pytest
import torch
from comfy_graphs import UNET, Graph, changed, demo_graph, node, queued, sampled, saved_latents, tiny_graph
from comfy_harness import ComfyServer


def placed(graph: Graph, loader: str, device: str) -> Graph:
    """The graph with core's nodes between what `loader` gives and the nodes that take it."""
    links = {name: [name, 0] for name in ("SelectModelDevice", "MultiGPU_WorkUnits", "SelectVAEDevice")}
    taken = {"model": links["MultiGPU_WorkUnits"], "vae": links["SelectVAEDevice"]}
    for name, each in list(graph.items()):
        ours = {key: link for key, link in taken.items() if each["inputs"].get(key, [""])[0] == loader}
        graph = changed(graph, name, **ours)
    return graph | {
        "SelectModelDevice": node("SelectModelDevice", model=[loader, 0], device=device),
        "MultiGPU_WorkUnits": node("MultiGPU_WorkUnits", model=links["SelectModelDevice"], max_gpus=2),
        "SelectVAEDevice": node("SelectVAEDevice", vae=[loader, 2], device=device),
    }


@pytest.mark.parametrize("device", ["cpu", "default"])
def test_a_render_on_chosen_devices_is_the_same(comfy: ComfyServer, device: str):
    """The demo's objects, with the sampler that decodes, in the newest version; older ones have no such nodes."""
    graph = demo_graph(seed=90, seconds=1.5, resume=False, vae=["demo", 2], filename_prefix="video/device")
    graph = {name: graph[name] for name in ("demo", "timeline", "sampler")}
    graph["timeline"] = changed(graph, "timeline", prompts="a red ball", seconds=1.5)["timeline"]
    graph["latents"] = node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/device")
    plain = queued(comfy, graph)
    result = queued(comfy, placed(graph, "demo", device))
    assert {"SelectModelDevice", "MultiGPU_WorkUnits", "SelectVAEDevice", "sampler"} <= set(result.executed)
    assert torch.equal(saved_latents(comfy, result), saved_latents(comfy, plain))
    assert result.outputs["sampler"]["images"]


@pytest.mark.parametrize("comfy_server", ["comfy"], indirect=True)
def test_a_native_model_on_a_chosen_device_makes_the_same_latents(tiny: ComfyServer):
    graph = tiny_graph(UNET, resume=False)
    there = placed(graph, "model", "cpu")
    del there["SelectVAEDevice"]
    assert torch.equal(sampled(tiny, there), sampled(tiny, graph))


@pytest.mark.parametrize("dtype", ["bf16", "default"])
def test_a_compute_dtype_set_by_a_node_is_that_of_the_caches_too(tiny: ComfyServer, dtype: str):
    graph = tiny_graph(UNET, resume=False)
    plain = sampled(tiny, graph)
    set_here = changed(graph, "sampler", model=["dtype", 0])
    set_here["dtype"] = node("ModelComputeDtype", model=graph["sampler"]["inputs"]["model"], dtype=dtype)
    found = sampled(tiny, set_here)
    assert torch.equal(found, plain) == (dtype == "default")
    assert (found - plain).abs().max() < 0.2
