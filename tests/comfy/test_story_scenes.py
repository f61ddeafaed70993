"""Several scenes at once in the story panel: chosen, copied, moved, deleted, and undone in any mixture."""

import io

import pytest
from comfy_browser import Browser
from PIL import Image
from sound_files import beat_file
from story_panel import STORY, TEXT, TRACKER, noted, opened, text_of, undo_until, until_text

pytestmark = [pytest.mark.slow, pytest.mark.same_page]

CHOSEN = (
    "[...document.querySelectorAll('.hf-story .hf-chosen')].map((bar) => bar.ariaLabel[7]).join('')"
)


def until_words(editor: Browser, *expected: str) -> None:
    """Wait until these are the colours of the scenes, the words before the last of each line."""
    colours = f"{TEXT}.value.split('\\n').map((line) => line.split(' ').at(-2)).join()"
    editor.page.wait_for_function(f"(expected) => {colours} === expected", arg=",".join(expected))


def test_scenes_are_chosen_copied_pasted_moved_and_deleted_together(browser: Browser):
    page = browser.page
    opened(browser)
    bars = page.locator(".hf-story .hf-bar")
    bars.nth(0).click()
    bars.nth(1).click(modifiers=["Shift"])
    assert page.evaluate(CHOSEN) == "12"
    bars.nth(2).click(modifiers=["Control"])
    bars.nth(0).click(modifiers=["Control"])
    assert page.evaluate(CHOSEN) == "23"
    page.keyboard.press("Control+c")
    bars.nth(2).click()
    assert page.evaluate(CHOSEN) == "3"
    page.keyboard.press("Control+v")
    until_words(browser, "red", "blue", "green", "blue", "green")
    page.wait_for_function(f"{CHOSEN} === '45'")
    assert text_of(browser).split("\n")[3].startswith("0:06.562 [re-anchor] a blue cross")
    page.keyboard.press("Alt+ArrowLeft")
    page.wait_for_function(f"{CHOSEN} === '34'")
    until_words(browser, "red", "blue", "blue", "green", "green")
    bars.nth(3).drag_to(
        bars.nth(0), source_position={"x": 5, "y": 9}, target_position={"x": 5, "y": 9}
    )
    until_words(browser, "blue", "green", "red", "blue", "green")
    assert page.evaluate(CHOSEN) == "12"
    page.keyboard.press("Delete")
    until_words(browser, "red", "blue", "green")
    undo_until(browser, STORY)
    bars.nth(0).focus()
    page.keyboard.press("Control+a")
    assert page.evaluate(CHOSEN) == "123"
    page.get_by_label("Another seed for this scene and those after it").click()
    page.wait_for_function(f"{TEXT}.value.split('seed ').length === 4")
    assert browser.page_errors == []


def test_the_panel_can_undo_after_the_graph_has_gone_through_texts_that_are_no_steps_of_it(
    browser: Browser,
):
    page = browser.page
    opened(browser)
    page.evaluate("() => app.loadGraphData(app.graph.serialize())")
    page.wait_for_timeout(1000)
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 3")
    noted(browser)
    page.locator(".hf-story .hf-bar").nth(1).click()
    field = page.locator(".hf-story textarea.hf-text")
    for letters in ("a v", "a vi", "a vio"):  # within a second: one step of the panel
        field.fill(letters)
        page.wait_for_function(
            "(line) => " + f"{TEXT}.value.split('\\n')[1].endsWith(line)", arg=letters
        )
        noted(browser)
    for step in ("undo", "undo", "redo"):
        page.evaluate(f"() => {TRACKER}.{step}()")
        page.wait_for_timeout(700)
    until_text(browser, "a vi\n")
    page.wait_for_function("!document.querySelector('.hf-story input[value=\"↶\"]').disabled")
    undo_until(browser, STORY)
    assert browser.page_errors == []


