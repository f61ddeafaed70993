"""What the moving pictures of the story panel share: the window, the demo in a high panel, and the
way from a recording to a file.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from comfy_browser import Browser
from comfy_harness import ComfyServer
from comfy_setup import LATEST_FRONTEND, NEWEST, installed
from film import Film
from workflow_graphs import DEMO_SEED

REPO = Path(__file__).resolve().parents[1]
DEMO = REPO / "workflows" / "02 Re-roll one scene.json"
SIZE = (1280, 720)  # of the window and of the moving picture
FPS = 8
CAPTION = "left:45%;top:48px;transform:translateX(-50%)"

PANEL = "app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')"
VIDEO = "document.querySelector('.hf-story video')"


def load_demo(editor: Browser, **story: object) -> None:
    """Open the demo with these values of Prompt Timeline, in a page whose panel opens high."""
    page = editor.page
    page.evaluate("localStorage.setItem('bottom-panel-splitter', '[20,80]')")
    page.reload(wait_until="domcontentloaded")
    editor.wait_until_open()
    editor.load_workflow(DEMO)
    editor.write("PromptTimeline", **story)
    editor.write("Sampler", seed=DEMO_SEED)


def open_panel(editor: Browser, bars: int) -> None:
    """Open the panel, and wait until it shows so many prompts."""
    editor.fit_view()
    editor.page.evaluate(PANEL)
    shown = f"document.querySelectorAll('.hf-story .hf-bar').length === {bars}"
    editor.page.wait_for_function(shown)


def make_film(name: str, most_bytes: int, record: Callable[[Browser], Film]) -> None:
    """Write a moving picture of at most so many bytes into docs/images."""
    file = REPO / "docs" / "images" / name
    install = installed(NEWEST, LATEST_FRONTEND)
    with tempfile.TemporaryDirectory() as base, ComfyServer(install, Path(base)) as server:
        with Browser(server, vue_nodes=True, size=SIZE, any_source=True) as editor:
            film = record(editor)
    count = film.save(file, FPS, most_bytes)
    print(f"{name}: {count} pictures, {file.stat().st_size} bytes")  # noqa: T201
