"""Scripts for the browser that need none: each file of `scripts/` is run by node's own test
runner.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FILES = sorted((HERE / "scripts").glob("*.test.mjs"))
NODE = shutil.which("node")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Path:
    """The scripts as ComfyUI serves them: below `extensions`, beside the frontend's own
    `scripts`.
    """
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(HERE.parents[1] / "nodes" / "web", folder / "extensions" / "headforcing")
    shutil.copytree(HERE / "scripts", folder / "tests")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "app.js").write_text(
        "export const app = { ui: {}, api: {} };\n", encoding="utf-8"
    )
    (folder / "package.json").write_text('{ "type": "module" }\n', encoding="utf-8")
    return folder


@pytest.mark.skipif(
    NODE is None, reason="node is not installed; it runs the tests of scripts for the browser"
)
@pytest.mark.parametrize("file", [path.name for path in FILES])
def test_scripts_do_without_a_browser_what_their_tests_say(served, file):
    command = [str(NODE), "--test", "--test-reporter=tap", str(served / "tests" / file)]
    done = subprocess.run(
        command,
        cwd=served,
        env=dict(os.environ),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and "\nnot ok" not in done.stdout, done.stdout + done.stderr
    assert "\n# pass 0" not in done.stdout
