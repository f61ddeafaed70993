"""A story that is changed over the route while ComfyUI renders it."""

import json
from pathlib import Path
from typing import Any

import torch
from comfy_browser import of_node, of_widget
from comfy_graphs import BALL, CROSS, Graph, changed, demo_graph, node, opened, queued, saved_latents, text_of
from comfy_harness import ComfyServer

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
CUBE = "a blue cube bouncing in the teal plain room"
PLANNED = f"0:00 {BALL}\n0:05 {CROSS}"
TOLD = f"0:00 {BALL}\n0:05 [blend 1] {CUBE}\n0:06 {CROSS}"
NODE, TEXT = of_node("PromptTimeline"), of_widget("PromptTimeline", "prompts")


def story_graph(text: str, seed: int, **sampler: Any) -> Graph:
    graph = changed(demo_graph(seed=seed, **sampler), "timeline", prompts=text, seconds=7.0)
    del graph["video"]
    return graph | {"latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/live")}


def tell(server: ComfyServer, body: Any, **headers: str) -> tuple[int, Any]:
    status, answer = server.ask("/headforcing/story", body, **headers)
    return status, json.loads(answer or b"null")


class Teller:
    """Sends these texts, or bodies, one after the other once the first block of a changeable story has begun."""

    def __init__(self, server: ComfyServer, *texts: Any):
        self.server, self.texts = server, texts
        self.story: dict[str, Any] = {}
        self.answers: list[tuple[int, Any]] = []
        self.heard: list[bool] = []

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "headforcing.story":
            self.heard.append(data["running"])
            self.story = data
        elif kind == "progress" and data["value"] and self.story and not self.answers:
            ids = {key: self.story[key] for key in ("prompt_id", "node_id")}
            for text in self.texts:
                more = text if isinstance(text, dict) else {"text": text}
                self.answers.append(tell(self.server, {"client_id": self.server.client_id} | ids | more))


def workflow(text: str) -> dict[str, Any]:
    """An editor's workflow as far as the story is in it: in a list of values behind one of a group."""
    timeline = {"id": "timeline", "type": "HeadForcingPromptTimeline", "widgets_values": [text, 7.0, ""]}
    timeline["widgets_values_named"] = {"prompts": text, "seconds": 7.0, "shared_prompt": ""}
    return {"workflow": {"id": "one", "nodes": [{"id": 1, "widgets_values": [text]}, timeline]}}


def test_the_story_of_a_running_render_changes_and_every_file_holds_what_was_rendered(both: ComfyServer):
    seed = 6161
    plain = story_graph(PLANNED, seed, vae=["demo", 2], filename_prefix="video/live")
    wrong = [
        {"client_id": "somebody", "text": TOLD},
        {"prompt_id": "another", "text": TOLD},
        {"node_id": "sampler", "text": TOLD},
        {"text": 5},
        "0:00 a\n0:00 b",
        PLANNED.replace(BALL, CUBE),
        PLANNED,
    ]
    teller = Teller(both, *wrong, TOLD)
    result = queued(both, plain, extra_data={"extra_pnginfo": workflow(PLANNED)}, on_event=teller)
    *refused, (status, taken) = teller.answers
    sentences = [answer["error"] for status, answer in refused]
    assert {status for status, _ in refused} == {400}
    assert sentences[0] == sentences[1] == sentences[2] == "no render of this story is running; press Run to render it"
    assert "each a text" in sentences[3] and sentences[4].startswith("line 2: 0:00 does not come after")
    assert sentences[5].startswith("prompt 1 has begun") and "rendered already" in sentences[6]
    assert (status, taken) == (200, {"block": 8, "blocks": 10, "seconds": 5.0625, "time": "0:05.062"})
    assert teller.heard[0] and not teller.heard[-1]

    # report, tags of the file and history
    report = text_of(result)
    assert CUBE in report and "the story was changed while it was rendered, from block 8 of 10, 0:05.062 on" in report
    (video,) = result.outputs["sampler"]["images"]
    tags = opened(both.view(video["filename"], video["subfolder"]))[4]
    assert json.loads(tags["prompt"])["timeline"]["inputs"]["prompts"] == TOLD
    first, second = json.loads(tags["workflow"])["nodes"]
    assert first["widgets_values"] == [PLANNED] and second["widgets_values"] == [TOLD, 7.0, ""]
    assert json.loads(tags["head_forcing"])["prompts"] == [BALL, CUBE, CROSS]

    # the graph from the file finds all blocks; without them it makes the same latents; the old text makes its own
    made = saved_latents(both, result)
    again = queued(both, story_graph(TOLD, seed))
    assert "reused 10 blocks" in text_of(again)
    assert torch.equal(saved_latents(both, again), made)
    fresh = queued(both, story_graph(TOLD, seed, resume=False))
    assert torch.equal(saved_latents(both, fresh), made)
    old = queued(both, plain)
    assert "sampler" in old.executed, "what the changed run returned is not the result of the old text"
    assert not torch.equal(saved_latents(both, old), made)


