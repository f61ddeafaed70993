"""What pages show of renders: after a tab was closed, in two tabs, after the server was killed, after an error, and the
button that changes the story of a running render."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest
from comfy_browser import Browser, of_node, of_player, of_widget
from comfy_graphs import BALL, CROSS, Graph, changed, demo_graph, growing_graph
from playwright.sync_api import Page
from workflow_blueprint import NAME as BLUEPRINT

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
ID = "aaaaaaaa-1111-4000-8000-000000000000"
TIMELINE, SAMPLER, TEXT = of_node("PromptTimeline"), of_node("Sampler"), of_widget("PromptTimeline", "prompts")
PLAYER = of_player()
SAYS = f"({PLAYER}?.firstChild.textContent ?? '')"
STORY_STATUS = "(document.querySelector('.hf-live-story [role=status]')?.textContent ?? '')"
BUTTON = "document.querySelector('.hf-live-story input')"


def as_workflow(browser: Browser, graph: Graph) -> dict[str, Any]:
    """The editor's workflow of a graph, with an id, as a person has saved it."""
    browser.load_api(graph)
    return browser.page.evaluate("(id) => ({ ...app.graph.serialize(), id })", ID)


def load(page: Page, workflow: dict[str, Any]) -> None:
    page.evaluate("(graph) => app.loadGraphData(graph)", workflow)
    page.wait_for_timeout(300)


def waits(page: Page, script: str, arg: Any = None) -> None:
    page.wait_for_function(script, arg=arg)


def test_a_page_opened_later_shows_the_render_and_changes_its_story(browser: Browser):
    """The tab that queued it is closed; two others then show the same render, and the later edit is kept."""
    first = f"0:00 {BALL}\n9:40 {BALL}"
    workflow = as_workflow(browser, growing_graph("pages/later", 600.0, first, seed=801, resume=False))
    load(browser.page, workflow)
    browser.queue()
    waits(browser.page, f"{SAYS}.startsWith('block 3')")
    one, two = browser.open_page(), browser.open_page()
    browser.page.close()
    for page in (one, two):
        load(page, workflow)
        waits(page, f"{SAYS}.startsWith('block') && {BUTTON} && !{BUTTON}.parentNode.hidden")

    mine, theirs = first.replace(f"9:40 {BALL}", f"9:40 {CROSS}"), f"{first}\n9:45 {CROSS}"
    browser.write("PromptTimeline", one, prompts=mine)
    one.evaluate(f"{BUTTON}.click()")
    waits(one, f"{STORY_STATUS}.includes('takes it')")
    waits(two, f"(text) => {TEXT}.value === text", mine)  # it held nothing else
    waits(two, f"{STORY_STATUS}.startsWith('Another page has changed the story')")
    browser.write("PromptTimeline", two, prompts=theirs)
    browser.write("PromptTimeline", one, prompts=f"{mine}\n9:50 {BALL}")
    one.evaluate(f"{BUTTON}.click()")
    waits(one, f"{STORY_STATUS}.includes('takes it')")
    waits(two, f'{STORY_STATUS}.includes("puts this node\'s text in its place")')
    assert two.evaluate(f"{TEXT}.value") == theirs
    two.evaluate(f"{BUTTON}.click()")
    waits(two, f"{STORY_STATUS}.endsWith('in place of what another page has changed.')")
    browser.server.interrupt()
    for page in (one, two):
        waits(page, f"{SAYS}.startsWith('stopped in block')")
        waits(page, f"{BUTTON}?.parentNode.hidden ?? true")
    two.close()
    after = browser.open_page()
    load(after, workflow)
    waits(after, f"{SAYS}.startsWith('stopped in block')")
    waits(after, f"{PLAYER}.querySelector('video').duration > 1")


