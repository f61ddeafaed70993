"""What pages show of renders: after a tab was closed, in two tabs, after the server was killed,
after an error, and the button that changes the story of a running render."""

import json
from pathlib import Path
from typing import Any

import av
import pytest
from comfy_browser import Browser, of_node, of_player, of_widget
from comfy_graphs import BALL, CROSS, Graph, changed, demo_graph, growing_graph
from playwright.sync_api import Page
from story_panel import answer, hold_answers
from workflow_blueprint import NAME as BLUEPRINT

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
ID = "aaaaaaaa-1111-4000-8000-000000000000"
TIMELINE = of_node("PromptTimeline")
SAMPLER = of_node("Sampler")
TEXT = of_widget("PromptTimeline", "prompts")
PLAYER = of_player()
SAYS = f"({PLAYER}?.firstChild.textContent ?? '')"
STORY_STATUS = "(document.querySelector('.hf-live-story [role=status]')?.textContent ?? '')"
SAVED = f"{TIMELINE}.serialize().widgets_values"
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


@pytest.mark.thorough
def test_a_page_opened_later_shows_the_render_and_changes_its_story(browser: Browser):
    """The tab that queued it is closed; two others then show the same render, and the later edit is
    kept. A block takes a second: the pages look at a render of 13 minutes.
    """
    first = f"0:00 {BALL}\n9:40 {BALL}"
    workflow = as_workflow(
        browser, growing_graph("pages/later", 600.0, first, seed=801, resume=False)
    )
    load(browser.page, workflow)
    saved = browser.page.evaluate(SAVED)
    sent = browser.api_prompt()
    hidden = f"({BUTTON}?.disabled ?? true)"
    assert browser.page.evaluate(hidden), "nothing is rendered"
    browser.server.hold(None, pause=0.25)
    browser.queue()
    waits(browser.page, f"/^0:0[1-9] of 10:00/.test({SAYS}) && !{hidden}")
    assert (browser.page.evaluate(SAVED), browser.api_prompt()) == (saved, sent), (
        "nothing of the button is kept"
    )
    one = browser.open_page()
    two = browser.open_page()
    browser.page.close()
    for page in (one, two):
        load(page, workflow)
        waits(page, f"/^\\d+:\\d\\d of 1?\\d:\\d\\d/.test({SAYS}) && !{hidden}")

    mine = first.replace(f"9:40 {BALL}", f"9:40 {CROSS}")
    theirs = f"{first}\n9:45 {CROSS}"
    assert one.evaluate(f"{BUTTON}.disabled"), "nothing is changed"
    browser.write("PromptTimeline", one, prompts=mine)
    waits(one, f"!{BUTTON}.disabled")
    one.evaluate(f"{BUTTON}.click()")
    waits(one, f"{STORY_STATUS} === 'The video takes it from 9:40 on.'")
    waits(
        one,
        "[...document.querySelectorAll('.hf-bar')].map((bar) => bar.ariaReadOnly).join() === "
        "'true,false'",
    )
    waits(two, f"(text) => {TEXT}.value === text", mine)  # it held nothing else
    waits(two, f"{STORY_STATUS}.startsWith('Another page has changed the story')")
    browser.write("PromptTimeline", two, prompts=theirs)
    browser.write("PromptTimeline", one, prompts=f"{mine}\n9:50 {BALL}")
    waits(one, f"!{BUTTON}.disabled")
    one.evaluate(f"{BUTTON}.click()")
    waits(one, f"{STORY_STATUS}.includes('takes it')")
    waits(two, f'{STORY_STATUS}.includes("puts this node\'s text in its place")')
    assert two.evaluate(f"{TEXT}.value") == theirs
    two.evaluate(f"{BUTTON}.click()")
    waits(two, f"{STORY_STATUS}.endsWith('in place of what another page has changed.')")
    browser.server.interrupt()
    browser.server.hold(None)
    for page in (one, two):
        waits(page, f"{SAYS}.startsWith('stopped at') && {hidden}")
    two.close()
    load(one, {**workflow, "id": ID.replace("a", "b")})
    load(one, workflow)
    waits(
        one,
        f"{SAYS}.startsWith('stopped at') && {PLAYER}.querySelector('video').duration > 1",
    )


