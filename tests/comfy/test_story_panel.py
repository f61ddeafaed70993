"""The story panel: a node's editor, video and takes, lent to a tab of ComfyUI's bottom panel."""

import os
from itertools import count, product

import pytest
from comfy_browser import Browser, of_node, of_player
from comfy_graphs import growing_graph
from sound_files import beat_file, with_sound
from story_panel import (
    SIZES,
    STORY,
    TEXT,
    THEME,
    TOGGLE,
    TRACKER,
    VIDEO,
    noted,
    opened,
    text_of,
    until_finished,
    until_text,
)

pytestmark = pytest.mark.slow

_SEEDS = count(11)  # of renders that a server has not made for another page
FRONTENDS = ["comfy", "comfy, Nodes 2.0", "comfy_latest", "comfy_latest, Nodes 2.0"]


@pytest.mark.same_page
@pytest.mark.repeat("comfy]", "comfy, Nodes 2.0]", "comfy_latest]")
@pytest.mark.parametrize("browser", FRONTENDS, indirect=True)
def test_the_editor_is_lent_to_the_panel_and_no_node_changes_its_size(browser: Browser):
    page = browser.page
    opened(browser)
    sizes = page.evaluate(SIZES)
    assert page.locator(".hf-timeline").count() == 1, "one editor, not two"
    assert page.locator(".hf-strip").is_visible()
    page.locator(".hf-story .hf-bar").nth(1).click()
    page.locator(".hf-story textarea.hf-text").fill("a violet cross")
    until_text(browser, "a violet cross")
    assert page.evaluate(SIZES) == sizes
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-home .hf-bar")
    assert page.evaluate(SIZES) == sizes, "the editor has the place that it had"
    page.locator(".hf-home input[value='⤢']").click()
    page.wait_for_selector(".hf-story .hf-bar")
    page.keyboard.press("Alt+y")
    page.wait_for_selector(".hf-home .hf-bar")
    assert browser.page_errors == []


@pytest.mark.thorough
@pytest.mark.repeat("comfy]", "comfy_latest]", "comfy_latest, Nodes 2.0]")
@pytest.mark.parametrize("browser", FRONTENDS, indirect=True)
def test_the_undo_of_the_graph_and_of_the_panel_do_not_fight(browser: Browser):
    page = browser.page
    opened(browser)
    noted(browser)
    for words in ("a violet cross", "a white cross"):
        page.locator(".hf-story .hf-bar").nth(1).click()
        page.locator(".hf-story textarea.hf-text").fill(words)
        until_text(browser, words)
        noted(browser)
    page.evaluate(f"() => {TRACKER}.undo()")
    until_text(browser, "a violet cross")
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 3")
    page.wait_for_function(
        "document.querySelector('.hf-story .hf-text').value === 'a violet cross'"
    )
    assert (
        page.locator(".hf-story .hf-bar.hf-selected")
        .get_attribute("aria-label")
        .startswith("Prompt 2")
    ), "the nodes are new, the chosen prompt is the same"
    page.locator(".hf-story .hf-bar").nth(2).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"!{TEXT}.value.includes('0:04 ')")
    page.keyboard.press("Control+z")
    until_text(browser, "0:04 a green star")
    noted(browser)
    for _ in range(4):  # the panel's two steps may be steps of the graph, too
        if "a blue cross" not in text_of(browser):
            page.evaluate(f"() => {TRACKER}.undo()")
            page.wait_for_timeout(500)
    until_text(browser, "a blue cross")
    page.wait_for_function("document.querySelector('.hf-story .hf-bar[value*=blue]')")
    assert page.locator(".hf-timeline").count() == 1 and browser.page_errors == []


class Undos:
    """What graph and panel should show: the graph goes through its states, of which an undo in the
    panel is one more; the panel goes through its texts, and to a text that the graph brings back.
    """

    def __init__(self, text: str):
        self.texts, self.at = [text], 0
        self.states, self.state = [text], 0

    def changed(self, text: str) -> None:
        """The graph's new state."""
        if text != self.states[self.state]:
            self.states = [*self.states[: self.state + 1], text]
            self.state += 1

    def edit(self, text: str) -> None:
        self.texts = [*self.texts[: self.at + 1], text]
        self.at += 1
        self.changed(text)

    def step(self, where: str, by: int) -> str:
        """The text after a step of the graph or the panel."""
        if where == "panel":
            self.at = min(max(self.at + by, 0), len(self.texts) - 1)
            self.changed(self.texts[self.at])
        else:
            self.state = min(max(self.state + by, 0), len(self.states) - 1)
            text = self.states[self.state]
            if text not in self.texts:
                self.texts = [*self.texts[: self.at + 1], text]
            self.at = self.texts.index(text)
        return self.states[self.state]


