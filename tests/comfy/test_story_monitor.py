"""The monitor of the story panel: steps of one video frame at the rate of the video, and a second
take in step with it.
"""

import io

import numpy as np
import pytest
import torch
from comfy_browser import Browser
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from PIL import Image
from story_panel import TOGGLE, VIDEO, opened, until_finished, until_text

pytestmark = [pytest.mark.slow, pytest.mark.same_page]


def written(editor: Browser, name: str, fps: int, seconds: int) -> None:
    """A video in the output folder whose frames become lighter."""
    path = editor.server.output_dir / name
    with VideoWriter(VideoSettings(path, fps=fps), 64, 64) as writer:
        for grey in torch.linspace(0, 1, fps * seconds):
            writer.write(grey.expand(1, 64, 64, 3))


def tell_of_file(editor: Browser, name: str, fps: int) -> None:
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


@pytest.mark.thorough
def test_a_step_is_one_video_frame_whatever_the_frame_rate(browser: Browser):
    page = browser.page
    opened(browser)
    for fps in (24, 16):
        name = f"steps_{fps}.mp4"
        written(browser, name, fps, seconds=3)
        tell_of_file(browser, name, fps)
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


def columns(editor: Browser) -> np.ndarray:
    """The mean colour of the upper half of what the monitor shows, in 20 columns, `[20, 3]`."""
    stage = editor.page.locator(".hf-story-screen video").first
    picture = Image.open(io.BytesIO(stage.screenshot())).convert("RGB")
    half = np.asarray(picture, np.float32)[5 : picture.height // 4]
    inside = np.flatnonzero(half.sum((0, 2)) > 0)  # without the black beside the picture
    parts = np.array_split(half[:, inside], 20, axis=1)
    return np.stack([part.mean((0, 1)) for part in parts])


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether most columns have the same colour: the ball is in some of them."""
    return float(np.median(np.abs(one - other).max(1))) < 20


@pytest.mark.thorough
@pytest.mark.repeat("comfy]")
@pytest.mark.parametrize("browser", ["comfy", "comfy_latest, Nodes 2.0"], indirect=True)
def test_a_second_take_is_wiped_over_the_video_in_step_and_without_its_sound(browser: Browser):
    page = browser.page
    seed = 760
    opened(browser, seed=seed)
    page.evaluate(f"app.graph.id = '{seed:08}-0000-4000-8000-000000000000'")
    for room in ("teal", "maroon"):
        browser.write("PromptTimeline", prompts=f"a red ball bouncing in the {room} plain room")
        until_text(browser, room)
        browser.run()
    until_finished(browser)
    page.evaluate(f"{VIDEO}.pause()")
    first = columns(browser)
    page.locator(".hf-story-takes").get_by_label("beside the video, without its sound").nth(
        1
    ).click()
    page.wait_for_function("document.querySelectorAll('.hf-story video')[1]?.readyState >= 2")
    both = "[...document.querySelectorAll('.hf-story video')]"
    assert page.evaluate(f"{both}.map(({{ muted }}) => muted)") == [True, True]
    names = page.locator(".hf-story-screen").inner_text()
    assert "Take 2 ♪" in names and "Take 1" in names, "the names of the list"
    heard = f"{both}.map(({{ muted }}) => !muted)"
    other = page.get_by_label("Hear the other take")
    assert [page.evaluate(heard), other.click(), page.evaluate(heard)][::2] == [
        [False, False],
        [False, True],
    ], "one of the two is heard, which a person chooses"
    assert "Take 1 ♪" in page.locator(".hf-story-screen").inner_text()
    found = []
    for key in "mm":
        page.locator(".hf-story").focus()
        page.keyboard.press(key)
        found.append(page.evaluate(heard))
    assert found == [[False, False], [False, True]], "M, without another choice"
    other.click()
    assert page.evaluate(heard) == [True, False]
    page.locator(".hf-story").focus()
    page.keyboard.press("w")
    line = page.get_by_role("slider", name="Line between the two takes")
    box = page.locator(".hf-story-screen video").first.bounding_box()

    def drag(to: float) -> None:
        at = line.bounding_box()
        middle = at["x"] + at["width"] / 2
        page.mouse.move(min(max(middle, box["x"] + 4), box["x"] + box["width"] - 4), at["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + to * box["width"], at["y"] + 60, steps=4)
        page.mouse.up()

    drag(1.2)
    assert line.get_attribute("aria-valuenow") == "100"
    only_first = columns(browser)
    assert alike(only_first, first)
    drag(-0.2)
    only_second = columns(browser)
    assert not alike(only_second, only_first), "the rooms have other colours"
    drag(0.5)
    page.mouse.move(box["x"] + 5, box["y"] - 40)
    mixed = columns(browser)
    assert alike(mixed[:8], only_first[:8]) and alike(mixed[12:], only_second[12:])
    page.get_by_label("Swap the two takes").click()
    mixed = columns(browser)
    assert alike(mixed[:8], only_second[:8]) and alike(mixed[12:], only_first[12:])
    line.focus()
    page.keyboard.press("ArrowLeft")
    assert line.get_attribute("aria-valuenow") == "48"
    page.evaluate(f"() => {{ const [one] = {both}; one.currentTime = 0.5; return one.play(); }}")
    page.wait_for_function(f"{both}[0].currentTime > 2.5")
    apart = f"{both}[0].currentTime - {both}[1].currentTime"
    in_step = f"Math.abs({apart}) < 1 / 16"  # less than a video frame
    # at the end of both they are, anyhow; a slow page may see no more of them: then once more
    plays_in_step = f"""() => {{
      const [one] = {both};
      if (one.currentTime >= 5.5) {{
        one.currentTime = 1;
        one.play();
      }}
      return one.currentTime > 2 && one.currentTime < 5.5 && {in_step};
    }}"""
    page.wait_for_function(plays_in_step)
    page.evaluate(f"{both}[0].currentTime = 1")
    page.wait_for_function(f"!{both}[0].seeking")
    page.wait_for_function(plays_in_step)  # also after a seek while it plays
    page.locator(".hf-story-screen").get_by_label("Lay one take over the other").click()
    assert line.count() == 0
    page.keyboard.press("w")
    assert line.count() == 1
    page.evaluate(f"{both}[0].pause()")
    page.evaluate(TOGGLE)
    page.wait_for_selector(".hf-home .hf-bar")
    assert page.get_by_label("Lay one take over the other").is_hidden()
    assert line.count() == 0 and browser.page_errors == []
