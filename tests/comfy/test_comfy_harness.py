"""The test harness itself: what is wrong does not pass for well."""

from pathlib import Path

import pytest
from comfy_browser import Browser
from comfy_harness import ComfyServer, run_in_comfy
from comfy_setup import ComfyInstall

pytestmark = pytest.mark.comfy


def slow_prompt(steps: int, seconds: float) -> dict:
    return {
        "slow": {"class_type": "TestSlow", "inputs": {"steps": steps, "seconds": seconds}},
        "show": {"class_type": "PreviewImage", "inputs": {"images": ["slow", 0]}},
    }


def test_refused_and_failing_prompts_are_told_apart(comfy_server: ComfyServer):
    refused = comfy_server.queue(slow_prompt(steps=0, seconds=0.0))
    assert (refused.status, refused.outcome, list(refused.node_errors)) == (400, "invalid", ["slow"])
    failing = comfy_server.queue(slow_prompt(steps=1, seconds=-1.0))
    assert failing.outcome == "error" and "non-negative" in (failing.error or "")


def test_code_runs_inside_comfy_with_the_pack_importable(comfy_install: ComfyInstall):
    code = """
import comfy.model_management, sys
print(comfy.model_management.get_torch_device(), sys.argv[1], load_pack().comfy_entrypoint.__name__)
"""
    assert run_in_comfy(comfy_install, code, "hello").split() == ["cpu", "hello", "comfy_entrypoint"]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_in_comfy(comfy_install, "1 / 0")


def test_server_that_cannot_start_says_why(comfy_install: ComfyInstall, tmp_path: Path):
    with pytest.raises(RuntimeError, match="unrecognized arguments: --no-such-option"):
        ComfyServer(comfy_install, tmp_path, pack_dir=None, args=["--no-such-option"]).__enter__()


def test_editor_loads_queues_and_reports_missing_nodes(comfy_server: ComfyServer, tmp_path: Path):
    with Browser(comfy_server) as editor:
        editor.load_api(slow_prompt(steps=3, seconds=0.1))
        assert sorted(editor.node_types()) == ["PreviewImage", "TestSlow"]
        assert editor.missing_nodes() == []
        assert editor.widgets("TestSlow")["steps"] == 3
        assert {node["class_type"] for node in editor.api_prompt().values()} == {"TestSlow", "PreviewImage"}
        editor.queue()
        assert editor.wait_done(30) == "success"
        editor.fit_view()
        assert editor.screenshot(tmp_path / "editor.png").stat().st_size > 5000
        unknown = tmp_path / "unknown.json"
        unknown.write_text('{"version": 0.4, "nodes": [{"id": 1, "type": "NoSuchNode", "pos": [0, 0]}], "links": []}')
        editor.load_workflow(unknown)
        assert editor.missing_nodes() == ["NoSuchNode"]
        assert editor.page_errors == [] and editor.blocked == []
