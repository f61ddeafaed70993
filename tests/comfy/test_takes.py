"""Takes in ComfyUI: a seed before a prompt, the list of takes, and its pictures."""

import http.client
import io
import json
from urllib.parse import urlencode

import pytest
from comfy_browser import Browser
from comfy_graphs import BALL, CROSS, changed, demo_graph, node, queued, saved_latents
from comfy_harness import ComfyServer
from PIL import Image

SEED = 13_013


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
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


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
            made[server.port].append(results[1].outputs["report"]["text"][0])
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
    for run in (newest, name, f"{name} 64x64 {BALL}", f"an entry from before it was finished ({name})"):
        result = queued(comfy_server, loaded(run))
        assert (saved_latents(comfy_server, result) == second).all(), run
    assert (saved_latents(comfy_server, queued(comfy_server, loaded(before))) == first).all()
    again = queued(comfy_server, take_graph())
    assert (saved_latents(comfy_server, again) == first).all()
    assert listed(comfy_server)[:2] == [newest, before], "in the order of their dates"


def test_takes_are_listed_with_pictures_for_pages_of_this_server_only(comfy_server, two_takes):
    two_takes(comfy_server)
    status, body = get(comfy_server, "/headforcing/takes")
    takes = [take for take in json.loads(body)["takes"] if take["length"] == "0:02"]
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
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        for path in ("/headforcing/takes", picture(second["name"])):
            assert get(comfy_server, path, **headers)[0] == 403


@pytest.mark.slow
def test_a_take_is_chosen_by_its_picture_or_with_the_keyboard(comfy, two_takes, tmp_path_factory):
    server = comfy
    two_takes(server)
    with Browser(server, vue_nodes=True) as browser:
        page = browser.page
        page.evaluate("""() => {
          app.graph.clear();
          const node = LiteGraph.createNode("HeadForcingLoadRun");
          node.pos = [100, 100];
          app.graph.add(node);
        }""")
        browser.fit_view()
        rows = page.locator(".hf-takes [role=option]")
        rows.nth(1).wait_for()
        options = listed(server)
        assert rows.count() == len(options)

        def chosen() -> str:
            (selected,) = page.locator(".hf-takes [aria-selected=true]").all()
            value = browser.widgets("HeadForcingLoadRun")["run"]
            assert selected.get_attribute("id").endswith(f"-{options.index(value)}")
            return value

        rows.nth(1).click()
        assert chosen() == options[1]
        page.locator(".hf-takes").press("ArrowUp")
        assert chosen() == options[0]
        page.locator(".hf-takes").press("End")
        assert chosen() == options[-1]
        page.evaluate("(run) => { app.graph.nodes[0].widgets[0].value = run; }", options[1])
        page.wait_for_timeout(700)
        assert chosen() == options[1], "the list follows the widget"

        page.wait_for_function(
            "[...document.querySelectorAll('.hf-takes img')].some((image) => image.naturalWidth === 160)"
        )
        shown = page.evaluate("(value) => app.graph.nodes[0].widgets[0].options.getOptionLabel(value)", options[1])
        assert shown.startswith("Take ") and "(" not in shown, "without the name of the run"
        (saved,) = page.evaluate("app.graph.serialize().nodes")
        assert saved["widgets_values"] == [options[1]]
        (sent,) = browser.api_prompt().values()
        assert sent["inputs"] == {"run": options[1]}
        decode = """() => LiteGraph.createNode("HeadForcingDecodeVideo").widgets
          .find((widget) => widget.name === "run").options.getOptionLabel("%s 64x64 a")"""
        assert page.evaluate(decode % options[1].rpartition("(")[2][:-1]) == shown, "the list of the decoder, too"
        browser.screenshot(tmp_path_factory.getbasetemp() / "takes.png")
        assert browser.page_errors == [] and browser.alerts == []