_UNDONE = [*product(("g-", "p-"), repeat=3)]
_REDONE = ["p- g- p+", "g- p- g+", "p- g- g+", "g- p- p+", "g- g+ p-", "p- p+ g-"]
# steps of graph (g) and panel (p); half of them, HEADFORCING_EVERYTHING=1 takes all
ORDERS = [*_UNDONE, *(order.split() for order in _REDONE)]
if not os.environ.get("HEADFORCING_EVERYTHING"):
    ORDERS = ORDERS[1::2]
SETTLED = """async (text) => {
  const bars = () => [1, 2].map((at) => document.querySelectorAll(".hf-story .hf-bar")[at]?.ariaLabel ?? "");
  const shown = () => bars().every((label) => label && text.includes(label.split(": ").slice(1).join(": ")));
  const until = performance.now() + 5000;
  while (performance.now() < until && !(WIDGET?.value === text && shown()))
    await new Promise((done) => setTimeout(done, 20));
  await new Promise((done) => setTimeout(done, 250)); // what comes late would change it again
}""".replace("WIDGET", TEXT)


def settled(editor: Browser, text: str) -> None:
    """Wait until the story and its bars have a text, for 5 seconds at most."""
    editor.page.evaluate(SETTLED, text)


@pytest.mark.same_page
@pytest.mark.repeat("comfy]", "comfy, Nodes 2.0]", "comfy_latest]")
@pytest.mark.parametrize("browser", FRONTENDS, indirect=True)
def test_undo_of_the_graph_and_of_the_panel_mix_in_every_order(browser: Browser):
    page = browser.page
    opened(browser)
    # as a saved workflow: the frontend gives new nodes without widgets an empty list of values when
    # they are undone first, which it takes for a change
    page.evaluate("() => app.loadGraphData(app.graph.serialize())")
    page.wait_for_timeout(1000)
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 3")
    noted(browser)
    steps = {
        "g-": ("graph", -1),
        "p-": ("panel", -1),
        "g+": ("graph", 1),
        "p+": ("panel", 1),
    }
    expected = Undos(text_of(browser))
    for number, order in enumerate(ORDERS):
        for bar, words in ((1, f"a cross {number}"), (2, f"a star {number}")):
            page.locator(".hf-story .hf-bar").nth(bar).click()
            page.locator(".hf-story textarea.hf-text").fill(words)
            until_text(browser, words)
            noted(browser)
            expected.edit(text_of(browser))
        done = []
        for step in order:
            done.append(step)
            where, by = steps[step]
            text = expected.step(where, by)
            if where == "graph":
                page.evaluate(f"() => {TRACKER}.{'undo' if by < 0 else 'redo'}()")
            else:
                page.locator(".hf-story .hf-bar").nth(2).focus()
                page.keyboard.press("Control+z" if by < 0 else "Control+Shift+z")
            settled(browser, text)
            assert text_of(browser) == text, done
            noted(browser)
            for bar in (1, 2):
                label = page.locator(".hf-story .hf-bar").nth(bar).get_attribute("aria-label")
                assert label and label.partition(": ")[2] in text, done
    assert page.locator(".hf-timeline").count() == 1 and browser.page_errors == []


