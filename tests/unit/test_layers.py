"""The sources: what modules may import, how docstrings and lines are read, where nodes write, what
scripts do.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

from packed import OPTIONAL

ROOT = Path(__file__).resolve().parents[2]

HOST_MODULES = set(
    "comfy comfy_api comfy_extras comfy_execution folder_paths nodes server execution".split()
)
# imported relatively: some are others' names, too
OUR_NAMES = {"nodes", "kernels", "cli", "headforcing_core", "headforcing"}
# "What the farm has" names nothing
REFUSED = re.compile(r"(What|Which|Those|That|As|How|Where|When)\b")

# the public face
ENTRY = {"headforcing_core/__init__.py"}
_PATHS = chain(
    *((ROOT / top).rglob("*.py") for top in ("headforcing_core", "cli", "kernels", "nodes"))
)
FILES = sorted(path.relative_to(ROOT).as_posix() for path in _PATHS)
KNOWN = frozenset(FILES)


@cache
def nodes_of(file: str) -> list[ast.AST]:
    """All nodes of a file's syntax tree, the module first."""
    return list(ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))))


def place(file: str) -> str:
    """The folder that a file belongs to; `files` are the modules beside those of the engine."""
    parts = file.split("/")
    if parts[0] != "headforcing_core":
        return parts[0]
    return "files" if len(parts) == 2 else parts[1]


@cache
def imports(file: str) -> frozenset[str]:
    """The files of the pack that a file imports, wherever it does so; `research` for that
    folder.
    """
    package = file.split("/")[:-1]
    found = set()
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (
                node.module.split(".") if node.module else []
            )
            for name in node.names:
                paths = (
                    "/".join(parts) + ".py"
                    for parts in ([*base, name.name], base, [*base, "__init__"])
                )
                found |= {next((path for path in paths if path in KNOWN), file)}
                found |= {"research"} & {*base[:1], name.name}
    return frozenset(found - {file})


def absolute_imports(nodes: Iterable[ast.AST]) -> set[str]:
    """Top-level names of everything that these nodes import absolutely."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def run_at_import(file: str) -> Iterator[ast.AST]:
    """The imports that importing a module runs: none of function bodies, nothing under `if
    TYPE_CHECKING`.
    """
    waiting = [nodes_of(file)[0]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
            ]


def test_modules_import_only_what_lies_below_them():
    """The floors are those of pyproject.toml. In a process of its own: it turns off all loggers."""
    program = "from importlinter.cli import lint_imports_command as run; run()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # raises CycleError, which names the circle
    TopologicalSorter({file: imports(file) for file in FILES}).prepare()
    assert [place(file) for file in FILES].count("files") <= 9


def test_only_nodes_import_the_host_and_optional_packages_are_imported_when_needed():
    assert len(FILES) > 100
    for file in ("__init__.py", *FILES):
        found = absolute_imports(nodes_of(file))
        assert place(file) == "nodes" or not found & HOST_MODULES, file
        assert not found & OUR_NAMES and "research" not in imports(file), file
        assert not absolute_imports(run_at_import(file)) & OPTIONAL, file


def test_docstrings_begin_with_a_noun_or_a_verb_and_text_is_split_into_lines_at_newlines_only():
    """`splitlines` splits at other characters, too, which prompts hold: it is for the first line of
    a message.
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in FILES:
        begun = [
            ast.get_docstring(node) or "-"
            for node in nodes_of(file)
            if isinstance(node, documented)
        ]
        assert not list(filter(REFUSED.match, begun)), file
        found = re.findall(r"\.splitlines\(.*", (ROOT / file).read_text(encoding="utf-8"))
        assert all(line.startswith((".splitlines()[0]", ".splitlines()[1]")) for line in found), (
            file
        )


FORBIDDEN = {
    "text of others as HTML": r"\b(innerHTML|outerHTML|insertAdjacentHTML|srcdoc)\b|document\.write",
    "patching of the frontend's classes": r"\.prototype\b|__proto__|setPrototypeOf",
    "other machines": r"https?://",
}


def test_scripts_for_the_browser_use_the_frontends_extension_interface_only():
    """oxlint parses them and refuses what is wrong in any script (`python tasks.py check`)."""
    scripts = sorted((ROOT / "nodes" / "web").rglob("*.js"))
    for script in scripts:
        code = script.read_text(encoding="utf-8")
        assert not [reason for reason, pattern in FORBIDDEN.items() if re.search(pattern, code)], (
            script
        )
        imported = set(re.findall(r'from "([^"]+)"', code)) - {
            "../../scripts/app.js",
            "../../../scripts/app.js",
            "../../scripts/api.js",
        }
        assert all(
            name[0] == "." and (script.parent / name).resolve() in scripts for name in imported
        ), imported
    assert scripts


ROOMS = ("takes", "player", "timeline", "story")  # of nodes/web, from below


