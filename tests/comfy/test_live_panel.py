"""A live video in the story panel: it begins by one button, answers what is typed, and is an ordinary
story afterwards.
"""

import pytest
from comfy_browser import LISTEN, Browser
from comfy_graphs import BALL, CROSS, growing_graph
from story_panel import TEXT, TOGGLE, VIDEO, answer, hold_answers, text_of, until_text

pytestmark = pytest.mark.slow

STAR = "a green star gliding in the maroon striped room"
STATE = "document.querySelector('.hf-live-state').textContent"

# what is out of the panel, has to be scrolled to, or is in a second row of the player's buttons
HIDDEN = """() => {
  const panel = document.querySelector(".hf-story").getBoundingClientRect();
  const all = [".hf-story-screen", ".hf-story-transport", ".hf-live", ".hf-scroll", ".hf-foot", ".hf-live input", ".hf-live-scene"];
  const parts = [...document.querySelectorAll(all.map((each) => `.hf-story ${each}`).join())].filter((part) => part.checkVisibility());
  const out = parts.filter((part) => {
    const { top, bottom, left, right } = part.getBoundingClientRect();
    const isOut = top < panel.top || bottom > panel.bottom || left < panel.left || right > panel.right;
    return isOut || part.scrollHeight > part.clientHeight + 1;
  });
  const buttons = [...document.querySelectorAll(".hf-story-transport input")].filter((each) => each.checkVisibility());
  const tops = new Set(buttons.map((each) => each.offsetTop));
  const rows = tops.size > 1 ? ["rows of buttons"] : [];
  return [...out.map((part) => part.className || part.value), ...rows];
}"""


def begun(browser: Browser, prefix: str) -> None:
    """Begin a live video of one prompt, and wait until it plays."""
    page = browser.page
    browser.load_api(growing_graph(f"live/{prefix}", prompts=f"0:00 {BALL}", seconds=30.0))
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 1")
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-story .hf-bar")
    page.locator(".hf-live-begin").click()
    page.wait_for_selector(".hf-is-live .hf-live-words")
    page.wait_for_function(f"{VIDEO}.currentTime > 0.5")


def typed(browser: Browser, words: str) -> None:
    field = browser.page.locator(".hf-live-words")
    field.fill(words)
    field.press("Enter")
    until_text(browser, words)


def test_a_live_video_is_performed_in_the_panel(browser: Browser):
    page = browser.page
    begun(browser, "panel")
    assert page.locator(".hf-live-words").evaluate("(field) => field === document.activeElement")
    page.locator(".hf-live-ways input[value=cut]").click()
    with page.expect_request(lambda request: '"expected":true' in (request.post_data or "")):
        page.locator(".hf-live-words").fill(CROSS)  # which is encoded before Enter
    typed(browser, CROSS)
    assert f"[re-anchor] {CROSS}" in text_of(browser)
    page.wait_for_function(f"{STATE}.startsWith('in ')")
    page.wait_for_function(f"!{STATE}.startsWith('in ')")
    page.wait_for_function("document.querySelectorAll('.hf-live-scene canvas').length === 2")
    size = page.viewport_size
    for width, height in ((1280, 720), (1920, 1080)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(700)
        assert page.evaluate(HIDDEN) == [], width
    page.set_viewport_size(size)
    chip = page.locator(".hf-live-chips input[value=green]")
    chip.click()
    until_text(browser, CROSS.replace("yellow", "green"))
    # of two for one block the last is taken
    page.wait_for_function(
        "document.querySelector('.hf-story .hf-playing')?.ariaLabel.startsWith('Prompt 3 ')"
    )
    page.locator(".hf-live-scene").first.click()
    until_text(browser, "[recall 1]")
    page.locator(".hf-live input[value='■ Stop']").click()
    page.wait_for_selector(".hf-story-grid:not(.hf-is-live)")
    page.wait_for_function(
        f"!{VIDEO}.src.startsWith('blob:') && !{VIDEO}.src.includes('.live.mp4')"
    )
    page.wait_for_function(f"{VIDEO}.ended")  # and it does not begin again
    assert browser.wait_done() == "success"
    lines = text_of(browser).split("\n")
    assert len(lines) == 4 and lines[0] == f"0:00 {BALL}"
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 4")
    assert page.locator(".hf-live-begin").is_visible()


def test_prompts_are_taken_while_the_answers_to_the_bars_are_late(browser: Browser):
    page = browser.page
    begun(browser, "late")
    hold_answers(browser)
    typed(browser, CROSS)
    page.wait_for_function(f"{STATE}.startsWith('in ')")
    page.wait_for_function(f"!{STATE}.startsWith('in ')")
    typed(browser, STAR)
    text = text_of(browser)
    assert text.index(CROSS) < text.index(STAR)
    answer(browser)
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 3")
    assert text_of(browser) == text, "a late answer changes nothing"
    page.locator(".hf-live input[value='■ Stop']").click()
    assert browser.wait_done() == "success"
    page.wait_for_selector(".hf-story-grid:not(.hf-is-live)")
    assert len(text_of(browser).split("\n")) == 3


def test_a_page_that_is_loaded_again_and_a_second_one_go_on_with_the_live_video(browser: Browser):
    page = browser.page
    begun(browser, "again")
    workflow = page.evaluate("app.graph.serialize()")
    other = browser.open_page()
    other.evaluate("(workflow) => app.loadGraphData(workflow)", workflow)
    other.wait_for_function("document.querySelectorAll('.hf-bar').length >= 1")
    other.evaluate(TOGGLE)
    other.wait_for_selector(".hf-is-live .hf-live-words")
    other.wait_for_function(f"{VIDEO}.currentTime > 1")
    other.locator(".hf-live-words").fill(CROSS)
    other.locator(".hf-live-words").press("Enter")
    until_text(browser, CROSS)
    other.wait_for_function(f"{TEXT}.value.includes('{CROSS}')")
    page.reload(wait_until="domcontentloaded")
    browser.wait_until_open()
    page.evaluate(LISTEN)
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-is-live .hf-live-words")
    page.wait_for_function(f"{VIDEO}.currentTime > 1")
    other.close()
    before = page.evaluate(f"{VIDEO}.currentTime")
    page.wait_for_function(f"{VIDEO}.currentTime > {before + 2}")
    page.locator(".hf-live input[value='■ Stop']").click()
    page.wait_for_selector(".hf-story-grid:not(.hf-is-live)")
    assert browser.wait_done() == "success"