@pytest.mark.same_page
@pytest.mark.repeat("comfy]", "comfy, Nodes 2.0]", "comfy_latest]")
@pytest.mark.parametrize("browser", FRONTENDS, indirect=True)
def test_a_render_plays_in_the_panel_and_fills_the_bars_with_its_pictures(browser: Browser):
    page = browser.page
    opened(browser, seed=next(_SEEDS))
    sizes = page.evaluate(SIZES)
    page.evaluate(
        "app.api.addEventListener('head_forcing.progress', (e) => (window.__told = e.detail))"
    )
    browser.queue()
    page.wait_for_function(f"{VIDEO}?.readyState >= 2")
    page.wait_for_function("window.__told?.place?.fps === 16")
    assert browser.wait_done() == "success"
    until_finished(browser)
    assert page.evaluate(f"{VIDEO}.style.imageRendering") == "", "large enough to be smooth"
    painted = """() => {
      const canvas = document.querySelector(".hf-story-film");
      const { width, height } = canvas;
      const row = canvas.getContext("2d").getImageData(0, height >> 1, width, 1).data;
      let drawn = 0;
      for (let at = 3; at < row.length; at += 4) drawn += row[at] > 200;
      return drawn > 0.9 * width;
    }"""
    page.wait_for_function(painted)
    assert page.evaluate(SIZES) == sizes
    hover = page.locator(".hf-story-hover")
    page.locator(".hf-story .hf-bar").nth(1).hover()
    assert not hover.is_visible(), "the pointer does not rest yet"
    page.wait_for_selector(".hf-story-hover:visible")
    assert hover.inner_text() == "0:03", "the picture at the pointer"
    box = hover.bounding_box()
    words = page.locator(".hf-story textarea.hf-text").bounding_box()
    assert box["y"] >= words["y"] and box["y"] + box["height"] <= words["y"] + words["height"] + 1
    page.mouse.down()
    assert not hover.is_visible(), "a press hides it"
    page.mouse.up()
    page.locator(".hf-story-screen").hover()
    page.wait_for_timeout(500)
    assert not hover.is_visible()
    page.evaluate(f"{VIDEO}.pause()")
    page.locator(".hf-story-time").click()
    page.locator(".hf-story").focus()
    page.keyboard.press(" ")
    page.wait_for_function(f"!{VIDEO}.paused")
    page.keyboard.press("k")
    page.wait_for_function(f"{VIDEO}.paused")
    page.evaluate(f"{VIDEO}.currentTime = 1")
    page.wait_for_function(f"!{VIDEO}.seeking")
    page.keyboard.press(".")
    page.wait_for_function(f"{VIDEO}.currentTime > 1.04")
    page.evaluate(f"{VIDEO}.currentTime = 0.9")
    page.wait_for_function(f"!{VIDEO}.seeking")
    page.keyboard.press("i")
    page.evaluate(f"{VIDEO}.currentTime = 3.1")
    page.wait_for_function(f"!{VIDEO}.seeking")
    page.keyboard.press("o")
    asked = """async () => {
      const { queuePrompt } = app.api;
      let sent;
      app.api.queuePrompt = async (_, { output }) => { sent = output; };
      document.querySelector(".hf-story input[value='render in to out']").click();
      while (!sent) await new Promise((done) => setTimeout(done, 50));
      app.api.queuePrompt = queuePrompt;
      return Object.values(sent).map(({ inputs }) => [inputs.from_seconds, inputs.until_seconds]);
    }"""
    assert [1, 3] in page.evaluate(asked), "marks near a whole second are at it"
    page.evaluate(TOGGLE)
    page.wait_for_function(f"{of_player()}?.querySelector('video')?.readyState >= 2")
    assert page.evaluate(SIZES) == sizes and browser.page_errors == []


@pytest.mark.same_page
def test_marks_belong_to_one_story_and_arrows_go_to_other_scenes(browser: Browser):
    page = browser.page
    opened(browser, seed=11)
    browser.run()
    until_finished(browser)
    page.evaluate(f"{VIDEO}.pause()")
    page.locator(".hf-story").focus()
    for seconds, key in ((1, "i"), (3, "o")):
        page.evaluate(f"{VIDEO}.currentTime = {seconds}")
        page.wait_for_function(f"!{VIDEO}.seeking")
        page.keyboard.press(key)
    page.wait_for_selector(".hf-story-range:visible")
    page.keyboard.press("ArrowUp")
    page.wait_for_function(f"{VIDEO}.currentTime > 1.4 && {VIDEO}.currentTime < 2.6")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(f"{VIDEO}.currentTime > 3.4 && {VIDEO}.currentTime < 4.6")
    page.evaluate(
        """() => {
          app.canvas.copyToClipboard(new Set(app.graph.nodes));
          app.canvas.pasteFromClipboard();
          const timelines = app.graph.nodes.filter(({ type }) => type.includes("PromptTimeline"));
          app.canvas.selectItems([timelines.at(-1)]);
        }"""
    )
    page.wait_for_function("document.querySelector('.hf-story-title').textContent")
    page.wait_for_selector(".hf-story-range", state="hidden")
    part = page.locator(".hf-story input[value='render in to out']")
    assert part.is_disabled(), "the copy has no marks"
    page.evaluate(f"app.canvas.selectItems([{of_node('PromptTimeline')}])")
    page.wait_for_selector(".hf-story-range:visible")
    assert part.is_enabled() and browser.page_errors == []


