"""The player on the sampler, in the browser; that it plays while it grows in the oldest frontend,
too.
"""

import json
from pathlib import Path

import pytest
from comfy_browser import Browser, of_node, of_player
from comfy_graphs import BALL, CROSS, growing_graph
from comfy_harness import ComfyServer

pytestmark = pytest.mark.slow

_SAMPLER = of_node("Sampler")
_PLAYER = of_player()
_VIDEO = f"{_PLAYER}?.querySelector('video')"
_NOTE_REVOKED = """() => {
  const revoke = URL.revokeObjectURL;
  window.__revoked = [];
  URL.revokeObjectURL = (url) => {
    window.__revoked.push(url);
    revoke.call(URL, url);
  };
}"""
_VALUES = (
    "() => app.graph.serialize().nodes.find((n) => n.type === 'HeadForcingSampler').widgets_values"
)
_NODES = """() => app.graph.serialize().nodes.filter(({ type }) => type.startsWith("HeadForcing"))
  .map(({ type, widgets_values }) => [type, widgets_values]).sort()"""

_NO_ANSWER = """() => {
  const ask = app.api.fetchApi;
  app.api.fetchApi = (route, ...more) =>
    route.startsWith("/headforcing/renders") ? new Promise(() => {}) : ask.call(app.api, route, ...more);
}"""
_OPENED_IN_TIME = """(graph) => Promise.race([
  app.loadGraphData(graph).then(() => true),
  new Promise((done) => setTimeout(done, 20000)),
])"""


def bring_into_view(editor: Browser) -> None:
    """Move the canvas to the player: a browser does not begin to play what is out of sight."""
    editor.page.wait_for_function(f"{_PLAYER}?.firstChild.textContent")
    editor.fit_view()
    editor.page.wait_for_function(f"{_PLAYER}.getBoundingClientRect().width")
    editor.page.evaluate(
        f"""() => {{
          const box = {_PLAYER}.getBoundingClientRect(), ds = app.canvas.ds;
          ds.offset[0] += (innerWidth / 2 - box.x) / ds.scale;
          ds.offset[1] += (innerHeight / 3 - box.y) / ds.scale;
          app.canvas.setDirty(true, true);
        }}"""
    )


def text_of(editor: Browser) -> str:
    return editor.page.evaluate(f"{_PLAYER}?.firstChild.textContent ?? ''")


@pytest.mark.repeat("comfy_floor]")
@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest, Nodes 2.0"], indirect=True)
def test_the_video_plays_in_the_node_while_it_grows_and_the_page_holds_no_more_than_before(
    browser: Browser,
):
    editor = browser
    editor.page.evaluate(_NOTE_REVOKED)
    editor.load_api(growing_graph("player/grows", 12.0, seed=100))
    values = editor.page.evaluate(_VALUES)
    prompt = editor.api_prompt()["sampler"]
    heap = editor.heap_bytes()
    editor.watch()
    editor.server.hold(17)  # after 4 of 16 blocks: the model is faster than the page's looks
    editor.queue()
    bring_into_view(editor)
    for shown, at in ((0, 33), (2, 49), (5, None)):  # the encoder looks 2.5 s ahead
        editor.page.wait_for_function(f"window.__seen.some(([, length]) => length > {shown})")
        editor.server.hold(at)
    # a node that is made anew would leak it
    editor.page.wait_for_function(
        f"{_VIDEO}?.src.startsWith('blob:') && window.__revoked.includes({_VIDEO}.src)"
    )
    assert editor.wait_done() == "success"
    grew, finished = editor.watched()
    assert editor.heap_bytes() - heap < 4e6
    durations = [duration for duration, *_ in grew]
    assert durations == sorted(durations) and len(set(durations)) > 2
    assert 2 * durations[0] < durations[-1] <= 12.2
    assert grew[-1][1] > 0.5, "it plays by itself"
    assert finished[0][0] == pytest.approx(12, abs=0.05)
    assert abs(finished[0][1] - grew[-1][1]) < 4, "it goes on where it was"

    assert text_of(editor).startswith("wrote output/player/grows_00001_.mp4 - 0:12 of video in 0:")
    assert editor.page.locator("video").count() == 1, "the frontend shows no second one"
    assert editor.page.get_by_label("Video of Head Forcing Sampler").count() == 1
    assert editor.page.locator("img[src^='blob:']").count() == 0, "and no preview"
    assert not editor.page.evaluate(f"{_SAMPLER}.imgs?.length")
    stored = editor.page.evaluate(_VALUES), editor.api_prompt()["sampler"]
    assert stored == (values, prompt), "nothing of it is stored"
    box = editor.page.locator("video").bounding_box()
    assert box and min(box["width"], box["height"]) > 100
    editor.page.evaluate(f"() => {{ const video = {_VIDEO}; video.currentTime = 10.5; }}")
    editor.page.wait_for_function(f"{_VIDEO}.currentTime > 11.7")


