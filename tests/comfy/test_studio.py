"""The studio over a whole session: graph undo after a render, other workflows, reloads, and stories
that do not fit.
"""

import io
from typing import Any

import numpy as np
import pytest
from comfy_browser import Browser, of_node, of_player, of_widget
from comfy_graphs import BALL, CROSS, growing_graph
from PIL import Image

pytestmark = pytest.mark.slow

_SAMPLER = of_node("Sampler")
_STORY = of_node("PromptTimeline")
_PLAYER = of_player()
_VIDEO = f"{_PLAYER}?.querySelector('video')"
_TEXT = of_widget("PromptTimeline", "prompts")
_TRACKER = "app.extensionManager.workflow.activeWorkflow.changeTracker"
_SIZES = """() => Object.fromEntries(app.graph.nodes.filter(({ type }) => type.startsWith("HeadForcing"))
  .map((node) => [node.type, Math.round(node.size[1])]))"""
_COUNT = "app.graph.nodes.length"
_FINISHED = f"{_VIDEO}?.readyState >= 2 && !{_VIDEO}.src.startsWith('blob:')"
FRONTENDS = ["comfy", "comfy, Nodes 2.0", "comfy_latest", "comfy_latest, Nodes 2.0"]


def opened(editor: Browser, **graph: Any) -> None:
    """Open a story of two prompts, with its timeline in view."""
    editor.load_api(growing_graph(graph.pop("prefix", "studio/v"), **graph))
    editor.page.wait_for_function("document.querySelectorAll('.hf-bar').length === 2")
    editor.fit_view()


def rendered(editor: Browser) -> None:
    editor.run()
    editor.page.wait_for_function(_FINISHED)
    editor.page.wait_for_timeout(500)


def noted(editor: Browser) -> None:
    """Let the graph's undo see the state of now, as a click does."""
    editor.page.evaluate(
        f"() => ({_TRACKER}.captureCanvasState ?? {_TRACKER}.checkState).call({_TRACKER})"
    )


@pytest.mark.same_page
@pytest.mark.repeat("comfy]", "comfy, Nodes 2.0]", "comfy_latest, Nodes 2.0]")
@pytest.mark.parametrize("browser", FRONTENDS, indirect=True)
def test_graph_undo_goes_on_after_a_render_and_no_node_changes_its_size(browser: Browser):
    page = browser.page
    opened(browser, seed=300)
    before = page.evaluate(f"{_TEXT}.value")
    sizes = page.evaluate(_SIZES)
    noted(browser)
    page.locator(".hf-bar").nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(before) => " + f"{_TEXT}.value !== before", arg=before)
    noted(browser)
    edited = page.evaluate(f"{_TEXT}.value")
    rendered(browser)
    noted(browser)
    assert page.evaluate(_SIZES) == sizes, "a node that grows is a step of the graph's undo"
    page.evaluate(f"() => {_TRACKER}.undo()")
    page.wait_for_function("(before) => " + f"{_TEXT}.value === before", arg=before)
    page.evaluate(f"() => {_TRACKER}.redo()")
    page.wait_for_function("(edited) => " + f"{_TEXT}.value === edited", arg=edited)
    nodes = page.evaluate(_COUNT)
    page.evaluate(f"() => app.canvas.selectItems([{_SAMPLER}])")
    page.evaluate("() => { app.canvas.copyToClipboard(); app.canvas.pasteFromClipboard(); }")
    page.wait_for_function(f"{_COUNT} === {nodes + 1}")
    noted(browser)
    page.wait_for_timeout(300)
    noted(browser)
    page.evaluate(f"() => {_TRACKER}.undo()")
    page.wait_for_function(f"{_COUNT} === {nodes}")


