"""Video Drift Report in the real server."""

import io
import shutil

import pytest
from comfy_graphs import Graph, changed, node, queued, stopper, text_of
from comfy_graphs import demo_graph as rendered
from comfy_harness import ComfyServer
from metric_models import tiny_models
from PIL import Image

pytestmark = pytest.mark.comfy


def demo_graph(seconds: float = 6.0, upscale: int = 2) -> Graph:
    """Two prompts with the embedded model, made, measured and shown."""
    graph = changed(rendered(), "timeline", seconds=seconds)
    graph = changed(graph, "video", filename_prefix="drift/demo", upscale=upscale)
    return graph | {
        "drift": node("HeadForcingVideoDriftReport", video=["video", 0]),
        "picture": node("PreviewImage", images=["drift", 0]),
        "report": node("PreviewAny", source=["drift", 1]),
    }


def test_a_video_is_measured_with_its_prompts_read_from_the_file(comfy_server: ComfyServer):
    """A linked text and start frames: the graph in the file does not tell when which prompt began."""
    result = queued(comfy_server, demo_graph())
    text = text_of(result)
    assert "96 frames of 128x128 at 16 fps, blocks of 3 latent frames, head_forcing, seed 0" in text
    assert "not VBench scores" in text and "2.81 s  80 %" in text and "a yellow cross circling" in text
    assert result.progress["drift"][-1] == (96, 96)
    with Image.open(io.BytesIO(comfy_server.view(**result.outputs["picture"]["images"][0]))) as picture:
        assert picture.width == 900 and picture.height > 1500
    graph = changed(demo_graph(), "drift", theme="light")
    again = queued(comfy_server, graph)
    assert "sampler" not in again.executed and "drift" in again.executed
    graph["text"] = node("PrimitiveStringMultiline", value=graph["timeline"]["inputs"]["prompts"])
    graph["start"] = node("EmptyHunyuanLatentVideo", width=64, height=64, length=9, batch_size=1)
    graph = changed(changed(graph, "timeline", prompts=["text", 0]), "sampler", start_frames=["start", 0])
    text = text_of(queued(comfy_server, changed(graph, "video", fps=8.0)))
    assert "Prompt switches (" in text and "a yellow cross circling" in text and "7.12 s  80 %" in text


def test_frames_in_memory_are_measured_without_encoding_them(comfy_server: ComfyServer):
    graph = demo_graph()
    graph["frames"] = node("VAEDecode", samples=["sampler", 0], vae=["demo", 2])
    graph["video"] = node("CreateVideo", images=["frames", 0], fps=24.0)
    text = text_of(queued(comfy_server, graph))
    assert "105 frames of 64x64 at 24 fps" in text and "Prompt switches (" not in text
    assert "subject consistency" not in text


def test_models_that_are_in_their_folder_are_measured_too_without_a_damaged_one(comfy_server: ComfyServer):
    pytest.importorskip("transformers")
    folder = comfy_server.model_path("metrics", "x").parent
    tiny_models(folder)
    (folder / "clip-vit-large-patch14" / "model.safetensors").write_bytes(b"broken")
    try:
        result = queued(comfy_server, demo_graph())
    finally:
        shutil.rmtree(folder)
    text = text_of(result)
    assert "drift" in result.executed
    assert "not measured: aesthetic: clip-vit-large-patch14 cannot be read" in text
    for name in ("subject consistency", "background consistency", "text score, prompt 2"):
        (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name}  "))
        assert line.split()[-3] != "-", line
    assert "subject consistency" not in text_of(queued(comfy_server, demo_graph()))


def test_stop_stops_the_measurement(comfy_server: ComfyServer):
    result = comfy_server.queue(demo_graph(12.0, upscale=8), on_event=stopper(comfy_server, "drift"))
    assert result.outcome == "interrupted" and "drift" in result.executed and "report" not in result.outputs
    assert result.progress["drift"][-1][0] < 192
