"""The story of a take, downloaded from the menu of the story panel for other programs."""

from pathlib import Path

import pytest
from comfy_browser import Browser, of_node
from comfy_graphs import growing_graph, queued
from story_panel import opened

pytestmark = [pytest.mark.slow, pytest.mark.same_page]
PROMPTS = ["a red ball", "a blue cross", "a green star"]


def choose(browser: Browser, label: str) -> None:
    """Choose a format in the menu of a bar."""
    page = browser.page
    page.locator(".hf-story .hf-bar").nth(1).click(button="right")
    page.locator(".hf-story-menu [role=menuitem]", has_text="Export").click()
    page.locator(".hf-story-menu [role=menuitem]", has_text=label).click()


def says(browser: Browser, sentence: str) -> None:
    script = "(says) => document.querySelector('.hf-story-said').textContent.startsWith(says)"
    browser.page.wait_for_function(script, arg=sentence)


def test_the_story_of_a_take_is_downloaded_from_the_menu_with_markers_and_other_takes(
    browser: Browser,
):
    page = browser.page
    opened(browser)
    page.evaluate("() => { app.graph.id = '00000053-0000-4000-8000-000000000000'; }")
    choose(browser, "SRT")
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
    with page.expect_request("**/headforcing/takes/export") as request:
        choose(browser, "OpenTimelineIO")
    says(browser, "a timeline for editors of videos needs OpenTimelineIO: pip install")
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
