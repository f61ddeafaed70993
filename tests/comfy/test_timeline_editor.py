"""The visual timeline on Prompt Timeline in a real browser, and the route behind it."""

import http.client
import json
import re
from pathlib import Path
from typing import Any

import pytest
from comfy_browser import Browser
from comfy_harness import ComfyServer, run_in_comfy
from comfy_setup import ComfyInstall

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
STORY = "0:00 a red ball\n0:10 [blend 2] a <img src=x onerror=alert(1)> star\n0:20 a cyan ring"
NODE = "app.graph.nodes.find((node) => node.type === 'HeadForcingPromptTimeline')"
TEXT = f"{NODE}.widgets.find((widget) => widget.name === 'prompts')"


class Editor:
    """The timeline of the first Prompt Timeline node on a page."""

    def __init__(self, browser: Browser):
        self.page = browser.page
        self.bars, self.status = self.page.locator(".hf-bar"), self.page.locator(".hf-status")

    def text(self) -> str:
        return self.page.evaluate(f"{TEXT}.value")

    def write(self, text: str) -> None:
        """Change the text widget as typing in it does."""
        script = f"(text) => {{ const widget = {TEXT}; widget.value = text; widget.callback?.(text); }}"
        self.page.evaluate(script, text)

    def waits_for(self, text: str) -> None:
        """Wait until the text widget holds this text."""
        self.page.wait_for_function(f"(text) => {TEXT}.value === text", arg=text, timeout=5000)

    def waits_for_bars(self, *words: str) -> None:
        script = "(all) => JSON.stringify([...document.querySelectorAll('.hf-bar')].map((bar) => bar.value)) === all"
        self.page.wait_for_function(script, arg=json.dumps(words, separators=(",", ":"), ensure_ascii=False))

    def drag(self, index: int, seconds: float, length: float) -> None:
        """Drag the switch to a prompt to a place on the ruler."""
        grip = self.page.locator(".hf-handle").nth(index).bounding_box()
        track = self.page.locator(".hf-track").bounding_box()
        assert grip and track
        mouse = self.page.mouse
        mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + 10)
        mouse.down()
        mouse.move(track["x"] + track["width"] * seconds / length, track["y"] + 20, steps=4)
        mouse.up()


