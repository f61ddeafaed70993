"""The story of a take, downloaded from the menu of the story panel for other programs."""

from pathlib import Path

import pytest
from comfy_browser import Browser, of_node
from comfy_graphs import growing_graph, queued
from story_panel import opened, until_finished

pytestmark = [pytest.mark.slow, pytest.mark.same_page]
# as if the server could write all formats
INSTALLED = """() => {
  const { fetchApi } = app.api;
  app.api.fetchApi = async function (route, ...rest) {
    return route.endsWith("/export/missing") ? new Response("{}") : fetchApi.call(this, route, ...rest);
  };
}"""
PROMPTS = ["a red ball", "a blue cross", "a green star"]


def open_formats(browser: Browser) -> None:
    """Choose the export in the menu of a bar."""
    page = browser.page
    page.locator(".hf-story .hf-bar").nth(1).click(button="right")
    page.locator(".hf-story-menu [role=menuitem]", has_text="Export").click()


def choose(browser: Browser, label: str) -> None:
    """Choose a format in the menu of a bar."""
    open_formats(browser)
    browser.page.locator(".hf-story-menu [role=menuitem]", has_text=label).click()


def says(browser: Browser, sentence: str) -> None:
    script = "(says) => document.querySelector('.hf-story-said').textContent.startsWith(says)"
    browser.page.wait_for_function(script, arg=sentence)


def test_the_story_of_a_take_is_downloaded_from_the_menu_with_markers_and_other_takes(
    browser: Browser,
):
    page = browser.page
    opened(browser)
    page.evaluate("() => { app.graph.id = '00000053-0000-4000-8000-000000000000'; }")
    open_formats(browser)
    says(browser, "No takes of this workflow yet.")
    for seed in (53, 54):
        browser.write("Sampler", seed=seed)
        browser.run()
    page.wait_for_function("document.querySelectorAll('.hf-story-takes .take').length === 2")
    markers = [{"seconds": 3, "name": "the cross"}, {"seconds": 4, "name": ""}]
    page.evaluate(
        f"(markers) => {of_node('PromptTimeline')}.setProperty('headforcing_markers', markers)",
        markers,
    )

    with page.expect_download() as download:
        choose(browser, "SRT")
    name = download.value.suggested_filename
    says(browser, f"{name} is downloaded.")
    subtitles = Path(download.value.path()).read_text("utf-8")
    assert subtitles.startswith("1\n00:00:00,000 --> 00:00:02,")
    assert [line for line in subtitles.split("\n")[2::4] if line] == PROMPTS

    newest, older = browser.page.evaluate(
        "async () => (await (await app.api.fetchApi('/headforcing/takes')).json()).takes.slice(0, 2)"
    )
    assert name == newest["file"]["filename"].replace(".mp4", ".srt")
    page.evaluate(INSTALLED)
    with page.expect_request("**/headforcing/takes/export") as request:
        choose(browser, "OpenTimelineIO")
    says(browser, "a timeline for editors of videos needs OpenTimelineIO: pip install")
    said = page.locator(".hf-story-said")
    assert "hf-error" in said.get_attribute("class")
    assert said.inner_text() in " ".join(browser.toasts()), "the whole sentence"
    sent = request.value.post_data_json
    assert sent == {
        "take": newest["name"],
        "end": ".otio",
        "markers": markers,
        "takes": [older["name"]],
    }

    # the take that is played is the one that is exported
    page.locator(".hf-story-takes .take").nth(1).locator("input[value=play]").click()
    with page.expect_request("**/headforcing/takes/export") as request:
        choose(browser, "EDL")
    assert request.value.post_data_json["take"] == older["name"]
    assert request.value.post_data_json["takes"] == [newest["name"]], "the server leaves it out"
    assert browser.page_errors == []


def test_buttons_export_each_take_and_the_video_that_plays_and_save_its_file(browser: Browser):
    page = browser.page
    opened(browser, seed=55)
    page.evaluate("() => { app.graph.id = '00000055-0000-4000-8000-000000000000'; }")
    exports = page.locator(".hf-story-transport input[value=export]")
    exports.click()
    says(browser, "No takes of this workflow yet.")
    browser.run()
    until_finished(browser)
    row = page.locator(".hf-story-takes .take")
    row.wait_for()
    entries = page.locator(".hf-story-menu [role=menuitem]")
    for opener in (exports, row.locator("input[value=export]")):
        opener.click()
        entries.nth(5).wait_for()
        page.mouse.move(0, 0)
        page.keyboard.press("Home")
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        name = download.value.suggested_filename
        assert name.endswith(".srt")
        says(browser, f"{name} is downloaded.")
        assert "hf-error" not in page.locator(".hf-story-said").get_attribute("class")

    # what the server cannot write says what to install, and does nothing
    exports.click()
    refused = page.locator(".hf-story-menu [aria-disabled=true]")
    refused.nth(2).wait_for()
    assert refused.nth(0).inner_text().split("\n") == [
        "OpenTimelineIO",
        "needs OpenTimelineIO: pip install opentimelineio",
    ]
    refused.nth(0).click(force=True)
    assert entries.count() == 6, "the menu stays"
    entries.nth(1).hover()
    marked = """[...document.querySelectorAll(".hf-story-menu [role=menuitem]")]
      .map((each) => getComputedStyle(each).backgroundColor !== "rgba(0, 0, 0, 0)")"""
    assert page.evaluate(marked) == [False, True, False, False, False, False]
    page.keyboard.press("ArrowDown")
    assert page.evaluate(marked) == [False, False, True, False, False, False]
    page.keyboard.press("Escape")

    with page.expect_download() as download:
        row.get_by_text("save MP4").click()
    saved = download.value.suggested_filename
    assert saved == name.replace(".srt", ".mp4")
    assert Path(download.value.path()).read_bytes()[4:8] == b"ftyp"
    says(browser, f"{saved} is downloaded.")
    assert browser.page_errors == []


def test_the_server_says_what_to_install_for_formats(comfy):
    needed = comfy.get_json("/headforcing/takes/export/missing")
    assert needed == {
        ".otio": "pip install opentimelineio",
        ".xml": "pip install opentimelineio otio-fcp-adapter",
        ".edl": "pip install opentimelineio otio-cmx3600-adapter",
    }


def test_the_route_of_exports_refuses_what_is_no_export_with_a_sentence(comfy):
    for body, sentence in (
        ([], "expected a JSON object with take and end"),
        ({"take": "../../etc", "end": ".srt"}, "this take is not there any more"),
        ({"take": None}, "this take is not there any more"),
    ):
        assert comfy.post("/headforcing/takes/export", body) == (400, {"error": sentence})


def test_a_workflow_with_more_takes_than_a_file_holds_is_exported(comfy):
    queued(comfy, growing_graph("export/many", seconds=0.5, prompts="0:00 a red ball"))
    take = comfy.get_json("/headforcing/takes")["takes"][0]["name"]
    body = {"take": take, "end": ".srt", "takes": [take] * 40}
    status, answer = comfy.post("/headforcing/takes/export", body)
    assert status == 200 and answer["text"].count("a red ball") == 1, "it holds one take"
    body["end"] = ".otio"
    status, answer = comfy.post("/headforcing/takes/export", body)
    assert status == 400 and answer["error"].startswith("a timeline for editors of videos needs")