@pytest.mark.same_page
def test_the_menu_of_a_bar_does_each_thing_in_one_click(browser: Browser):
    page = browser.page
    opened(browser)

    def chosen(index: int, entry: str) -> None:
        page.locator(".hf-story .hf-bar").nth(index).click(button="right")
        page.locator(".hf-story-menu [role=menuitem]", has_text=entry).first.click()

    chosen(2, "Bring back scene 1")
    until_text(browser, "recall 1")
    chosen(0, "Duplicate")
    page.wait_for_function(f"{TEXT}.value.split('a red ball').length === 3")
    chosen(0, "Delete")
    page.wait_for_function(f"{TEXT}.value.split('a red ball').length === 2")
    chosen(0, "Cut here")
    page.wait_for_function(f"{TEXT}.value.split('a red ball').length === 3")
    sent = """() => {
      window.__sent = null;
      app.api.queuePrompt = async (_, { output }) => { window.__sent = output; };
    }"""
    page.evaluate(sent)
    chosen(2, "Re-roll and render")
    page.wait_for_function("window.__sent")
    story, asked = page.evaluate(
        """() => {
          const all = Object.values(window.__sent).map(({ inputs }) => inputs);
          const sampler = all.find((inputs) => inputs.until_seconds !== undefined);
          return [all.find((inputs) => inputs.prompts).prompts, sampler.from_seconds > 0];
        }"""
    )
    assert "seed " in story and asked
    page.locator(".hf-story .hf-bar").nth(1).click(button="right")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert page.locator(".hf-story-menu").count() == 0 and browser.page_errors == []


@pytest.mark.same_page
@pytest.mark.repeat("comfy]")
@pytest.mark.parametrize("browser", ["comfy", "comfy_latest, Nodes 2.0"], indirect=True)
def test_the_menu_of_a_bar_is_used_by_keyboard_alone(browser: Browser):
    page = browser.page
    opened(browser)
    focused = "document.activeElement"
    bar = f"[...document.querySelectorAll('.hf-story .hf-bar')].indexOf({focused})"

    def item(entry: str) -> None:
        page.wait_for_function(
            f"(entry) => {focused}.role === 'menuitem' && {focused}.textContent.startsWith(entry)",
            arg=entry,
        )

    page.locator(".hf-story .hf-bar").nth(1).focus()
    page.keyboard.press("Shift+F10")
    item("Render this scene")
    page.keyboard.press("ArrowUp")
    item("Bring back scene 1")
    page.keyboard.press("ArrowDown")
    item("Render this scene")
    page.keyboard.press("End")
    item("Bring back scene 1")
    page.keyboard.press("Escape")
    assert page.locator(".hf-story-menu").count() == 0
    assert page.evaluate(bar) == 1, "the bar has the keys again"
    text = text_of(browser)
    page.keyboard.press("Shift+F10")
    for entry in ("Re-roll and render", "Render up to here", "Cut here", "Duplicate"):
        page.keyboard.press("ArrowDown")
        item(entry)
    assert text_of(browser) == text, "an arrow chooses, and does nothing else"
    page.keyboard.press("Enter")
    page.wait_for_function(f"{TEXT}.value.split('a blue cross').length === 3")
    assert page.locator(".hf-story-menu").count() == 0
    page.wait_for_function(f"{bar} === 2")
    page.keyboard.press("Delete")
    page.wait_for_function(f"{TEXT}.value.split('a blue cross').length === 2")
    assert browser.page_errors == []