_DROP = """async ([name, type, bytes]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name, { type }));
  const about = { dataTransfer: transfer, bubbles: true, cancelable: true };
  const at = document.querySelector(".hf-story .hf-track");
  const over = new DragEvent("dragover", about);
  at.dispatchEvent(over);
  at.dispatchEvent(new DragEvent("drop", about));
  return over.defaultPrevented;
}"""
_LOADED = """([kind, node, input]) => {
  const target = app.graph.nodes.find(({ type }) => type === node);
  const loader = target.getInputNode(target.findInputSlot(input));
  return loader?.type === kind && loader.widgets[0].value;
}"""
SAID = "document.querySelector('.hf-story-said').textContent"


def dropped(editor: Browser, name: str, kind: str, content: bytes) -> None:
    assert editor.page.evaluate(_DROP, [name, kind, list(content)])


def test_a_dropped_sound_picture_or_text_is_loaded_and_connected_in_one_step_of_undo(
    browser: Browser,
):
    page = browser.page
    opened(browser)
    page.evaluate("() => app.loadGraphData(app.graph.serialize())")
    page.wait_for_timeout(1000)
    noted(browser)
    count = "app.graph.nodes.length"
    before = page.evaluate(count)
    beat_file(browser.server, "hf_drop_source.wav", 6)
    sound = (browser.server.input_dir / "hf_drop_source.wav").read_bytes()
    dropped(browser, "hf_dropped.wav", "audio/wav", sound)
    page.wait_for_function(f"{SAID} === 'hf_dropped.wav is the sound of the story.'")
    story = ["LoadAudio", "HeadForcingPromptTimeline", "audio"]
    name = page.evaluate(_LOADED, story)
    assert name and (browser.server.input_dir / name).read_bytes() == sound
    page.wait_for_selector(".hf-story-sound:not([hidden])")
    assert page.evaluate(count) == before + 1
    dropped(browser, "hf_dropped_2.wav", "audio/wav", sound)
    page.wait_for_function(f"{SAID}.startsWith('hf_dropped_2.wav')")
    assert page.evaluate(_LOADED, story).startswith("hf_dropped_2")
    assert page.evaluate(count) == before + 1, "the node that is there gets another file"
    noted(browser)
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(picture, "PNG")
    dropped(browser, "hf_dropped.png", "image/png", picture.getvalue())
    page.wait_for_function(f"{SAID} === 'The video begins with hf_dropped.png.'")
    assert page.evaluate(_LOADED, ["LoadImage", "HeadForcingSampler", "start_image"])
    assert page.evaluate(count) == before + 2
    page.wait_for_timeout(300)
    page.evaluate(f"() => {TRACKER}.undo()")
    page.wait_for_function(f"{count} === {before + 1}")
    dropped(browser, "hf_dropped.bin", "application/zip", b"PK")
    page.wait_for_function(f"{SAID}.includes('is no sound, picture, video or text')")
    dropped(browser, "long.txt", "text/plain", b"a" * 2**20 + b"a")
    page.wait_for_function(f"{SAID} === 'long.txt is longer than 1 MB.'")
    dropped(browser, "story.txt", "text/plain", b"0:00 a lone tower\r\n0:03 a red hill")
    until_text(browser, "0:00 a lone tower\n0:03 a red hill")
    assert browser.page_errors == []


def test_a_high_panel_shows_the_whole_story_as_text_that_can_be_edited(browser: Browser):
    page = browser.page
    opened(browser)
    script = page.get_by_label("The whole story as text")
    assert not script.is_visible(), "there is no room"
    page.locator(".hf-story").focus()
    page.keyboard.press("f")
    script.wait_for()
    assert script.input_value() == STORY
    script.fill(STORY + "\n0:05 a white tower")
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 4")
    page.locator(".hf-story .hf-bar").nth(3).click()
    page.locator(".hf-story textarea.hf-text").fill("a black tower")
    until_text(browser, "0:05 a black tower")
    page.wait_for_function(
        "document.querySelector('.hf-story-script').value.includes('a black tower')"
    )
    undo_until(browser, STORY)
    page.wait_for_function(
        "(story) => document.querySelector('.hf-story-script').value === story", arg=STORY
    )
    page.keyboard.press("f")
    script.wait_for(state="hidden")
    assert browser.page_errors == []