def look_at_the_node(browser: Browser) -> None:
    browser.page.evaluate(f"""() => {{
      const node = {NODE}, view = app.canvas.ds;
      view.scale = 1.1;
      view.offset = [150 - node.pos[0], 110 - node.pos[1]];
      app.graph.setDirtyCanvas(true, true);
    }}""")
    browser.page.wait_for_timeout(300)


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_floor", "comfy_latest, Nodes 2.0"], indirect=True)
def test_a_story_is_edited_on_the_timeline(browser):
    """Every way of changing a story, one after the other, in one editor."""
    saved = {node["type"]: node for node in json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))["nodes"]}
    before = saved["HeadForcingPromptTimeline"]
    browser.load_workflow(FOLDER / "demo.json")
    look_at_the_node(browser)
    editor, page = Editor(browser), browser.page
    editor.bars.nth(5).wait_for()

    # the editor is no part of a file: what was loaded is saved again, and nothing of it is sent
    nodes = page.evaluate("app.graph.serialize().nodes")
    after = next(node for node in nodes if node["type"] == "HeadForcingPromptTimeline")
    assert after["widgets_values"] == before["widgets_values"]
    assert [slot["name"] for slot in after["inputs"]] == [slot["name"] for slot in before["inputs"]]
    height = list(after["size"].values() if isinstance(after["size"], dict) else after["size"])[1]
    assert abs(height - list(before["size"])[1]) <= 10
    sent = next(n for n in browser.api_prompt().values() if n["class_type"] == "HeadForcingPromptTimeline")
    assert set(sent["inputs"]) == {"clip", "prompts", "seconds", "shared_prompt", "switch", "blend_blocks", "re_anchor"}

    # the text changes the bars; words of others stay words
    editor.write(STORY)
    editor.waits_for_bars("a red ball", "a <img src=x onerror=alert(1)> star", "a cyan ring")
    assert page.locator(".hf-timeline img").count() == 0 and browser.alerts == []

    # a drag changes one time of the text, to a block, and nothing else; undo brings back even the way it was written
    editor.drag(2, 30.2, 60.5625)
    dragged = STORY.replace("0:20 ", "0:30.562 ")
    editor.waits_for(dragged)
    assert page.evaluate("document.activeElement.value") == "a cyan ring"
    page.keyboard.press("Control+z")
    editor.waits_for(STORY)
    page.keyboard.press("Control+Shift+z")
    editor.waits_for(dragged)
    page.keyboard.press("Control+z")
    editor.waits_for(STORY)
    page.wait_for_timeout(300)
    assert page.evaluate("document.activeElement.value") == "a cyan ring", "the graph's own undo rebuilt the node"

    # the keyboard alone: move by a block and by ten, edit words, remove
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    editor.waits_for(dragged.replace("0:30.562", "0:28.312"))
    assert editor.bars.nth(2).get_attribute("aria-valuetext").startswith("0:28.312 to 1:00, block 38")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.keyboard.type("6:00 pm, [flush] it\n- rains")
    moved = "0:00 a red ball\n0:10 [blend 2] 6:00 pm, [flush] it - rains\n0:28.312 a cyan ring"
    editor.waits_for(moved)
    editor.waits_for_bars("a red ball", "6:00 pm, [flush] it - rains", "a cyan ring")
    page.keyboard.press("Escape")
    page.keyboard.press("Delete")
    editor.waits_for("0:00 a red ball\n0:28.312 a cyan ring")
    assert page.evaluate(f"{NODE} !== undefined"), "Delete removed the node"
    page.keyboard.press("Control+z")
    editor.waits_for_bars("a red ball", "6:00 pm, [flush] it - rains", "a cyan ring")
    editor.waits_for(moved)

    # words that cannot be are not written, and what was there before comes back
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("Delete")
    page.wait_for_function("document.querySelector('.hf-status').textContent.includes('prompt 2 is empty')")
    assert editor.text() == moved and page.locator(".hf-text").input_value() == ""
    page.keyboard.press("Escape")
    assert page.locator(".hf-text").input_value() == "6:00 pm, [flush] it - rains"

    # Run from the keyboard takes along the letter that was typed last
    page.evaluate(f"window.__run = []; app.queuePrompt = () => window.__run.push({TEXT}.value); undefined")
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    page.keyboard.type("!")
    page.keyboard.press("Control+Enter")
    moved = moved.replace("rains", "rains!")
    editor.waits_for(moved)
    page.wait_for_timeout(200)
    assert page.evaluate("window.__run") == [moved]

    # the fields of a prompt, which leave the box of the text its height
    editor.bars.nth(2).click()
    box = page.locator("textarea:not(.hf-text)").first.bounding_box()
    assert box and box["height"] >= 60, box
    page.get_by_label("Prompt switch").select_option("flush")
    page.get_by_label("re-anchor").check()
    page.get_by_label("Blend, in blocks").fill("3")
    page.keyboard.press("Enter")
    editor.waits_for(moved.replace("a cyan ring", "[flush, re-anchor, blend 3] a cyan ring"))
    page.get_by_label("Recall").select_option("0")
    editor.waits_for(moved.replace("a cyan ring", "[flush, re-anchor, recall, blend 3] a cyan ring"))
    page.get_by_label("Recall").select_option("1")
    editor.waits_for(moved.replace("a cyan ring", "[flush, re-anchor, recall 1, blend 3] a cyan ring"))
    page.get_by_label("Recall").select_option("")
    editor.waits_for(moved.replace("a cyan ring", "[flush, re-anchor, blend 3] a cyan ring"))
    page.get_by_label("Re-roll from this prompt on").click()
    page.get_by_label("Seed from here on").fill("18446744073709551615")
    page.keyboard.press("Enter")
    editor.waits_for(moved.replace("a cyan ring", "[flush, re-anchor, blend 3, seed 18446744073709551615] a cyan ring"))
    assert "⚄" in page.locator(".hf-tag").nth(2).inner_text()
    page.get_by_label("Remove the seed").click()
    page.get_by_label("Prompt switch").select_option("")
    editor.waits_for(moved)

    # more prompts
    page.get_by_label("Split this prompt in two").click()
    editor.waits_for(moved + "\n0:44.812 a cyan ring")
    page.get_by_label("Add a prompt").click()
    editor.waits_for_bars("a red ball", "6:00 pm, [flush] it - rains!", "a cyan ring", "a cyan ring", "New prompt")

    # a text that is no timeline is left alone, and says why
    broken = "0:00 a\n0:10 [flsh] b"
    editor.write(broken)
    page.wait_for_function("document.querySelector('.hf-status').textContent.includes('did you mean [flush]')")
    assert editor.bars.nth(0).is_disabled()
    assert editor.text() == broken

    # five minutes
    page.evaluate(f"{NODE}.widgets.find((widget) => widget.name === 'seconds').value = 300")
    editor.write("0:00 a\n4:00 b\n4:00.8 c")
    editor.waits_for_bars("a", "b", "c")
    editor.bars.nth(1).focus()
    for _ in range(12):
        page.keyboard.press("+")
    width, shown = page.evaluate(
        "(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth])(document.querySelector('.hf-scroll'))"
    )
    assert width > 10 * shown
    box, scroll = editor.bars.nth(1).bounding_box(), page.locator(".hf-scroll").bounding_box()
    assert scroll["x"] <= box["x"] < scroll["x"] + scroll["width"], "the selected prompt stays in view"
    assert box["width"] > 20, "a block is wide enough to grasp"
    page.keyboard.press("0")
    assert (
        page.evaluate(
            "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('.hf-scroll'))"
        )
        == 0
    )

    assert browser.page_errors == []


# --------------------------------------------------------------------------------------------------------------- route

