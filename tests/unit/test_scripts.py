"""The scripts for the browser: plain modules that use the frontend's extension interface only."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[2] / "nodes" / "web").rglob("*.js"))
FORBIDDEN = {
    "text of others as HTML": r"\b(innerHTML|outerHTML|insertAdjacentHTML|srcdoc)\b|document\.write",
    "code made from text": r"\beval\s*\(|new\s+Function\b",
    "patching of the frontend's classes": r"\.prototype\b|__proto__|setPrototypeOf", "other machines": r"https?://",
    "what is left of debugging": r"\bdebugger\b|console\.log", "old variables": r"^\s*var\s",
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_a_small_module_that_leaves_the_page_alone(script: Path):
    code = script.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 350 and max(map(len, code.splitlines())) <= 120
    for reason, pattern in FORBIDDEN.items():
        assert not re.search(pattern, code, re.MULTILINE), reason
    imported = set(re.findall(r'from "([^"]+)"', code)) - {"../../scripts/app.js", "../../scripts/api.js"}
    assert all(name[0] == "." and (script.parent / name).resolve() in SCRIPTS for name in imported), imported
    if shutil.which("node") is not None:  # else the browser tests alone parse the scripts
        check = ["node", "--input-type=module", "--check"]
        done = subprocess.run(check, input=script.read_bytes(), capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
