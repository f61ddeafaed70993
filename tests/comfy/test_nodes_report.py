"""Video Drift Report in the real server of both tested ComfyUI versions."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from comfy_harness import ComfyServer, RunResult, run_in_comfy
from comfy_setup import ComfyInstall
from metric_models import tiny_models
from PIL import Image

pytestmark = pytest.mark.comfy

Graph = dict[str, dict[str, Any]]


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def demo_graph(seconds: float = 6.0) -> Graph:
    """Two prompts with the embedded model, made, measured and shown."""
    prompts = (
        "0:00 a red ball bouncing in the teal plain room\n0:03 a yellow cross circling in the navy checkerboard room"
    )
    size = {"width": 64, "height": 64, "seconds": ["timeline", 2], "seed": 0}
    return {
        "demo": node("HeadForcingLoadDemo"),
        "timeline": node("HeadForcingPromptTimeline", clip=["demo", 1], prompts=prompts, seconds=seconds),
        "sampler": node("HeadForcingSampler", model=["demo", 0], positive=["timeline", 0], **size),
        "video": node(
            "HeadForcingDecodeVideo", samples=["sampler", 0], vae=["demo", 2], filename_prefix="drift/demo", fps=16.0,
            upscale=2,
        ),
        "drift": node("HeadForcingVideoDriftReport", video=["video", 0]),
        "picture": node("PreviewImage", images=["drift", 0]),
        "report": node("PreviewAny", source=["drift", 1]),
    }  # fmt: skip


def queued(server: ComfyServer, graph: Graph) -> RunResult:
    result = server.queue(graph)
    assert (result.outcome, result.error, result.node_errors) == ("success", None, {})
    return result


def said(result: RunResult) -> str:
    (text,) = result.outputs["report"]["text"]
    return text


def test_the_node_explains_itself_and_its_names_never_change(comfy_server: ComfyServer):
    info = comfy_server.object_info()["HeadForcingVideoDriftReport"]
    assert info["display_name"] == "Video Drift Report" and info["category"] == "Head Forcing/analysis"
    assert "not VBench scores" in info["description"]
    assert list(info["input"]["required"]) == ["video"] and info["input"]["required"]["video"][0] == "VIDEO"
    assert "not VBench scores" in info["input"]["required"]["video"][1]["tooltip"]
    theme = info["input"]["optional"]["theme"]
    assert theme[1]["default"] == "dark" and theme[1]["options"] == ["dark", "light"] and theme[1]["tooltip"]
    assert (info["output"], info["output_name"]) == (["IMAGE", "STRING"], ["picture", "report"])


def test_the_demo_is_measured_with_its_prompts_read_from_the_file(comfy_server: ComfyServer, tmp_path):
    result = queued(comfy_server, demo_graph())
    text = said(result)
    assert "96 frames of 128x128 at 16 fps, blocks of 3 latent frames, head_forcing, seed 0" in text
    assert "not VBench scores" in text and "2.81 s  80 %" in text and "a yellow cross circling" in text
    assert result.progress["drift"][-1] == (96, 96)
    (file,) = result.outputs["picture"]["images"]
    (tmp_path / "picture.png").write_bytes(comfy_server.view(**file))
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.width == 900 and picture.height > 1500
    again = demo_graph()
    again["drift"]["inputs"]["theme"] = "light"
    assert "sampler" not in queued(comfy_server, again).executed


def test_prompts_of_a_timeline_that_the_graph_does_not_tell_are_read_from_the_file(comfy_server: ComfyServer):
    """A linked text and start frames: only the sampler knows when which prompt began."""
    graph = demo_graph()
    graph["text"] = node("PrimitiveStringMultiline", value=graph["timeline"]["inputs"]["prompts"])
    graph["timeline"]["inputs"]["prompts"] = ["text", 0]
    graph["start"] = node("EmptyHunyuanLatentVideo", width=64, height=64, length=9, batch_size=1)
    graph["sampler"]["inputs"]["start_frames"] = ["start", 0]
    graph["video"]["inputs"]["fps"] = 8.0
    text = said(queued(comfy_server, graph))
    assert "Prompt switches (" in text and "a yellow cross circling" in text and "7.12 s  80 %" in text


def test_frames_in_memory_are_measured_without_encoding_them(comfy_server: ComfyServer):
    graph = demo_graph()
    graph["frames"] = node("VAEDecode", samples=["sampler", 0], vae=["demo", 2])
    graph["video"] = node("CreateVideo", images=["frames", 0], fps=24.0)
    text = said(queued(comfy_server, graph))
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
    text = said(result)
    assert "drift" in result.executed
    assert "not measured: aesthetic: clip-vit-large-patch14 cannot be read" in text
    for name in ("subject consistency", "background consistency", "text score, prompt 2"):
        (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name}  "))
        assert line.split()[-3] != "-", line
    assert "subject consistency" not in said(queued(comfy_server, demo_graph()))


def test_stop_stops_the_measurement(comfy_server: ComfyServer):
    graph = demo_graph(30.0)
    graph["video"]["inputs"]["upscale"] = 8

    def stop(kind: str, data: dict[str, Any]) -> None:
        if kind == "progress" and data.get("node") == "drift":
            comfy_server.interrupt()

    result = comfy_server.queue(graph, on_event=stop)
    assert result.outcome == "interrupted" and "drift" in result.executed and "report" not in result.outputs
    assert result.progress["drift"][-1][0] < 480


CODE = Path(__file__).parent / "programs" / "videos_in_buffers.py"


def test_a_video_in_a_buffer_is_read_from_it_and_a_trimmed_one_only_where_it_is_shown(comfy_install: ComfyInstall):
    newest = comfy_install.version == "0.30.0"
    told = json.loads(run_in_comfy(comfy_install, CODE, *["flow"] * newest).splitlines()[-1])
    found = told["headings"]
    assert all("60 frames of 48x32" in heading for heading in found[:2])
    assert all("32 frames of 48x32" in heading for heading in found[2:])
    assert len(found) == (3 if newest else 2)
    if newest:
        (mean,) = (line.split()[-3] for line in told["lines"] if "flow, all pixels" in line)
        assert float(mean) == pytest.approx(told["mean_flow"], abs=0.006) and len(told["lines"]) == 2
