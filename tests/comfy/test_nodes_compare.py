"""Compare Methods in the real server of both tested ComfyUI versions."""

import io
import json
from typing import Any

import av
import numpy as np
import pytest
from comfy_graphs import BALL, Graph, changed, node, queued, saving, shown, status_texts, stopper, text_of, video_frames
from comfy_harness import ComfyServer

pytestmark = pytest.mark.comfy

METHODS = ["head_forcing", "self_forcing_window_21", "longlive"]


def compare_graph(**inputs: Any) -> Graph:
    """Two seconds of the embedded model with three methods."""
    given = {"methods": ", ".join(METHODS), "width": 64, "height": 64, "seconds": 2.0, "seed": 3}
    given |= {"model": ["demo", 0], "positive": ["text", 0], "vae": ["demo", 2], "filename_prefix": "compare/three"}
    return {
        "demo": node("HeadForcingLoadDemo"),
        "text": node("CLIPTextEncode", clip=["demo", 1], text=BALL),
        "compare": node("HeadForcingCompareMethods", **given | inputs),
        "table": node("PreviewAny", source=["compare", 1]),
    }


def flushed(**inputs: Any) -> Graph:
    """A second and a half with a prompt switch that not every method has."""
    prompts = f"0:00 {BALL}\n0:00.75 [flush] a green star gliding in the slate plain room"
    timeline = node("HeadForcingPromptTimeline", clip=["demo", 1], prompts=prompts, seconds=1.5)
    return compare_graph(seconds=1.5, positive=["timeline", 0], **inputs) | {"timeline": timeline}


