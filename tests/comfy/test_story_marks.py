"""The story panel: markers, pictures of Scene References, and the button that changes a story while it
renders.
"""

import numpy as np
import pytest
from comfy_browser import Browser, of_node
from comfy_graphs import growing_graph
from PIL import Image
from story_panel import STORY, THEME, TOGGLE, TRACKER, noted, opened, text_of, until_text

pytestmark = [pytest.mark.slow, pytest.mark.same_page]

NODE = of_node("PromptTimeline")
MARKERS = f"JSON.stringify({NODE}.properties.headforcing_markers ?? [])"
FLAGS = ".hf-story .hf-marker"
LENGTH = 0.5625 + 0.75 * 8  # seconds of the blocks of a story of 6 seconds


def until_markers(editor: Browser, *wanted: tuple[float, str]) -> None:
    """Wait until the workflow has these markers and the panel shows them."""
    script = (
        "([all, count]) => "
        + MARKERS
        + " === all && "
        + (f"document.querySelectorAll('{FLAGS}').length === count")
    )
    marks = ",".join(f'{{"seconds":{seconds},"name":"{name}"}}' for seconds, name in wanted)
    editor.page.wait_for_function(script, arg=[f"[{marks}]", len(wanted)])


def at(editor: Browser, seconds: float) -> float:
    """Where a time of the story is on the screen."""
    box = editor.page.locator(".hf-story .hf-inner").bounding_box()
    assert box
    return box["x"] + box["width"] * seconds / LENGTH


def test_a_marker_is_set_named_moved_snapped_to_deleted_and_kept_with_the_workflow(
    browser: Browser,
):
    page = browser.page
    opened(browser)
    noted(browser)

    # by the menu of a bar, at the pointer where nothing plays; its name is typed at once
    track = page.locator(".hf-story .hf-track").bounding_box()
    assert track
    page.mouse.click(at(browser, 3.0), track["y"] + 40, button="right")
    page.locator(".hf-story-menu [role=menuitem]", has_text="Set a marker at 0:03").click()
    page.keyboard.type("drop")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{FLAGS}[value=drop]")
    (mark,) = page.evaluate(f"JSON.parse({MARKERS})")
    assert mark["name"] == "drop" and abs(mark["seconds"] - 3.0) < 0.02
    assert text_of(browser) == STORY, "the text knows nothing of it"
    noted(browser)

    # by keyboard: moved, named, deleted
    page.locator(FLAGS).focus()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("ArrowLeft")
    seconds = round(mark["seconds"] + 0.9, 3)
    until_markers(browser, (seconds, "drop"))
    page.keyboard.press("Enter")
    page.keyboard.type("x")
    page.keyboard.press("Escape")
    until_markers(browser, (seconds, "drop"))

    # a drag moves it, to a whole second nearby
    box = page.locator(FLAGS).bounding_box()
    assert box
    page.mouse.move(box["x"] + 4, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(at(browser, 4.5) + 4, box["y"] + 8, steps=3)
    page.mouse.move(at(browser, 5.0) + 6, box["y"] + 8, steps=3)
    page.mouse.up()
    until_markers(browser, (5, "drop"))

    # a name that is no text, as another program may write it, is left out
    page.evaluate(
        f"""() => {NODE}.setProperty('headforcing_markers', [
          {{ seconds: 1, name: {{ toString: null }} }}, {{ seconds: 2, name: "kept" }}, {{ seconds: 3 }}])"""
    )
    page.wait_for_function("(flags) => document.querySelectorAll(flags).length === 2", arg=FLAGS)

    # the beginning of a prompt jumps to it: 2.5 s is near, the block that is nearest to 2.44 another
    page.evaluate(
        f"() => {NODE}.setProperty('headforcing_markers', [{{ seconds: 2.46, name: '' }}])"
    )
    until_markers(browser, (2.46, ""))
    handle = page.locator(".hf-story .hf-handle").nth(1).bounding_box()
    assert handle
    found = []
    # blocks begin at 2.0625 and 2.8125, and the middle between them is 2.4375
    for keys in (["Alt"], []):
        for key in keys:
            page.keyboard.down(key)
        page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + 30)
        page.mouse.down()
        page.mouse.move(at(browser, 2.3), handle["y"] + 30, steps=2)
        page.mouse.move(at(browser, 2.43), handle["y"] + 30, steps=2)
        label = page.locator(".hf-story .hf-bar").nth(1).get_attribute("aria-valuenow")
        found.append(label)
        page.keyboard.press("Escape")
        page.mouse.up()
        for key in keys:
            page.keyboard.up(key)
    assert found == ["3", "4"]

    # what is saved has it, and so has the graph's undo
    saved = page.evaluate("app.graph.serialize()")
    noted(browser)
    page.locator(FLAGS).focus()
    page.keyboard.press("Delete")
    until_markers(browser)
    noted(browser)
    page.evaluate(f"() => {TRACKER}.undo()")
    until_markers(browser, (2.46, ""))
    page.evaluate("() => app.graph.clear()")
    page.wait_for_function(f"document.querySelectorAll('{FLAGS}').length === 0")
    page.evaluate("(graph) => app.loadGraphData(graph)", saved)
    until_markers(browser, (2.46, ""))

    # two that would cover each other are one; the menu of one deletes it
    page.locator(FLAGS).click(button="right")
    page.locator(".hf-story-menu [role=menuitem]", has_text="Delete").click()
    until_markers(browser)


