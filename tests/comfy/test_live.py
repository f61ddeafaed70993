"""A live video in ComfyUI: a script as the page performs, and what is left is an ordinary story."""

import io
import time

import numpy as np
from comfy_graphs import (
    BALL,
    CROSS,
    changed,
    growing_graph,
    queued,
    text_of,
    video_frames,
    video_frames_of,
)
from comfy_harness import ComfyServer
from live_page import LivePage, live_graph

STAR = "a green star gliding in the maroon striped room"


def test_what_is_performed_answers_at_once_and_is_an_ordinary_story_afterwards(comfy: ComfyServer):
    with LivePage(comfy, live_graph(81, BALL)) as page:
        page.until(1.0)
        first = page.perform(CROSS)
        page.until(first.seconds)
        second = page.perform(STAR, tag="cut")
        page.until(second.seconds)
        third = page.perform(recall=1)
        refused = page.perform("a fox", recall=9)
        wrong = page.perform("a fox", beats={"every": 0, "first": 0})
        page.until(third.seconds + 0.5)
        status, stopped = page.stop()
        result = page.wait()
    assert "prompts 1 to 4 can come back" in refused.error
    assert "0.05 to 60 s apart" in wrong.error
    assert status == 200 and result.outcome == "success"
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
    """The first Stop ends the video, and the second one would break it off."""
    with LivePage(comfy, live_graph(82, BALL)) as page:
        page.until(2.0)
        pressed = time.monotonic()
        comfy.interrupt()
        result = page.wait()
    assert result.outcome == "success" and result.outputs["sampler"]["video"]
    assert time.monotonic() - pressed < 10
    with LivePage(comfy, live_graph(83, BALL)) as page:
        page.until(2.0)
        page.tells = False
        left = time.monotonic()
        result = page.wait()
    assert result.outcome == "success" and 8 < time.monotonic() - left < 20
    assert page.told["live"]["why"] == "no page has shown it for 10 s"


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
        time.sleep(3)
        done = page.done
        time.sleep(2)
        assert page.done == done, "it renders on while the viewer pauses"
        given = page.perform(STAR)
        assert not given.error and given.answered - given.sent < 1.5
        page.is_paused = False
        page.stop()
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
    batch = comfy.queue(changed(live_graph(1, BALL, batch_size=2), "sampler", live=True))
    assert batch.outcome == "error" and "set batch_size to 1" in (batch.error or "")
    method = comfy.queue(
        changed(live_graph(1, BALL, method="rolling_forcing"), "sampler", live=True)
    )
    assert method.outcome == "error" and "without a fixed end" in (method.error or "")
