"""The archive that the registry gets, installed into a ComfyUI: its demo runs, and how soon its
first picture comes.
"""

import sys
import time
import zipfile
from pathlib import Path

import pytest
from comfy_browser import Browser, of_widget
from comfy_harness import ComfyServer, crowd
from comfy_setup import LATEST_FRONTEND, NEWEST, installed
from packed import pack

NAME = "headforcing"  # of the registry, and of the folder that it is unpacked to
MOST_BYTES = 15e6
FIRST_PICTURE_SECONDS = 2.0
_PLAYING = (
    "[...document.querySelectorAll('video')].some((video) => video.readyState >= 2 && "
    "video.videoWidth)"
)
_PREVIEW = """[...document.querySelectorAll("img[src^='data:image/jpeg']")]
  .some((image) => image.naturalWidth && image.style.display !== "none")"""
_FORGET = f"""() => {{
  {of_widget("Sampler", "seed")}.value = 5;
  for (const video of document.querySelectorAll("video")) {{
    video.removeAttribute("src");
    video.load();
  }}
}}"""


@pytest.mark.thorough
@pytest.mark.slow
def test_the_archive_runs_its_demo_whose_first_picture_comes_within_two_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    archive = pack(tmp_path / "node.zip")
    assert archive.stat().st_size < MOST_BYTES
    base = tmp_path / "comfyui"
    zipfile.ZipFile(archive).extractall(base / "custom_nodes" / NAME)
    with ComfyServer(installed(NEWEST, LATEST_FRONTEND), base, pack_dir=None) as server:
        assert "IMPORT FAILED" not in server.log()
        assert "01 Demo without downloads" in server.get_json("/workflow_templates")[NAME]
        with Browser(server, any_source=True) as editor:
            listed = editor.page.evaluate("() => app.api.getWorkflowTemplates()")[NAME]
            assert len(listed) == 17 and listed == sorted(listed)
            load = "async (path) => app.loadGraphData(await (await app.api.fetchApi(path)).json())"
            editor.page.evaluate(load, f"/workflow_templates/{NAME}/01 Demo without downloads.json")
            editor.page.wait_for_timeout(500)
            editor.fit_view()
            assert editor.missing_nodes() == []
            editor.run(300)
            (file,) = (server.output_dir / "video").iterdir()
            assert file.name == "demo_00001_.mp4"

            editor.page.evaluate(_FORGET)
            editor.page.wait_for_function(f"!({_PLAYING} || {_PREVIEW})")
            pressed = time.perf_counter()
            editor.queue()
            editor.page.wait_for_function(f"{_PLAYING} || {_PREVIEW}", polling=20)
            picture = time.perf_counter() - pressed
            editor.page.wait_for_function(_PLAYING, polling=20)
            plays = time.perf_counter() - pressed
            with capsys.disabled():
                sys.stdout.write(
                    f"\nwarm demo: first picture after {picture:.2f} s, plays after {plays:.2f} s\n"
                )
            assert picture < FIRST_PICTURE_SECONDS * crowd()
            assert editor.page_errors == []
