"""Takes in ComfyUI: a seed before a prompt, the list of takes, and its pictures."""

import io
import json
from urllib.parse import urlencode

import pytest
from comfy_browser import Browser
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
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
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


def test_pages_name_and_delete_takes_that_the_server_has_listed_and_nothing_else(comfy_server, two_takes):
    first, _, _ = two_takes(comfy_server)

    def tell(what: str, **body: object) -> dict:
        return comfy_server.post(f"/headforcing/takes/{what}", body)[1]

    def ours() -> list[dict]:
        return [take for take in comfy_server.get_json("/headforcing/takes")["takes"] if take["length"] == "0:02"]

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


_NODE = "app.graph.nodes.find((node) => node.type === '%s')"
_PLAYED = (
    f"{_NODE % 'HeadForcingSampler'}.widgets.find(({{ name }}) => name === 'player').element.querySelector('video')"
)
_VIDEOS = f"""() => {{
  const player = {_NODE % "HeadForcingSampler"}.widgets.find((widget) => widget.name === "player").element;
  return [...player.querySelectorAll("video")].map((video) => {{
    const {{ currentTime, paused, duration }} = video;
    const file = new URL(video.src).searchParams.get("filename");
    return {{ file, currentTime, paused, duration, left: video.getBoundingClientRect().left }};
  }});
}}"""


@pytest.mark.slow
@pytest.mark.parametrize(("fixture", "nodes_2"), [("comfy", False), ("comfy_latest", True)])
@pytest.mark.repeat("comfy-False")
def test_takes_are_played_compared_restored_named_and_deleted_on_the_sampler(
    request, fixture, nodes_2, tmp_path_factory
):
    server = request.getfixturevalue(fixture)
    with Browser(server, vue_nodes=nodes_2, size=(1600, 1200)) as browser:
        check_shelf(browser, tmp_path_factory.getbasetemp() / f"shelf-{nodes_2}.png", seed=700 + nodes_2)


def check_shelf(browser: Browser, picture, seed: int) -> None:
    page, first = browser.page, f"0:00 {BALL} {seed}\n0:01.5 {CROSS}"
    graph = demo_graph(vae=["demo", 2], filename_prefix=f"shelf/of_{seed}", seed=seed)
    graph = changed(graph, "timeline", prompts=first, seconds=3.0)
    del graph["video"]
    browser.load_api(graph)
    timeline, sampler = (_NODE % f"HeadForcing{name}" for name in ("PromptTimeline", "Sampler"))
    page.evaluate(f"() => {{ app.graph.id = '{seed:08}-0000-4000-8000-000000000000'; {sampler}.size = [420, 700]; }}")
    for text in (first, first.replace("0:01.5", "0:01.5 [seed 7]")):
        page.evaluate(
            f"(value) => {{ {timeline}.widgets.find(({{ name }}) => name === 'prompts').value = value; }}", text
        )
        browser.queue()
        assert browser.wait_done() == "success"
    page.evaluate(f"() => {{ {sampler}.widgets.find(({{ name }}) => name === 'seed').value = 5; }}")
    browser.fit_view()

    shelf = page.locator(".hf-shelf")
    shelf.get_by_label("Show the takes of this workflow").click()
    rows = shelf.locator("[role=listitem]")
    rows.nth(1).wait_for()
    assert rows.count() == 2, "those of this workflow"
    assert ["Take 2" in rows.nth(0).inner_text(), "Take 1" in rows.nth(1).inner_text()] == [True, True]
    assert " MB" in rows.nth(0).inner_text()

    def videos() -> list[dict]:
        page.wait_for_timeout(600)
        page.wait_for_function(f"({_VIDEOS})().every(({{ duration }}) => duration > 0)")
        return page.evaluate(_VIDEOS)

    shelf.get_by_label("Play Take 1 here").click()
    browser.fit_view()
    (shown,) = videos()
    assert shown["file"] == f"of_{seed}_00001_.mp4" and shown["duration"] == pytest.approx(3, abs=0.1)
    assert rows.nth(1).get_attribute("aria-current") == "true"
    href = rows.nth(1).locator("a").get_attribute("href")
    assert f"of_{seed}_00001_.mp4" in href and get(browser.server, href[href.index("/view") :])[0] == 200

    shelf.get_by_label("Play Take 2 beside the video").click()
    page.evaluate(f"() => {{ const video = {_PLAYED}; video.pause(); video.currentTime = 1.25; }}")
    one, two = videos()
    assert (one["file"], two["file"]) == (f"of_{seed}_00001_.mp4", f"of_{seed}_00002_.mp4")
    assert [each["currentTime"] for each in (one, two)] == pytest.approx([1.25, 1.25], abs=0.02)
    assert one["paused"] and two["paused"]
    assert one["left"] < two["left"]
    browser.fit_view()
    page.get_by_label("Swap the two takes").click()
    page.evaluate(f"() => {_PLAYED}.play()")
    page.wait_for_function(f"""() => {{
      const [one, two] = ({_VIDEOS})();
      const apart = Math.abs(one.currentTime - two.currentTime);
      return one.left > two.left && one.currentTime > 1.25 && apart < 0.3;
    }}""")
    browser.screenshot(picture)

    shelf.get_by_label("Put the story and the seed of Take 1 into the nodes").click()
    assert browser.widgets("HeadForcingPromptTimeline")["prompts"] == first
    assert browser.widgets("HeadForcingSampler")["seed"] == seed
    rows.nth(0).get_by_label("Star").click()
    rows.nth(0).get_by_label("Name").fill("the dark one")
    rows.nth(0).get_by_label("Name").press("Enter")
    page.wait_for_function("document.querySelector('.hf-shelf').innerText.includes('Take 2 the dark one')")
    assert "★" in rows.nth(0).inner_text()

    shelf.get_by_label("Delete Take 2 the dark one").click()
    assert "become free; its MP4 stays" in rows.nth(0).inner_text()
    shelf.get_by_label("Keep it").click()
    assert rows.count() == 2
    shelf.get_by_label("Delete Take 2 the dark one").click()
    shelf.get_by_label("Delete Take 2 the dark one now").click()
    page.wait_for_function("document.querySelectorAll('.hf-shelf [role=listitem]').length === 1")
    browser.queue()
    assert browser.wait_done() == "success"
    assert "reused 5 blocks" in browser.last_report(), "the blocks of the other take are there"
    assert (browser.server.output_dir / "shelf" / f"of_{seed}_00002_.mp4").is_file()
    assert browser.page_errors == [] and browser.alerts == []
