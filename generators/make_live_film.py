"""Writes docs/images/live.webp: a live video is begun in the story panel, two prompts are typed while
it plays, a scene comes back, the video ends. Filmed in a real browser with the demo model, within two
minutes on two idle cores.

    python tasks.py write live_film
"""

import tempfile
from pathlib import Path

from comfy_browser import Browser
from comfy_harness import ComfyServer
from comfy_setup import LATEST_FRONTEND, NEWEST, installed
from film import Film
from workflow_graphs import DEMO_SEED

REPO = Path(__file__).resolve().parents[1]
FILE = REPO / "docs" / "images" / "live.webp"
DEMO = REPO / "workflows" / "02 Re-roll one scene.json"
SIZE = (1280, 720)  # of the window and of the moving picture
FPS = 8
MOST_BYTES = 2_000_000
CAPTION = "left:45%;top:48px;transform:translateX(-50%)"
BEGIN = "a red ball bouncing in the teal plain room"
NEXT = "a yellow cross circling in the navy checkerboard room"

PANEL = "app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')"
VIDEO = "document.querySelector('.hf-story video')"
STATE = "document.querySelector('.hf-live-state').textContent"
SEEN = f"!{STATE}.startsWith('in ')"


def prepare(editor: Browser) -> None:
    """Open the demo with one prompt and a high panel."""
    page = editor.page
    page.evaluate("localStorage.setItem('bottom-panel-splitter', '[20,80]')")
    page.reload(wait_until="domcontentloaded")
    editor.wait_until_open()
    editor.load_workflow(DEMO)
    editor.write("PromptTimeline", prompts=f"0:00 {BEGIN}", seconds=30.0)
    editor.write("Sampler", seed=DEMO_SEED)
    editor.fit_view()
    page.evaluate(PANEL)
    page.wait_for_function("document.querySelectorAll('.hf-story .hf-bar').length === 1")
    page.wait_for_timeout(1500)


def record(editor: Browser) -> Film:
    page = editor.page
    film = Film(page, CAPTION)
    field = page.locator(".hf-live-words")
    film.begin()

    film.moment("Press Live.", 2.0)
    film.go(900, 500)
    film.click(page.locator(".hf-live-begin"))
    page.wait_for_selector(".hf-is-live .hf-live-words")
    film.wait(f"{VIDEO}.currentTime > 1")

    film.moment("Type what happens next ...", 3.0)
    film.click(page.locator(".hf-live-ways input[value=cut]"))
    film.write(field, NEXT)
    film.moment("... and see it two seconds later.", 2.5)
    page.keyboard.press("Enter")
    film.wait(f"{STATE}.startsWith('in ')")
    film.wait(SEEN)
    page.wait_for_timeout(1500)

    film.moment("With the demo a word is enough.", 3.0)
    film.click(page.locator(".hf-live-chips input[value=green]"))
    film.wait(f"{STATE}.startsWith('in ')")
    film.wait(SEEN)
    page.wait_for_timeout(1500)

    film.moment("Scenes come back.", 2.5)
    film.click(page.locator(".hf-live-scene").first)
    film.wait(f"{STATE}.startsWith('in ')")
    film.wait(SEEN)
    page.wait_for_timeout(1500)

    film.moment("Stop: it is an ordinary story.", 2.0)
    film.click(page.locator(".hf-live input[value='■ Stop']"))
    page.wait_for_selector(".hf-story-grid:not(.hf-is-live)")
    page.wait_for_timeout(2500)
    film.end()
    return film


def main() -> None:
    install = installed(NEWEST, LATEST_FRONTEND)
    with tempfile.TemporaryDirectory() as base, ComfyServer(install, Path(base)) as server:
        with Browser(server, vue_nodes=True, size=SIZE, any_source=True) as editor:
            prepare(editor)
            film = record(editor)
    count = film.save(FILE, FPS, MOST_BYTES)
    print(f"{FILE.name}: {count} pictures, {FILE.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