def test_the_button_is_on_the_node_that_is_in_the_graph_now(comfy: ComfyServer):
    """ComfyUI gives what a node returned to one with the same values and another id, without running that."""
    graph = story_graph(PLANNED, 64)
    queued(comfy, graph)
    renamed = {"story" if name == "timeline" else name: each for name, each in graph.items()}
    renamed["other"] = graph["timeline"]  # in no way to the sampler
    renamed = changed(renamed, "sampler", positive=["story", 0], seconds=["story", 2], seed=65)
    told: list[Any] = []
    teller = Teller(comfy, TOLD)

    def on_event(kind: str, data: dict[str, Any]) -> None:
        told.extend([data["node_id"]] if kind == "headforcing.story" else [])
        teller(kind, data)

    result = queued(comfy, renamed, on_event=on_event)
    assert "story" not in result.executed and set(told) == {"story"}
    assert teller.answers[0][0] == 200


def test_length_and_switch_change_with_the_text_and_what_has_begun_stays(comfy: ComfyServer):
    """All widgets of the node are sent; the answer to each that cannot change is one sentence."""
    seed, longer = 66, f"{PLANNED}\n0:08 {CUBE}"
    graph = story_graph(PLANNED, seed, vae=["demo", 2], filename_prefix="video/live")
    begins = [PLANNED, PLANNED]  # nothing to change; the second is answered after the first block
    wrong = [
        {"text": PLANNED, "shared_prompt": "grey weather"},
        {"text": PLANNED, "seconds": "long"},
        {"text": PLANNED, "switch": "wipe"},
        {"text": longer},
    ]
    right = {"text": longer, "seconds": 9.0, "switch": "recache", "shared_prompt": ""}
    teller = Teller(comfy, *begins, *wrong, right)
    result = queued(comfy, graph, extra_data={"extra_pnginfo": workflow(PLANNED)}, on_event=teller)
    _, _, *refused, (status, taken) = teller.answers
    sentences = [answer["error"] for status, answer in refused]
    assert sentences[0].startswith("prompt 1 has begun") and "shared_prompt" in sentences[0]
    assert sentences[0].endswith("put back what you changed there, and write words or tags into later prompts")
    assert "seconds must be a number" in sentences[1] and "'wipe'" in sentences[2]
    assert "0:08 is after the end of the video (7.0 s)" in sentences[3]
    assert (status, taken["block"], taken["blocks"]) == (200, 8, 13)

    (video,) = result.outputs["sampler"]["images"]
    frames, *_, tags = opened(comfy.view(video["filename"], video["subfolder"]))
    inputs = json.loads(tags["prompt"])["timeline"]["inputs"]
    assert (frames, inputs["prompts"], inputs["seconds"], inputs["switch"]) == (144, longer, 9.0, "recache")
    told = json.loads(tags["workflow"])["nodes"][1]
    assert told["widgets_values"] == [longer, 9.0, ""]
    assert (told["widgets_values_named"]["prompts"], told["widgets_values_named"]["seconds"]) == (longer, 9.0)
    fresh = changed(story_graph(PLANNED, seed, resume=False), "timeline", prompts=longer, seconds=9.0, switch="recache")
    assert torch.equal(saved_latents(comfy, result), saved_latents(comfy, queued(comfy, fresh)))

    # a length that the sampler sets, and one of a batch
    teller = Teller(comfy, right | {"text": TOLD})
    queued(comfy, story_graph(PLANNED, seed + 1, seconds=7.0), on_event=teller)
    sentence = "the sampler's seconds, 7, are the length of this render; put seconds of Prompt Timeline back to 7"
    assert teller.answers == [(400, {"error": sentence})]


def test_prompts_of_another_node_cannot_be_changed(comfy: ComfyServer):
    """A text that comes over a link, and embeddings of CLIP Text Encode, which only its own node makes."""
    graph = story_graph(PLANNED, 62)
    linked = changed(graph, "timeline", prompts=["text", 0]) | {"text": node("PrimitiveStringMultiline", value=PLANNED)}
    teller = Teller(comfy, TOLD)
    queued(comfy, linked, on_event=teller)
    sentence = "this text comes from another node; change it there and queue it as a render"
    assert teller.answers == [(400, {"error": sentence})]
    encoded = changed(graph, "sampler", positive=["encode", 0], seconds=7.0)
    encoded |= {"encode": node("CLIPTextEncode", clip=["demo", 1], text=BALL)}
    answers: list[str] = []

    def on_begin(kind: str, data: dict[str, Any]) -> None:
        while kind == "executing" and data["node"] == "sampler" and (not answers or "no render" in answers[-1]):
            body = {"client_id": comfy.client_id, "prompt_id": data["prompt_id"], "node_id": "encode", "text": TOLD}
            answers.append(tell(comfy, body)[1]["error"])

    queued(comfy, encoded, on_event=on_begin)
    assert "come from another node than Prompt Timeline" in answers[-1]


def test_a_batch_goes_on_with_the_changed_story(comfy: ComfyServer):
    graph = story_graph(PLANNED, 63, batch_size=2)
    teller = Teller(comfy, TOLD)
    made = saved_latents(comfy, queued(comfy, graph, on_event=teller))
    assert teller.answers[0][0] == 200
    assert torch.equal(made, saved_latents(comfy, queued(comfy, story_graph(TOLD, 63, batch_size=2, resume=False))))
