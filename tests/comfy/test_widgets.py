"""The pack's widgets in a real browser: their order, graph undo, the properties panel, app mode and
subgraphs.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from comfy_browser import Browser, of_node, of_widget
from comfy_graphs import changed, demo_graph, node
from comfy_harness import PACK_FOLDER
from make_workflows import numbers_of
from story_panel import TOGGLE
from workflow_blueprint import NAME as BLUEPRINT
from workflow_graphs import WORKFLOWS

FOLDER = Path(__file__).resolve().parents[2]
DEMO = FOLDER / "workflows" / "01 Demo without downloads.json"
NODE = of_node("PromptTimeline")
TEXT = of_widget("PromptTimeline", "prompts")
BARS = "[...document.querySelectorAll('.hf-bar')].map((bar) => bar.value).join()"
INNER_VIDEO = """[...app.graph.subgraphs.values()].flatMap(({ nodes }) => nodes)
  .find(({ type }) => type === "HeadForcingSampler")
  .widgets.find(({ name }) => name === "player").element.querySelector("video")"""
NEW_NODES = """() => ["PromptTimeline", "LoadRun", "Sampler"].map((name) =>
  LiteGraph.createNode(`HeadForcing${name}`).widgets.map((widget) => widget.name))"""

LATE = ("timeline/node", "player/messages", "fold_advanced")  # files of the pack that are held back


def shows(browser: Browser, bars: str) -> None:
    browser.page.wait_for_function(f"(bars) => {BARS} === bars", arg=bars)


def note_change(browser: Browser) -> None:
    """Let the graph's undo see the state of now, as a click does."""
    browser.page.evaluate(
        """() => {
          const { changeTracker } = app.extensionManager.workflow.activeWorkflow;
          (changeTracker.captureCanvasState ?? changeTracker.checkState).call(changeTracker);
        }"""
    )
    # the newest frontend counts what follows at once to the same change
    browser.page.wait_for_timeout(200)


@pytest.mark.thorough
@pytest.mark.slow
def test_widgets_have_one_order_whichever_file_of_the_pack_comes_last(browser: Browser):
    """Browsers load the files at once and run them as they come."""
    page = browser.page
    ours = [name for name in browser.server.get_json("/extensions") if PACK_FOLDER in name]
    others = (
        "performance.getEntriesByType('resource').filter((each) => "
        f"each.name.includes('{PACK_FOLDER}')"
    )
    others += f" && each.name.endsWith('.js')).length >= {len(ours) - 1}"
    found: list[Any] = [page.evaluate(NEW_NODES)]
    for late in LATE if os.environ.get("HEADFORCING_EVERYTHING") else LATE[:2]:
        held = page.context.new_cdp_session(page)
        held.send("Fetch.enable", {"patterns": [{"urlPattern": f"*/{late}.js"}]})
        with page.expect_request(f"**/{late}.js"):
            page.reload(wait_until="commit")
        page.wait_for_function(others)
        held.send("Fetch.disable")  # lets it go
        browser.wait_until_open()
        held.detach()
        found.append(page.evaluate(NEW_NODES))
    assert all(order == found[0] for order in found), found
    assert found[0][0][-3:] == ["advanced inputs", "timeline", "live_story"]


