"""The story panel of a live video by messages of the server alone: nothing is rendered."""

import json
from pathlib import Path

import pytest
from comfy_browser import Browser
from comfy_graphs import BALL, changed
from comfy_harness import ComfyServer
from live_page import live_graph
from story_panel import STORY, TEXT, TOGGLE, TRACKER, noted, opened, text_of, undo_until, until_text
from workflow_blueprint import NAME as BLUEPRINT

SUBGRAPHS = Path(__file__).resolve().parents[2] / "subgraphs"
TELL = """({ running = true, story = {}, ...live }) => {
  const find = (graph, ids) => {
    for (const node of graph.nodes) {
      const here = [...ids, node.id];
      if (node.type === "HeadForcingPromptTimeline") return here.join(":");
      const inner = node.subgraph && find(node.subgraph, here);
      if (inner) return inner;
    }
  };
  const node_id = find(app.graph, []);
  const about = { prompt_id: "one", node_id, workflow: "", changed_by: "", story };
  const detail = { ...about, running, live: { fps: 16, ...live } };
  app.api.dispatchEvent(new CustomEvent("headforcing.story", { detail }));
}"""
NOTE_PROMPTS = """() => {
  window.__performed = [];
  const { fetchApi } = app.api;
  app.api.fetchApi = async function (route, options, ...rest) {
    if (route !== "/headforcing/perform") return fetchApi.call(this, route, options, ...rest);
    const body = JSON.parse(options.body);
    if (!body.expected) window.__performed.push(body); // no prompt that is being typed
    return new Response(JSON.stringify({ seconds: 9 }));
  };
}"""


def performed(browser: Browser, number: int) -> dict[str, object]:
    """The last of so many requests of the page."""
    browser.page.wait_for_function("(count) => window.__performed.length === count", arg=number)
    return json.loads(browser.page.evaluate("JSON.stringify(window.__performed.at(-1))"))


@pytest.mark.slow
def test_the_live_video_of_a_story_in_a_subgraph_is_shown(browser: Browser):
    page = browser.page
    browser.load_workflow(SUBGRAPHS / f"{BLUEPRINT}.json")
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-story .hf-bar")
    page.evaluate(TELL, {})
    page.wait_for_selector(".hf-is-live .hf-live-words")


@pytest.mark.slow
def test_buttons_leave_what_is_typed_and_stay_themselves_and_the_story_is_only_performed(
    browser: Browser,
):
    page = browser.page
    opened(browser)
    page.evaluate(NOTE_PROMPTS)
    page.evaluate(TELL, {"kept": [3, 1]})
    field = page.locator(".hf-is-live .hf-live-words")
    field.fill("a fox")
    page.locator(".hf-live-chips input[value=blue]").click()
    assert performed(browser, 1)["words"] == "a blue ball", "of the prompt that is shown"
    page.locator(".hf-live-row input[value='same again']").click()
    assert performed(browser, 2)["words"] == ""
    assert field.input_value() == "a fox"
    page.wait_for_selector(".hf-live-chips input[value=green][aria-pressed=true]")

    scene = page.locator(".hf-live-scene")
    assert scene.count() == 2
    scene.nth(1).focus()
    page.evaluate(TELL, {"kept": [2, 3, 1]})
    page.wait_for_function("document.querySelectorAll('.hf-live-scene').length === 3")
    assert page.evaluate("document.activeElement.textContent") == "3"
    page.keyboard.press("Enter")
    assert performed(browser, 3)["recall"] == 3

    page.locator(".hf-story .hf-bar").nth(1).focus()
    page.keyboard.press("Delete")
    page.wait_for_function(
        "document.querySelector('.hf-story .hf-status').textContent.startsWith('A live video runs')"
    )
    assert text_of(browser) == STORY
    page.wait_for_function("document.querySelector('.hf-story-script').readOnly")

    stop = page.locator(".hf-live input[value='■ Stop']")
    stop.click()
    assert performed(browser, 4)["stop"] is True
    page.wait_for_timeout(500)  # the panel looks every 200 ms
    assert stop.is_disabled()
    page.evaluate(TELL, {"running": False})
    page.wait_for_selector(".hf-story-grid:not(.hf-is-live)")
    page.wait_for_function("!document.querySelector('.hf-story-script').readOnly")


@pytest.mark.slow
@pytest.mark.parametrize(
    "browser", ["comfy", "comfy_latest, Nodes 2.0", "comfy_floor"], indirect=True
)
def test_prompts_that_the_server_writes_are_one_step_of_undo(browser: Browser):
    page = browser.page
    opened(browser)
    page.locator(".hf-story .hf-bar").nth(2).focus()
    page.keyboard.press("Delete")
    page.wait_for_function(f"!{TEXT}.value.includes('a green star')")
    before = story = text_of(browser)
    noted(browser)
    steps = page.evaluate(f"{TRACKER}.undoQueue.length")
    page.evaluate(TELL, {"story": {"prompts": story}})
    for number in range(2):
        story += f"\n0:0{6 + number} a white star"
        page.evaluate(TELL, {"story": {"prompts": story}})
        until_text(browser, story)
        noted(browser)
    assert page.evaluate(f"{TRACKER}.undoQueue.length") == steps + 1
    assert page.evaluate("app.extensionManager.workflow.activeWorkflow.isModified")

    page.evaluate(TELL, {"running": False})
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 4")
    page.locator(".hf-story .hf-bar").nth(0).focus()
    page.keyboard.press("Control+z")
    page.wait_for_function(f"(before) => {TEXT}.value === before", arg=before)
    undo_until(browser, STORY)

    page.evaluate(TELL, {"story": {"prompts": STORY}})
    typed = f"{story}\n0:09 a red cube"
    browser.write("PromptTimeline", prompts=typed)
    page.evaluate(TELL, {"story": {"prompts": f"{story}\n0:08 a red cross"}})
    until_text(browser, "a red cross")
    page.evaluate(f"() => {TRACKER}.undo()")
    until_text(browser, typed)


@pytest.mark.slow
def test_live_can_be_pressed_again_after_it_was_refused(browser: Browser):
    page = browser.page
    opened(browser, batch_size=2)
    page.locator(".hf-live-begin").click()
    assert "set batch_size to 1" in browser.wait_done()
    page.wait_for_function("!document.querySelector('.hf-live-begin').disabled")


def test_a_live_video_without_a_vae_is_refused(comfy: ComfyServer):
    graph = changed(live_graph(2, BALL), "sampler", live=True)
    del graph["sampler"]["inputs"]["vae"]
    result = comfy.queue(graph)
    assert result.outcome == "error" and "connect a VAE to vae of the sampler" in result.error
