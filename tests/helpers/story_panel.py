"""The story panel in the browser: what its tests share."""

from typing import Any

from comfy_browser import Browser, of_widget
from comfy_graphs import growing_graph

TEXT = of_widget("PromptTimeline", "prompts")
VIDEO = "document.querySelector('.hf-story video')"
TRACKER = "app.extensionManager.workflow.activeWorkflow.changeTracker"
SIZES = "() => app.graph.nodes.map((node) => [...node.size].map(Math.round))"
TOGGLE = "app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')"
THEME = "(name) => app.extensionManager.setting.set('Comfy.ColorPalette', name)"
STORY = "0:00 a red ball\n0:02 [cut] a blue cross\n0:04 a green star"
FINISHED = f"{VIDEO}?.readyState >= 2 && !{VIDEO}.src.startsWith('blob:')"


def opened(editor: Browser, **graph: Any) -> None:
    """Open a story of three prompts, then the panel."""
    editor.load_api(growing_graph("panel/v", prompts=STORY, **graph))
    editor.page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    editor.fit_view()
    editor.page.wait_for_timeout(300)
    sizes = editor.page.evaluate(SIZES)
    editor.page.evaluate(TOGGLE)
    editor.page.wait_for_selector(".hf-story .hf-bar")
    editor.page.wait_for_timeout(300)
    assert editor.page.evaluate(SIZES) == sizes, "a node that changes its size is a step of undo"


def noted(editor: Browser) -> None:
    """Let the graph's undo see the state of now, as a click does."""
    editor.page.evaluate(
        f"() => ({TRACKER}.captureCanvasState ?? {TRACKER}.checkState).call({TRACKER})"
    )


def text_of(editor: Browser) -> str:
    """The text of the story."""
    return editor.page.evaluate(f"{TEXT}.value")


def until_text(editor: Browser, holds: str) -> None:
    """Wait until the text of the story has a part."""
    editor.page.wait_for_function(f"(part) => {TEXT}.value.includes(part)", arg=holds)


def until_finished(editor: Browser) -> None:
    """Wait until the panel shows the finished video in place of the one that grows."""
    editor.page.wait_for_function(FINISHED)


def undo_until(editor: Browser, text: str) -> None:
    """Undo in the panel, a step when the one before has changed the text, until the story has this
    text.
    """
    for _ in range(12):
        before = text_of(editor)
        if before == text:
            return
        editor.page.locator(".hf-story .hf-bar").nth(0).focus()
        editor.page.keyboard.press("Control+z")
        editor.page.wait_for_function("(before) => " + f"{TEXT}.value !== before", arg=before)
    assert text_of(editor) == text


_HOLD_ANSWERS = """() => {
  window.__kept = [];
  const { fetchApi } = app.api;
  app.api.fetchApi = async function (route, ...rest) {
    if (window.__kept && route.startsWith("/headforcing/timeline"))
      await new Promise((answer) => window.__kept.push(answer));
    return fetchApi.call(this, route, ...rest);
  };
}"""
_ANSWER = """() => {
  const kept = window.__kept ?? [];
  window.__kept = null;
  for (const answer of kept) answer();
}"""
_NOTE_RUNS = """() => {
  window.__queued = [];
  app.api.queuePrompt = async (number, { output }) => {
    const nodes = Object.values(output);
    window.__queued.push(nodes.find((each) => each.inputs.prompts !== undefined).inputs.prompts);
    return { prompt_id: String(window.__queued.length), number, node_errors: {} };
  };
}"""


def hold_answers(editor: Browser) -> None:
    """From now on the server does not answer to texts and changed prompts of a story, until
    `answer`: whatever the speed of the machine, it answers after what a test does meanwhile.
    """
    editor.page.evaluate(_HOLD_ANSWERS)


def answer(editor: Browser, number: int | None = None) -> None:
    """Let it answer the first requests once there are so many; None: all, and those from now on."""
    if number is None:
        editor.page.evaluate(_ANSWER)
        return
    editor.page.wait_for_function(f"window.__kept.length >= {number}")
    editor.page.evaluate(f"() => {{ for (const go of window.__kept.splice(0, {number})) go(); }}")


def note_runs(editor: Browser) -> None:
    """Note the texts of stories that are queued from now on, for `runs`, and render none."""
    editor.page.evaluate(_NOTE_RUNS)


def runs(editor: Browser, number: int) -> list[str]:
    """The texts that were queued, once there are so many of them."""
    editor.page.wait_for_function("(number) => window.__queued.length >= number", arg=number)
    return editor.page.evaluate("window.__queued")