@pytest.mark.slow
@pytest.mark.same_page
def test_graph_undo_keeps_the_bars_with_their_text_and_an_edit_that_cannot_be_taken_says_so(
    browser: Browser,
):
    """The graph's undo makes all nodes anew; Nodes 2.0 keeps the elements of the old ones on the
    page.
    """
    page = browser.page
    browser.load_workflow(DEMO)
    browser.look_at(NODE)
    page.locator(".hf-bar").nth(2).wait_for()
    browser.write("PromptTimeline", prompts="0:00 one\n0:20 two")
    shows(browser, "one,two")
    note_change(browser)
    browser.write("PromptTimeline", prompts="0:00 one\n0:20 three")
    shows(browser, "one,three")
    note_change(browser)
    page.evaluate("() => app.extensionManager.workflow.activeWorkflow.changeTracker.undo()")
    page.wait_for_function(f"{TEXT}.value.includes('two')")
    shows(browser, "one,two")
    page.locator(".hf-bar").nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"{TEXT}.value === '0:00 one\\n0:20.812 two'")
    assert page.locator(".hf-timeline").count() == 1

    # bars show where they differ; an edit of a text that another script has changed in the same
    # moment is refused
    story = "0:00 a red ball in the teal room\n0:10 a red ball in the navy room\n0:20 a star"
    browser.write("PromptTimeline", prompts=story)
    shows(browser, "1 the teal room,2 the navy room,a star")
    page.locator(".hf-bar").nth(2).focus()
    page.evaluate(
        f"""() => {{
          {TEXT}.value = "0:00 one\\n0:20 two";
          const pressed = new KeyboardEvent("keydown", {{ key: "ArrowRight", bubbles: true }});
          document.activeElement.dispatchEvent(pressed);
        }}"""
    )
    page.wait_for_function(
        "document.querySelector('.hf-status').textContent.includes('was changed elsewhere')"
    )
    shows(browser, "one,two")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
@pytest.mark.same_page
def test_the_properties_panel_leaves_the_timeline_on_its_node(browser: Browser):
    page = browser.page
    browser.load_workflow(DEMO)
    browser.look_at(NODE)
    page.locator(".hf-bar").nth(2).wait_for()
    page.wait_for_timeout(500)
    width = page.locator(".hf-timeline").bounding_box()["width"]
    page.evaluate(f"() => app.canvas.selectNode({NODE})")
    page.evaluate("() => app.extensionManager.setting.set('Comfy.RightSidePanel.IsOpen', true)")
    panel = page.locator("[data-testid=properties-panel]")
    panel.get_by_text("seconds", exact=True).first.wait_for()
    page.wait_for_timeout(300)
    assert panel.locator(".hf-timeline, .hf-live-story").count() == 0, "the panel has taken them"
    for name in ("timeline", "live_story"):
        assert panel.get_by_text(name, exact=True).count() == 0, "an empty row"
    page.evaluate("() => app.extensionManager.setting.set('Comfy.RightSidePanel.IsOpen', false)")
    page.wait_for_timeout(300)
    assert abs(page.locator(".hf-timeline").bounding_box()["width"] - width) < 2


PREFIX = "made/%date:yyyy-MM-dd%/%HeadForcingSampler.seed%-%width%"