def test_what_a_killed_server_was_doing_is_not_shown_any_more_and_edits_are_sent(browser: Browser):
    server = browser.server
    page = browser.page
    load(page, as_workflow(browser, growing_graph("pages/killed", 60.0, f"0:00 {BALL}\n0:30 {CROSS}", seed=802)))
    browser.look_at(TIMELINE, top=60)
    browser.queue()
    waits(page, f"{SAYS}.startsWith('block 2') && !{BUTTON}.parentNode.hidden")
    server.stop()
    page.locator(".hf-bar").nth(1).focus()
    page.keyboard.press("ArrowRight")
    waits(page, "document.querySelector('.hf-status').textContent.includes('waits for it')")
    page.keyboard.press("ArrowRight")
    server.start()
    waits(page, f"{SAYS}.startsWith('not rendered any more')")
    waits(page, f"{BUTTON}?.parentNode.hidden ?? true")
    waits(page, f"{TEXT}.value.includes('0:31.')")
    waits(page, "!document.querySelector('.hf-status').classList.contains('hf-error')")
    assert page.locator(".hf-bar").nth(1).get_attribute("aria-valuetext").startswith("0:31.")


def test_the_player_says_why_a_run_failed_until_the_next_one(browser: Browser):
    page = browser.page
    load(page, as_workflow(browser, growing_graph("pages/fails", 1.5, BALL, seed=803)))
    browser.run()
    waits(page, f"{SAYS}.startsWith('wrote')")
    browser.write("Sampler", width=128)
    browser.queue()
    assert browser.wait_done().startswith("error")
    waits(page, f"{SAYS}.startsWith('failed: the demo model makes videos of 64x64 only')")
    assert any("makes videos of 64x64 only" in toast for toast in browser.toasts())
    later = browser.open_page()
    load(later, page.evaluate("app.graph.serialize()"))
    waits(later, f"{SAYS}.startsWith('failed: the demo model')")
    later.close()

    browser.write("PromptTimeline", prompts="0:00 a\n0:05 b")  # in another node
    browser.queue()
    assert browser.wait_done().startswith("error")
    waits(page, f"{SAYS}.startsWith('failed in Prompt Timeline: line 2: 0:05 is after')")

    browser.write("PromptTimeline", prompts=BALL)
    browser.write("Sampler", width=64)
    browser.run()
    waits(page, f"!{SAYS}.includes('failed')")


def test_a_second_run_of_an_unchanged_graph_decodes_nothing(browser: Browser):
    """The frontend's own player of a video would be an input of its node."""
    page, folder = browser.page, browser.server.output_dir / "pages"
    graph = changed(demo_graph(seed=804), "timeline", seconds=1.5, prompts=BALL)
    load(page, as_workflow(browser, changed(graph, "video", filename_prefix="pages/twice")))
    before = len(list(folder.glob("twice*")))
    video = of_widget("DecodeVideo", "player") + "?.element"
    for _ in range(2):
        browser.run()
        waits(page, f"({video})?.querySelector('video').src.includes('twice_')")
    assert len(list(folder.glob("twice*"))) == before + 1


def test_the_demo_shows_its_video_in_the_samplers_group_and_a_file_that_is_dropped_no_later_one(browser: Browser):
    """The template plays on the sampler; opened again, or from a file of an earlier run, it shows no other video."""
    page, server = browser.page, browser.server
    template = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))
    load(page, template)
    browser.fit_view()
    browser.write("PromptTimeline", seconds=2, prompts=f"0:00 {BALL}\n0:01.3 {CROSS}")
    before = set(server.output_dir.glob("video/demo_0*"))
    files = []
    for seed in (811, 812):
        browser.write("Sampler", seed=seed)
        browser.run()
        waits(page, f"{SAYS}.startsWith('wrote') && {PLAYER}.querySelector('video').videoWidth > 0")
        (file,) = set(server.output_dir.glob("video/demo_0*")) - before - set(files)
        files.append(file)
    check_playhead(page)
    assert browser.outside_groups() == []

    late = f"""() => app.api.dispatchEvent(new CustomEvent("head_forcing.progress", {{ detail: {{ node: {SAMPLER}.id,
      workflow: app.graph.id, prompt_id: "", state: "running", text: "an answer that was overtaken", time: 1 }} }}))"""
    page.evaluate(late)
    assert page.evaluate(SAYS).startswith("wrote")

    saved = page.evaluate("app.graph.serialize()")
    load(page, template)
    page.wait_for_timeout(700)
    assert page.evaluate(SAYS) == ""
    load(page, saved)
    waits(page, f"{SAYS}.includes('{files[1].name}')")
    first, second = (graph_in(file) for file in files)
    load(page, first)
    page.wait_for_timeout(700)
    assert page.evaluate(SAYS) == "", "the video of a later run"
    load(page, second)
    waits(page, f"{SAYS}.includes('{files[1].name}')")
    load(page, first)
    browser.run()
    waits(page, f"{SAYS}.startsWith('wrote')")


