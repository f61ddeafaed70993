"""Small pictures that the server makes of a render: their route, and the bars that show them."""

import io
import re
from typing import Any

import pytest
from comfy_browser import Browser
from comfy_graphs import growing_graph
from comfy_harness import ComfyServer
from PIL import Image

_STORY = "0:00 a red ball\n0:04 [cut] a blue cross\n0:08 a green star"
_TOGGLE = "app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')"


def sheet(server: ComfyServer, id: str, number: Any) -> tuple[int, bytes]:
    return server.ask(f"/headforcing/pictures?id={id}&sheet={number}", None, "GET")


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
def test_bars_show_what_the_server_has_made_and_no_page_seeks_through_the_video(browser: Browser):
    """A page that sought would make a second video element, and the player would seek."""
    page = browser.page
    browser.load_api(growing_graph("sheets/v", seconds=12.0, prompts=_STORY, seed=71))
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    page.evaluate(
        """() => {
          const make = document.createElement.bind(document);
          window.__videos = 0;
          document.createElement = (tag, ...more) => {
            if (String(tag).toLowerCase() === "video") window.__videos++;
            return make(tag, ...more);
          };
          window.__asked = [];
          new PerformanceObserver((list) => {
            for (const { name, startTime } of list.getEntries())
              if (name.includes("/headforcing/pictures")) window.__asked.push([name, startTime]);
          }).observe({ type: "resource", buffered: true });
        }"""
    )
    page.evaluate(_TOGGLE)
    page.wait_for_selector(".hf-story .hf-bar")
    browser.run(300)
    page.wait_for_function(
        "[...document.querySelectorAll('.hf-bar')].every((bar) => bar.style.backgroundImage)"
    )
    page.wait_for_function("!document.querySelector('.hf-story video').src.startsWith('blob:')")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.__videos") == 0
    asked = page.evaluate("window.__asked")
    times = [at for _, at in asked]
    assert asked and all(later - at > 900 for at, later in zip(times, times[1:], strict=False))
    (id,) = {re.search(r"id=(\w+)", name)[1] for name, _ in asked}
    drawn = page.evaluate(
        """() => {
          const film = document.querySelector(".hf-story-film");
          const { data } = film.getContext("2d").getImageData(0, 0, film.width, film.height);
          return data.filter((value, place) => place % 4 === 3 && value > 200).length / (data.length / 4);
        }"""
    )
    assert drawn > 0.8, "film strips fill the bars"
    status, body = sheet(browser.server, id, 0)
    assert status == 200
    with Image.open(io.BytesIO(body)) as picture:
        assert picture.size == (10 * 96, 6 * 96)
    for bad in ((id, 1), (id, "../0"), ("..", 0), (id[:-1], 0), (id, -1)):
        assert sheet(browser.server, *bad)[0] == 404
    for gone in (id, id[:-1], ""):  # a read that comes when the file has its number is no error
        assert browser.server.ask(f"/headforcing/growing?id={gone}", None, "GET") == (204, b"")
    assert browser.page_errors == []
