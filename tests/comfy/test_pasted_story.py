"""A story in another form in real ComfyUI: a paste and a dropped file are translated in the text box,
one undo brings them back, and a graph that holds one is rendered as its translation.
"""

from pathlib import Path

import pytest
from comfy_browser import Browser, of_node, of_widget
from comfy_graphs import BALL, CROSS, changed, demo_graph, queued, text_of

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
NODE = of_node("PromptTimeline")
TEXT = of_widget("PromptTimeline", "prompts")
SUBTITLES = (
    "1\n00:00:00,000 --> 00:00:02,000\na red ball\n\n2\n00:00:02,000 --> 00:00:04,000\na blue cross"
)
WRITTEN = "[0:00-0:02] a red ball\n[0:02-0:04] a blue cross"
SAYS = "read as 2 prompts from subtitles; 0:00 to 0:04"
COPY = """(text) => {
  const field = document.body.appendChild(document.createElement("textarea"));
  field.value = text;
  field.select();
}"""
DROP = """([place, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type: "text/plain" }));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(place).dispatchEvent(event);
  return event.defaultPrevented;
}"""


def copy(browser: Browser, text: str) -> None:
    """Copy a text as a person does, from another text box."""
    browser.page.evaluate(COPY, text)
    browser.page.keyboard.press("Control+c")
    browser.page.evaluate("document.body.lastElementChild.remove()")


def holds(browser: Browser, text: str) -> None:
    browser.page.wait_for_function(f"(text) => {TEXT}.value === text", arg=text)


def says(browser: Browser, sentence: str) -> None:
    script = "(says) => document.querySelector('.hf-status').textContent === says"
    browser.page.wait_for_function(script, arg=sentence)


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest, Nodes 2.0"], indirect=True)
@pytest.mark.same_page
def test_a_pasted_story_is_translated_at_once_and_one_undo_brings_it_back(browser):
    browser.load_workflow(FOLDER / "01 Demo without downloads.json")
    browser.look_at(NODE, scale=1.1)
    page = browser.page
    page.locator(".hf-bar").nth(5).wait_for()
    copy(browser, SUBTITLES)
    boxes = page.locator("textarea").all()
    before = page.evaluate(f"{TEXT}.value")
    (field,) = [box for box in boxes if box.input_value() == before]
    field.click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+v")
    holds(browser, WRITTEN)
    says(browser, SAYS)
    page.wait_for_timeout(500)
    assert page.evaluate(f"{TEXT}.value") == WRITTEN

    # the box's own undo, and that of the bars; what was pasted is shown as what it is rendered as
    page.keyboard.press("Control+z")
    holds(browser, SUBTITLES)
    says(browser, SAYS)
    page.wait_for_timeout(500)
    assert page.evaluate(f"{TEXT}.value") == SUBTITLES
    assert page.locator(".hf-bar").count() == 2
    page.locator(".hf-bar").first.focus()
    page.keyboard.press("Control+Shift+z")
    holds(browser, WRITTEN)
    page.locator(".hf-bar").first.focus()
    page.keyboard.press("Control+z")
    holds(browser, SUBTITLES)

    # a file is taken by the bars; a text that is no story stays, and the line says why
    assert page.evaluate(DROP, [".hf-timeline", "story.json", '["a fox", "a wolf"]'])
    holds(browser, "Scene 1: a fox\nScene 2: a wolf")
    says(browser, "read as 2 prompts from JSON")
    assert page.evaluate(DROP, [".hf-timeline", "story.txt", "0:00 a\n0:60 b"])
    holds(browser, "0:00 a\n0:60 b")
    says(browser, "line 2: '0:60' is not a time; after a colon the numbers go from 00 to 59")
    page.evaluate(DROP, [".hf-timeline", "picture.png", "0:00 a"])
    page.wait_for_timeout(500)
    assert page.evaluate(f"{TEXT}.value") == "0:00 a\n0:60 b"


def drop(browser: Browser, file: Path, x: float, y: float) -> None:
    """Drop a file on a place of the page, as the browser does for a person."""
    page = browser.page
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})
        page.wait_for_timeout(200)
    session.detach()


TITLE = f"""() => {{
  const [x, y] = app.canvas.ds.convertOffsetToCanvas([{NODE}.pos[0] + 120, {NODE}.pos[1] - 14]);
  const {{ left, top }} = app.canvas.canvas.getBoundingClientRect();
  return [x + left, y + top];
}}"""


@pytest.mark.slow
@pytest.mark.same_page
@pytest.mark.parametrize(
    "browser", ["comfy_floor", "comfy_latest", "comfy_latest, Nodes 2.0"], indirect=True
)
def test_a_text_file_is_dropped_on_the_text_box_the_bars_and_the_node(browser, tmp_path):
    browser.load_workflow(FOLDER / "01 Demo without downloads.json")
    browser.look_at(NODE, scale=1.0, top=220)
    page = browser.page
    page.locator(".hf-bar").nth(5).wait_for()
    before = page.evaluate(f"{TEXT}.value")
    (field,) = [box for box in page.locator("textarea").all() if box.input_value() == before]
    nodes = page.evaluate("app.graph.nodes.length")
    for name, place in (("box", field), ("bars", page.locator(".hf-timeline")), ("node", None)):
        file = tmp_path / f"{name}.json"
        file.write_text(f'["a fox on the {name}", "a wolf"]', encoding="utf-8")
        if place is None:
            x, y = page.evaluate(TITLE)
        else:
            box = place.bounding_box()
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        drop(browser, file, x, y)
        holds(browser, f"Scene 1: a fox on the {name}\nScene 2: a wolf")
        says(browser, "read as 2 prompts from JSON")
    assert page.evaluate("app.graph.nodes.length") == nodes, "ComfyUI took none of the files"
    assert browser.page_errors == []


@pytest.mark.slow
def test_a_graph_that_holds_another_form_renders_its_translation_and_the_report_shows_it(comfy):
    graph = demo_graph(seed=53)
    del graph["video"]
    written = f"0:00 {BALL}\n0:03 {CROSS}"
    assert "read as" not in text_of(queued(comfy, changed(graph, "timeline", prompts=written)))
    chat = f"- **0:00** {BALL}\n- **0:03** {CROSS}"
    report = text_of(queued(comfy, changed(graph, "timeline", prompts=chat)))
    assert "reused 9 blocks" in report, "the stored blocks of the written form"
    assert "the text of Prompt Timeline was read as 2 prompts from times; 0:00 to 0:03" in report
    assert f"0:00 {BALL}" in report and f"0:03 {CROSS}" in report
