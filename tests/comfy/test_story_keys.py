"""Keys in the story panel: undo after a click beside the bars, shortcuts of ComfyUI, and the button
of the panel on a subgraph's face."""

from pathlib import Path

import pytest
from comfy_browser import Browser
from story_panel import STORY, note_runs, opened, runs, text_of, until_text
from workflow_blueprint import NAME as BLUEPRINT

pytestmark = [pytest.mark.slow, pytest.mark.same_page]

ROOT = Path(__file__).resolve().parents[2]
ASKS = ".p-dialog, [role=dialog]"  # ComfyUI asks for the name of a workflow that it saves
OPTION_Y = """() => {
  const press = { key: "¥", code: "KeyY", altKey: true, bubbles: true };
  document.body.dispatchEvent(new KeyboardEvent("keydown", press));
}"""  # on a Mac
BARS = "document.querySelectorAll('.hf-story .hf-bar').length"


def test_undo_works_after_a_click_beside_the_bars(browser: Browser):
    """One step goes back, not one by the panel and another by the graph."""
    page = browser.page
    opened(browser)
    for words in ("a violet ball", "a white ball"):
        page.locator(".hf-story .hf-bar").nth(0).click()
        page.locator(".hf-story textarea.hf-text").fill(words)
        until_text(browser, words)
        page.keyboard.press("Escape")
        page.wait_for_timeout(1100)  # so that they are two steps
    page.locator(".hf-story .hf-ruler").click(position={"x": 300, "y": 3})
    assert page.evaluate("document.activeElement.value") == "a white ball"
    page.keyboard.press("Control+z")
    until_text(browser, "a violet ball")
    page.wait_for_timeout(500)
    assert "a violet ball" in text_of(browser)
    page.keyboard.press("Control+Shift+z")
    until_text(browser, "a white ball")


def test_shortcuts_of_comfyui_work_in_the_panel(browser: Browser):
    page = browser.page
    opened(browser)
    note_runs(browser)
    page.locator(".hf-story-takes").click(position={"x": 5, "y": 5})
    page.keyboard.press("Control+Enter")
    assert runs(browser, 1) == [STORY]
    page.locator(".hf-story .hf-bar").nth(0).click()
    for where in (".hf-story .hf-bar.hf-selected", ".hf-story textarea.hf-text"):
        page.locator(where).focus()
        page.keyboard.press("Control+s")
        page.locator(ASKS).first.wait_for()
        page.keyboard.press("Escape")
        page.wait_for_function(f"document.querySelector('{ASKS}') === null")
    page.locator(".hf-story textarea.hf-text").focus()
    page.keyboard.press("Alt+y")
    page.wait_for_selector(".hf-home .hf-bar")
    page.evaluate(OPTION_Y)
    page.wait_for_selector(".hf-story .hf-bar")


def test_the_button_on_the_face_of_a_subgraph_opens_the_story_in_it(browser: Browser):
    page = browser.page
    browser.load_workflow(ROOT / "subgraphs" / f"{BLUEPRINT}.json")
    page.keyboard.press("Escape")
    page.evaluate(
        """() => {
          const other = LiteGraph.createNode("HeadForcingPromptTimeline");
          app.graph.add(other);
          other.widgets.find(({ name }) => name === "prompts").value = "0:00 a lone tower";
          app.graph.nodes.reverse();
          other.pos = [2000, 0];
        }"""
    )
    browser.look_at("app.graph.nodes.find((node) => node.subgraph)")
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 7")
    button = "input[value='⤢']"
    face = page.locator(".hf-home", has=page.locator(".hf-bar").nth(5))
    face.locator(button).click()
    page.wait_for_selector(".hf-story .hf-bar")
    page.wait_for_timeout(500)
    assert page.evaluate(BARS) == 6