def cells(text: str) -> list[list[str]]:
    """The rows of the table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_methods_are_shown_side_by_side_with_a_table(comfy_server: ComfyServer):
    graph = compare_graph(resume=False)
    graph["save"] = saving(["compare", 0], "compare/saved")
    result = queued(comfy_server, graph)
    assert "headforcing.story" not in dict(result.events), "no button: this node does not ask for other stories"
    (file,) = result.outputs["compare"]["images"]
    grid = video_frames(io.BytesIO(comfy_server.view(**file)))
    assert grid.shape == (32, 284, 3 * 256, 3)
    assert (shown(comfy_server, result, "save") == grid).all()
    folder = comfy_server.output_dir / "compare"
    for place, name in enumerate(METHODS):
        (video,) = folder.glob(f"three_{name}_0*.mp4")
        tile = grid[:, 28:, 256 * place : 256 * (place + 1)].reshape(32, 64, 4, 64, 4, 3).mean(axis=(2, 4))
        assert np.abs(tile - video_frames(video)).mean() < 6
    given = {"model": ["demo", 0], "positive": ["text", 0], "vae": ["demo", 2], "width": 64, "height": 64, "seed": 3}
    given |= {"seconds": 2.0, "method": "longlive", "resume": False, "filename_prefix": "compare/alone"}
    alone = {name: graph[name] for name in ("demo", "text")} | {"sampler": node("HeadForcingSampler", **given)}
    assert (shown(comfy_server, queued(comfy_server, alone), "sampler") == video_frames(video)).all(), (
        "as the sampler's"
    )
    with av.open(str(folder / file["filename"])) as container:
        assert json.loads(container.metadata["prompt"])["compare"]["inputs"]["seed"] == 3
    assert not list(folder.glob("*.part.mp4"))

    text = text_of(result, "table")
    rows = cells(text)
    assert [row[0] for row in rows] == METHODS
    assert all(float(row[4]) > 0 and row[5].startswith("0.9") and "-" not in row[1:9] for row in rows)
    assert len({row[1] for row in rows}) > 1 and "no VBench scores" in text
    assert "meant for LongLive 1.3B" in text
    assert result.progress["compare"][-1] == (36, 36)  # 3 blocks x 4 steps x 3 methods


def test_the_status_line_names_the_method_and_the_bar_counts_the_steps_of_each(comfy_server: ComfyServer):
    """CausVid makes three steps a block where the others make four, and six seconds in two rollouts."""
    graph = compare_graph(methods="longlive, causvid", seconds=6.0, resume=False, filename_prefix="compare/named")
    with status_texts(comfy_server) as texts:
        result = queued(comfy_server, graph)
    said = [text for name, text in texts if name == "compare"]
    assert any("video 1 of 2: longlive - block 9 of 9" in text for text in said)
    assert any("video 2 of 2: causvid - block 9 of 9" in text for text in said)
    assert "18 blocks in" in said[-1] and result.progress["compare"][-1] == (9 * 4 + 9 * 3, 9 * 4 + 9 * 3)
    text = text_of(result, "table")
    assert [row[0] for row in cells(text)] == ["longlive", "causvid"] and "meant for CausVid" in text
    (video,) = (comfy_server.output_dir / "compare").glob("named_causvid_0*.mp4")
    assert len(video_frames(video)) == 96


def test_the_disk_must_have_room_for_all_videos_together(comfy_server: ComfyServer):
    graph = compare_graph(seed=["disk", 0], filename_prefix="compare/room")
    # one video takes 45 kB, three take 135; no other test has kept blocks of this seed
    graph["disk"] = node("TestFreeDisk", number=61, free=100_000)
    alone = changed(graph, "compare", methods="longlive")
    try:
        result = comfy_server.queue(graph)
        assert result.outcome == "error" and "not enough disk: the render writes about 135 kB" in str(result.error)
        assert not result.progress.get("compare")
        assert not list((comfy_server.output_dir / "compare").glob("room*"))
        queued(comfy_server, alone)
    finally:
        queued(comfy_server, alone | {"disk": node("TestFreeDisk", number=61, free=0)})


def test_a_stopped_comparison_goes_on_where_it_stopped(comfy_server: ComfyServer):
    graph = compare_graph(seed=19, filename_prefix="compare/stopped")

    assert comfy_server.queue(graph, on_event=stopper(comfy_server, "compare", 18)).outcome == "interrupted"
    result = queued(comfy_server, graph)
    made = [value for value, _ in result.progress["compare"]]
    assert made[-1] == 36 and len(made) <= 24 and made[0] > 12, "what was finished is made again"
    text = text_of(result, "table")
    assert [row[0] for row in cells(text)] == METHODS and all(float(row[4]) > 0 for row in cells(text))


def test_what_cannot_be_made_by_one_of_the_methods_is_refused_before_the_first_video(comfy_server: ComfyServer):
    for names in ("no_such_method", "", "head_forcing, ../../etc", "head_forcing; causvid; longlive"):
        result = comfy_server.queue(compare_graph(methods=names))
        told = json.dumps(result.node_errors)
        assert result.outcome == "invalid" and "methods must be one of head_forcing" in told and "longlive" in told
    for name, value in (("width", 70), ("filename_prefix", "../escape")):
        result = comfy_server.queue(compare_graph(**{name: value}))
        assert result.outcome == "error" and name in str(result.error) and not result.progress.get("compare")
    graph = flushed(filename_prefix="compare/refused")
    result = comfy_server.queue(graph)
    assert result.outcome == "error" and "longlive: this method's prompt switch" in str(result.error)
    assert not list((comfy_server.output_dir / "compare").glob("refused*"))
    queued(comfy_server, changed(graph, "compare", methods="head_forcing"))


def test_all_makes_the_videos_that_can_be_made_and_says_why_the_others_cannot(comfy: ComfyServer):
    """A flush at a prompt is for Head Forcing and plain windows; other papers' methods have a switch of their own."""
    text = text_of(queued(comfy, flushed(methods="all", resume=False, filename_prefix="all/x")), "table")
    made = [row[0] for row in cells(text)]
    assert made[:2] == ["head_forcing", "self_forcing"] and "longlive" not in made and len(made) < 8
    assert "left out: longlive: this method's prompt switch is always recache" in text
