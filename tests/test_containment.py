"""Every path that nodes write to is made in `nodes/folders.py`, which holds names from widgets inside their folders."""

import ast
from pathlib import Path

import pytest

NODES = Path(__file__).resolve().parents[1] / "nodes"
WRITES = {
    "write_text",
    "write_bytes",
    "mkdir",
    "touch",
    "unlink",
    "rename",
    "replace_file",
    "rmdir",
    "save_file",
    "open",
}
PLACES = {
    "get_output_directory",
    "get_user_directory",
    "get_temp_directory",
    "get_input_directory",
    "get_save_image_path",
    "get_folder_paths",
    "models_dir",
    "base_path",
}
OTHERS = sorted(path.name for path in NODES.glob("*.py") if path.name != "folders.py")


def names(path: Path) -> set[str]:
    """All names and attributes that the file uses."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {n.attr for n in nodes if isinstance(n, ast.Attribute)} | {n.id for n in nodes if isinstance(n, ast.Name)}


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_file_makes_a_path_or_writes_by_itself(name: str):
    assert names(NODES / name) & (WRITES | PLACES) == set()


def test_the_folders_are_made_in_one_place():
    assert PLACES & names(NODES / "folders.py") >= {"get_output_directory", "get_user_directory", "get_save_image_path"}
