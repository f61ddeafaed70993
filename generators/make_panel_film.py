"""Writes docs/images/story_panel.webp: Run, the video grows, pictures come into the bars, an edit is
applied, and two takes play beside each other. Filmed in a real browser with the demo model.

    python tasks.py write panel_film
"""

import io
import tempfile
from pathlib import Path

from comfy_browser import Browser, of_widget
from comfy_graphs import growing_graph
from comfy_harness import ComfyServer
from comfy_setup import LATEST_FRONTEND, NEWEST, installed
from PIL import Image
from playwright.sync_api import Page

FILE = Path(__file__).resolve().parents[1] / "docs" / "images" / "story_panel.webp"
WINDOW = (1400, 860)
SIZE = (840, 516)
FRAME_MS = 125
MOST_BYTES = 3_000_000
TOGGLE = "app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')"
VIDEO = "document.querySelector('.hf-story video')"
FINISHED = f"{VIDEO}.readyState >= 2 && !{VIDEO}.src.startsWith('blob:')"
STORY = """0:00 a red ball in a blue room, walking to the right
0:06 [cut] a blue cross in a green room, standing still
0:14 [cut] a green star in a yellow room, walking to the left
0:22 [recall 1] a red ball in a blue room, standing still"""


class Film:
    """Screenshots one after another."""

    def __init__(self, page: Page):
        self.page = page
        self.frames: list[Image.Image] = []

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            picture = Image.open(io.BytesIO(self.page.screenshot(type="jpeg", quality=92)))
            self.frames.append(picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS))
            self.page.wait_for_timeout(FRAME_MS)

    def take_until(self, condition: str, most: int) -> None:
        for _ in range(most):
            self.take()
            if self.page.evaluate(condition):
                return
        self.page.wait_for_function(condition)

    def save(self, file: Path) -> None:
        """Write it with the best quality that fits into `MOST_BYTES`."""
        first, *others = self.frames
        for quality in (70, 55, 40, 25):
            content = io.BytesIO()
            first.save(
                content,
                "WEBP",
                save_all=True,
                append_images=others,
                duration=FRAME_MS,
                loop=0,
                quality=quality,
                method=4,
            )
            if content.tell() <= MOST_BYTES:
                break
        file.write_bytes(content.getvalue())


def film(editor: Browser) -> Film:
    page = editor.page
    page.evaluate("localStorage.setItem('bottom-panel-splitter', '[38,62]')")
    page.reload(wait_until="domcontentloaded")
    editor.wait_until_open()
    page.evaluate(
        """() => {
          window.__runs = [];
          for (const outcome of ["success", "error", "interrupted"])
            app.api.addEventListener("execution_" + outcome, (each) => window.__runs.push([outcome, each.detail?.exception_message]));
        }"""
    )
    editor.load_api(growing_graph("film/v", seconds=30.0, prompts=STORY, seed=5))
    editor.fit_view()
    page.evaluate(TOGGLE)
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 4")
    page.wait_for_timeout(800)
    made = Film(page)
    made.take(6)
    editor.queue()
    made.take_until(f"{VIDEO}?.currentTime > 0", 40)
    page.locator(".hf-story .hf-bar").nth(2).focus()
    page.locator(".hf-story textarea.hf-text").fill(
        "a pink star in a yellow room, walking to the left"
    )
    page.wait_for_function(f"{of_widget('PromptTimeline', 'prompts')}.value.includes('pink')")
    made.take()  # the demo model is fast: what has begun cannot be changed
    page.evaluate("document.querySelector('.hf-live-story input').click()")
    made.take_until(FINISHED, 70)
    page.wait_for_timeout(4000)  # pictures of what was not shown
    made.take(10)
    editor.write("Sampler", seed=6)
    editor.run()
    page.wait_for_function(FINISHED)
    page.wait_for_timeout(3000)
    page.locator(".hf-story-takes input[value='beside']").nth(1).click()
    page.wait_for_timeout(1500)
    made.take(16)
    return made


def main() -> None:
    install = installed(NEWEST, LATEST_FRONTEND)
    with (
        tempfile.TemporaryDirectory() as base,
        ComfyServer(install, Path(base)) as server,
        Browser(server, vue_nodes=True, size=WINDOW, any_source=True) as editor,
    ):
        made = film(editor)
    made.save(FILE)
    print(f"{FILE.name}: {len(made.frames)} frames, {FILE.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