@pytest.mark.slow
@pytest.mark.parametrize(
    "browser", ["comfy_floor", "comfy", "comfy_latest, Nodes 2.0"], indirect=True
)
@pytest.mark.repeat("comfy_floor]", "comfy]")
def test_a_prefix_is_filled_in_as_that_of_comfyuis_save_nodes_and_its_text_stays(browser: Browser):
    page = browser.page
    graph = demo_graph(filename_prefix=PREFIX, seed=7)
    outputs = {"video": ["demo", 0], "filename_prefix": PREFIX}
    graph["finish"] = node("HeadForcingFinishVideo", **outputs, multiplier=2)
    graph["save"] = node("SaveVideo", **outputs, format="auto", codec="auto")
    graph["words"] = node("PrimitiveString", value=PREFIX)
    graph = changed(graph, "video", filename_prefix=["words", 0])
    browser.load_api(graph)
    with page.expect_request("**/prompt") as sent:
        page.evaluate("() => { app.queuePrompt(0); }")
    prompt = sent.value.post_data_json["prompt"]
    found = {each["class_type"]: each["inputs"].get("filename_prefix") for each in prompt.values()}
    assert re.fullmatch(r"made/20\d\d-\d\d-\d\d/7-%width%", found["SaveVideo"])
    assert found["HeadForcingSampler"] == found["HeadForcingFinishVideo"] == found["SaveVideo"]
    assert isinstance(found["HeadForcingDecodeVideo"], list), "a link, as before"
    assert browser.widgets("HeadForcingSampler")["filename_prefix"] == PREFIX

    # on the face of a subgraph, too
    browser.load_workflow(FOLDER / "subgraphs" / f"{BLUEPRINT}.json")
    face = "app.graph.nodes[0].widgets.find((widget) => widget.name === 'filename_prefix')"
    page.evaluate(f"(prefix) => {{ {face}.value = prefix; }}", PREFIX)
    assert re.fullmatch(
        r"made/20\d\d-\d\d-\d\d/\d+-%width%", browser.sent("Sampler")["filename_prefix"]
    )
    assert page.evaluate(f"{face}.value") == PREFIX


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
@pytest.mark.same_page
def test_the_app_has_its_controls_and_the_timeline_in_place_of_the_text(browser: Browser):
    page = browser.page
    app = WORKFLOWS["12 Minute video as an app"]
    file = FOLDER / "workflows" / "12 Minute video as an app.json"
    numbers = numbers_of(app)
    assert json.loads(file.read_text(encoding="utf-8"))["extra"]["linearData"] == {
        "inputs": [[numbers[node], widget] for node, widget in app.controls],
        "outputs": [numbers[node] for node in app.results],
    }
    browser.load_workflow(file)
    controls = page.locator("[data-testid=app-mode-widget-item]")
    controls.locator(".hf-bar").nth(5).wait_for()
    assert controls.count() == len(app.controls) and controls.get_by_text("0:10").count() == 1, (
        "its ruler, and no text"
    )
    if page.get_by_role("button", name="Skip").count():  # a tour of the newest frontend
        page.get_by_role("button", name="Skip").click()
    page.evaluate(TOGGLE)  # the bottom panel has no place there: the editor stays in the app
    page.wait_for_timeout(600)
    assert page.locator(".hf-timeline").count() == 1
    controls.locator(".hf-bar").nth(1).click()
    page.locator(".hf-text").fill("A snail")
    page.wait_for_function(
        "app.graph.nodes.some((node) => node.widgets?.[0]?.value?.includes?.('0:10 A snail\\n'))"
    )
    # back in the graph its node has it again
    page.evaluate("() => app.extensionManager.command.execute('Comfy.ToggleLinear')")
    controls.first.wait_for(state="detached")
    page.wait_for_selector(".hf-story .hf-bar")  # it is lent to the panel, which is seen now,
    page.evaluate("() => app.extensionManager.command.execute('Comfy.ToggleLinear')")
    controls.locator(".hf-bar").nth(1).wait_for()  # and the app has it again
    assert "A snail" in controls.locator(".hf-bar").nth(1).get_attribute("aria-label")
    page.evaluate("() => app.extensionManager.command.execute('Comfy.ToggleLinear')")
    page.wait_for_selector(".hf-story .hf-bar")
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-home .hf-bar")
    assert page.locator(".hf-timeline").count() == 1, "one editor, wherever it stands"


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest, Nodes 2.0"], indirect=True)
@pytest.mark.same_page
@pytest.mark.repeat("comfy_floor]")
def test_a_subgraph_shows_the_timeline_of_the_text_on_its_face(browser: Browser):
    page = browser.page
    face = "app.graph.nodes[0]"
    browser.load_workflow(FOLDER / "subgraphs" / f"{BLUEPRINT}.json")
    page.keyboard.press("Escape")  # the oldest frontend lists missing models
    browser.look_at(face)
    page.locator(".hf-bar").nth(5).wait_for()

    def value(name: str) -> str:
        return f"{face}.widgets.find((widget) => widget.name === '{name}').value"

    def waits_for(text: str) -> None:
        page.wait_for_function(f"(text) => {value('prompts')} === text", arg=text)

    assert len(page.evaluate(f"{face}.serialize().widgets_values")) == 9, (
        "the timeline is not saved"
    )
    moved = page.evaluate(value("prompts")).replace("0:10 ", "0:11.062 ")
    page.wait_for_timeout(500)
    page.locator(".hf-bar").nth(1).click()
    page.keyboard.press("ArrowRight")
    waits_for(moved)
    page.keyboard.press("d")
    page.wait_for_function(f"{value('seconds')} === 69")
    page.keyboard.press("Control+z")
    waits_for(moved)
    sent = browser.sent("PromptTimeline")
    assert (sent["prompts"], sent["seconds"]) == (moved, 60)

    # what was edited is there when the file is opened again, and the nodes that were are gone
    page.evaluate(f"() => {{ window.__video = {INNER_VIDEO}; window.__video.src = 'data:,'; }}")
    page.evaluate(
        "async () => app.loadGraphData(JSON.parse(JSON.stringify((await "
        "app.graphToPrompt()).workflow)))"
    )
    waits_for(moved)
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 6")
    assert not page.evaluate("window.__video.hasAttribute('src')"), "it would play on"
    assert page.evaluate(f"{INNER_VIDEO} !== window.__video")


