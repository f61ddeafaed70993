"""The timeline outside its node: in app mode, and on the face of a subgraph."""

import json
from pathlib import Path

import pytest
from comfy_browser import Browser
from workflow_blueprint import NAME as BLUEPRINT

FOLDER = Path(__file__).resolve().parents[2]
FACE = "app.graph.nodes[0]"


class Face:
    """The timeline on the only node of a page, a subgraph."""

    def __init__(self, browser: Browser):
        self.page = browser.page
        self.bars = self.page.locator(".hf-bar")

    def text(self) -> str:
        return self.page.evaluate(self.value("prompts"))

    def value(self, name: str) -> str:
        return f"{FACE}.widgets.find((widget) => widget.name === '{name}').value"

    def waits_for(self, text: str) -> None:
        self.page.wait_for_function(f"(text) => {self.value('prompts')} === text", arg=text)


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest"], indirect=True)
def test_the_app_has_the_timeline_in_place_of_the_text(browser: Browser):
    page = browser.page
    browser.load_workflow(FOLDER / "workflows" / "minute_video_app.json")
    controls = page.locator("[data-testid=app-mode-widget-item]")
    controls.locator(".hf-bar").nth(5).wait_for()
    assert controls.count() == 4 and controls.get_by_text("0:10").count() == 1, "its ruler, and no text"
    if page.get_by_role("button", name="Skip").count():  # a tour of the newest frontend
        page.get_by_role("button", name="Skip").click()
    controls.locator(".hf-bar").nth(1).click()
    page.locator(".hf-text").fill("A snail")
    page.wait_for_function("app.graph.nodes.some((node) => node.widgets?.[0]?.value?.includes?.('0:10 A snail\\n'))")
    sent = next(n for n in browser.api_prompt().values() if n["class_type"] == "HeadForcingPromptTimeline")
    assert "\n0:10 A snail\n" in sent["inputs"]["prompts"]
    # back in the graph its node has it again
    page.evaluate("() => app.extensionManager.command.execute('Comfy.ToggleLinear')")
    page.wait_for_timeout(1000)
    assert page.locator(".hf-timeline").count() == 1 and controls.count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest, Nodes 2.0"], indirect=True)
def test_a_subgraph_shows_the_timeline_of_the_text_on_its_face(browser: Browser):
    page, face = browser.page, Face(browser)
    browser.load_workflow(FOLDER / "subgraphs" / f"{BLUEPRINT}.json")
    page.keyboard.press("Escape")  # the oldest frontend lists missing models
    browser.look_at(FACE)
    face.bars.nth(5).wait_for()
    before, values = face.text(), page.evaluate(f"{FACE}.serialize().widgets_values")
    assert len(values) == 9, "the timeline is not saved"
    page.wait_for_timeout(500)
    face.bars.nth(1).click()
    page.keyboard.press("ArrowRight")
    moved = before.replace("0:10 ", "0:11.062 ")
    face.waits_for(moved)
    page.keyboard.press("d")
    page.wait_for_function(f"{face.value('seconds')} === 69")
    page.keyboard.press("Control+z")
    face.waits_for(moved)
    sent = next(n for n in browser.api_prompt().values() if n["class_type"] == "HeadForcingPromptTimeline")
    assert (sent["inputs"]["prompts"], sent["inputs"]["seconds"]) == (moved, 60)

    # what was edited is there when the file is opened again
    saved = json.loads(page.evaluate("async () => JSON.stringify((await app.graphToPrompt()).workflow)"))
    page.evaluate("(graph) => app.loadGraphData(graph)", saved)
    face.waits_for(moved)
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 6")
