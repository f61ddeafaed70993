"""A live video in ComfyUI: a script as the page performs, and what is left is an ordinary story."""

import io
import time
from typing import Any

import numpy as np
from comfy_graphs import (
    BALL,
    CROSS,
    changed,
    failed,
    growing_graph,
    node,
    queued,
    text_of,
    video_frames,
    video_frames_of,
)
from comfy_harness import ComfyServer
from live_page import LivePage, live_graph
from tiny_checkpoints import tiny_decoder

STAR = "a green star gliding in the maroon striped room"


def test_what_is_performed_answers_at_once_and_is_an_ordinary_story_afterwards(comfy: ComfyServer):
    with LivePage(comfy, live_graph(81, BALL)) as page:
        page.until(1.0)
        first = page.taken(CROSS)
        page.until(first.seconds)
        second = page.taken(STAR, tag="cut")
        page.until(second.seconds)
        third = page.taken(recall=1)
        page.until(third.seconds + 0.5)
        refused = page.perform("a fox", recall=9)
        wrong = page.perform("a fox", beats={"every": 0, "first": 0})
        status, stopped = page.stop()
        result = page.wait()
    assert "prompts 1 to 4 can come back" in refused.error
    assert "0.05 to 60 s apart" in wrong.error
    assert status == 200 and result.outcome == "success"
    assert "sampler" not in result.progress, "ComfyUI counts to no end that moves away"
    story = page.told["story"]
    lines = story["prompts"].split("\n")
    assert lines[0] == f"0:00 {BALL}" and lines[1].endswith(CROSS)
    assert lines[2].endswith(f"[re-anchor] {STAR}") and lines[3].endswith(f"[recall 1] {BALL}")
    assert "performed: 4 prompts" in text_of(result)
    graph = growing_graph(
        "video/again", prompts=story["prompts"], seconds=story["seconds"], seed=81
    )
    again = queued(comfy, changed(graph, "sampler", resume=False))
    (shown,) = result.outputs["sampler"]["video"]
    frames = video_frames(io.BytesIO(comfy.view(**shown)))
    assert np.array_equal(frames, video_frames_of(comfy, again, "sampler"))
    assert len(frames) == round(story["seconds"] * 16)
    assert not list(comfy.output_dir.rglob("*.live.mp4"))


def test_stop_of_comfyui_and_a_page_that_is_lost_finish_the_video(comfy: ComfyServer):
    with LivePage(comfy, live_graph(82, BALL)) as page:
        page.until(2.0)
        comfy.interrupt()
        result = page.wait()
    assert result.outcome == "success" and result.outputs["sampler"]["video"]
    assert page.told["story"]["seconds"] < 15, "it was planned for 30 s"
    with LivePage(comfy, live_graph(83, BALL)) as page:
        page.until(2.0)
        page.tells = False
        left = time.monotonic()
        result = page.wait()
    assert result.outcome == "success" and time.monotonic() - left > 8
    assert page.told["live"]["why"] == "no page has shown it for 10 s"
    assert page.told["story"]["seconds"] < 15, "it plays on for 2 s at a page that says nothing"


def test_a_second_stop_of_comfyui_breaks_the_video_off_within_its_block(comfy: ComfyServer):
    with LivePage(comfy, live_graph(85, BALL)) as page:
        page.until(1.0)
        comfy.hold(0, "sampler")
        assert page.holds.wait(60)
        comfy.interrupt()
        comfy.interrupt()
        result = page.wait()
    assert result.outcome == "interrupted"


def test_latents_that_a_live_video_lacks_are_where_the_error_says(comfy: ComfyServer):
    save = node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/live")
    for resume, sentence in (
        (True, "use Load Head Forcing Run"),
        (False, "press Run to render its story again (no block was stored"),
    ):
        graph = live_graph(86, BALL, resume=resume) | {"latents": save}
        with LivePage(comfy, graph) as page:
            page.until(1.0)
            assert page.stop()[0] == 200
            result = page.wait()
        assert result.outcome == "error" and sentence in result.error
    graph = live_graph(86, page.told["story"]["prompts"].removeprefix("0:00 "), resume=False)
    graph = changed(graph, "timeline", seconds=page.told["story"]["seconds"])
    assert queued(comfy, graph | {"latents": save}).outputs["latents"]


def until_it_waits(page: LivePage) -> None:
    """Wait until no block is finished for three seconds."""
    end = time.monotonic() + 60
    done = page.done
    since = time.monotonic()
    while time.monotonic() - since < 3:
        assert time.monotonic() < end, "it renders on"
        if page.done != done:
            done = page.done
            since = time.monotonic()
        time.sleep(0.05)


def test_bars_that_are_edited_meanwhile_are_taken_and_a_paused_video_waits(comfy: ComfyServer):
    with LivePage(comfy, live_graph(84, BALL)) as page:
        page.until(1.0)
        ids = {"client_id": comfy.client_id, "prompt_id": page.told["prompt_id"]}
        body = ids | {"node_id": "timeline", "text": f"0:00 {BALL}\n0:09 {CROSS}"}
        status, answer = comfy.post("/headforcing/story", body)
        assert status == 200 and answer["block"] == 13
        changed_switch = comfy.post("/headforcing/story", body | {"switch": "flush"})
        assert changed_switch[0] == 400 and "only its prompts" in changed_switch[1]["error"]
        page.is_paused = True
        until_it_waits(page)
        done = page.done
        typed = ids | {"words": STAR, "expected": True}
        assert comfy.post("/headforcing/perform", typed) == (200, {})
        page.taken(STAR)
        assert page.done == done, "the prompt is taken while it waits"
        page.is_paused = False
        assert page.stop()[0] == 200
        page.wait()
    lines = page.told["story"]["prompts"].split("\n")
    assert lines[-1].endswith(STAR) and len(lines) == 2, "the planned prompt lay behind the end"


def test_what_no_live_video_takes_is_refused(comfy: ComfyServer):
    status, answer = comfy.post("/headforcing/perform", {"client_id": "a", "prompt_id": "b"})
    assert status == 400 and "no live video is running" in answer["error"]
    for body in ([], {"words": 5}, {"recall": True}, {"tag": None}):
        status, answer = comfy.post("/headforcing/perform", body)
        assert status == 400 and "error" in answer
    for query in ("from=x", "from=-1", f"from={10**20}", "at=nan", "rate=99"):
        assert comfy.ask(f"/headforcing/follow?{query}", method="GET")[0] == 400
    assert comfy.ask("/headforcing/follow?id=../../etc", method="GET")[0] == 204
    tiny_decoder(comfy.model_path("vae_approx", "taew2_1.safetensors"))
    sampler: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 2}, "set batch_size to 1"),
        ({"draft": True}, "render a draft or a part afterwards"),
        ({"live_decoder": "taew2_1.safetensors"}, "set live_decoder to none"),
        ({"method": "rolling_forcing"}, "without a fixed end"),
    ]
    for inputs, sentence in sampler:
        failed(comfy, changed(live_graph(1, BALL, **inputs), "sampler", live=True), sentence)
    linked = changed(live_graph(1, BALL), "timeline", prompts=["text", 0])
    linked["text"] = node("PrimitiveStringMultiline", value=f"0:00 {BALL}")
    failed(comfy, changed(linked, "sampler", live=True), "with a text of its own")
