"""The routes that pages of the editor ask: who is answered, what about another body, what a page is
told, and takes.
"""

import contextlib
import io
import json
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from comfy_graphs import (
    CROSS,
    Graph,
    changed,
    demo_graph,
    growing_graph,
    node,
    queued,
    sampled,
    saved_latents,
    text_of,
)
from comfy_harness import ComfyServer
from filelock import FileLock
from PIL import Image
from websockets.sync.client import connect

BODY = {"text": "0:00 a\n0:10 b", "seconds": 30.0}
STORY = {"client_id": "a", "prompt_id": "b", "node_id": "c", "text": "0:00 a"}
POSTS = {
    "timeline": BODY,
    "story": STORY,
    "forecast": {"output": {}, "node": "x"},
    "takes/label": {"take": "x"},
    "takes/delete": {"take": "x"},
    "takes/export": {"take": "x", "end": ".srt"},
}
GETS = (
    "takes",
    "takes/picture?name=x&number=0",
    "takes/story?take=x",
    "renders?client=x",
    "renders/story?client=x",
    "sound?name=x.wav",
    "pictures?id=x",
)


def asked(server: ComfyServer, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    method = "GET" if body is None else "POST"
    status, answer = server.ask(f"/headforcing/{path}", body, method, **headers)
    return status, json.loads(answer or b"null")


def test_the_timeline_is_answered_to_the_own_page_and_to_programs(comfy: ComfyServer):
    here = f"http://127.0.0.1:{comfy.port}"
    for headers in ({}, {"Origin": here}, {"Origin": here, "Sec_Fetch_Site": "same-origin"}):
        status, got = asked(comfy, "timeline", BODY | {"model_family": "longlive2"}, **headers)
        assert (status, got["block_seconds"], got["default"]["re_anchor"]) == (200, 32 / 24, True)
        assert [segment["start_block"] for segment in got["segments"]] == [0, 8]
    longer = asked(comfy, "timeline", BODY | {"text": "0:00 a\n0:35 b"})[1]
    assert len(longer["segments"]) == 2 and "0:35 is after the end" in longer["refusal"]
    assert asked(comfy, "timeline", BODY | {"text": "0:00 a\n0:35"})[1]["line"] == 2


def test_no_route_answers_another_site_or_a_domain_that_is_pointed_at_this_computer(
    both: ComfyServer,
):
    others = [
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ]
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.example"):
        others.append({"Host": f"{name}:{both.port}", "Origin": f"http://{name}:{both.port}"})
    for headers in others:
        for path, body in [*POSTS.items(), *((path, None) for path in GETS)]:
            assert (
                both.ask(f"/headforcing/{path}", body, "POST" if body else "GET", **headers)[0]
                == 403
            ), path


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
            assert (
                10 < len(got["error"]) < 150
                and "\n" not in got["error"]
                and "Traceback" not in got["error"]
            )
    assert "Traceback" not in comfy.log()[before:]


# ------------------------------------------------------------------------------ what pages are told


def registered(server: ComfyServer, client: str, workflow: str = "") -> list[dict[str, Any]]:
    told = server.get_json(f"/headforcing/renders?client={client}&grows=true&workflow={workflow}")
    return [about for event, about in told if event == "head_forcing.progress"]


def test_messages_reach_the_editor_that_asked_and_nobody_else(both: ComfyServer):
    """What the script in the browser relies on; a script without a player gets ComfyUI's own, see
    test_nodes_stream.
    """
    client = "a-player"
    graph = growing_graph("player/raw", 4.5, seed=103)
    address = f"ws://127.0.0.1:{both.port}/ws?clientId="
    messages = []
    with (
        connect(address + client, max_size=None, proxy=None) as here,
        connect(address + "other", max_size=None, proxy=None) as other,
    ):
        here.recv(timeout=10)
        assert registered(both, client) == registered(both, "other") == []
        extra = {"extra_pnginfo": {"workflow": {"id": "the-graph", "nodes": []}}}
        _, answer = both.post(
            "/prompt", {"prompt": graph, "client_id": client, "extra_data": extra}
        )
        while (event := json.loads(here.recv(timeout=60)))["type"] != "execution_success":
            if event["type"] == "head_forcing.progress":
                messages.append(event["data"])
            elif event["type"] == "executed" and event["data"]["node"] == "sampler":
                output = event["data"]["output"]
        with contextlib.suppress(TimeoutError):
            while True:
                assert "head_forcing" not in str(other.recv(timeout=0.2))
        told = [registered(both, client, workflow) for workflow in ("the-graph", "another")]
        query = {"client": client, "event": "head_forcing.progress", "node": "sampler"}
        story = both.get_json(
            f"/headforcing/renders/story?{urlencode({**query, 'workflow': 'the-graph'})}"
        )
        with pytest.raises(OSError, match="404"):
            both.get_json(f"/headforcing/renders/story?{urlencode({**query, 'node': 'x'})}")
    about = {(each["node"], each["workflow"], each["prompt_id"]) for each in messages}
    assert about == {("sampler", "the-graph", answer["prompt_id"])}
    with_story = [message for message in messages if message.get("scenes")]
    assert len(with_story) == 1 < len(messages), "the story is sent when it changes"
    assert story == {name: with_story[0][name] for name in ("scenes", "since")}
    sizes = [message["video"]["bytes"] for message in messages if message["state"] == "running"]
    assert sizes == sorted(sizes) and sizes[0] == 0 < sizes[-1]
    pictures = [message for message in messages if "preview" in message]
    assert pictures and all(message["video"]["bytes"] == 0 for message in pictures), (
        "a preview until there is a video"
    )
    assert any(
        "prompt 1: a red ball bouncing in the teal… - " in message["text"] for message in messages
    )
    assert messages[-1]["state"] == "done" and messages[-1]["text"].startswith(
        "wrote output/player/raw_00001_.mp4"
    )
    assert output == {
        "video": [{"filename": "raw_00001_.mp4", "subfolder": "player", "type": "output"}]
    }
    assert messages[-1]["files"] == output["video"], "a page that shows another workflow keeps them"
    assert told == [[messages[-1]], []], "what a page that opens the workflow is told"
    for unknown in ("", "nobody", "x" * 5000, "a%00b"):  # only connected editors can register
        with pytest.raises(OSError, match="40[03]"):
            registered(both, unknown)


# -------------------------------------------------------------------------------------------- takes

# a story of this file alone: takes are counted by story
BALL = "a pink ball circling in the brown plain room"
GONE = "this take is not there any more"


def take_graph(tag: str = "") -> Graph:
    """Two prompts over three blocks, of which the last two have the second prompt."""
    story = f"0:00 {BALL}\n0:00.6 {tag} {CROSS}"
    graph = changed(demo_graph(seed=13_013), "timeline", prompts=story, seconds=2.0)
    del graph["video"]
    return graph | {
        "latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/take")
    }


