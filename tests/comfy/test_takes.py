"""Takes in ComfyUI: a seed before a prompt, the list of takes, and its pictures."""

import io
import json
from urllib.parse import urlencode

import pytest
from comfy_graphs import CROSS, changed, demo_graph, node, queued, saved_latents, text_of
from comfy_harness import ComfyServer
from filelock import FileLock
from PIL import Image

SEED = 13_013
BALL = "a pink ball circling in the brown plain room"  # a story of this file alone: takes are counted by story
GONE = "this take is not there any more"


def take_graph(tag: str = "", **sampler):
    """Two prompts over three blocks, of which the last two have the second prompt."""
    graph = changed(
        demo_graph(seed=SEED, **sampler), "timeline", prompts=f"0:00 {BALL}\n0:00.6 {tag} {CROSS}", seconds=2.0
    )
    del graph["video"]
    return graph | {"latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/take")}


def loaded(run: str):
    graph = {"run": node("HeadForcingLoadRun", run=run)}
    return graph | {"latents": node("SaveLatent", samples=["run", 0], filename_prefix="latents/loaded")}


def listed(server: ComfyServer) -> list[str]:
    return server.object_info()["HeadForcingLoadRun"]["input"]["required"]["run"][1]["options"]


def get(server: ComfyServer, path: str, **headers: str) -> tuple[int, bytes]:
    return server.ask(path, method="GET", **headers)


def picture(run: str, number: object = 0) -> str:
    return f"/headforcing/takes/picture?{urlencode({'run': run, 'number': number})}"


@pytest.fixture(scope="module")
def two_takes():
    """Renders two takes of one setup on a server, once; returns the latents of both, by server."""
    made = {}

    def render(server: ComfyServer):
        if server.port not in made:
            results = [queued(server, take_graph(tag)) for tag in ("", "[seed 7]")]
            made[server.port] = [saved_latents(server, result) for result in results]
            made[server.port].append(text_of(results[1]))
        return made[server.port]

    return render


def test_a_seed_re_rolls_and_both_takes_can_be_loaded_from_a_list_that_people_can_read(comfy_server, two_takes):
    first, second, report = two_takes(comfy_server)
    assert (first[:, :, :3] == second[:, :, :3]).all() and not (first[:, :, 3:6] == second[:, :, 3:6]).all()
    assert "reused 1 blocks of an earlier render" in report and " seed " in report and " 7 " in report
    newest, before = listed(comfy_server)[:2]
    date, *parts = newest.split(" · ")
    assert len(date) == 16 and parts[:3] == ["take 2", "0:02", "64x64"]
    assert parts[3].startswith(BALL[:20]) and f" / [seed 7] {CROSS[:20]}" in parts[3]
    assert " · take 1 · 0:02 · 64x64 · " in before

    name = newest.rpartition("(")[2].removesuffix(")")
    for run in (newest, name, f"an entry from before it was finished ({name})"):
        result = queued(comfy_server, loaded(run))
        assert (saved_latents(comfy_server, result) == second).all(), run
    assert (saved_latents(comfy_server, queued(comfy_server, loaded(before))) == first).all()
    again = queued(comfy_server, take_graph())
    assert (saved_latents(comfy_server, again) == first).all()
    assert listed(comfy_server)[:2] == [newest, before], "in the order of their dates"


def test_takes_are_listed_with_pictures_for_pages_of_this_server_only(comfy_server, two_takes):
    two_takes(comfy_server)
    status, body = get(comfy_server, "/headforcing/takes")
    takes = [take for take in json.loads(body)["takes"] if BALL[:11] in take["story"]]
    second = next(take for take in takes if "[seed 7]" in take["story"])
    assert status == 200 and (second["take"], second["pictures"], second["size"]) == (2, 3, "64x64")
    assert second["value"] in listed(comfy_server)
    for number in range(3):
        status, body = get(comfy_server, picture(second["name"], number))
        assert status == 200 and Image.open(io.BytesIO(body)).size == (160, 160)
        assert (status, body) == get(comfy_server, picture(second["name"], number)), "kept in the run folder"
    kept = comfy_server.output_dir / "head_forcing" / second["name"].split("/")[0]
    assert len(list(kept.glob("thumbnail-*.jpg"))) == 3

    folder = second["name"].split("/")[0]
    for name in (
        "",
        folder,
        f"{folder}/../{second['name']}",
        f"../head_forcing/{second['name']}",
        "/etc/passwd",
        "\0/x",
    ):
        assert get(comfy_server, picture(name))[0] == 404, name
    for number in (3, -1, "x", "٣", ""):
        assert get(comfy_server, picture(second["name"], number))[0] == 404, number
    for headers in (
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        for path in ("/headforcing/takes", picture(second["name"])):
            assert get(comfy_server, path, **headers)[0] == 403


def test_pages_name_and_delete_takes_that_the_server_has_listed_and_nothing_else(comfy_server, two_takes):
    first, _, _ = two_takes(comfy_server)

    def tell(what: str, **body: object) -> dict:
        return comfy_server.post(f"/headforcing/takes/{what}", body)[1]

    def ours() -> list[dict]:
        return [take for take in comfy_server.get_json("/headforcing/takes")["takes"] if BALL[:11] in take["story"]]

    second, plain = ours()
    folder, key = second["name"].split("/")
    files = sorted(comfy_server.output_dir.rglob("*"))
    for name in ("", None, 7, folder, f"{folder}/", f"{folder}/../{second['name']}", f"../head_forcing/{folder}/{key}"):
        assert tell("delete", take=name) == tell("label", take=name, title="x") == {"error": GONE}, name
    assert comfy_server.post("/headforcing/takes/delete", [second["name"]]) == (400, {"error": GONE})
    asked = comfy_server.ask("/headforcing/takes/delete", {"take": second["name"]}, Origin="http://evil.example")
    assert asked[0] == 403
    assert sorted(comfy_server.output_dir.rglob("*")) == files

    tell("label", take=second["name"], title=f" two\nlines \ud800{'x' * 99}", starred="yes", file="/etc/passwd")
    (labelled,) = (take for take in ours() if take["name"] == second["name"])
    assert labelled["title"] == ("two lines " + "x" * 99)[:60] and not labelled["starred"] and labelled["file"] is None
    with FileLock(comfy_server.output_dir / "head_forcing" / folder / "lock"):
        assert tell("delete", take=second["name"]) == {"error": "the take is not deleted: it is being rendered"}
    assert second["bytes"] > second["own_bytes"] > 0
    left = tell("delete", take=second["name"])["takes"]
    assert plain["name"] in {take["name"] for take in left} and second["name"] not in {take["name"] for take in left}
    again = queued(comfy_server, take_graph())
    assert (saved_latents(comfy_server, again) == first).all()
    assert "reused 3 blocks" in text_of(again)
    queued(comfy_server, take_graph("[seed 7]"))  # for the tests that come later
