"""A story that is changed over the route while ComfyUI renders it."""

import json
from typing import Any

import pytest
import torch
from comfy_graphs import (
    BALL,
    CROSS,
    Graph,
    changed,
    demo_graph,
    node,
    opened,
    queued,
    saved_latents,
    stopper,
    text_of,
)
from comfy_harness import ComfyServer

CUBE = "a blue cube bouncing in the teal plain room"
PLANNED = f"0:00 {BALL}\n0:05 {CROSS}"
TOLD = f"0:00 {BALL}\n0:05 [blend 1] {CUBE}\n0:06 {CROSS}"


def story_graph(text: str, seed: int, **sampler: Any) -> Graph:
    graph = changed(demo_graph(seed=seed, **sampler), "timeline", prompts=text, seconds=7.0)
    del graph["video"]
    return graph | {
        "latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/live")
    }


class Teller:
    """Sends these texts, or bodies, one after the other once the sampler has made one block. Some
    answers come between two blocks; meanwhile a block takes a second.
    """

    def __init__(self, server: ComfyServer, *texts: Any):
        server.hold(5, "sampler")
        self.server = server
        self.texts = texts
        self.story: dict[str, Any] = {}
        self.answers: list[tuple[int, Any]] = []
        self.heard: list[bool] = []

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "headforcing.story":
            self.heard.append(data["running"])
            self.story = data
        elif kind == "test.waits":
            self.server.hold(None, pause=0.25)
            ids = {key: self.story[key] for key in ("prompt_id", "node_id")}
            for text in self.texts:
                more = text if isinstance(text, dict) else {"text": text}
                body = {"client_id": self.server.client_id} | ids | more
                self.answers.append(self.server.post("/headforcing/story", body))
            self.server.hold(None)


def workflow(text: str) -> dict[str, Any]:
    """An editor's workflow as far as the story is in it: in a list of values behind one of a
    group.
    """
    timeline = {
        "id": "timeline",
        "type": "HeadForcingPromptTimeline",
        "widgets_values": [text, 7.0, ""],
    }
    timeline["widgets_values_named"] = {"prompts": text, "seconds": 7.0, "shared_prompt": ""}
    return {"workflow": {"id": "one", "nodes": [{"id": 1, "widgets_values": [text]}, timeline]}}


@pytest.mark.repeat("comfy_floor]")
def test_story_length_and_switch_of_a_running_render_change_and_every_file_holds_what_was_rendered(
    both: ComfyServer,
):
    """All widgets of the node are sent; the answer to what cannot change is one sentence."""
    seed = 6161
    longer = f"{TOLD}\n0:08 {BALL}"
    plain = story_graph(PLANNED, seed, vae=["demo", 2], filename_prefix="video/live")
    none = "no render of this story is running; press Run to render it"
    begun = "prompt 1 has begun"
    wrong: list[tuple[Any, str]] = [
        ({"client_id": "somebody", "text": TOLD}, none),
        ({"prompt_id": "another", "text": TOLD}, none),
        ({"node_id": "sampler", "text": TOLD}, none),
        ({"text": 5}, "each a text"),
        ({"text": PLANNED, "seconds": "long"}, "seconds must be a number"),
        ({"text": PLANNED, "switch": "wipe"}, "'wipe'"),
        ("0:00 a\n0:00 b", "line 2: 0:00 does not come after"),
        (PLANNED.replace(BALL, CUBE), begun),
        ({"text": PLANNED, "shared_prompt": "grey weather"}, begun),
    ]
    right = {"text": longer, "seconds": 9.0, "switch": "recache", "shared_prompt": ""}
    teller = Teller(both, *(body for body, _ in wrong), right)
    result = queued(both, plain, extra_data={"extra_pnginfo": workflow(PLANNED)}, on_event=teller)
    *refused, taken = teller.answers
    for (status, answer), (body, sentence) in zip(refused, wrong, strict=True):
        assert status == 400 and sentence in answer["error"], body
    assert taken == (200, {"block": 8, "blocks": 13, "seconds": 5.0625, "time": "0:05.062"})
    assert teller.heard[0] and not teller.heard[-1]

    # report, tags of the file and history
    report = text_of(result)
    assert (
        CUBE in report
        and "the story was changed while it was rendered, from block 8 of 13, 0:05.062 on" in report
    )
    (video,) = result.outputs["sampler"]["images"]
    frames, *_, tags = opened(both.view(video["filename"], video["subfolder"]))
    inputs = json.loads(tags["prompt"])["timeline"]["inputs"]
    assert (frames, inputs["prompts"], inputs["seconds"], inputs["switch"]) == (
        144,
        longer,
        9.0,
        "recache",
    )
    first, second = json.loads(tags["workflow"])["nodes"]
    assert first["widgets_values"] == [PLANNED] and second["widgets_values"] == [longer, 9.0, ""]
    assert (
        second["widgets_values_named"]["prompts"],
        second["widgets_values_named"]["seconds"],
    ) == (longer, 9.0)
    assert json.loads(tags["head_forcing"])["prompts"] == [BALL, CUBE, CROSS, BALL]

    # the graph from the file finds all blocks; without them it makes the same latents; the old text
    # makes its own
    made = saved_latents(both, result)
    told = changed(story_graph(longer, seed), "timeline", seconds=9.0, switch="recache")
    again = queued(both, told)
    assert "reused 13 blocks" in text_of(again)
    assert torch.equal(saved_latents(both, again), made)
    assert torch.equal(
        saved_latents(both, queued(both, changed(told, "sampler", resume=False))), made
    )
    old = queued(both, plain)
    assert "sampler" in old.executed, (
        "what the changed run returned is not the result of the old text"
    )
    assert saved_latents(both, old).shape != made.shape


@pytest.mark.thorough
def test_the_button_is_on_the_node_that_is_in_the_graph_now_and_a_batch_goes_on_with_the_changed_story(
    comfy: ComfyServer,
):
    """ComfyUI gives what a node returned to one with the same values and another id, without
    running that.
    """
    graph = story_graph(PLANNED, 64)
    stopped = comfy.queue(graph, on_event=stopper(comfy))
    assert stopped.outcome == "interrupted"
    renamed = {"story" if name == "timeline" else name: each for name, each in graph.items()}
    renamed["other"] = graph["timeline"]  # in no way to the sampler
    renamed = changed(
        renamed, "sampler", positive=["story", 0], seconds=["story", 2], seed=65, batch_size=2
    )
    teller = Teller(comfy, TOLD)
    result = queued(comfy, renamed, on_event=teller)
    assert "story" not in result.executed and teller.story["node_id"] == "story"
    assert teller.answers[0][0] == 200
    fresh = story_graph(TOLD, 65, batch_size=2, resume=False)
    assert torch.equal(saved_latents(comfy, result), saved_latents(comfy, queued(comfy, fresh)))


def test_a_text_that_comes_over_a_link_cannot_be_changed(comfy: ComfyServer):
    linked = changed(story_graph(PLANNED, 62), "timeline", prompts=["text", 0])
    linked["text"] = node("PrimitiveStringMultiline", value=PLANNED)
    teller = Teller(comfy, TOLD)
    queued(comfy, linked, on_event=teller)
    sentence = "this text comes from another node; change it there and queue it as a render"
    assert teller.answers == [(400, {"error": sentence})]
