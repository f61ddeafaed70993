"""A story that is changed in the panel while it is rendered."""

import pytest
from comfy_browser import Browser
from story_panel import (
    SIZES,
    STORY,
    TOGGLE,
    VIDEO,
    note_runs,
    opened,
    runs,
    text_of,
    undo_until,
    until_finished,
    until_text,
)

pytestmark = pytest.mark.slow

APPLY = ".hf-story .hf-live-story input"
STATUS = ".hf-story .hf-live-story [role=status]"
WAITING = "[...document.querySelectorAll('.hf-story .hf-waits')].map((bar) => bar.ariaLabel)"
TAGS = """[...document.querySelectorAll(".hf-story .hf-tag")]
  .map((tag) => (tag.dataset.state ?? "") + tag.textContent).filter(Boolean).join()"""
PLACES = """[...document.querySelectorAll(".hf-story .hf-tools > input")].filter((each) => each.checkVisibility())
  .map((each) => Math.round(each.getBoundingClientRect().left))"""
RENDERED = "parseFloat(document.querySelector('.hf-rendered').style.width)"


@pytest.mark.same_page
@pytest.mark.repeat("comfy]")
@pytest.mark.parametrize("browser", ["comfy", "comfy_latest, Nodes 2.0"], indirect=True)
def test_an_edit_is_applied_to_the_running_video_by_a_button_of_the_panel(browser: Browser):
    page = browser.page
    opened(browser, seed=4711)
    sizes = page.evaluate(SIZES)
    assert not page.locator(APPLY).is_visible(), "nothing is rendered"
    places = page.evaluate(PLACES)
    browser.server.hold(17)  # four of nine blocks: the second prompt
    browser.queue()
    page.wait_for_selector(APPLY)
    assert page.evaluate(PLACES) == places, "no button moves when it comes"
    assert page.evaluate(WAITING) == [] and page.locator(APPLY).is_disabled()
    page.wait_for_function(f"{TAGS} === 'begun cut'")
    page.locator(".hf-story .hf-bar").nth(2).click()
    page.locator(".hf-story textarea.hf-text").fill("a white star")
    until_text(browser, "a white star")
    page.wait_for_selector(".hf-story .hf-waits")
    (waiting,) = page.evaluate(WAITING)
    assert waiting == "Prompt 3 of 3: a white star"
    page.wait_for_function(f"!document.querySelector('{APPLY}').disabled")
    bar = page.locator(".hf-story .hf-waits")
    assert bar.get_attribute("aria-description") == "not applied yet"
    assert bar.evaluate("(bar) => getComputedStyle(bar).borderTopStyle") == "dashed"
    page.locator(APPLY).click()
    browser.server.hold(None)
    page.wait_for_function(
        f"document.querySelector('{STATUS}').textContent === 'The video takes it from 0:04 on.'"
    )
    page.wait_for_function(f"{WAITING}.length === 0")
    page.wait_for_function(f"document.querySelector('{APPLY}').disabled")
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


ALL = "All of it is rendered. Change a prompt, or make another take:"
FORECAST = "document.querySelector('.hf-story-forecast')?.textContent"


@pytest.mark.same_page
def test_a_line_below_the_bars_says_what_run_would_render(browser: Browser):
    page = browser.page
    opened(browser, seed=4713, recent_frames=7)
    browser.run()
    page.wait_for_function(f"{FORECAST} === '{ALL}'")
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
    page.wait_for_function(f"{FORECAST} === '{ALL}'")
    browser.write("Sampler", recent_frames=5)
    page.wait_for_function(f"{FORECAST} === ''")


@pytest.mark.same_page
def test_what_is_rendered_is_rendered_again_with_another_seed_by_a_button(browser: Browser):
    """The seed is the sampler's, or the first prompt's if that has one."""
    page = browser.page
    opened(browser, seed=4713, recent_frames=7)
    browser.run()
    another = page.locator(".hf-story-forecast input[value='another take']")
    another.wait_for()
    note_runs(browser)
    another.click()
    assert runs(browser, 1) == [STORY]
    seed = browser.widgets("HeadForcingSampler")["seed"]
    assert seed != 4713
    another.wait_for(state="hidden")
    page.evaluate("() => { app.api.queuePrompt = window.__queuePrompt; }")
    browser.write("Sampler", seed=4713)
    browser.write("PromptTimeline", prompts=STORY.replace("0:00", "0:00 [seed 4713]"))
    browser.run()
    another.wait_for()
    note_runs(browser)
    another.click()
    (queued,) = runs(browser, 1)
    assert queued.startswith("0:00 [seed ") and "[seed 4713]" not in queued
    assert browser.widgets("HeadForcingSampler")["seed"] == 4713


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
