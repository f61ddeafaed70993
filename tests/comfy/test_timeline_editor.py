"""The visual timeline on Prompt Timeline in a real browser."""

import json
from pathlib import Path

import pytest
from comfy_browser import Browser, of_node, of_widget

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
STORY = "0:00 a red ball\n0:10 [blend 2] a <img src=x onerror=alert(1)> star\n0:20 a cyan ring"
NODE = of_node("PromptTimeline")
TEXT = of_widget("PromptTimeline", "prompts")
EDITORS = """async () => {
  const style = [...document.querySelectorAll("link")].find(({ href }) => href.endsWith("/timeline.css"));
  window.__editors = (await import(new URL("../shared.js", style.href))).editors;
}"""


class Editor:
    """The timeline of the first Prompt Timeline node on a page."""

    def __init__(self, browser: Browser):
        self.page = browser.page
        self.browser = browser
        self.bars, self.status = self.page.locator(".hf-bar"), self.page.locator(".hf-status")

    def text(self) -> str:
        return self.page.evaluate(f"{TEXT}.value")

    def write(self, text: str) -> None:
        """Change the text widget as typing in it does, to a story; its bars are there when this
        ends.
        """
        self.browser.write("PromptTimeline", prompts=text)
        self.page.evaluate(EDITORS)
        self.page.wait_for_function(f"window.__editors.get({NODE}).isCurrent")

    def waits_for(self, text: str) -> None:
        """Wait until the text widget holds this text."""
        self.page.wait_for_function(f"(text) => {TEXT}.value === text", arg=text)

    def press(self, key: str, text: str) -> None:
        """Press a key, which makes this of the text."""
        self.page.keyboard.press(key)
        self.waits_for(text)

    def waits_for_bars(self, *words: str) -> None:
        script = (
            "(all) => JSON.stringify([...document.querySelectorAll('.hf-bar')].map((bar) => "
            "bar.ariaLabel.replace(/^.*?: /, ''))) === all"
        )
        self.page.wait_for_function(
            script, arg=json.dumps(words, separators=(",", ":"), ensure_ascii=False)
        )

    def focus_bar(self, index: int, *words: str) -> None:
        """Focus a bar once the bars show the text: one that is drawn anew loses the focus, and a
        key meets nothing.
        """
        self.waits_for_bars(*words)
        self.bars.nth(index).focus()

    def shows(self, words: str) -> None:
        """Wait until the line below the bars, or its tooltip, says this."""
        status = (
            "(({ textContent, title }) => `${textContent} "
            "${title}`)(document.querySelector('.hf-status'))"
        )
        script = f"(words) => {status}.includes(words)"
        self.page.wait_for_function(script, arg=words)

    def seconds(self) -> float:
        return self.page.evaluate(
            f"{NODE}.widgets.find((widget) => widget.name === 'seconds').value"
        )

    def drag_bar(self, index: int, seconds: float, length: float, drop: bool = True) -> None:
        """Drag a prompt by so many seconds."""
        bar = self.bars.nth(index).bounding_box()
        track = self.page.locator(".hf-track").bounding_box()
        x = bar["x"] + bar["width"] / 2
        y = bar["y"] + 10
        self.drag_mouse((x, y), (x + track["width"] * seconds / length, y))
        if drop:
            self.page.mouse.up()

    def drag(self, index: int, seconds: float, length: float) -> None:
        """Drag the switch to a prompt to a place on the ruler."""
        grip = self.page.locator(".hf-handle").nth(index).bounding_box()
        track = self.page.locator(".hf-track").bounding_box()
        place = track["x"] + track["width"] * seconds / length
        self.drag_mouse((grip["x"] + grip["width"] / 2, grip["y"] + 10), (place, track["y"] + 20))
        self.page.mouse.up()

    def drag_mouse(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.page.mouse.move(*start)
        self.page.mouse.down()
        self.page.mouse.move(*end, steps=5)


@pytest.mark.slow
@pytest.mark.repeat("comfy_floor]")
@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest, Nodes 2.0"], indirect=True)
@pytest.mark.same_page
def test_a_story_is_edited_on_the_timeline(browser):
    """Every way of changing a story, one after the other, in one editor."""
    saved = {
        node["type"]: node
        for node in json.loads(
            (FOLDER / "01 Demo without downloads.json").read_text(encoding="utf-8")
        )["nodes"]
    }
    before = saved["HeadForcingPromptTimeline"]
    browser.load_workflow(FOLDER / "01 Demo without downloads.json")
    browser.look_at(NODE, scale=1.1)
    editor = Editor(browser)
    page = browser.page
    editor.bars.nth(5).wait_for()

    # the editor is no part of a file: what was loaded is saved again, and nothing of it is sent
    after = page.evaluate(f"{NODE}.serialize()")
    assert after["widgets_values"] == before["widgets_values"]
    assert [slot["name"] for slot in after["inputs"]] == [slot["name"] for slot in before["inputs"]]
    assert abs(page.evaluate(f"{NODE}.size[1]") - list(before["size"])[1]) <= 10
    own = {
        "clip",
        "prompts",
        "seconds",
        "shared_prompt",
        "switch",
        "blend_blocks",
        "re_anchor",
        "model_family",
        "audio_offset",
        "audio_gain",
    }
    assert set(browser.sent("PromptTimeline")) == own

    # the text changes the bars; words of others stay words
    editor.write(STORY)
    editor.waits_for_bars("a red ball", "a <img src=x onerror=alert(1)> star", "a cyan ring")
    assert page.locator(".hf-timeline img").count() == 0 and browser.alerts == []

    # a drag changes one time of the text, to a block, and nothing else; undo brings back even the
    # way it was written
    editor.drag(2, 30.2, 60.5625)
    dragged = STORY.replace("0:20 ", "0:30.562 ")
    editor.waits_for(dragged)
    assert page.evaluate("document.activeElement.value") == "a cyan ring"
    editor.press("Control+z", STORY)
    editor.press("Control+Shift+z", dragged)
    editor.press("Control+z", STORY)
    page.wait_for_timeout(300)
    assert page.evaluate("document.activeElement.value") == "a cyan ring", (
        "the graph's own undo rebuilt the node"
    )

    # the keyboard alone: move by a block and by ten, edit words, remove
    page.keyboard.press("ArrowRight")
    editor.press("Shift+ArrowRight", dragged.replace("0:30.562", "0:28.312"))
    assert editor.bars.nth(2).get_attribute("aria-valuetext").startswith("0:28 to 1:00, block 38")
    assert editor.bars.nth(2).get_attribute("title").startswith("0:28.312 to 1:00, block 38")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type("6:00 pm, [flush] it\n- rains")
    words = ["a red ball", "6:00 pm, [flush] it - rains", "a cyan ring"]
    moved = f"0:00 {words[0]}\n0:10 [blend 2] {words[1]}\n0:28.312 {words[2]}"
    editor.waits_for(moved)
    editor.waits_for_bars(*words)
    page.keyboard.press("Escape")
    editor.press("Delete", "0:00 a red ball\n0:28.312 a cyan ring")
    assert page.evaluate(f"{NODE} !== undefined"), "Delete removed the node"
    page.keyboard.press("Control+z")
    editor.waits_for_bars(*words)
    editor.waits_for(moved)

    # words that cannot be are not written, and what was there before comes back
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    editor.shows("prompt 2 is empty")
    assert editor.text() == moved and page.locator(".hf-text").input_value() == ""
    page.keyboard.press("Escape")
    assert page.locator(".hf-text").input_value() == words[1]

    # Run from the keyboard takes along the letter that was typed last
    page.evaluate(
        f"window.__run = []; app.queuePrompt = () => window.__run.push({TEXT}.value); undefined"
    )
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.type("!")
    page.keyboard.press("Control+Enter")
    moved = moved.replace("rains", "rains!")
    editor.waits_for(moved)
    page.wait_for_timeout(200)
    assert page.evaluate("window.__run") == [moved]

    # the fields of a prompt, which leave the box of the text its height
    editor.bars.nth(2).click()
    box = page.locator("textarea:not(.hf-text)").first.bounding_box()
    assert box and box["height"] >= 60, box
    page.get_by_label("How it follows").select_option("flush")
    page.get_by_label("cut", exact=True).check()
    page.get_by_label("Dissolve, in seconds").fill("2.25")
    page.get_by_label("Bring back").select_option("1")
    page.get_by_label("Another seed for this scene and those after it").click()
    page.get_by_label("Seed from here on").fill("18446744073709551615")
    tags = "flush, re-anchor, recall 1, blend 3, seed 18446744073709551615"
    editor.press("Enter", moved.replace("a cyan ring", f"[{tags}] a cyan ring"))
    assert "⚄" in page.locator(".hf-tag").nth(2).inner_text()
    page.get_by_label("Remove the seed").click()
    page.get_by_label("Bring back").select_option("")
    page.get_by_label("How it follows").select_option("")
    editor.waits_for(moved)

    # more prompts
    page.get_by_label("Split this prompt in two").click()
    editor.waits_for(moved + "\n0:44.812 a cyan ring")
    page.get_by_label("Add a prompt").click()
    editor.waits_for_bars(
        "a red ball", "6:00 pm, [flush] it - rains!", "a cyan ring", "a cyan ring", "New prompt"
    )

    # a text that is no timeline is left alone, and says why
    broken = "0:00 a\n0:10 [flsh] b"
    browser.write("PromptTimeline", prompts=broken)
    editor.shows("[flsh] is not a tag")
    assert editor.bars.nth(0).is_disabled()
    assert editor.text() == broken

    # five minutes
    browser.write("PromptTimeline", seconds=300)
    editor.write("0:00 a\n4:00 b\n4:00.8 c")
    editor.focus_bar(1, "a", "b", "c")
    for _ in range(12):
        page.keyboard.press("+")
    widened = (
        "(({ scrollWidth, clientWidth }) => scrollWidth / "
        "clientWidth)(document.querySelector('.hf-scroll'))"
    )
    assert page.evaluate(widened) > 10
    box = editor.bars.nth(1).bounding_box()
    scroll = page.locator(".hf-scroll").bounding_box()
    assert scroll["x"] <= box["x"] < scroll["x"] + scroll["width"], (
        "the selected prompt stays in view"
    )
    assert box["width"] > 20, "a block is wide enough to grasp"
    page.keyboard.press("0")
    assert page.evaluate(widened) == 1

    # the blocks of another model family, whose prompts without a tag are scene cuts
    browser.write("PromptTimeline", model_family="longlive2")
    editor.write("0:00 a\n4:00 b")
    editor.shows("226 blocks")
    editor.bars.nth(1).click()
    assert page.get_by_label("cut", exact=True).is_checked()
    page.get_by_label("How it follows").select_option("reset")
    editor.waits_for("0:00 a\n4:00 [re-anchor] b")
    page.get_by_label("cut", exact=True).uncheck()
    editor.waits_for("0:00 a\n4:00 [reset] b")


@pytest.mark.slow
@pytest.mark.same_page
def test_scenes_are_segments(browser):
    """Whole prompts are dragged, copied and moved on, in the text and back with undo."""
    browser.load_workflow(FOLDER / "01 Demo without downloads.json")
    browser.look_at(NODE, scale=1.1)
    editor = Editor(browser)
    page = browser.page
    story = "0:00 a\n0:10 [flush] b\n0:20 c\n0:40 [recall 2] d"
    editor.write(story)
    editor.waits_for_bars("a", "b", "c", "d")

    # a prompt is dragged past another: both keep their lengths, a recall its scene; a click still
    # opens
    editor.drag_bar(1, 25, 60.5625, drop=False)
    editor.waits_for_bars("a", "c", "b", "d")
    assert editor.text() == story
    page.keyboard.press("Escape")
    page.mouse.up()
    editor.waits_for_bars("a", "b", "c", "d")
    editor.drag_bar(1, 25, 60.5625)
    editor.waits_for("0:00 a\n0:10.312 c\n0:30.562 [flush] b\n0:40 [recall 3] d")
    assert (
        page.evaluate("document.activeElement.value") == "b"
        and page.locator(".hf-panel").is_hidden()
    )
    editor.press("Control+z", story)
    # in front of all: the first has nothing to switch from, and no scene comes back before it is
    # there
    editor.drag_bar(3, -50, 60.5625)
    editor.waits_for("0:00 d\n0:20.062 a\n0:30.562 [flush] b\n0:40.312 c")
    editor.press("Control+z", story)
    editor.focus_bar(3, "a", "b", "c", "d")
    editor.press("Alt+ArrowLeft", "0:00 a\n0:10 [flush] b\n0:20.062 [recall 2] d\n0:40.312 c")
    editor.press("Alt+ArrowLeft", "0:00 a\n0:10.312 [reset] d\n0:30.562 [flush] b\n0:40.312 c")
    assert page.evaluate("document.activeElement.value") == "d"
    page.keyboard.press("Control+z")
    editor.press("Control+z", story)

    # an edge moves all later ones with it, and the end of the video
    rippled = "0:00 a\n0:15.562 [flush] b\n0:25.312 c\n0:45.562 [recall 2] d"
    page.get_by_label("Move all later prompts, too").click()
    editor.drag(1, 15.56, 60.5625)
    editor.waits_for(rippled)
    assert editor.seconds() == 65.25
    editor.press("Control+z", story)
    assert editor.seconds() == 60
    page.get_by_label("Move all later prompts, too").click()
    page.keyboard.down("Control")
    editor.drag(1, 15.56, 60.5625)
    page.keyboard.up("Control")
    editor.waits_for(rippled)
    editor.press(
        "Control+ArrowLeft", "0:00 a\n0:14.812 [flush] b\n0:24.562 c\n0:44.812 [recall 2] d"
    )

    # a copy makes the video longer
    editor.write(story)
    browser.write("PromptTimeline", seconds=60)
    editor.shows("81 blocks")
    editor.focus_bar(1, "a", "b", "c", "d")
    editor.press(
        "d", "0:00 a\n0:10 [flush] b\n0:20.062 [flush] b\n0:29.812 c\n0:50.062 [recall 2] d"
    )
    assert editor.seconds() == 69.75
    editor.press("Control+z", story)

    # words of all prompts are a line of the text, whose other lines stay
    assert page.locator(".hf-lane").is_hidden()
    page.get_by_label("Words that every prompt keeps").click()
    page.keyboard.type("A red fox, 35 mm")
    shared = "[shared] A red fox, 35 mm\n" + story
    editor.waits_for(shared)
    assert page.get_by_label("Words of every prompt").input_value() == "A red fox, 35 mm"
    sent = browser.sent("PromptTimeline")
    assert sent["prompts"] == shared and sent["shared_prompt"] == ""
    kept = "\n[ Shared ]  A  red fox,\n  35 mm \n\n" + story.replace("\n", "\n\n") + "  \n"
    editor.write(kept)
    assert editor.text() == kept
    editor.focus_bar(2, "a", "b", "c", "d")
    editor.press("ArrowLeft", shared.replace("0:20", "0:19.312"))
    editor.press("Control+z", kept)
    page.get_by_label("Words of every prompt").fill("")
    editor.waits_for(story)

    # begun prompts stay in their places
    page.evaluate(
        """() => {
          const sampler = app.graph.nodes.find(({ type }) => type === "HeadForcingSampler");
          const place = { done: 20, lead: 0 };
          const detail = { node: String(sampler.id), workflow: "", prompt_id: "p", state: "running", text: "", place };
          app.api.dispatchEvent(new CustomEvent("head_forcing.progress", { detail }));
        }"""
    )
    page.wait_for_function("document.querySelectorAll('.hf-bar.hf-begun').length === 2")
    editor.drag_bar(0, 30, 60.5625)
    editor.shows("Prompt 1 has begun")
    editor.drag(1, 15.56, 60.5625)
    editor.shows("Prompt 2 has begun")
    assert editor.text() == story
    editor.drag_bar(3, -45, 60.5625)
    editor.waits_for("0:00 a\n0:10 [flush] b\n0:20.062 [recall 2] d\n0:40.312 c")
