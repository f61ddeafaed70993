"""A story that is changed in the panel while it is rendered."""

import pytest
from comfy_browser import Browser
from story_panel import (
    SIZES,
    TOGGLE,
    VIDEO,
    opened,
    text_of,
    undo_until,
    until_finished,
    until_text,
)

pytestmark = pytest.mark.slow

APPLY = ".hf-story .hf-live-story input"
STATUS = ".hf-story .hf-live-story [role=status]"
WAITING = "[...document.querySelectorAll('.hf-story .hf-waits')].map((bar) => bar.ariaLabel)"
RENDERED = "parseFloat(document.querySelector('.hf-rendered').style.width)"


@pytest.mark.same_page
@pytest.mark.repeat("comfy]")
@pytest.mark.parametrize("browser", ["comfy", "comfy_latest, Nodes 2.0"], indirect=True)
def test_an_edit_is_applied_to_the_running_video_by_a_button_of_the_panel(browser: Browser):
    page = browser.page
    opened(browser, seed=4711)
    sizes = page.evaluate(SIZES)
    assert not page.locator(APPLY).is_visible(), "nothing is rendered"
    browser.server.hold(8)  # two of nine blocks
    browser.queue()
    page.wait_for_selector(APPLY)
    assert page.evaluate(WAITING) == []
    page.locator(".hf-story .hf-bar").nth(2).click()
    page.locator(".hf-story textarea.hf-text").fill("a white star")
    until_text(browser, "a white star")
    page.wait_for_selector(".hf-story .hf-waits")
    (waiting,) = page.evaluate(WAITING)
    assert waiting == "Prompt 3 of 3: a white star"
    bar = page.locator(".hf-story .hf-waits")
    assert bar.get_attribute("aria-description") == "not applied yet"
    assert bar.evaluate("(bar) => getComputedStyle(bar).borderTopStyle") == "dashed"
    page.locator(APPLY).click()
    browser.server.hold(None)
    page.wait_for_function(
        f"document.querySelector('{STATUS}').textContent === 'The video takes it from 0:04 on.'"
    )
    page.wait_for_function(f"{WAITING}.length === 0")
    assert browser.wait_done() == "success"
    page.wait_for_selector(APPLY, state="hidden")
    page.wait_for_function(f"{RENDERED} === 100")
    assert page.evaluate(SIZES) == sizes
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-live-place .hf-live-story input")
    assert page.evaluate(SIZES) == sizes, "the button is in its node again"


@pytest.mark.same_page
def test_the_line_of_what_is_rendered_ends_at_the_first_change_of_the_story(browser: Browser):
    page = browser.page
    opened(browser, seed=4712)
    browser.run()
    page.wait_for_function(f"{RENDERED} === 100")
    before = text_of(browser)
    bars = page.locator(".hf-story .hf-bar")
    bars.nth(2).click()
    page.locator(".hf-story textarea.hf-text").fill("a white star")
    until_text(browser, "a white star")
    page.wait_for_function(f"Math.abs({RENDERED} - 65.7) < 1")
    bars.nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"Math.abs({RENDERED} - 31.4) < 1")
    bars.nth(0).click()
    page.locator(".hf-story textarea.hf-text").fill("a green ball")
    until_text(browser, "a green ball")
    page.wait_for_function(f"{RENDERED} === 0")
    undo_until(browser, before)
    page.wait_for_function(f"{RENDERED} === 100")


FORECAST = "document.querySelector('.hf-story-forecast')?.textContent"


@pytest.mark.same_page
def test_a_line_below_the_bars_says_what_run_would_render(browser: Browser):
    page = browser.page
    opened(browser, seed=4713, recent_frames=7)
    browser.run()
    page.wait_for_function(f"{FORECAST} === 'All of it is rendered.'")
    page.locator(".hf-story .hf-bar").nth(2).click()
    page.locator(".hf-story textarea.hf-text").fill("a white star")
    until_text(browser, "a white star")
    page.wait_for_function(
        f"/^Run keeps the video until 0:04 and renders 0:02, in about \\d+ s\\.$/.test({FORECAST})"
    )
    browser.write("Sampler", seed=4714)
    page.wait_for_function(f"/^Run renders 0:06, in about \\d+ s\\.$/.test({FORECAST})")
    browser.write("Sampler", seed=4713)
    page.locator(".hf-story .hf-bar").nth(2).focus()
    page.keyboard.press("Control+z")
    page.wait_for_function(f"{FORECAST} === 'All of it is rendered.'")
    browser.write("Sampler", recent_frames=5)
    page.wait_for_function(f"{FORECAST} === ''")


@pytest.mark.same_page
def test_a_click_chooses_a_double_click_plays_from_there_and_the_video_stops_at_its_end(
    browser: Browser,
):
    page = browser.page
    opened(browser, seed=4712)
    browser.run()
    until_finished(browser)
    page.evaluate(f"() => {{ {VIDEO}.pause(); {VIDEO}.currentTime = 1; }}")
    page.wait_for_function(f"!{VIDEO}.seeking")
    bar = page.locator(".hf-story .hf-bar").nth(2)
    bar.click()
    page.wait_for_timeout(600)  # no second click can follow any more
    assert page.evaluate(f"{VIDEO}.currentTime") == 1, "the video stays"
    assert page.locator(".hf-story .hf-selected").get_attribute("aria-label") == (
        "Prompt 3 of 3: a green star"
    )
    bar.dblclick()
    page.wait_for_function(f"{VIDEO}.currentTime > 4.4")
    page.evaluate(f"() => {VIDEO}.play()")
    page.wait_for_function(f"{VIDEO}.ended")
    page.wait_for_timeout(500)
    assert page.evaluate(f"{VIDEO}.ended"), "and does not begin again"


_CUT = """() => [...document.querySelectorAll(".hf-story input[type=button]")].filter((each) => {
  if (!each.checkVisibility() || each.closest(".hf-track, .hf-marker-place")) return false;
  const box = each.getBoundingClientRect();
  const { left, right, top, bottom } = each.parentElement.getBoundingClientRect();
  const isOut = box.left < left - 1 || box.right > right + 1 || box.top < top - 1 || box.bottom > bottom + 1;
  return isOut || each.scrollWidth > each.clientWidth + 1;
}).map((each) => each.value)"""


@pytest.mark.same_page
@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080)])
def test_no_button_of_the_panel_is_cut_off(browser: Browser, size: tuple[int, int]):
    page = browser.page
    usual = page.viewport_size
    opened(browser, seed=4712)
    browser.run()
    until_finished(browser)
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    try:
        page.wait_for_timeout(700)
        assert page.evaluate(_CUT) == []
    finally:
        page.set_viewport_size(usual)
