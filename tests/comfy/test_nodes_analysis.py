"""Compare Methods and Video Drift Report in the real server."""

import io
import json
from typing import Any

import av
import pytest
from comfy_graphs import (
    BALL,
    Graph,
    changed,
    demo_graph,
    node,
    queued,
    saving,
    stopper,
    text_of,
    video_frames,
    video_frames_of,
)
from comfy_harness import ComfyServer
from PIL import Image

METHODS = ["head_forcing", "self_forcing_window_21", "longlive"]


def compare_graph(**inputs: Any) -> Graph:
    """Two seconds of the embedded model with three methods."""
    given = {"methods": ", ".join(METHODS), "width": 64, "height": 64, "seconds": 2.0, "seed": 3}
    given |= {
        "model": ["demo", 0],
        "positive": ["text", 0],
        "vae": ["demo", 2],
        "filename_prefix": "compare/three",
    }
    return {
        "demo": node("HeadForcingLoadDemo"),
        "text": node("CLIPTextEncode", clip=["demo", 1], text=BALL),
        "compare": node("HeadForcingCompareMethods", **given | inputs),
        "table": node("PreviewAny", source=["compare", 1]),
    }


def cells(text: str) -> list[list[str]]:
    """The rows of the table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = []
    for line in lines[2:]:
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_methods_are_shown_side_by_side_with_a_table(comfy: ComfyServer):
    graph = compare_graph(resume=False)
    graph["save"] = saving(["compare", 0], "compare/saved")
    result = queued(comfy, graph)
    assert "headforcing.story" not in dict(result.events), (
        "no button: this node does not ask for other stories"
    )
    (file,) = result.outputs["compare"]["images"]
    grid = video_frames_of(comfy, result, "compare")
    folder = comfy.output_dir / "compare"
    assert grid.shape == (32, 284, 3 * 256, 3)
    assert (video_frames_of(comfy, result, "save") == grid).all()
    assert [len(list(folder.glob(f"three_{name}_0*.mp4"))) for name in METHODS] == [1, 1, 1]
    with av.open(str(folder / file["filename"])) as container:
        assert json.loads(container.metadata["prompt"])["compare"]["inputs"]["seed"] == 3
    text = text_of(result, "table")
    rows = cells(text)
    assert [row[0] for row in rows] == METHODS
    assert all(
        float(row[3]) > 0 and row[4].startswith("0.9") and "-" not in row[1:8] for row in rows
    )
    assert len({row[1] for row in rows}) > 1 and "no VBench scores" in text
    assert result.progress["compare"][-1] == (36, 36)  # 3 blocks x 4 steps x 3 methods


@pytest.mark.thorough
def test_a_stopped_comparison_goes_on_where_it_stopped_and_names_the_method_it_makes(
    comfy: ComfyServer,
):
    """CausVid makes three steps a block where the others make four, and six seconds in two
    rollouts.
    """
    graph = compare_graph(
        methods="longlive, causvid", seconds=6.0, seed=19, filename_prefix="compare/stopped"
    )
    assert comfy.queue(graph, on_event=stopper(comfy, "compare", 50)).outcome == "interrupted"
    result = queued(comfy, graph)
    made = [value for value, _ in result.progress["compare"]]
    total = 9 * 4 + 9 * 3
    assert made[-1] == total and made[0] > 36 and len(made) <= 20, "what was finished is made again"
    assert any("video 2 of 2: causvid - 0:05 of 0:06" in text for text in result.said["compare"])
    text = text_of(result, "table")
    assert [row[0] for row in cells(text)] == [
        "longlive",
        "causvid",
    ] and "meant for CausVid" in text
    assert all(float(row[4]) > 0 for row in cells(text))
    (video,) = (comfy.output_dir / "compare").glob("stopped_causvid_0*.mp4")
    assert len(video_frames(video)) == 96


@pytest.mark.thorough
def test_what_cannot_be_made_by_one_of_the_methods_is_refused_before_the_first_video(
    comfy: ComfyServer,
):
    for names in ("no_such_method", "", "head_forcing, ../../etc"):
        result = comfy.queue(compare_graph(methods=names))
        told = json.dumps(result.node_errors)
        assert (
            result.outcome == "invalid"
            and "methods must be one of head_forcing" in told
            and "longlive" in told
        )
    for name, value in (("width", 70), ("filename_prefix", "../escape")):
        result = comfy.queue(compare_graph(**{name: value}))
        assert (
            result.outcome == "error"
            and name in str(result.error)
            and not result.progress.get("compare")
        )
    # a prompt switch that Head Forcing and plain windows have, and other methods have not
    prompts = f"0:00 {BALL}\n0:00.75 [flush] a green star gliding in the slate plain room"
    graph = compare_graph(seconds=1.5, positive=["timeline", 0], filename_prefix="compare/refused")
    graph["timeline"] = node(
        "HeadForcingPromptTimeline", clip=["demo", 1], prompts=prompts, seconds=1.5
    )
    result = comfy.queue(graph)
    assert result.outcome == "error" and "longlive: this method's prompt switch" in str(
        result.error
    )
    assert not list((comfy.output_dir / "compare").glob("refused*"))
    text = text_of(
        queued(comfy, changed(graph, "compare", methods="all", filename_prefix="all/x")), "table"
    )
    made = [row[0] for row in cells(text)]
    assert made[:2] == ["head_forcing", "self_forcing"] and "longlive" not in made and len(made) < 8
    assert "left out: longlive: this method's prompt switch is always recache" in text


def report_graph() -> Graph:
    """Two prompts with the embedded model, made, measured and shown."""
    return changed(demo_graph(), "video", filename_prefix="drift/demo", upscale=2) | {
        "drift": node("HeadForcingVideoDriftReport", video=["video", 0]),
        "picture": node("PreviewImage", images=["drift", 0]),
        "report": node("PreviewAny", source=["drift", 1]),
    }


def test_a_video_is_measured_with_its_prompts_from_the_file(comfy: ComfyServer):
    """A linked text and start frames: the graph in the file does not tell when which prompt
    began.
    """
    graph = report_graph()
    graph["text"] = node("PrimitiveStringMultiline", value=graph["timeline"]["inputs"]["prompts"])
    graph["start"] = changed(graph, "sampler", seconds=0.5)["sampler"]  # 9 video frames
    graph = changed(
        changed(graph, "timeline", prompts=["text", 0]), "sampler", start_frames=["start", 0]
    )
    result = queued(comfy, changed(graph, "video", fps=8.0))
    text, (frames, _) = text_of(result), result.progress["drift"][-1]
    assert (
        f"{frames} frames of 512x512 at 8 fps, blocks of 3 latent frames, head_forcing, seed 0"
        in text
    )
    assert (
        "not VBench scores" in text
        and "Prompt switches" in text
        and "a yellow cross circling" in text
    )
    assert "7.12 s  80 %" in text and frames > 96
    with Image.open(io.BytesIO(comfy.view(**result.outputs["picture"]["images"][0]))) as picture:
        assert picture.width == 900 and picture.height > 1100


def test_frames_in_memory_are_measured_without_encoding_them_and_stop_stops_it(comfy: ComfyServer):
    graph = report_graph()
    stopped = comfy.queue(changed(graph, "video", upscale=8), on_event=stopper(comfy, "drift"))
    assert (
        stopped.outcome == "interrupted"
        and "drift" in stopped.executed
        and "report" not in stopped.outputs
    )
    graph["frames"] = node("VAEDecode", samples=["sampler", 0], vae=["demo", 2])
    graph["video"] = node("CreateVideo", images=["frames", 0], fps=24.0)
    text = text_of(queued(comfy, graph))
    assert "105 frames of 256x256 at 24 fps" in text and "Prompt switches" not in text