@pytest.mark.thorough
def test_a_page_that_may_not_play_it_shows_previews_and_a_page_loaded_again_goes_on(
    comfy_latest: ComfyServer,
):
    """--disable-api-nodes forbids media that a page makes itself: the video comes when it is
    finished.
    """
    with Browser(comfy_latest) as editor:
        editor.load_api(growing_graph("player/forbidden", 36.0, seed=102))
        editor.server.hold(9)
        editor.queue()
        editor.page.wait_for_function(
            f"/^0:0[1-9] of 0:36/.test({_PLAYER}?.firstChild.textContent)"
        )
        preview = f"{_PLAYER}.querySelector('img')"
        editor.page.wait_for_function(
            f"{preview}.naturalWidth > 0 && {preview}.style.display === ''"
        )
        before = editor.page.evaluate(f"{preview}.src")
        editor.server.hold(17)
        editor.page.wait_for_function(f"(before) => {preview}.src !== before", arg=before)
        editor.page.reload(wait_until="domcontentloaded")
        back = f"window.app?.graph && / of 0:36/.test({_PLAYER}?.firstChild.textContent)"
        editor.page.wait_for_function(back)
        editor.server.hold(None)
        editor.page.wait_for_function(f"{_VIDEO}.duration > 35")
        editor.write("Sampler", seed=103)
        editor.server.hold(9)
        editor.page.evaluate("() => app.queuePrompt(0)")
        editor.page.wait_for_function(f"/^0:0[1-9] of 0:36/.test({_PLAYER}.firstChild.textContent)")
        editor.server.interrupt()
        kept = "/^stopped at 0:\\d\\d of 0:36; Run goes on from there/"
        editor.page.wait_for_function(f"{kept}.test({_PLAYER}.firstChild.textContent)")
        assert any("Run goes on from there" in toast for toast in editor.toasts())


@pytest.mark.thorough
@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
def test_each_workflow_shows_its_own_video_whichever_was_open_when_it_was_finished(
    browser: Browser,
):
    """Two workflows whose samplers have one id, and a run whose results ComfyUI has already."""
    editor = browser
    page = browser.page
    graphs = {}
    for name, seed in (("a", 110), ("b", 111)):
        editor.load_api(growing_graph(f"player/of_{name}", 1.5, seed=seed, prompts=CROSS))
        identity = f"{name * 8}-0000-4000-8000-000000000000"
        graphs[name] = page.evaluate("(id) => ({ ...app.graph.serialize(), id })", identity)

    def load(name: str, shown: str = "") -> None:
        page.evaluate("(graph) => app.loadGraphData(graph)", graphs[name])
        if shown:
            shows(shown)

    def shows(file: str) -> None:
        there = (
            f"(file) => {_PLAYER}?.firstChild.textContent.includes(file) && "
            f"{_VIDEO}.src.includes(file)"
        )
        page.wait_for_function(there, arg=file)

    load("a")
    editor.server.hold(1)
    editor.queue()
    page.wait_for_function(f"{_PLAYER}?.firstChild.textContent")
    load("b")  # while the other renders
    editor.server.hold(None)
    assert editor.wait_done() == "success"
    page.wait_for_timeout(300)
    assert text_of(editor) == "", "it is no render of this workflow"
    load("a", "of_a_00001_")
    load("b")
    editor.run()
    shows("of_b_00001_")
    load("a")
    editor.write("Sampler", seed=112)
    graphs["a"] = page.evaluate("app.graph.serialize()")
    editor.run()
    shows("of_a_00002_")
    load("b", "of_b_00001_")
    load("a")
    editor.run()  # nothing has changed
    shows("of_a_00002_")
    load("b", "of_b_00001_")

    # a run of one workflow that ComfyUI has cached, while the other is open
    load("a")
    editor.write("Sampler", seed=113)
    graphs["a"] = page.evaluate("app.graph.serialize()")
    editor.server.hold(1)
    editor.queue()
    page.evaluate("() => app.queuePrompt(0)")
    load("b")
    editor.server.hold(None)
    page.wait_for_function("window.__runs.length === 2")
    page.wait_for_timeout(300)
    shows("of_b_00001_")
    page.evaluate(_NO_ANSWER)
    assert page.evaluate(_OPENED_IN_TIME, graphs["a"]), "opening a workflow waits for no answer"
    shows("of_a_00003_")
    # which the frontend asks itself
    others = [url for url in editor.blocked if "huggingface.co/Comfy-Org" not in url]
    assert others == [], "the pack asked another machine for something"