@pytest.mark.same_page
def test_the_panel_follows_the_workflow_that_is_open_and_says_when_it_has_no_story(
    browser: Browser,
):
    page = browser.page
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-story-empty:visible")
    assert not page.locator(".hf-story-monitor").is_visible(), "nothing but the sentence"
    page.evaluate(TOGGLE)
    opened(browser)
    page.evaluate("app.graph.clear()")
    page.wait_for_selector(".hf-story-empty:visible")
    assert "no Prompt Timeline" in page.locator(".hf-story-empty").inner_text()
    browser.load_api(growing_graph("panel/w", prompts="0:00 a red ball\n0:03 a pink star"))
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 2")
    page.evaluate(
        """() => {
          const again = LiteGraph.createNode("HeadForcingPromptTimeline");
          app.graph.add(again);
          again.widgets.find(({ name }) => name === "prompts").value = "0:00 a lone tower";
          again.title = "second";
          app.canvas.selectItems?.([again]) ?? app.canvas.selectNode(again);
        }"""
    )
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 1")
    assert "second" in page.locator(".hf-story-title").inner_text()
    page.evaluate(f"app.canvas.selectItems([{of_node('Sampler')}])")
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 2")
    assert browser.page_errors == []


@pytest.mark.same_page
def test_a_low_panel_shows_takes_at_a_click_and_a_wide_timeline_again_at_another(browser: Browser):
    page = browser.page
    size = page.viewport_size
    page.set_viewport_size({"width": 1280, "height": 720})
    opened(browser)
    takes = page.locator(".hf-story-takes")
    button = page.locator(".hf-story-show-takes")
    bars = page.locator(".hf-story .hf-scroll")
    wide = bars.bounding_box()
    assert button.is_visible() and not takes.is_visible()
    button.click()
    panel = page.locator(".hf-story").bounding_box()
    shown = takes.bounding_box()
    assert shown["width"] >= 200 and shown["height"] > 0.6 * panel["height"]
    assert shown["x"] + shown["width"] <= panel["x"] + panel["width"]
    narrower = bars.bounding_box()
    assert narrower["x"] + narrower["width"] <= shown["x"] and narrower["width"] > 400
    button.click()
    page.wait_for_selector(".hf-story-takes", state="hidden")
    assert bars.bounding_box() == wide
    page.set_viewport_size(size)
    page.wait_for_selector(".hf-story-takes", state="visible")
    assert not button.is_visible(), "a higher panel has room for both"
    assert browser.page_errors == []


@pytest.mark.same_page
def test_a_panel_in_which_nothing_happens_draws_nothing(browser: Browser):
    """A value that is set again is drawn again, as often as the panel looks for changes."""
    opened(browser)
    browser.page.wait_for_timeout(1000)
    changes = browser.page.evaluate(
        """async () => {
          const seen = [];
          const note = (records) => seen.push(...records.map(({ type, target }) => `${type} ${target.className}`));
          const watched = { subtree: true, childList: true, attributes: true, characterData: true };
          new MutationObserver(note).observe(document.querySelector(".hf-story"), watched);
          await new Promise((done) => setTimeout(done, 1500));
          return seen;
        }"""
    )
    assert changes == []


def test_another_tab_without_a_call_of_destroy_and_a_second_call_of_render_leave_one_editor(
    browser: Browser,
):
    page = browser.page
    opened(browser)
    page.evaluate(
        """() => {
          const host = document.querySelector(".hf-story").parentElement;
          host.replaceChildren(document.createElement("p")); // as another pack's tab does
        }"""
    )
    page.wait_for_selector(".hf-home .hf-bar")
    page.evaluate(
        """() => {
          const { bottomPanelTabs } = app.extensions.find(({ name }) => name === "HeadForcing");
          const host = document.createElement("div");
          host.style.cssText = "position: fixed; inset: 60% 0 0 0";
          bottomPanelTabs[0].render(host); // before it is in the page
          document.body.append(host);
          bottomPanelTabs[0].render(host);
          bottomPanelTabs[0].render(host);
        }"""
    )
    page.wait_for_selector(".hf-story .hf-bar")
    assert page.locator(".hf-timeline").count() == 1 and browser.page_errors == []


