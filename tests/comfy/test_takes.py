"""Takes in ComfyUI: a seed before a prompt, the list of takes, and its pictures."""

import io
from urllib.parse import urlencode

import torch
from comfy_graphs import CROSS, Graph, changed, demo_graph, node, queued, sampled, saved_latents, text_of
from comfy_harness import ComfyServer
from filelock import FileLock
from PIL import Image

BALL = "a pink ball circling in the brown plain room"  # a story of this file alone: takes are counted by story
GONE = "this take is not there any more"


def take_graph(tag: str = "") -> Graph:
    """Two prompts over three blocks, of which the last two have the second prompt."""
    story = f"0:00 {BALL}\n0:00.6 {tag} {CROSS}"
    graph = changed(demo_graph(seed=13_013), "timeline", prompts=story, seconds=2.0)
    del graph["video"]
    return graph | {"latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/take")}


def loaded(server: ComfyServer, run: str) -> torch.Tensor:
    latents = node("SaveLatent", samples=["run", 0], filename_prefix="latents/loaded")
    return sampled(server, {"run": node("HeadForcingLoadRun", run=run), "latents": latents})


def listed(server: ComfyServer) -> list[str]:
    return server.object_info()["HeadForcingLoadRun"]["input"]["required"]["run"][1]["options"]


def takes_of(server: ComfyServer) -> list[dict]:
    """What pages are told of the takes of this file's story, the newest first."""
    return [take for take in server.get_json("/headforcing/takes")["takes"] if BALL[:11] in take["story"]]


def picture(server: ComfyServer, run: str, number: object = 0) -> tuple[int, bytes]:
    named = urlencode({"run": run, "number": number})
    return server.ask(f"/headforcing/takes/picture?{named}", method="GET")


def test_a_seed_makes_a_take_that_is_listed_shown_named_and_deleted_by_names_of_the_list_alone(comfy):
    first, re_rolled = (queued(comfy, take_graph(tag)) for tag in ("", "[seed 7]"))
    report, first, second = text_of(re_rolled), *(saved_latents(comfy, each) for each in (first, re_rolled))
    assert (first[:, :, :3] == second[:, :, :3]).all() and not (first[:, :, 3:6] == second[:, :, 3:6]).all()
    assert "reused 1 blocks of an earlier render" in report and " seed " in report and " 7 " in report
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
    assert (take["value"], take["name"], take["take"], take["pictures"], take["size"]) == (newest, name, 2, 3, "64x64")
    folder, key = name.split("/")
    status, body = picture(comfy, name, 2)
    assert status == 200 and Image.open(io.BytesIO(body)).size == (160, 160)
    files, outside = sorted(comfy.output_dir.rglob("*")), (f"{folder}/../{name}", f"../head_forcing/{name}")
    for wrong in ("", folder, *outside, "/etc/passwd", "\0/x"):
        assert picture(comfy, wrong)[0] == 404, wrong
    for number in (3, -1, "x", "٣", ""):
        assert picture(comfy, name, number)[0] == 404, number

    def tell(what: str, **body: object) -> dict:
        return comfy.post(f"/headforcing/takes/{what}", body)[1]

    for wrong in ("", None, 7, folder, f"{folder}/", *outside):
        assert tell("delete", take=wrong) == tell("label", take=wrong, title="x") == {"error": GONE}, wrong
    assert comfy.post("/headforcing/takes/delete", [name]) == (400, {"error": GONE})
    assert sorted(comfy.output_dir.rglob("*")) == files
    tell("label", take=name, title=f" two\nlines \ud800{'x' * 99}", starred="yes", file="/etc/passwd")
    labelled = takes_of(comfy)[0]
    assert labelled["title"] == ("two lines " + "x" * 99)[:60] and not labelled["starred"] and labelled["file"] is None
    with FileLock(comfy.output_dir / "head_forcing" / folder / "lock"):
        assert tell("delete", take=name) == {"error": "the take is not deleted: it is being rendered"}
    assert take["bytes"] > take["own_bytes"] > 0
    assert {plain["name"]} == {name, plain["name"]} & {left["name"] for left in tell("delete", take=name)["takes"]}
    again = queued(comfy, take_graph())
    assert (saved_latents(comfy, again) == first).all() and "reused 3 blocks" in text_of(again)