@pytest.mark.thorough
def test_what_a_killed_server_was_doing_is_not_shown_any_more_and_edits_are_sent(browser: Browser):
    server = browser.server
    page = browser.page
    load(
        page,
        as_workflow(
            browser, growing_graph("pages/killed", 60.0, f"0:00 {BALL}\n0:30 {CROSS}", seed=802)
        ),
    )
    browser.look_at(TIMELINE, top=60)
    browser.server.hold(9)  # of 81 blocks two
    browser.queue()
    waits(page, f"/^0:0[1-9] of /.test({SAYS}) && !{BUTTON}.disabled")
    server.stop()
    page.locator(".hf-bar").nth(1).focus()
    page.keyboard.press("ArrowRight")
    waits(page, "document.querySelector('.hf-status').textContent.includes('waits for it')")
    page.keyboard.press("ArrowRight")
    server.start()
    waits(page, f"{SAYS}.startsWith('The server was restarted')")
    waits(page, f"{BUTTON}?.disabled ?? true")
    waits(page, f"{TEXT}.value.includes('0:31.')")
    waits(page, "!document.querySelector('.hf-status').classList.contains('hf-error')")
    assert page.locator(".hf-bar").nth(1).get_attribute("aria-valuetext").startswith("0:31 ")


@pytest.mark.thorough
@pytest.mark.same_page
def test_the_player_says_why_a_run_failed_until_the_next_one(browser: Browser):
    page = browser.page
    graph = changed(
        demo_graph(vae=["demo", 2], filename_prefix="pages/fails", seed=803),
        "timeline",
        seconds=1.5,
    )
    graph = changed(
        changed(graph, "timeline", prompts=BALL), "video", filename_prefix="pages/twice"
    )
    load(page, as_workflow(browser, changed(graph, "sampler", width=128)))
    browser.queue()
    assert browser.wait_done().startswith("error")
    waits(page, f"{SAYS}.startsWith('failed: the demo model makes videos of 64x64 only')")
    assert not any("makes videos of 64x64 only" in toast for toast in browser.toasts()), (
        "ComfyUI shows it"
    )
    later = browser.open_page()
    load(later, page.evaluate("app.graph.serialize()"))
    waits(later, f"{SAYS}.startsWith('failed: the demo model')")
    later.close()

    browser.write("PromptTimeline", prompts="0:00 a\n0:05 b")  # in another node
    browser.queue()
    assert browser.wait_done().startswith("error")
    waits(page, f"{SAYS}.startsWith('failed in Prompt Timeline: line 2: 0:05 is after')")

    # a second run of an unchanged graph decodes nothing: the frontend's own player would be an
    # input of its node
    browser.write("PromptTimeline", prompts=BALL)
    browser.write("Sampler", width=64)
    video = of_widget("DecodeVideo", "player") + "?.element"
    for _ in range(2):
        browser.run()
        waits(
            page,
            f"{SAYS}.startsWith('wrote') && "
            f"({video})?.querySelector('video').src.includes('twice_')",
        )
    assert len(list(browser.server.output_dir.glob("pages/twice*"))) == 1


@pytest.mark.same_page
def test_the_demo_shows_its_video_in_the_samplers_group_and_a_file_that_is_dropped_no_later_one(
    browser: Browser,
):
    """The template plays on the sampler; opened again, or from a file of an earlier run, it shows
    no other video.
    """
    page = browser.page
    server = browser.server
    template = json.loads((FOLDER / "01 Demo without downloads.json").read_text(encoding="utf-8"))
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

    first, second = map(graph_in, files)
    for workflow in (template, first):
        load(page, workflow)
        page.wait_for_timeout(500)
        assert page.evaluate(SAYS) == "", "the video of a later run"
        load(page, second)
        waits(page, f"{SAYS}.includes('{files[1].name}')")


