"""Screenshots of the story panel in its states, at three sizes, in both renderers and in ComfyUI's
dark and light themes, to be looked at.

python tasks.py write story_screenshots FOLDER [SIZE or THEME ...]
"""

import sys
import tempfile
from pathlib import Path

from comfy_browser import Browser
from comfy_graphs import growing_graph
from comfy_harness import ComfyServer
from comfy_setup import LATEST_FRONTEND, NEWEST, installed
from playwright.sync_api import Page
from sound_files import beat_file, with_sound

SIZES = {"720": (1280, 720), "1080": (1920, 1080), "4k": (3840, 2160)}
THEMES = ("dark", "light")
RENDERERS = {"litegraph": False, "vue": True}
TOGGLE = "app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')"
STORY = """0:00 a red ball in a blue room, walking to the right
0:10 [cut] a blue cross in a green room, standing still
0:20 [dissolve 1.5s] a pink star in a yellow room
0:30 [recall 1] a red ball in a blue room"""
VIDEO = "document.querySelector('.hf-story video')"


def take(page: Page, file: Path) -> None:
    page.wait_for_timeout(800)
    page.screenshot(path=file)


def photograph(server: ComfyServer, folder: Path, size: str, renderer: str, theme: str) -> None:
    """Every state at one size in one renderer and theme."""
    vue_nodes = RENDERERS[renderer]
    server.post("/settings/Comfy.ColorPalette", theme)
    with Browser(server, vue_nodes=vue_nodes, size=SIZES[size], any_source=True) as editor:
        page = editor.page

        def name(state: str) -> Path:
            return folder / f"{size}_{renderer}_{theme}_{state}.png"

        page.evaluate("app.graph.clear()")
        page.evaluate(TOGGLE)
        take(page, name("empty"))
        graph = growing_graph("screens/v", seconds=40.0, prompts=STORY, seed=5)
        editor.load_api(with_sound(graph, "beats.wav"))
        editor.fit_view()
        page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 4")
        take(page, name("story"))
        editor.queue()
        page.wait_for_function(f"{VIDEO}?.currentTime > 3")
        take(page, name("running"))
        editor.wait_done()
        page.wait_for_function(f"{VIDEO}.readyState >= 2 && !{VIDEO}.src.startsWith('blob:')")
        page.wait_for_timeout(5000)  # the pictures of the file
        page.locator(".hf-story .hf-bar").nth(1).click()
        take(page, name("finished"))
        page.locator(".hf-story .hf-bar").nth(2).click(button="right")
        take(page, name("menu"))
        page.keyboard.press("Escape")
        takes = page.locator(".hf-story-takes")
        if not takes.is_visible():
            page.locator(".hf-story-show-takes").click()
            take(page, name("takes"))
        takes.get_by_label("of all workflows").check()  # the render may be an earlier one's
        takes.get_by_label("beside the video").first.click()
        page.locator(".hf-story").focus()
        page.keyboard.press("w")
        take(page, name("wiped"))
        editor.write("PromptTimeline", prompts=f"{STORY}\n0:50 [flsh] a star")
        take(page, name("refused"))
        page.evaluate(TOGGLE)
        take(page, name("closed"))


def main(folder: Path, asked: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [size for size in SIZES if size in asked] or SIZES
    themes = [theme for theme in THEMES if theme in asked] or THEMES
    install = installed(NEWEST, LATEST_FRONTEND)
    with tempfile.TemporaryDirectory() as base, ComfyServer(install, Path(base)) as server:
        beat_file(server, "beats.wav", 40)
        for size in sizes:
            for renderer in RENDERERS:
                for theme in themes:
                    photograph(server, folder, size, renderer, theme)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