def check_playhead(page: Page) -> None:
    """Each bar has a picture of its scene, and a click on it plays from there."""
    pictures = "[...document.querySelectorAll('.hf-bar')].map((bar) => bar.style.backgroundImage)"
    waits(page, f"new Set({pictures}.filter((image) => image.startsWith('url'))).size === 2")
    assert page.evaluate("document.querySelector('.hf-rendered').style.width") == "100%"
    video = f"{PLAYER}.querySelector('video')"
    page.evaluate(f"() => {{ {video}.pause(); {video}.currentTime = 0.2; }}")
    for bar, second in ((1, 1.3125), (0, 0)):
        waits(page, f"document.querySelectorAll('.hf-bar')[{1 - bar}].classList.contains('hf-playing')")
        page.locator(".hf-bar").nth(bar).click()
        waits(page, f"{video}.currentTime === {second}")
    assert page.locator(".hf-begun").count() == 0, "nothing is rendered now"


def graph_in(file: Path) -> dict[str, Any]:
    """The workflow in a video, as dropping it on the canvas opens it."""
    with av.open(str(file)) as container:
        return json.loads(container.metadata["workflow"])


# ----------------------------------------------------------------------------------- the story of a running render

PROMPTS = [BALL, CROSS, "a blue cube", "a green cone", "a pink star", "a white ball in the navy room"]


COUNT_STEPS = "() => app.api.addEventListener('progress', (event) => (window.__steps = event.detail.value))"


def six_prompts(fifth: str = PROMPTS[4]) -> str:
    texts = [*PROMPTS[:4], fifth, PROMPTS[5]]
    return "\n".join(f"0:{5 * number:02} {text}" for number, text in enumerate(texts))


def rendered(browser: Browser, during: Callable[[], None] = lambda: None) -> str:
    """Press Run and return the report."""
    before = len(browser.server.get_json("/history"))
    browser.queue()
    during()
    assert browser.wait_done() == "success"
    while len(history := list(browser.server.get_json("/history").values())) == before:
        browser.page.wait_for_timeout(50)
    texts = [text for output in history[-1]["outputs"].values() for text in output.get("text", [])]
    return next(text for text in texts if "latent frames" in text)


def test_prompt_five_is_changed_while_block_twenty_renders(browser: Browser):
    """From the button to the report; then the canvas, the queued graph and the file agree, and Run finds all blocks."""
    page = browser.page
    browser.load_workflow(FOLDER / "demo.json")

    def sent() -> set[str]:
        nodes = browser.api_prompt().values()
        return set(next(node for node in nodes if node["class_type"] == "HeadForcingPromptTimeline")["inputs"])

    before, inputs = browser.widgets("HeadForcingPromptTimeline"), sent()
    assert "live_story" not in inputs
    saved = page.evaluate(f"{TIMELINE}.serialize().widgets_values")
    height = page.evaluate(f"{TIMELINE}.size[1]")
    browser.write("PromptTimeline", prompts=six_prompts(), seconds=30)
    browser.write("Sampler", seed=71)
    button, status = page.locator(".hf-live-story input"), page.locator(".hf-live-story [role=status]")
    assert not button.is_visible(), "nothing is rendered"

    def change() -> None:
        page.wait_for_function("window.__steps >= 4 * 20")
        browser.write("PromptTimeline", prompts=six_prompts("a green ball"))
        browser.look_at(TIMELINE, top=60)
        button.click()
        page.wait_for_function(
            "document.querySelector('.hf-live-story [role=status]').textContent.includes('takes it')"
        )
        assert status.inner_text() == "The video takes it from 0:20.062 on, block 28 of 41."
        begun = page.evaluate("[...document.querySelectorAll('.hf-bar')].map((bar) => bar.ariaReadOnly).join()")
        assert begun in [",".join(["true"] * count + ["false"] * (6 - count)) for count in (3, 4, 5, 6)]
        assert page.evaluate("parseFloat(document.querySelector('.hf-rendered').style.width)") > 40

    page.evaluate(COUNT_STEPS)
    report = rendered(browser, change)
    page.wait_for_function("document.querySelector('.hf-live-story')?.hidden ?? true")
    assert "the story was changed while it was rendered, from block 28 of 41, 0:20.062 on" in report
    assert "a green ball\n" in report and "a pink star" not in report
    assert "reused 41 blocks of an earlier render" in rendered(browser)

    # nothing of the button is saved or sent, and the node is as high as it was
    assert browser.widgets("HeadForcingPromptTimeline").keys() == before.keys()
    assert sent() == inputs
    assert len(page.evaluate(f"{TIMELINE}.serialize().widgets_values")) == len(saved)
    assert abs(page.evaluate(f"{TIMELINE}.size[1]") - height) <= 12


