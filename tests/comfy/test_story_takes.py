"""Takes in the story panel: one that is played while the story is another, and two compared."""

import pytest
from comfy_browser import Browser
from story_panel import STORY, VIDEO, opened, until_finished, until_text

pytestmark = [pytest.mark.slow, pytest.mark.same_page]

BOTH = "[...document.querySelectorAll('.hf-story video')]"
FILE = f"new URL({VIDEO}.src).searchParams.get('filename')"
OTHER = "document.querySelector('.hf-story-other').textContent"


def two_takes(browser: Browser, seed: int) -> None:
    """Render two takes, of which the second has another star."""
    opened(browser, seed=seed)
    browser.page.evaluate(f"app.graph.id = '{seed:08}-0000-4000-8000-000000000000'")
    browser.run()
    browser.write("PromptTimeline", prompts=STORY.replace("green star", "white star"))
    until_text(browser, "white star")
    browser.run()
    browser.page.wait_for_function(
        "document.querySelectorAll('.hf-story-takes .take').length === 2"
    )
    until_finished(browser)


def test_an_older_take_plays_from_its_beginning_and_says_that_the_bars_are_of_another_story(
    browser: Browser,
):
    page = browser.page
    two_takes(browser, 771)
    newest = page.evaluate(FILE)
    page.evaluate(f"{VIDEO}.play()")
    page.wait_for_function(f"{VIDEO}.ended")
    rows = page.locator(".hf-story-takes .take")
    rows.nth(1).locator("input[value=play]").click()
    page.wait_for_function(f"{VIDEO}.currentTime > 0.3 && {VIDEO}.currentTime < 5")
    page.wait_for_function(f"{OTHER} === 'Take 1 plays; the bars show the story as it is now.'")
    rows.nth(1).locator("input[value=restore]").click()
    until_text(browser, "green star")
    page.wait_for_function(f"{OTHER} === ''")  # it is its story
    rows.nth(1).locator("input[value='back to the newest']").click()
    page.wait_for_function(f"({FILE}) === '{newest}' && {OTHER} === ''")
    assert browser.page_errors == []


def test_two_takes_are_compared_until_the_button_ends_it(browser: Browser):
    page = browser.page
    two_takes(browser, 772)
    rows = page.locator(".hf-story-takes .take")
    compare = rows.nth(1).locator("input[value=compare]")
    assert compare.get_attribute("aria-pressed") == "false"
    assert rows.nth(0).locator("input[value=compare]").is_disabled(), "it plays"
    compare.click()
    page.wait_for_function(f"{BOTH}[1]?.readyState >= 2")
    assert compare.get_attribute("aria-pressed") == "true"
    files = f"{BOTH}.map(({{ src }}) => new URL(src).searchParams.get('filename'))"
    shown = page.evaluate(files)
    for row in (rows.nth(1), rows.nth(0)):
        row.locator(".facts").click()
        page.wait_for_timeout(300)
        page.wait_for_function(f"{BOTH}[0].readyState >= 2")
        assert page.evaluate(files) == shown, "a click on a title ends no comparison"
    rows.nth(0).locator("input[value=play], input[value='back to the newest']").click()
    page.wait_for_function(f"{BOTH}.length === 2 && {BOTH}[0].readyState >= 2")
    compare.click()
    page.wait_for_function(f"{BOTH}.length === 1")
    assert compare.get_attribute("aria-pressed") == "false"
    assert browser.page_errors == []
