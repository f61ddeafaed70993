"""Every name of ComfyUI that the nodes import, and every call of one, is there in the oldest and in
the newest supported version, by comfy-import-guard.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from comfy_setup import FLOOR, NEWEST, installed

PARTS = ("nodes", "headforcing_core", "kernels", "__init__.py")
# asked for with `getattr` and a default, since the oldest version lacks them
NEWER = {FLOOR: {"is_oom", "CoreModelPatcher"}, NEWEST: set()}
CORE = ("comfy", "comfy_api", "comfy_execution", "comfy_extras")


def committed(root: Path, folder: Path) -> None:
    """A git repository of ComfyUI's Python files, as the guard reads them."""
    for part in CORE:
        if (root / part).is_dir():
            shutil.copytree(root / part, folder / part)
    for file in root.glob("*.py"):
        shutil.copy(file, folder)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "core"]):
        subprocess.run([*git, *command], cwd=folder, check=True)


@pytest.mark.parametrize("version", NEWER)
def test_what_the_nodes_use_of_comfyui_is_there(version: str, repo_root: Path, tmp_path: Path):
    core = tmp_path / "cache" / "ComfyUI"
    core.mkdir(parents=True)
    committed(installed(version).tree, core)
    pack = tmp_path / "comfyui" / "custom_nodes" / "headforcing"
    pack.mkdir(parents=True)
    for part in PARTS:
        source = repo_root / part
        if source.is_dir():
            shutil.copytree(source, pack / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, pack)
    # run as a program: a module of that name may be a pack of ComfyUI, too
    command = [sys.executable, "-m", "comfy_import_guard.cli", "--offline", "--json", "--quiet"]
    command += ["--cache-dir", str(tmp_path / "cache"), "check", "--no-update", "--target", "HEAD"]
    command += ["--comfy-dir", str(tmp_path / "comfyui")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (found,) = json.loads(done.stdout)["packs"]
    assert found["python_files"] > 100 and found["references"] > 50
    assert {each["symbol"] for each in found["breaking"]} == NEWER[version], found["breaking"]
    assert found["signature_drift"] == [] and found["unparseable"] == []