def earlier_options() -> dict[str, Any]:
    """A graph of an earlier version: Head Forcing Options with the three inputs that are gone, and
    a linked text.
    """
    values = [
        "longlive",
        "longlive",
        "1, 0.5",
        4,
        6,
        0.5,
        2,
        "profile",
        0.8,
        0.5,
        "prompt",
        "window_frames=9",
    ]
    names = [
        "method",
        "model_family",
        "sigmas",
        "episodic_frames",
        "recent_frames",
        "novelty_threshold",
    ]
    names += [
        "memory_every_blocks",
        "roles",
        "sink_gate",
        "rope_jitter",
        "compression",
        "method_options",
    ]
    inputs = [
        {"name": name, "type": "STRING", "widget": {"name": name}, "link": None} for name in names
    ]
    inputs[-1]["link"] = 1
    options = {"id": 1, "type": "HeadForcingOptions", "inputs": inputs, "widgets_values": values}
    text = {"id": 2, "type": "PrimitiveString", "widgets_values": ["sink_frames=1"]}
    text |= {
        "inputs": [],
        "outputs": [{"name": "STRING", "type": "STRING", "links": [1], "slot_index": 0}],
    }
    options["outputs"] = [{"name": "options", "type": "HEAD_FORCING_OPTIONS", "links": None}]
    place = {"flags": {}, "mode": 0, "properties": {}, "size": [300, 400]}
    nodes = [
        {**each, **place, "order": 0, "pos": [400 * each["id"], 0]} for each in (options, text)
    ]
    links = [[1, 2, 0, 1, len(names) - 1, "STRING"]]
    return {
        "last_node_id": 2,
        "last_link_id": 1,
        "nodes": nodes,
        "links": links,
        "groups": [],
        "version": 0.4,
    }


@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest"], indirect=True)
@pytest.mark.same_page
@pytest.mark.repeat("comfy_floor]")
def test_options_saved_by_an_earlier_version_open_with_every_other_value_at_its_place(
    browser: Browser,
):
    browser.page.evaluate("(graph) => app.loadGraphData(graph)", earlier_options())
    browser.page.wait_for_timeout(300)
    sent = browser.sent("Options")
    assert sent.pop("method_options") == ["2", 0]
    assert sent == {
        "method": "longlive",
        "model_family": "longlive",
        "sigmas": "1, 0.5",
        "episodic_frames": 4,
        "recent_frames": 6,
        "novelty_threshold": 0.5,
        "memory_every_blocks": 2,
        "roles": "profile",
    }
    assert browser.widgets("HeadForcingOptions")["method_options"] == "window_frames=9"
    saved = browser.page.evaluate("() => app.graph.serialize()")
    browser.page.evaluate("(graph) => app.loadGraphData(graph)", saved)
    browser.page.wait_for_timeout(300)
    assert browser.sent("Options") == sent | {"method_options": ["2", 0]}
