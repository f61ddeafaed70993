"""The sources: which folder may import which, what each may import besides, and how docstrings and lines are read."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from packed import OPTIONAL

ROOT = Path(__file__).resolve().parents[2]

_ENGINE = "files model timeline weights rollout cache methods head_profiles video report runs render demo"
# From the leaves up. A folder may import itself and what its line names; `files` are the modules beside the folders.
MAY_IMPORT = {
    "files": "", "kernels": "", "model": "files kernels", "timeline": "files", "weights": "files model",
    "rollout": "files model timeline", "cache": "files kernels model timeline rollout",
    "methods": "files model timeline cache rollout", "head_profiles": "files model timeline cache rollout",
    "video": "files kernels model timeline weights", "report": "files timeline cache rollout video",
    "runs": "files timeline cache",
    "render": "files kernels model timeline weights cache rollout methods head_profiles video report runs",
    "demo": "files model timeline weights",
    "recorded": "files model timeline weights rollout cache head_profiles methods",
    "distributed": "files model cache render", "commands": f"{_ENGINE} recorded distributed", "nodes": _ENGINE,
}  # fmt: skip
HOST_MODULES = set("comfy comfy_api comfy_extras comfy_execution folder_paths nodes server execution".split())
OUR_NAMES = {"nodes", "kernels", "headforcing_core", "headforcing"}  # imported relatively: some are others' names, too
REFUSED = re.compile(r"(What|Which|Those|That|As|How|Where|When)\b")  # "What the farm has" names nothing

ENTRY = {f"headforcing_core/{name}.py" for name in ("__init__", "__main__")}  # the public face and the way in
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in ("headforcing_core", "kernels", "nodes")
    for path in (ROOT / top).rglob("*.py")
)


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def place(file: str) -> str:
    """The folder of the table that a file belongs to."""
    parts = file.split("/")
    if parts[0] != "headforcing_core":
        return parts[0]
    return "files" if len(parts) == 2 else parts[1]


@cache
def imports(file: str) -> frozenset[str]:
    """The files of the pack that a file imports, wherever it does so; `research` for that folder."""
    package = file.split("/")[:-1]
    found = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for name in node.names:
                paths = ("/".join(parts) + ".py" for parts in ([*base, name.name], base, [*base, "__init__"]))
                found |= {next((path for path in paths if path in FILES), file)}
                found |= {"research"} & {*base[:1], name.name}
    return frozenset(found - {file})


def absolute_imports(*nodes: ast.AST) -> set[str]:
    """Top-level names of everything imported absolutely, anywhere below some nodes."""
    found = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def run_at_import(module: ast.Module) -> Iterator[ast.AST]:
    """The imports that importing a module runs: none of function bodies, nothing under `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def test_a_file_imports_what_its_folder_may_and_all_that_a_folder_may_is_in_use():
    taken = {(place(file), place(target)) for file in set(FILES) - ENTRY for target in imports(file)}
    taken = {(folder, below) for folder, below in taken if folder != below}
    allowed = {(folder, below) for folder, row in MAY_IMPORT.items() for below in row.split()}
    assert taken == allowed, (taken - allowed, allowed - taken)
    order = list(MAY_IMPORT)
    assert {place(file) for file in FILES} == set(order)
    assert all(order.index(below) < order.index(folder) for folder, below in allowed), "only what stands above"
    TopologicalSorter({file: imports(file) for file in FILES}).prepare()  # raises CycleError, which names the circle

    def floors(folder: str) -> int:
        return 1 + max(map(floors, MAY_IMPORT[folder].split()), default=0)

    assert floors("commands") <= 9 and [place(file) for file in FILES].count("files") <= 8


def test_only_nodes_import_the_host_and_optional_packages_are_imported_when_needed():
    assert len(FILES) > 100 and len(sys.stdlib_module_names & absolute_imports(*map(tree, FILES))) > 20
    for file in ("__init__.py", *FILES):
        found = absolute_imports(tree(file))
        assert place(file) == "nodes" or not found & HOST_MODULES, file
        assert not found & OUR_NAMES and "research" not in imports(file), file
        assert not absolute_imports(*run_at_import(tree(file))) & OPTIONAL, file


def test_docstrings_begin_with_a_noun_or_a_verb_and_text_is_split_into_lines_at_newlines_only():
    """`splitlines` splits at other characters, too, which prompts hold: it is for the first line of a message."""
    research = [path.relative_to(ROOT).as_posix() for path in (ROOT / "research").rglob("*.py")]
    begun = []
    for file in (*FILES, *research):
        for node in ast.walk(tree(file)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                begun.append((file, (ast.get_docstring(node) or "-").splitlines()[0]))
    assert len(begun) > 1000 and [row for row in begun if REFUSED.match(row[1])] == []
    for file in FILES:
        found = re.findall(r"\.splitlines\(.*", (ROOT / file).read_text(encoding="utf-8"))
        assert all(line.startswith((".splitlines()[0]", ".splitlines()[1]")) for line in found), file