def test_rooms_of_scripts_import_only_what_lies_below_them():
    """What runs up is handed in by headforcing.js; types may name anything."""
    crossings = 0
    for place, room in enumerate(ROOMS):
        for script in (ROOT / "nodes" / "web" / room).glob("*.js"):
            text = script.read_text("utf-8")
            imported = re.findall(r'^(?!.*@import).* from "\.\./(\w+)/', text, re.MULTILINE)
            assert not set(imported) - set(ROOMS[:place]), script
            crossings += len(imported)
    assert crossings > 5


WRITES = set(
    "write_text write_bytes mkdir touch unlink rename replace_file rmdir save_file open".split()
)
PLACES = set(
    "get_output_directory get_user_directory get_temp_directory get_input_directory "
    "get_save_image_path "
    "get_folder_paths models_dir base_path get_full_path".split()
)
WRITERS = {
    "PictureSheets",
    "VideoSettings",
    "grid",
    "save",
    "replacing",
    "check_writable",
}  # to a path
HANDING_ON = {"RenderRequest"}  # a folder to the engine, which writes there
# folders that come from another file
HANDED_ON = {"RUNS", "self.runs"}


class Source:
    """A node's source, for asking where the paths in it come from."""

    def __init__(self, file: str):
        self.nodes = nodes_of(file)

    def names(self) -> set[str]:
        """All names and attributes that the file uses."""
        return {getattr(node, "attr", None) or getattr(node, "id", "") for node in self.nodes}

    def calls(self, *wanted: str) -> list[ast.Call]:
        return [n for n in self.nodes if isinstance(n, ast.Call) and _last(n.func) in wanted]

    def contained(self, place: ast.expr) -> bool:
        """Whether a path is made by `folders`, or is None, whatever else it goes through in this
        file.
        """
        text = ast.unparse(place)
        if text in ("None", "io.BytesIO()") or text.startswith("folders.") or text in HANDED_ON:
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
            return self.all_contained(self.returned(_last(place.func)))
        return isinstance(place, (ast.Name, ast.Attribute)) and self.all_contained(
            self.assigned(text)
        )

    def all_contained(self, places: list[ast.expr]) -> bool:
        """All of at least one."""
        return bool(places) and all(map(self.contained, places))

    def assigned(self, name: str) -> list[ast.expr]:
        assignments = [n for n in self.nodes if isinstance(n, ast.Assign)]
        entered = [
            n for n in self.nodes if isinstance(n, ast.withitem) and n.optional_vars is not None
        ]
        return [n.value for n in assignments if name in map(ast.unparse, n.targets)] + [
            n.context_expr for n in entered if ast.unparse(n.optional_vars) == name
        ]

    def yielded(self, name: str) -> list[ast.expr]:
        """What a function of that name yields, one by one."""
        functions = [n for n in self.nodes if isinstance(n, ast.FunctionDef) and n.name == name]
        yields = [n for n in chain(*map(ast.walk, functions)) if isinstance(n, ast.Yield)]
        values = [node.value for node in yields if node.value is not None]
        return list(chain(*(getattr(value, "elts", [value]) for value in values)))

    def returned(self, name: str) -> list[ast.expr]:
        functions = [n for n in self.nodes if isinstance(n, ast.FunctionDef) and n.name == name]
        nodes = chain(*map(ast.walk, functions))
        returns = [node for node in nodes if isinstance(node, ast.Return)]
        return [node.value for node in returns if node.value is not None]


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_nodes_write_only_to_paths_of_one_file_which_holds_names_from_widgets_inside_their_folders():
    others = [file for file in FILES if place(file) == "nodes" and file != "nodes/host/folders.py"]
    assert Source("nodes/host/folders.py").names() & PLACES
    seen = set()
    for file in others:
        source = Source(file)
        assert not source.names() & (WRITES | PLACES) and not source.calls("Path"), file
        for call in source.calls(*WRITERS, *HANDING_ON):
            named = {keyword.arg: keyword.value for keyword in call.keywords}
            seen.add(writer := _last(call.func))
            given = [named.get(place) for place in ("path", "partial", "runs")]
            given += call.args[:1] if writer in WRITERS and given[0] is None else []
            assert all(source.contained(where) for where in given if where is not None), (
                file,
                ast.unparse(call),
            )
        for claimed in source.calls("FileTarget"):  # where a `VideoFile` grows, and where it ends
            claims = [
                claimed.args[0],
                *(k.value for k in claimed.keywords if k.arg == "claim_last"),
            ]
            places = list(chain(*(source.yielded(ast.unparse(claim)) for claim in claims)))
            assert places and all(map(source.contained, places)), (file, ast.unparse(claimed))
        for folder in ("RUNS", "FOUND_PROFILES"):
            assert all(map(source.contained, source.assigned(folder))), file
        seen |= {"FileTarget"} if source.calls("FileTarget") else set()
    assert seen >= {"VideoSettings", "grid", "save", "FileTarget", *HANDING_ON}