def check_playhead(page: Page) -> None:
    """Each bar has a picture of its scene, and a double click shows the second at the pointer."""
    pictures = "[...document.querySelectorAll('.hf-bar')].map((bar) => bar.style.backgroundImage)"
    waits(page, f"new Set({pictures}.filter((image) => image.startsWith('url'))).size === 2")
    assert page.evaluate("document.querySelector('.hf-rendered').style.width") == "100%"
    video = f"{PLAYER}.querySelector('video')"
    page.evaluate(f"() => {{ {video}.pause(); {video}.currentTime = 0.2; }}")
    playing = "document.querySelectorAll('.hf-bar')[{}].classList.contains('hf-playing')"
    for bar in (1, 0):
        waits(page, playing.format(1 - bar))
        page.locator(".hf-bar").nth(bar).dblclick()
        waits(page, playing.format(bar))
    assert page.locator(".hf-begun").count() == 0, "nothing is rendered now"


def graph_in(file: Path) -> dict[str, Any]:
    """The workflow in a video, as dropping it on the canvas opens it."""
    with av.open(str(file)) as container:
        return json.loads(container.metadata["workflow"])


# -------------------------------------------------------------------- the story of a running render

RENDERS = """() => {
  window.__sent = [];
  const ask = app.api.fetchApi;
  app.api.fetchApi = (route, options) => {
    if (route !== "/headforcing/story") return ask.call(app.api, route, options);
    window.__sent.push(JSON.parse(options.body));
    return Promise.resolve({ json: () => ({ time: "0:05", block: 8, blocks: 10 }) });
  };
  window.__renders = (node_id) => {
    const detail = { running: true, prompt_id: "a", node_id, workflow: "", story: { prompts: "0:00 a red ball" } };
    app.api.dispatchEvent(new CustomEvent("headforcing.story", { detail }));
  };
}"""


@pytest.mark.same_page
def test_the_button_sends_what_is_typed_last_and_nothing_that_comes_over_a_link(browser: Browser):
    """Inside a subgraph the widgets of inputs that are shown outside keep old values."""
    page = browser.page
    page.evaluate(RENDERS)
    browser.load_workflow(FOLDER / "01 Demo without downloads.json")
    page.evaluate(
        f"() => {{ {TEXT}.value = '0:00 a red ball'; window.__renders(String({TIMELINE}.id)); }}"
    )
    browser.look_at(TIMELINE, top=60)
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 1")
    page.locator(".hf-bar").nth(0).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    hold_answers(browser)
    page.keyboard.type("a blue star")
    page.wait_for_function(f"!{BUTTON}.disabled")  # before what was typed is in the text
    assert page.evaluate(f"{TEXT}.value") == "0:00 a red ball"
    page.evaluate(f"{BUTTON}.click()")
    answer(browser)
    page.wait_for_function("window.__sent.length === 1")
    told = page.evaluate("window.__sent[0]")
    assert told["text"] == page.evaluate(f"{TEXT}.value") == "0:00 a blue star"
    assert {"seconds", "shared_prompt", "switch", "blend_blocks", "re_anchor"} < set(told)

    # a length from another node is not this node's to tell
    linked = f"""() => {{
      const node = {TIMELINE}, source = LiteGraph.createNode("PrimitiveFloat");
      app.graph.add(source);
      source.connect(0, node, node.inputs.findIndex((input) => input.name === "seconds"));
      {BUTTON}.click();
    }}"""
    page.evaluate(linked)
    page.wait_for_function("window.__sent.length === 2")
    assert set(told) - set(page.evaluate("window.__sent[1]")) == {"seconds"}

    browser.load_workflow(FOLDER.parent / "subgraphs" / f"{BLUEPRINT}.json")
    shown = """() => {
      const [outer] = app.graph.nodes;
      const inner = outer.subgraph.nodes.find((node) => node.type === "HeadForcingPromptTimeline");
      window.__renders(`${outer.id}:${inner.id}`);
      const { element } = inner.widgets.find((widget) => widget.name === "live_story");
      return [inner.inputs.find((input) => input.name === "prompts").link != null,
        !element.querySelector(".hf-live-story input").disabled];
    }"""
    assert page.evaluate(shown) == [True, False], (
        "a button that would send a text which is not rendered"
    )