@pytest.mark.same_page
def test_panel_bars_and_menu_have_an_artists_words_and_the_text_keeps_its_tags(browser: Browser):
    page = browser.page
    story = "0:00 a red ball\n0:02 [recache, blend 2] a blue cross\n0:04 [flush, re-anchor, seed 3] a star"
    browser.load_api(growing_graph("panel/words", prompts=story))
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-story .hf-bar")
    page.locator(".hf-story .hf-bar").nth(2).click(button="right")
    words = page.evaluate(
        """() => [...document.querySelectorAll(".hf-story, .hf-story *")].flatMap((each) => [
          each.title,
          each.getAttribute("aria-label"),
          each.getAttribute("aria-valuetext"),
          each.matches("input") ? each.value : each.textContent,
        ]).filter(Boolean).join(" / ").toLowerCase()"""
    )
    for said in ("change sooner", "forget the scene before", "cut", "bring back scene 1"):
        assert said in words
    for engine in ("recache", "flush", "sink", "anchor", "noise", "latent", "cache", "blend"):
        assert engine not in words, engine
    page.keyboard.press("Escape")
    page.locator(".hf-story .hf-bar").nth(1).click()
    page.get_by_label("How it follows the prompt before").select_option(
        "keep going, forget the scene before"
    )
    until_text(browser, "[flush, blend 2] a blue cross")
    assert "[flush, re-anchor, seed 3] a star" in text_of(browser) and browser.page_errors == []


_FAINT = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((each) => (each / 255 <= 0.04 ? each / 3294 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0.9) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const hasWords = (each) => each.value || [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const words = [...document.querySelectorAll(".hf-story *")].filter(
    (each) => hasWords(each) && each.checkVisibility() && !each.disabled && !each.closest(".hf-track, style, option"),
  );
  const contrast = (each) => {
    const pair = [light(getComputedStyle(each).color), light(ground(each))].toSorted((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  return [words.length, words.filter((each) => contrast(each) < 3.5).map((each) => each.outerHTML.slice(0, 80))];
}"""


@pytest.mark.same_page
@pytest.mark.repeat("comfy]")
@pytest.mark.parametrize("browser", ["comfy", "comfy_latest, Nodes 2.0"], indirect=True)
def test_all_words_can_be_read_in_the_light_theme_and_the_sound_has_its_colours(browser: Browser):
    page = browser.page
    beat_file(browser.server, "hf_theme.wav", 6)
    graph = with_sound(growing_graph("panel/theme", prompts=STORY), "hf_theme.wav")
    waves = []
    try:
        for theme in ("light", "dark"):
            page.evaluate(THEME, theme)
            browser.load_api(graph)
            page.evaluate(TOGGLE)
            page.wait_for_selector(".hf-story-sound:not([hidden])")
            page.wait_for_timeout(500)
            count, faint = page.evaluate(_FAINT)
            assert count > 25 and faint == [], theme
            waves.append(
                page.evaluate(
                    """() => {
                      const canvas = document.querySelector(".hf-story-wave");
                      const { width, height } = canvas;
                      const { data } = canvas.getContext("2d").getImageData(width * 0.75, height / 2, 1, 1);
                      return data[0] + data[1] + data[2];
                    }"""
                )
            )
            page.evaluate(TOGGLE)
            page.wait_for_selector(".hf-home .hf-status")
            below, end = page.evaluate(
                """['.hf-home .hf-status', '.hf-home'].map((each) => document.querySelector(each).getBoundingClientRect().bottom)"""
            )
            assert below <= end + 1, "the line below the bars is seen"
    finally:
        page.evaluate(THEME, "dark")
    assert 0 < waves[0] < waves[1] - 100, "the wave is darker on a light ground"
    assert browser.page_errors == []


@pytest.mark.same_page
def test_nothing_moves_under_a_pointer_that_drags_and_the_new_time_stands_at_the_edge(
    browser: Browser,
):
    page = browser.page
    size = page.viewport_size
    opened(browser)
    panel = page.locator(".hf-story")
    layout = "document.querySelector('.hf-story-grid').className"
    handle = page.locator(".hf-story .hf-handle").nth(2)
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=4)
    edge = page.locator(".hf-edge")
    assert edge.is_visible() and edge.inner_text() == "0:04.3"
    page.mouse.move(x + 300, y, steps=4)
    assert edge.inner_text() > "0:05"
    before = page.evaluate(layout)
    page.set_viewport_size({"width": 1280, "height": 720})
    page.wait_for_timeout(500)
    assert panel.bounding_box()["height"] < 400 and page.evaluate(layout) == before
    page.mouse.up()
    page.wait_for_function("(before) => " + f"{layout} !== before", arg=before)
    assert not edge.is_visible()
    page.set_viewport_size(size)
    page.wait_for_function("(before) => " + f"{layout} === before", arg=before)
    assert browser.page_errors == []