def test_the_pictures_of_scene_references_stand_by_the_words_that_name_them(browser: Browser):
    page = browser.page
    for name, grey in (("hf_hero.png", 90), ("hf_room.png", 200)):
        pixels = np.full((48, 64, 3), grey, np.uint8)
        Image.fromarray(pixels).save(browser.server.input_dir / name)
    graph = growing_graph("marks/r", prompts="0:00 @hero walks\n0:03 a blue cross")
    for number, name in enumerate(("hf_hero.png", "hf_room.png"), 1):
        graph[f"load{number}"] = {"class_type": "LoadImage", "inputs": {"image": name}}
    names = {"name_1": "hero", "name_2": "room"}
    images = {f"image_{number}": [f"load{number}", 0] for number in (1, 2)}
    graph["pictures"] = {"class_type": "HeadForcingReferences", "inputs": {**names, **images}}
    graph["timeline"]["inputs"]["references"] = ["pictures", 0]
    browser.load_api(graph)
    page.evaluate(TOGGLE)
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 2")
    shown = """() => [...document.querySelectorAll(".hf-reference")].map((each) =>
      [each.matches(".hf-named"), each.querySelector("img").naturalWidth, each.querySelector("input").value])"""
    page.wait_for_function(
        "[...document.querySelectorAll('.hf-reference img')].filter((each) => each.naturalWidth)"
        ".length === 2"
    )
    assert page.evaluate(shown) == [[True, 64, "@hero"], [False, 64, "@room"]]
    page.locator(".hf-story .hf-bar").nth(1).click()
    page.wait_for_function("document.querySelectorAll('.hf-reference.hf-named').length === 0")
    page.get_by_label("Put @room into the words of the prompt").click()
    until_text(browser, "0:03 a blue cross @room")
    page.wait_for_function("document.querySelectorAll('.hf-reference.hf-named').length === 1")
    assert page.evaluate(shown) == [[False, 64, "@hero"], [True, 64, "@room"]]


_STYLE = """() => {
  const button = document.querySelector(".hf-live-story input");
  const style = getComputedStyle(button);
  return [button.disabled, Number(style.opacity), style.cursor, style.borderTopStyle, style.backgroundColor];
}"""
_LIVE = """(running) => {
  const { id } = app.graph.nodes.find(({ type }) => type === "HeadForcingPromptTimeline");
  const detail = { running, prompt_id: "p", node_id: String(id), workflow: "", story: { prompts: "others" } };
  app.api.dispatchEvent(new CustomEvent("headforcing.story", { detail }));
}"""


def test_the_button_that_changes_a_running_story_looks_disabled_until_one_runs_that_has_other_prompts(
    browser: Browser,
):
    page = browser.page
    browser.load_api(growing_graph("marks/b", prompts=STORY))
    page.wait_for_selector(".hf-live-story input")
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    grounds = []
    try:
        for theme in ("light", "dark"):
            page.evaluate(THEME, theme)
            page.wait_for_timeout(300)
            # at once, since the server, which is asked now and then, knows of no render
            on, off = page.evaluate(
                f"() => [true, false].map((now) => {{ ({_LIVE})(now); return ({_STYLE})(); }})"
            )
            assert off[0] and off[1] < 0.7 and off[2:4] == ["default", "dashed"], theme
            assert off[4] == "rgba(0, 0, 0, 0)", "no ground of a button"
            assert on[:4] == [False, 1, "pointer", "solid"] and on[4] != off[4], theme
            grounds.append(on[4])
    finally:
        page.evaluate(THEME, "dark")
    assert grounds[0] != grounds[1], "its colour is the theme's"