def loaded(server: ComfyServer, run: str) -> torch.Tensor:
    latents = node("SaveLatent", samples=["run", 0], filename_prefix="latents/loaded")
    return sampled(server, {"run": node("HeadForcingLoadRun", run=run), "latents": latents})


def listed(server: ComfyServer) -> list[str]:
    return server.object_info()["HeadForcingLoadRun"]["input"]["required"]["run"][1]["options"]


def takes_of(server: ComfyServer) -> list[dict]:
    """What pages are told of the takes of this file's story, the newest first."""
    return [
        take
        for take in server.get_json("/headforcing/takes")["takes"]
        if BALL[:11] in take["story"]
    ]


def picture(server: ComfyServer, run: str, number: object = 0) -> tuple[int, bytes]:
    named = urlencode({"run": run, "number": number})
    return server.ask(f"/headforcing/takes/picture?{named}", method="GET")


def test_a_seed_makes_a_take_that_is_listed_shown_named_and_deleted_by_names_of_the_list_alone(
    comfy,
):
    straight = queued(comfy, take_graph(""))
    re_rolled = queued(comfy, take_graph("[seed 7]"))
    report = text_of(re_rolled)
    first = saved_latents(comfy, straight)
    second = saved_latents(comfy, re_rolled)
    assert (first[:, :, :3] == second[:, :, :3]).all() and not (
        first[:, :, 3:6] == second[:, :, 3:6]
    ).all()
    assert (
        "reused 1 blocks of an earlier render" in report and " seed " in report and " 7 " in report
    )
    newest, before = listed(comfy)[:2]
    date, *parts = newest.split(" · ")
    assert len(date) == 16 and parts[:3] == ["take 2", "0:02", "64x64"]
    assert parts[3].startswith(BALL[:20]) and f" / [seed 7] {CROSS[:20]}" in parts[3]
    assert " · take 1 · 0:02 · 64x64 · " in before
    name = newest.rpartition("(")[2].removesuffix(")")
    for run in (newest, name, f"an entry from before it was finished ({name})"):
        assert (loaded(comfy, run) == second).all(), run
    assert (loaded(comfy, before) == first).all()

    take, plain = takes_of(comfy)
    assert (take["value"], take["name"], take["take"], take["pictures"], take["size"]) == (
        newest,
        name,
        2,
        3,
        "64x64",
    )
    assert "written" not in take
    asked_for = comfy.get_json(f"/headforcing/takes/story?{urlencode({'take': name})}")
    assert asked_for["written"]["prompts"].splitlines()[0] == f"0:00 {BALL}"
    folder, key = name.split("/")
    status, body = picture(comfy, name, 2)
    assert status == 200 and Image.open(io.BytesIO(body)).size == (160, 160)
    files = sorted(comfy.output_dir.rglob("*"))
    outside = (f"{folder}/../{name}", f"../head_forcing/{name}")
    for wrong in ("", folder, *outside, "/etc/passwd", "\0/x"):
        assert picture(comfy, wrong)[0] == 404, wrong
    for number in (3, -1, "x", "٣", ""):
        assert picture(comfy, name, number)[0] == 404, number

    def tell(what: str, **body: object) -> dict:
        return comfy.post(f"/headforcing/takes/{what}", body)[1]

    for wrong in ("", None, 7, folder, f"{folder}/", *outside):
        assert (
            tell("delete", take=wrong) == tell("label", take=wrong, title="x") == {"error": GONE}
        ), wrong
    assert comfy.post("/headforcing/takes/delete", [name]) == (400, {"error": GONE})
    assert sorted(comfy.output_dir.rglob("*")) == files
    tell(
        "label", take=name, title=f" two\nlines \ud800{'x' * 99}", starred="yes", file="/etc/passwd"
    )
    labelled = takes_of(comfy)[0]
    assert (
        labelled["title"] == ("two lines " + "x" * 99)[:60]
        and not labelled["starred"]
        and labelled["file"] is None
    )
    with FileLock(comfy.output_dir / "head_forcing" / folder / "lock"):
        assert tell("delete", take=name) == {
            "error": "the take is not deleted: it is being rendered"
        }
    assert take["bytes"] > take["own_bytes"] > 0 and take["fps"] == 16
    assert {plain["name"]} == {name, plain["name"]} & {
        left["name"] for left in tell("delete", take=name)["takes"]
    }
    again = queued(comfy, take_graph())
    assert (saved_latents(comfy, again) == first).all() and "reused 3 blocks" in text_of(again)