@pytest.mark.thorough
@pytest.mark.repeat("comfy]")
@pytest.mark.parametrize("browser", ["comfy", "comfy, Nodes 2.0"], indirect=True)
def test_another_workflow_shows_nothing_of_the_video_of_this_one(browser: Browser):
    page = browser.page
    opened(browser, seed=301)
    rendered(browser)
    page.evaluate(f"() => {{ window.__old = {_VIDEO}; __old.loop = true; __old.play(); }}")
    graph = growing_graph("studio/other", seed=302)
    browser.load_api(graph)
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 2")
    page.wait_for_timeout(1500)
    assert page.evaluate("document.querySelector('.hf-playhead').hidden")
    assert page.evaluate("document.querySelector('.hf-rendered').style.width") in ("", "0%")
    assert page.evaluate(
        "[...document.querySelectorAll('.hf-bar')].map((bar) => bar.style.backgroundImage)"
    ) == [
        "",
        "",
    ]
    assert page.evaluate("window.__old.paused || !window.__old.src"), (
        "the video of a node that is gone plays no more"
    )


def colour(page: Any, index: int) -> np.ndarray:
    """The mean colour of a bar's picture."""
    image = page.evaluate(f"document.querySelectorAll('.hf-bar')[{index}].style.backgroundImage")
    data = page.evaluate(
        "async (url) => [...new Uint8Array(await (await fetch(url)).arrayBuffer())]", image[5:-2]
    )
    return np.asarray(Image.open(io.BytesIO(bytes(data))).convert("RGB"), dtype=float).mean((0, 1))


@pytest.mark.same_page
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
def test_every_bar_has_the_picture_of_its_own_scene_while_the_video_grows_and_after(
    browser: Browser,
):
    """The ball's room is teal, the cross's navy: by blue against green they are far apart."""
    page = browser.page
    opened(browser, seed=303, seconds=12.0)
    browser.server.hold(49)  # 9 of 12 seconds
    browser.queue()
    page.wait_for_function(
        "[...document.querySelectorAll('.hf-bar')].every((bar) => "
        "bar.style.backgroundImage.startsWith('url'))"
    )
    growing = [colour(page, index) for index in range(2)]
    browser.server.hold(None)
    assert browser.wait_done() == "success"
    page.wait_for_function(_FINISHED)
    page.wait_for_timeout(1500)
    finished = [colour(page, index) for index in range(2)]
    page.locator(".hf-bar").nth(1).focus()
    page.keyboard.press("Alt+ArrowLeft")
    page.wait_for_function(f"{_TEXT}.value.indexOf('cross') < {_TEXT}.value.indexOf('ball')")
    page.wait_for_timeout(1500)
    moved = [colour(page, index) for index in (1, 0)]
    for first, second in (growing, finished, moved):
        assert first[1] - first[0] > second[1] - second[0] + 10, (first, second)


@pytest.mark.thorough
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
def test_nodes_keep_their_size_through_reloads_in_the_middle_of_a_render(browser: Browser):
    page = browser.page
    opened(browser, seed=304, seconds=12.0)
    browser.server.hold(9)
    browser.queue()
    page.wait_for_function("document.querySelector('.hf-live-story input').disabled === false")
    found = []
    for _ in range(2):
        page.wait_for_timeout(1500)
        page.reload(wait_until="domcontentloaded")
        browser.wait_until_open()
        page.wait_for_function("document.querySelector('.hf-live-story input')?.disabled === false")
        found.append(page.evaluate(_SIZES))
    sizes = found[0]
    assert found == [sizes] * 2
    browser.server.interrupt()
    page.wait_for_function("document.querySelector('.hf-live-story input').disabled")
    assert page.evaluate(_SIZES) == sizes