RENDERS = """() => {
  window.__sent = [];
  const ask = app.api.fetchApi;
  app.api.fetchApi = (route, options) => {
    if (route !== "/headforcing/story") return ask.call(app.api, route, options);
    window.__sent.push(JSON.parse(options.body));
    return Promise.resolve({ json: () => ({ time: "0:05", block: 8, blocks: 10 }) });
  };
  window.__renders = (node_id) => {
    const detail = { running: true, prompt_id: "a", node_id, workflow: "" };
    app.api.dispatchEvent(new CustomEvent("headforcing.story", { detail }));
  };
}"""


def test_the_button_sends_what_is_typed_last_and_nothing_that_comes_over_a_link(browser: Browser):
    """Inside a subgraph the widgets of inputs that are shown outside keep old values."""
    page = browser.page
    page.evaluate(RENDERS)
    browser.load_workflow(FOLDER / "demo.json")
    page.evaluate(f"() => {{ {TEXT}.value = '0:00 a red ball'; window.__renders(String({TIMELINE}.id)); }}")
    browser.look_at(TIMELINE, top=60)
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 1")
    page.locator(".hf-bar").nth(0).focus()
    page.keyboard.press("Enter")
    page.keyboard.type("a blue star")
    page.evaluate("document.querySelector('.hf-live-story input').click()")  # before what was typed is in the text
    page.wait_for_function("window.__sent.length === 1")
    told = page.evaluate("window.__sent[0]")
    assert told["text"] == page.evaluate(f"{TEXT}.value") == "0:00 a blue star"
    assert {"seconds", "shared_prompt", "switch", "blend_blocks", "re_anchor"} < set(told)

    # a length from another node is not this node's to tell
    page.evaluate(
        f"""() => {{
          const node = {TIMELINE}, source = LiteGraph.createNode("PrimitiveFloat");
          app.graph.add(source);
          source.connect(0, node, node.inputs.findIndex((input) => input.name === "seconds"));
          document.querySelector(".hf-live-story input").click();
        }}"""
    )
    page.wait_for_function("window.__sent.length === 2")
    assert set(told) - set(page.evaluate("window.__sent[1]")) == {"seconds"}

    browser.load_workflow(FOLDER.parent / "subgraphs" / f"{BLUEPRINT}.json")
    shown = """() => {
      const [outer] = app.graph.nodes;
      const inner = outer.subgraph.nodes.find((node) => node.type === "HeadForcingPromptTimeline");
      window.__renders(`${outer.id}:${inner.id}`);
      const { element } = inner.widgets.find((widget) => widget.name === "live_story");
      const button = element.querySelector(".hf-live-story");
      return [inner.inputs.find((input) => input.name === "prompts").link != null, !button.hidden];
    }"""
    assert page.evaluate(shown) == [True, False], "a button that would send a text which is not rendered"