BODY = {"text": "0:00 a\n0:10 b", "seconds": 30.0}


def asked(
    server: ComfyServer, body: Any, path: str = "/headforcing/timeline", method: str = "POST", **headers: str
) -> tuple[int, Any]:
    """POST bytes, or JSON, with headers of one's own."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, {"Content-Type": "application/json"} | named)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def test_the_route_answers_its_own_page_and_programs(comfy_server):
    here = f"http://127.0.0.1:{comfy_server.port}"
    for headers in ({}, {"Origin": here}, {"Origin": here, "Sec_Fetch_Site": "same-origin"}):
        status, got = asked(comfy_server, BODY, **headers)
        assert status == 200 and [segment["start_block"] for segment in got["segments"]] == [0, 14]
    assert asked(comfy_server, BODY | {"text": "0:00 a\n0:35 b"})[1]["line"] == 2


FROM_HERE = """
import importlib, json, types
pages = importlib.import_module(load_pack().__name__ + ".nodes.host.pages")

def answers(listen, cors, headers):
    pages.args.listen, pages.args.enable_cors_header = listen, cors
    return pages.from_here(types.SimpleNamespace(headers=headers))

print(json.dumps([answers(*case) for case in json.loads(sys.argv[1])]))
"""
HOME, ANYWHERE, HERE = "127.0.0.1", "0.0.0.0", {"Host": "127.0.0.1:8188"}
MINE, EVIL = ({"Host": name, "Origin": f"https://{name}"} for name in ("my.example", "evil.example"))
# where ComfyUI listens, its --enable-cors-header, a request's headers, and whether it is answered
REQUESTS: list[tuple[str, str | None, dict[str, str], bool]] = [
    # a server that answers pages of every site: ComfyUI then checks no origin itself
    *[(HOME, "*", HERE | {"Origin": origin}, False) for origin in ("http://example.com", "null", "http://127.0.0.1:1")],
    (HOME, "*", HERE | {"Origin": "http://["}, False),
    (HOME, "*", HERE | {"Sec-Fetch-Site": "cross-site"}, False),
    (HOME, "*", HERE | {"Origin": "http://127.0.0.1:8188", "Sec-Fetch-Site": "same-site"}, False),
    (HOME, "*", HERE | {"Origin": "http://127.0.0.1:8188"}, True),
    # a server in a network answers to its domain
    (ANYWHERE, None, MINE, True),
    (ANYWHERE, None, EVIL, True),
    (HOME, "https://my.example", MINE, True),
    (HOME, "https://my.example", EVIL, False),
]


def test_requests_are_told_apart_by_site_and_name_however_comfyui_was_started(comfy_install: ComfyInstall):
    cases = json.dumps([case[:3] for case in REQUESTS])
    assert json.loads(run_in_comfy(comfy_install, FROM_HERE, cases)) == [case[3] for case in REQUESTS]


def test_a_domain_that_is_pointed_at_this_computer_gets_no_answer(comfy_server):
    """DNS rebinding: to the browser a page of this domain is the server's own."""
    port = comfy_server.port
    own = ("127.0.0.1", "localhost", "LOCALHOST", "[::1]", "192.168.1.5", "a.localhost", "studio", "studio.local")
    for name in own:
        assert asked(comfy_server, BODY, Host=f"{name}:{port}", Origin=f"http://{name}:{port}")[0] == 200, name
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.example"):
        for origin in ({"Origin": f"http://{name}:{port}"}, {}):  # browsers leave it out where a page only reads
            status, got = asked(comfy_server, BODY, Host=f"{name}:{port}", **origin)
            assert (status, list(got)) == (403, ["error"]), name
            for path in ("/headforcing/takes", "/headforcing/takes/picture?name=x&number=0"):
                assert asked(comfy_server, b"", path, method="GET", Host=f"{name}:{port}", **origin)[0] == 403, name


def test_a_body_of_another_kind_gets_one_sentence(comfy):
    deep, before = b"[" * 100_000, len(comfy.log())
    for body, headers, status in (
        (b"{", {}, 400),
        (b"\xff\xfe", {}, 400),
        (deep, {}, 400),
        (b'{"seconds": ' + b"9" * 5000 + b"}", {}, 400),
        ([], {}, 400),
        ({"text": 5}, {}, 400),
        (BODY, {"Content_Type": "text/plain"}, 415),
        (b'"' + b"a" * (5 << 20) + b'"', {}, 413),
    ):
        found, got = asked(comfy, body, **headers)
        assert (found, list(got)) == (status, ["error"]), body[:40]
        assert 10 < len(got["error"]) < 150 and "\n" not in got["error"] and "Traceback" not in got["error"]
    assert "Traceback" not in comfy.log()[before:]


def test_no_script_of_the_pack_writes_html():
    for script in (FOLDER.parent / "nodes" / "web").rglob("*.js"):
        source = script.read_text(encoding="utf-8")
        assert not re.search(r"(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\b|new Function", source), (
            script
        )
        assert source.count("\n") <= 350, script