@pytest.mark.same_page
@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
def test_a_smaller_length_greys_what_is_beyond_it_and_offers_ways_out(browser: Browser):
    page = browser.page
    long = f"0:00 {BALL}\n0:08 {CROSS}"
    opened(browser, seconds=12.0, prompts=long)
    ways = ".hf-foot .hf-tools input"

    def shorten() -> None:
        browser.write("PromptTimeline", seconds=6.0)
        page.wait_for_function("document.querySelectorAll('.hf-bar.hf-beyond').length === 1")
        assert page.locator(ways).count() == 3
        assert page.locator(".hf-status.hf-error").count() == 1

    shorten()
    assert page.locator(".hf-bar").nth(0).is_enabled(), "the bars can still be edited"
    page.locator(ways).nth(2).click()
    page.wait_for_function(f"{of_widget('PromptTimeline', 'seconds')}.value === 12")
    shorten()
    page.locator(ways).nth(1).click()
    page.wait_for_function("document.querySelectorAll('.hf-bar.hf-beyond').length === 0")
    # bars are drawn at once, the text has it after the server's answer
    page.wait_for_function("(long) => " + f"{_TEXT}.value !== long", arg=long)
    assert len(page.evaluate(f"{_TEXT}.value").split("\n")) == 2
    browser.write("PromptTimeline", prompts=long)
    shorten()
    page.locator(ways).nth(0).click()
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 1")
    page.wait_for_function("(short) => " + f"{_TEXT}.value === short", arg=f"0:00 {BALL}")
    assert page.evaluate(f"{of_widget('PromptTimeline', 'seconds')}.value") == 6


@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
@pytest.mark.same_page
def test_undo_in_the_words_belongs_to_the_prompt_that_is_shown(browser: Browser):
    page = browser.page
    opened(browser, seconds=12.0)
    before = page.evaluate(f"{_TEXT}.value")
    page.locator(".hf-bar").nth(0).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.selectionStart") == len(BALL), (
        "the cursor stands behind the words"
    )
    page.locator(".hf-tools input[value='add']").click()
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    assert page.evaluate("document.activeElement.className") == "hf-text"
    page.wait_for_function("(before) => " + f"{_TEXT}.value !== before", arg=before)
    page.keyboard.press("Control+z")
    page.wait_for_function("(before) => " + f"{_TEXT}.value === before", arg=before)
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 2")

    # words that were pasted into one prompt are not undone in another one
    page.locator(".hf-bar").nth(0).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("a pasted prompt")
    page.wait_for_function(f"{_TEXT}.value.includes('a pasted prompt')")
    page.locator(".hf-tools input[value='split']").click()
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    page.locator(".hf-tools input[value='add']").click()
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 4")

    # what was typed is undone in the field; after it the steps of the editor
    page.keyboard.type("words")
    page.wait_for_function(
        f"{_TEXT}.value.endsWith(' words') || {_TEXT}.value.includes(' words\\n')"
    )
    page.wait_for_timeout(1100)  # else one step of the editor
    seen = []
    for _ in range(12):
        page.keyboard.press("Control+z")
        page.wait_for_timeout(300)
        seen.append(page.evaluate(f"{_TEXT}.value"))
        if seen[-1] == before:
            break
    assert seen[-1] == before, seen
    spoken = {line.partition(" ")[2] for line in "\n".join(seen).split("\n")}
    typed = {"words", "word", "wor", "wo", "w"}
    assert spoken <= {BALL, CROSS, "a pasted prompt", "New prompt", *typed}, spoken


@pytest.mark.thorough
@pytest.mark.repeat("comfy]")
@pytest.mark.parametrize("browser", ["comfy", "comfy_latest, Nodes 2.0"], indirect=True)
def test_words_typed_right_before_a_reload_are_kept(browser: Browser):
    page = browser.page
    opened(browser, seconds=12.0)
    page.wait_for_timeout(4000)  # the workflow is in ComfyUI's draft; what is typed now is not
    page.locator(".hf-bar").nth(0).focus()
    page.keyboard.press("Enter")
    page.keyboard.type(" at noon")
    page.reload(wait_until="domcontentloaded")
    browser.wait_until_open()
    page.wait_for_function(f"{_TEXT}?.value.includes('{BALL} at noon')")
    assert CROSS in page.evaluate(f"{_TEXT}.value")
    page.evaluate(f"{_TEXT}.value = '0:00 something else'")
    browser.load_api(growing_graph("studio/v"))
    page.wait_for_timeout(600)
    assert "at noon" not in page.evaluate(f"{_TEXT}.value"), "once, and in its own workflow"


