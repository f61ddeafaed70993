"""Nodes write only to paths made in `nodes/host/folders.py`, which holds names from widgets inside their folders."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

NODES = Path(__file__).resolve().parents[2] / "nodes"
WRITES = set("write_text write_bytes mkdir touch unlink rename replace_file rmdir save_file open".split())
PLACES = set(
    "get_output_directory get_user_directory get_temp_directory get_input_directory get_save_image_path "
    "get_folder_paths models_dir base_path get_full_path".split()
)
FOLDERS = NODES / "host" / "folders.py"
OTHERS = sorted(path.relative_to(NODES).as_posix() for path in NODES.rglob("*.py") if path != FOLDERS)


def names(path: Path) -> set[str]:
    """All names and attributes that the file uses."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {n.attr for n in nodes if isinstance(n, ast.Attribute)} | {n.id for n in nodes if isinstance(n, ast.Name)}


def test_no_other_file_makes_a_path_or_writes_by_itself():
    assert {name: found for name in OTHERS if (found := names(NODES / name) & (WRITES | PLACES))} == {}


# what writes, and which argument says where
WRITERS = {
    "write_video": "path", "VideoStream": "path", "grid": "path", "save": "path", "replacing": "path",
    "check_writable": "path",
}  # fmt: skip
# folders that come from another file, and the calls that hand them to the engine, which writes there
HANDED_ON = {"RUNS", "FOUND_PROFILES", "self.runs", "self.found_profiles"}
HANDING_ON = {"HostRender": ("runs", "found_profiles"), "RenderJob": ("runs", "found_profiles")}


class File:
    """A node's source, for asking where the paths in it come from."""

    def __init__(self, path: Path):
        self.nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))

    def calls(self, *wanted: str) -> list[ast.Call]:
        return [n for n in self.nodes if isinstance(n, ast.Call) and _last(n.func) in wanted]

    def contained(self, place: ast.expr) -> bool:
        """Whether a path is made by `folders`, or is None, whatever else it goes through in this file."""
        text = ast.unparse(place)
        if text == "None" or text.startswith("folders.") or text in HANDED_ON:
            return True
        if text == "io.BytesIO()":  # memory
            return True
        if isinstance(place, ast.IfExp):
            return self.contained(place.body) and self.contained(place.orelse)
        if isinstance(place, ast.BinOp):  # folder / "name"
            return self.contained(place.left)
        if isinstance(place, ast.Attribute) and place.attr == "path":
            return self.contained(place.value)
        if isinstance(place, ast.Call) and _last(place.func) == "enter_context":
            return self.contained(place.args[0])
        if isinstance(place, ast.Call):  # a method of the class
            return _all(self.contained(value) for value in self._returned(_last(place.func)))
        return isinstance(place, (ast.Name, ast.Attribute)) and _all(map(self.contained, self._assigned(text)))

    def _assigned(self, name: str) -> list[ast.expr]:
        assignments = [n for n in self.nodes if isinstance(n, ast.Assign)]
        entered = [n for n in self.nodes if isinstance(n, ast.withitem) and n.optional_vars is not None]
        return [n.value for n in assignments if name in map(ast.unparse, n.targets)] + [
            n.context_expr for n in entered if n.optional_vars is not None and ast.unparse(n.optional_vars) == name
        ]

    def _returned(self, name: str) -> list[ast.expr]:
        functions = [n for n in self.nodes if isinstance(n, ast.FunctionDef) and n.name == name]
        return [r.value for f in functions for r in ast.walk(f) if isinstance(r, ast.Return) and r.value is not None]


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _all(found: Iterable[bool]) -> bool:
    """All of at least one."""
    found = list(found)
    return bool(found) and all(found)


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_writes_is_given_a_path_from_the_folders(name: str):
    file = File(NODES / name)
    assert not file.calls("Path"), "a path of its own"
    for call in file.calls(*WRITERS):
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        where = named.get(WRITERS[_last(call.func)]) or call.args[0]
        assert file.contained(where), ast.unparse(call)
        assert "partial" not in named or file.contained(named["partial"]), ast.unparse(call)
    for places in file._returned("claim"):  # where a `VideoFile` is, and where it grows
        assert all(map(file.contained, places.elts)), ast.unparse(places)
    for call in file.calls(*HANDING_ON):
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        for folder in HANDING_ON[_last(call.func)]:
            assert folder not in named or file.contained(named[folder]), ast.unparse(call)
    for name in HANDED_ON & {"RUNS", "FOUND_PROFILES"}:
        assert all(map(file.contained, file._assigned(name)))


def test_every_writer_is_seen_and_a_path_from_a_widget_is_not_let_through(tmp_path: Path):
    called = {_last(call.func) for name in OTHERS for call in File(NODES / name).calls(*WRITERS)}
    assert called >= {"write_video", "grid", "save"}
    assert any(File(NODES / name)._returned("claim") for name in OTHERS)
    given = {_last(call.func) for name in OTHERS for call in File(NODES / name).calls(*HANDING_ON)}
    assert given == set(HANDING_ON)
    (tmp_path / "bad.py").write_text("def f(widget, file):\n    place = widget\n    write_video(place)\n")
    (tmp_path / "worse.py").write_text("place = folders.output_folder()\nplace = widget\nwrite_video(place)\n")
    (tmp_path / "good.py").write_text("file = folders.output_file(widget)\nwrite_video(file.path)\n")
    assert [
        all(file.contained(call.args[0]) for call in file.calls("write_video"))
        for file in (File(tmp_path / name) for name in ("bad.py", "worse.py", "good.py"))
    ] == [False, False, True]


def test_the_folders_are_made_in_one_place():
    assert PLACES & names(FOLDERS) >= {"get_output_directory", "get_user_directory", "get_save_image_path"}
