"""The monitor of the story panel: steps of one video frame at the rate of the video."""

import pytest
import torch
from comfy_browser import Browser
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from story_panel import VIDEO, opened

pytestmark = pytest.mark.slow


def written(editor: Browser, name: str, fps: int, seconds: int) -> None:
    """A video in the output folder whose frames become lighter."""
    path = editor.server.output_dir / name
    with VideoWriter(VideoSettings(path, fps=fps), 64, 64) as writer:
        for grey in torch.linspace(0, 1, fps * seconds):
            writer.write(grey.expand(1, 64, 64, 3))


def told_of(editor: Browser, name: str, fps: int) -> None:
    """Tell the page that the sampler has made a file, as the server does."""
    editor.page.evaluate(
        """([filename, fps]) => {
          const node = app.graph.nodes.find(({ type }) => type === "HeadForcingSampler");
          const detail = {
            node: String(node.id),
            workflow: "",
            prompt_id: filename,
            state: "done",
            text: "",
            files: [{ filename, subfolder: "", type: "output" }],
            place: { done: 9, lead: 0, fps, scenes: [] },
          };
          app.api.dispatchEvent(new CustomEvent("head_forcing.progress", { detail }));
        }""",
        [name, fps],
    )


def test_a_step_is_one_video_frame_whatever_the_frame_rate(browser: Browser):
    page = browser.page
    opened(browser)
    for fps in (24, 16):
        name = f"steps_{fps}.mp4"
        written(browser, name, fps, seconds=3)
        told_of(browser, name, fps)
        page.wait_for_function(
            f"(name) => {VIDEO}?.src.includes(name) && {VIDEO}.readyState >= 2", arg=name
        )
        page.evaluate(f"{VIDEO}.pause()")
        shown = """(key) => new Promise((done) => {
          const video = document.querySelector(".hf-story video");
          video.requestVideoFrameCallback((_, { mediaTime }) => done(mediaTime));
          const press = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
          if (key) video.dispatchEvent(press);
          else video.currentTime = 1;
        })"""
        frames = [page.evaluate(shown, key) * fps for key in ["", *[".", "."] * 6, ",", ","]]
        wanted = [fps + step for step in [*range(13), 11, 10]]
        assert frames == pytest.approx(wanted, abs=0.05), fps
    assert browser.page_errors == []
