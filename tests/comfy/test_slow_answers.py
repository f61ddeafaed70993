"""The editor of a story while the server answers late to what is changed in it."""

from pathlib import Path

import pytest
from comfy_browser import Browser, of_node
from comfy_graphs import growing_graph
from story_panel import answer, hold_answers, note_runs, runs, text_of, until_text
from workflow_blueprint import NAME as BLUEPRINT

pytestmark = [pytest.mark.slow, pytest.mark.same_page]

STORY = "0:00 a red ball\n0:02 a blue cross\n0:04 a green star"
SUBGRAPHS = Path(__file__).resolve().parents[2] / "subgraphs"
NODE = of_node("PromptTimeline")
TYPED = "new Promise((done) => setTimeout(done, 600))"  # the editor's own time comes before it
RUN = "[data-testid=queue-button]"


def opened(editor: Browser) -> None:
    """Open a story of three prompts; what is asked of the server from now on waits for `answer`."""
    editor.load_api(growing_graph("late/v", prompts=STORY))
    editor.page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    editor.look_at(NODE, scale=1.1)
    editor.page.locator(".hf-bar").nth(0).click()
    hold_answers(editor)


def type_words(editor: Browser, words: str) -> None:
    """Put other words into the field of the selected prompt, letter by letter."""
    field = editor.page.locator("textarea.hf-text")
    field.wait_for()  # it opens late: a second click could follow
    field.press("Control+a")
    editor.page.keyboard.type(words)


@pytest.mark.repeat("comfy_floor]")
@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest, Nodes 2.0"], indirect=True)
def test_run_renders_the_words_that_were_typed_just_before(browser: Browser):
    opened(browser)
    note_runs(browser)
    type_words(browser, "a violet ball")
    browser.page.locator(RUN).first.click()
    assert text_of(browser) == STORY, "the server has not answered yet"
    answer(browser)
    assert runs(browser, 1) == [STORY.replace("a red ball", "a violet ball")]


def test_run_waits_for_words_that_are_typed_while_it_waits(browser: Browser):
    opened(browser)
    note_runs(browser)
    type_words(browser, "a violet ball")
    browser.page.evaluate("() => void app.queuePrompt(0)")
    browser.page.keyboard.type("s")
    browser.page.evaluate(TYPED)
    answer(browser)
    assert runs(browser, 1) == [STORY.replace("a red ball", "a violet balls")]


def test_words_stay_when_another_widget_is_changed_before_they_are_answered(browser: Browser):
    opened(browser)
    type_words(browser, "a violet ball")
    browser.page.evaluate(TYPED)
    browser.write("PromptTimeline", switch="recache", seconds=4.5)
    assert text_of(browser) == STORY, "the server has not answered yet"
    answer(browser)
    until_text(browser, "a violet ball")
    assert browser.widgets("HeadForcingPromptTimeline")["seconds"] == 4.5
    browser.page.wait_for_function("document.querySelector('.hf-status').title.includes('0:04.5')")
    assert browser.page.locator(".hf-bar").nth(0).input_value() == "a violet ball"


def test_a_refused_prompt_takes_no_other_one_along(browser: Browser):
    opened(browser)
    type_words(browser, "a violet ball")
    browser.page.evaluate(TYPED)
    browser.page.locator(".hf-bar").nth(1).click()
    browser.page.locator("textarea.hf-text").fill("")
    refusal = "document.querySelector('.hf-status').textContent.includes('prompt 2 is empty')"
    answer(browser, 2)  # to the first change and to the refused one
    browser.page.wait_for_function(refusal)
    assert text_of(browser) == STORY, "the server has not answered yet"
    answer(browser)
    until_text(browser, "a violet ball\n0:02 a blue cross")
    assert browser.page.evaluate(refusal)
    assert browser.page.locator("textarea.hf-text").input_value() == "", "words are typed here"
    browser.page.keyboard.type("a yellow cross")
    until_text(browser, "a violet ball\n0:02 a yellow cross")


def test_run_renders_no_other_workflow_that_is_opened_while_it_waits(browser: Browser):
    opened(browser)
    note_runs(browser)
    type_words(browser, "a violet ball")
    execute = "(name) => app.extensionManager.command.execute(name)"
    refused = """() => (window.__refused = app.queuePrompt(0).then(
      () => "queued", (error) => error.message)) && undefined"""
    browser.page.evaluate(refused)
    browser.page.evaluate(execute, "Comfy.NewBlankWorkflow")
    answer(browser)
    assert "Another workflow was opened" in browser.page.evaluate("window.__refused")
    assert runs(browser, 0) == []


def test_words_that_a_workflow_is_left_with_are_there_when_it_is_open_again(browser: Browser):
    opened(browser)
    type_words(browser, "a violet ball")
    browser.page.evaluate(TYPED)
    execute = "(name) => app.extensionManager.command.execute(name)"
    browser.page.evaluate(execute, "Comfy.NewBlankWorkflow")
    answer(browser)
    browser.page.wait_for_timeout(500)
    hold_answers(browser)
    browser.page.evaluate(execute, "Workspace.PreviousOpenedWorkflow")
    browser.page.wait_for_function(f"{NODE}")
    assert text_of(browser) == STORY, "the answer came to a node that was gone"
    answer(browser)
    until_text(browser, "a violet ball")
    browser.page.wait_for_timeout(500)
    assert text_of(browser) == STORY.replace("a red ball", "a violet ball")


def test_so_are_those_on_the_face_of_a_subgraph(browser: Browser):
    page = browser.page
    words = "app.graph.nodes[0].widgets.find(({ name }) => name === 'prompts').value"
    execute = "(name) => app.extensionManager.command.execute(name)"
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    browser.load_workflow(SUBGRAPHS / f"{BLUEPRINT}.json")
    page.keyboard.press("Escape")
    browser.look_at("app.graph.nodes[0]")
    page.locator(".hf-bar").nth(5).wait_for()
    page.wait_for_timeout(500)
    page.locator(".hf-bar").nth(0).click()
    hold_answers(browser)
    type_words(browser, "a violet ball")
    page.evaluate(TYPED)
    page.evaluate(execute, "Comfy.NewBlankWorkflow")
    answer(browser)
    page.wait_for_timeout(500)
    hold_answers(browser)
    page.evaluate(execute, "Workspace.PreviousOpenedWorkflow")
    page.wait_for_function("app.graph.nodes[0]?.widgets.length")
    assert "a violet ball" not in page.evaluate(words)
    answer(browser)
    page.wait_for_function(f"{words}.includes('a violet ball')")
    assert not [each for each in said if "Failed to remove" in each or "TypeError" in each]


def test_run_does_not_wait_for_ever_and_says_what_is_left_out(browser: Browser):
    opened(browser)
    note_runs(browser)
    type_words(browser, "a violet ball")
    browser.page.locator(RUN).first.click()
    assert runs(browser, 1) == [STORY]
    browser.page.wait_for_timeout(200)
    assert any("is not in this run" in toast for toast in browser.toasts())
