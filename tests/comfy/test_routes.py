"""The routes that pages of the editor ask: who is answered, what about another body, and what a page is told."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from comfy_graphs import CROSS, Graph, changed, growing_graph
from comfy_harness import ComfyServer
from websockets.sync.client import connect

WEB = Path(__file__).resolve().parents[2] / "nodes" / "web"
BODY = {"text": "0:00 a\n0:10 b", "seconds": 30.0}
STORY = {"client_id": "a", "prompt_id": "b", "node_id": "c", "text": "0:00 a"}
POSTS = {"timeline": BODY, "story": STORY, "takes/label": {"take": "x"}, "takes/delete": {"take": "x"}}
GETS = ("takes", "takes/picture?name=x&number=0", "renders?client=x")


def asked(server: ComfyServer, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    method = "GET" if body is None else "POST"
    status, answer = server.ask(f"/headforcing/{path}", body, method, **headers)
    return status, json.loads(answer or b"null")


def test_the_timeline_is_answered_to_the_own_page_and_to_programs(comfy_server: ComfyServer):
    here = f"http://127.0.0.1:{comfy_server.port}"
    for headers in ({}, {"Origin": here}, {"Origin": here, "Sec_Fetch_Site": "same-origin"}):
        status, got = asked(comfy_server, "timeline", BODY, **headers)
        assert status == 200 and [segment["start_block"] for segment in got["segments"]] == [0, 14]
    assert asked(comfy_server, "timeline", BODY | {"text": "0:00 a\n0:35 b"})[1]["line"] == 2
    status, got = asked(comfy_server, "timeline", BODY | {"model_family": "longlive2"})
    assert (status, got["block_seconds"], got["default"]["re_anchor"]) == (200, 32 / 24, True)
    assert [segment["start_block"] for segment in got["segments"]] == [0, 8]
    assert "model_family must be one of" in asked(comfy_server, "timeline", BODY | {"model_family": ["x"]})[1]["error"]
    idle = {"error": "no render of this story is running; press Run to render it"}
    assert asked(comfy_server, "story", STORY) == (400, idle)


def test_no_route_answers_another_site_or_a_domain_that_is_pointed_at_this_computer(both: ComfyServer):
    others = [{"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}]
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.example"):
        others.append({"Host": f"{name}:{both.port}", "Origin": f"http://{name}:{both.port}"})
    for headers in others:
        for path, body in [*POSTS.items(), *((path, None) for path in GETS)]:
            assert both.ask(f"/headforcing/{path}", body, "POST" if body else "GET", **headers)[0] == 403, path


def test_a_body_of_another_kind_gets_one_sentence(comfy: ComfyServer):
    before = len(comfy.log())
    for body, headers, status in (
        (b"{", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b'{"seconds": ' + b"9" * 5000 + b"}", {}, 400),
        ([], {}, 400),
        ({"text": 5}, {}, 400),
        (b'"' + b"a" * (5 << 20) + b'"', {}, 400),
        (BODY, {"Content_Type": "text/plain"}, 415),
    ):
        for path in ("timeline", "story", "takes/delete"):
            found, got = asked(comfy, path, body, **headers)
            assert (found, list(got)) == (status, ["error"]), (path, body[:40])
            assert 10 < len(got["error"]) < 150 and "\n" not in got["error"] and "Traceback" not in got["error"]
    assert "Traceback" not in comfy.log()[before:]


def test_no_script_of_the_pack_writes_html():
    for script in WEB.rglob("*.js"):
        source = script.read_text(encoding="utf-8")
        unsafe = r"(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
        assert not re.search(unsafe, source) and source.count("\n") <= 350, script


# ------------------------------------------------------------------------------------------------ what pages are told


def registered(server: ComfyServer, client: str, workflow: str = "") -> list[dict[str, Any]]:
    told = server.get_json(f"/headforcing/renders?client={client}&grows=true&workflow={workflow}")
    return [about for event, about in told if event == "head_forcing.progress"]


def heard(server: ComfyServer, socket: Any, client: str, graph: Graph, workflow: str) -> tuple[list, Any]:
    """Queue a graph of that workflow; the messages about its sampler up to its output, and that output."""
    extra = {"extra_pnginfo": {"workflow": {"id": workflow, "nodes": []}}}
    _, answer = server.post("/prompt", {"prompt": graph, "client_id": client, "extra_data": extra})
    messages = []
    while True:
        data = socket.recv(timeout=60)
        assert isinstance(data, str), "neither ComfyUI's preview nor its text"
        event = json.loads(data)
        if event["type"] == "head_forcing.progress":
            assert event["data"]["prompt_id"] == answer["prompt_id"]
            messages.append(event["data"])
        elif event["type"] == "executed" and event["data"]["node"] == "sampler":
            assert {(each["node"], each["workflow"]) for each in messages} == {("sampler", workflow)}
            return messages, event["data"]["output"]


def test_messages_reach_the_editor_that_asked_and_nobody_else(both: ComfyServer):
    """What the script in the browser relies on; a script without a player gets ComfyUI's own, see test_nodes_stream."""
    client, graph = "a-player", growing_graph("player/raw", 4.5, seed=103)
    methods = {"methods": "longlive", "width": 64, "height": 64, "seconds": 0.5, "seed": 3}
    links = {"model": ["demo", 0], "positive": ["timeline", 0], "vae": ["demo", 2], "filename_prefix": "player/two"}
    compare = {name: growing_graph("", 0.5)[name] for name in ("demo", "timeline")}
    compare = changed(compare, "timeline", prompts=CROSS)
    compare["sampler"] = {"class_type": "HeadForcingCompareMethods", "inputs": methods | links}
    address = f"ws://127.0.0.1:{both.port}/ws?clientId="
    with (
        connect(address + client, max_size=None, proxy=None) as here,
        connect(address + "other", max_size=None, proxy=None) as other,
    ):
        here.recv(timeout=10)
        assert registered(both, client) == registered(both, "other") == []
        messages, output = heard(both, here, client, graph, "the-graph")
        others, grid = heard(both, here, client, compare, "another-graph")  # the same node of another workflow
        for _ in range(100):
            try:
                assert "head_forcing" not in str(other.recv(timeout=0.2))
            except TimeoutError:
                break
        told = [registered(both, client, workflow) for workflow in ("the-graph", "another-graph", "a-third")]
    sizes = [message["video"]["bytes"] for message in messages if message["state"] == "running"]
    assert sizes == sorted(sizes) and sizes[0] == 0 < sizes[-1]
    pictures = [message for message in messages if "preview" in message]
    assert pictures and all(message["video"]["bytes"] == 0 for message in pictures), "a preview until there is a video"
    assert any("prompt 1: a red ball bouncing in the teal… - " in message["text"] for message in messages)
    assert messages[-1]["state"] == "done" and messages[-1]["text"].startswith("wrote output/player/raw_00001_.mp4")
    assert output == {"video": [{"filename": "raw_00001_.mp4", "subfolder": "player", "type": "output"}]}
    assert messages[-1]["files"] == output["video"], "a page that shows another workflow keeps them"
    assert others[-1]["state"] == "done" and others[-1]["files"] == grid["video"]
    assert told == [[messages[-1]], [others[-1]], []], "what a page that opens the workflow is told"
    for unknown in ("", "nobody", "x" * 5000, "a%00b"):  # only connected editors can register
        with pytest.raises(OSError, match="40[03]"):
            registered(both, unknown)