@pytest.mark.same_page
def test_a_scene_is_rendered_alone_and_with_what_is_before_it(browser: Browser):
    """Three scenes over 17 blocks, of which the second one has the blocks 6 to 10."""
    editor = browser
    seed = 121
    page = editor.page
    story = f"0:00 {BALL}\n0:04 {CROSS}\n0:08 {BALL} again"
    graph = growing_graph(f"player/part_{seed}", 12.0, seed=seed, prompts=story)
    editor.load_api(graph)
    prompt = editor.api_prompt()
    workflow = page.evaluate(_NODES)
    page.locator(".hf-bar").nth(2).wait_for()
    editor.fit_view()
    page.locator(".hf-bar").nth(1).click()

    def rendered(name: str) -> tuple[float, str, int]:
        """What a button makes: seconds of video, what the node says, and blocks that are stored
        afterwards.
        """
        page.evaluate("() => { window.__runs.length = 0; }")
        page.get_by_role("button", name=name, exact=True).click()
        assert editor.wait_done() == "success"
        page.wait_for_function(f"{_VIDEO}?.src.includes('/view') && {_VIDEO}.readyState >= 2")
        runs = editor.server.output_dir.glob("head_forcing/*/run-*")
        (note,) = [path for path in runs if _has_seed(path, seed)]
        return (
            page.evaluate(f"{_VIDEO}.duration"),
            text_of(editor),
            len([*note.parent.glob("block-*")]),
        )

    seconds, text, blocks = rendered("Render from the beginning to the end of the chosen bar")
    assert seconds == pytest.approx(8.0625, abs=0.1) and blocks == 11
    assert text.startswith(
        f"up to 0:08: wrote output/player/part_{seed}_00001_.mp4 - 0:08 of video in"
    )
    assert page.locator(".hf-rendered").evaluate(
        "(bar) => parseFloat(bar.style.width)"
    ) == pytest.approx(64.2, abs=0.5)

    editor.write("PromptTimeline", prompts=story.replace("0:04", "0:04 [seed 7]"))
    page.wait_for_function(
        "document.querySelector('.hf-tags, .hf-tag, .hf-timeline').innerText.includes('seed 7')"
    )
    seconds, _, blocks = rendered("Render the scene of the chosen bar only, up to its end")
    assert seconds == pytest.approx(69 / 16, abs=0.1), "its five blocks, and the one before them"
    assert blocks == 11 + 5, "those of the scene, and no others"
    page.evaluate(f"() => {{ const video = {_VIDEO}; video.pause(); video.currentTime = 1.5; }}")
    page.wait_for_function(
        "document.querySelectorAll('.hf-bar')[1].classList.contains('hf-playing')"
    )
    page.locator(".hf-bar").nth(1).click(position={"x": 60, "y": 20})

    editor.write("PromptTimeline", prompts=story)
    assert (editor.api_prompt(), page.evaluate(_NODES)) == (prompt, workflow)
    editor.run()
    assert "reused 11 blocks of an earlier render" in editor.last_report(), (
        "the whole video has the blocks of its part"
    )
    assert page.get_by_role("button", name="Render a draft, half").is_disabled(), (
        "the demo model has one size"
    )


def _has_seed(note: Path, seed: int) -> bool:
    return json.loads(note.read_text(encoding="utf-8"))["about"]["seed"] == seed