@pytest.mark.same_page
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
def test_a_dropped_video_brings_its_workflow_and_plays(browser: Browser):
    page = browser.page
    opened(browser, seed=305, prefix="studio/dropped")
    rendered(browser)
    (video,) = (browser.server.output_dir / "studio").glob("dropped_*.mp4")
    data = page.evaluate_handle(
        """async (bytes) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "dropped.mp4", { type: "video/mp4" }));
          return transfer;
        }""",
        list(video.read_bytes()),
    )
    # one that Load Video takes is no result, also if the workflow is that of a file
    graph = page.evaluate("app.graph.serialize()")
    graph["extra"]["head_forcing_run"] = "another"
    loads = "app.graph.nodes.find(({ type }) => type === 'LoadVideo')"
    page.evaluate("() => app.graph.add(LiteGraph.createNode('LoadVideo'))")
    page.dispatch_event(
        f"[data-node-id='{page.evaluate(f'{loads}.id')}']", "drop", {"dataTransfer": data}
    )
    page.wait_for_function(f"{loads}.widgets[0].value.startsWith('dropped')")
    page.evaluate("(graph) => app.loadGraphData(graph)", graph)
    page.wait_for_timeout(300)
    assert not page.evaluate(f"{_VIDEO}.hasAttribute('src')")
    page.evaluate("() => app.graph.clear()")
    page.dispatch_event("#graph-canvas", "drop", {"dataTransfer": data})
    page.wait_for_function(f"{_VIDEO}?.src.startsWith('blob:') && {_VIDEO}.readyState >= 2")
    page.wait_for_function("document.querySelectorAll('.hf-bar.hf-pictured').length === 2")


@pytest.mark.same_page
@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
def test_the_demo_offers_no_draft_and_says_why(browser: Browser):
    opened(browser)
    browser.page.wait_for_function(
        "document.querySelector('.hf-shelf input[value=draft]').disabled"
    )
    assert "one size" in browser.page.get_attribute(".hf-shelf input[value=draft]", "title")
    browser.page.evaluate(f"""() => {{
      const between = LiteGraph.createNode("ModelSamplingSD3");
      app.graph.add(between);
      {of_node("LoadDemo")}.connect(0, between, 0);
      between.connect(0, {_SAMPLER}, {_SAMPLER}.findInputSlot("model"));
    }}""")
    browser.page.wait_for_timeout(1200)
    assert browser.page.locator(".hf-shelf input[value=draft]").is_disabled(), (
        "also behind other nodes"
    )


@pytest.mark.same_page
@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
def test_thirty_prompts_have_bars_that_can_be_hit(browser: Browser):
    prompts = "\n".join(f"{number // 6}:{number % 6}0 scene {number}" for number in range(30))
    browser.load_api(growing_graph("studio/thirty", seconds=300.0, prompts=prompts))
    page = browser.page
    page.wait_for_function("document.querySelectorAll('.hf-bar').length > 9")
    widths = page.evaluate(
        "[...document.querySelectorAll('.hf-bar')].map((bar) => bar.offsetWidth)"
    )
    assert sorted(widths)[len(widths) // 2] >= 30
    browser.look_at(of_node("PromptTimeline"))
    for number in (0, 2, 29):  # those that are out of sight have no bars
        page.evaluate(
            "(share) => { const all = document.querySelector('.hf-scroll'); all.scrollLeft = share * all.scrollWidth; }",
            number // 29,
        )
        bar = f"Prompt {number + 1} of 30: scene {number}"
        page.get_by_label(bar, exact=True).click()
        assert page.evaluate("document.activeElement.ariaLabel") == bar, "not an edge beside it"
