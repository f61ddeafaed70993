"""What the commands of tasks.py install for the tests that are named."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("tasks_under_test", ROOT / "tasks.py")
tasks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tasks)


@pytest.mark.parametrize(
    "arguments, extra, opens_browser",
    [
        (["tests/unit", "-k", "timeline"], "dev", False),
        (["tests/unit/test_tasks.py::test_one", "tests/engine"], "dev", False),
        (["tests/unit", "tests/comfy"], "test", True),
        (["tests"], "test", True),
        (["-k", "docs"], "test", True),
        (["--", "../elsewhere"], "test", True),
    ],
)
def test_a_browser_is_installed_only_for_tests_outside_the_quick_folders(
    monkeypatch, arguments, extra, opens_browser
):
    installed = []
    browsers = []
    monkeypatch.setattr(tasks, "environment", lambda extra="": installed.append(extra))
    monkeypatch.setattr(tasks, "browser", lambda: browsers.append("chromium"))
    monkeypatch.setattr(tasks, "pytest", lambda *arguments: 0)
    with pytest.raises(SystemExit):
        tasks.test(arguments)
    assert installed == [extra]
    assert bool(browsers) == opens_browser


def test_the_quick_tests_install_no_browser_cluster_or_reference_models():
    quick = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").lower()
    assert [name for name in ("playwright", "ray", "diffusers") if f"\n{name}" in quick] == []


def test_write_names_what_it_can_write():
    with pytest.raises(SystemExit, match="workflows, locales, thumbnails"):
        tasks.write(["pages"])


def test_every_name_that_write_knows_is_a_script_and_another_is_refused(monkeypatch):
    ran = []
    monkeypatch.setattr(tasks, "environment", lambda extra="": "python")
    monkeypatch.setattr(tasks, "run", lambda *command, **env: ran.append(command[1]))
    scripts = sorted((ROOT / "generators").glob("make_*.py"))
    for script in scripts:
        tasks.write([script.stem.removeprefix("make_")])
    assert len(scripts) > 3 and ran == scripts
    with pytest.raises(SystemExit, match="needs one of workflows"):
        tasks.write(["thumbnail"])
