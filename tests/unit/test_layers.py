"""The folders of the engine and which of them may import which: one table, no circles, nothing upward."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_FLOORS = 11
MOST_ROOT_FILES = 8

_ENGINE = "files model timeline weights rollout cache methods head_profiles video report runs render demo"
# From the leaves up. A folder may import itself and what its line names; `files` are the modules beside the folders.
MAY_IMPORT = {
    "files": "", "kernels": "", "model": "files kernels", "timeline": "files", "weights": "files model",
    "rollout": "files model timeline", "cache": "files kernels model timeline rollout",
    "methods": "files model timeline cache rollout", "head_profiles": "files model timeline cache rollout",
    "video": "files kernels model timeline weights", "report": "files timeline cache rollout head_profiles video",
    "runs": "files timeline cache report",
    "render": "files kernels model timeline weights cache rollout methods head_profiles video report runs",
    "demo": "files model timeline weights",
    "recorded": "files model timeline weights rollout cache head_profiles methods",
    "distributed": "files model cache render", "commands": f"{_ENGINE} recorded distributed", "nodes": _ENGINE,
}  # fmt: skip

ENTRY = {f"headforcing_core/{name}.py" for name in ("__init__", "__main__")}  # the public face and the way in
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in ("headforcing_core", "kernels", "nodes")
    for path in (ROOT / top).rglob("*.py")
)


def place(file: str) -> str:
    """The folder of the table that a file belongs to."""
    parts = file.split("/")
    if parts[0] != "headforcing_core":
        return parts[0]
    return "files" if len(parts) == 2 else parts[1]


@cache
def imports(file: str) -> frozenset[str]:
    """The files of the pack that a file imports, wherever it does so."""
    package = file.split("/")[:-1]
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for name in node.names:
                paths = ("/".join(parts) + ".py" for parts in ([*base, name.name], base, [*base, "__init__"]))
                found |= {next((path for path in paths if path in FILES), file)}
    return frozenset(found - {file})


def test_no_file_imports_a_folder_that_its_own_may_not():
    for file in set(FILES) - ENTRY:
        here = place(file)
        new = {target for target in imports(file) if place(target) not in (here, *MAY_IMPORT[here].split())}
        assert not new, f"{file}: {here} may import {MAY_IMPORT[here] or 'nothing'}"


def test_the_table_names_the_folders_that_exist_and_only_what_stands_above():
    assert {place(file) for file in FILES} == set(MAY_IMPORT)
    order = list(MAY_IMPORT)
    assert all(
        order.index(below) < order.index(folder) for folder, allowed in MAY_IMPORT.items() for below in allowed.split()
    )


def test_the_table_allows_no_direction_that_nobody_takes():
    taken = {(place(file), place(target)) for file in FILES for target in imports(file)}
    unused = {(folder, below) for folder, allowed in MAY_IMPORT.items() for below in allowed.split()} - taken
    assert not unused


@cache
def floors_below(folder: str) -> int:
    """Folders on the longest chain of imports from this one to a leaf, itself included."""
    return 1 + max((floors_below(below) for below in MAY_IMPORT[folder].split()), default=0)


def test_few_floors_lie_between_the_command_line_and_the_leaves():
    assert floors_below("commands") <= MOST_FLOORS
    assert len([file for file in FILES if place(file) == "files"]) <= MOST_ROOT_FILES


def test_no_file_imports_itself_through_others():
    sorter = TopologicalSorter({file: imports(file) for file in FILES})
    sorter.prepare()  # raises CycleError, which names the circle


def test_nothing_imports_research():
    """The product does without what measures it."""
    for file in FILES:
        depth = file.count("/") + 1  # dots that lead to the root of the pack
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == depth:
                names = (node.module or " ".join(name.name for name in node.names)).split(".")[0].split()
                assert "research" not in names, file
