"""Research, its tests and the example of another transformer import the names of
public_names.json from the modules that the file names, and the file lists none that nothing
imports.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("public_names.json")


def listed_names() -> Iterator[tuple[str, str]]:
    """The module and the name of everything that the file lists."""
    for module, names in json.loads(LIST.read_text("utf-8")).items():
        for name in names:
            yield module, name


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """The module, without the package `headforcing_core`, and the name of all that a file imports
    from the engine and the command line.
    """
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").removeprefix("headforcing.")
            if module.split(".")[0] in ("headforcing_core", "cli"):
                for alias in node.names:
                    yield module.removeprefix("headforcing_core."), alias.name


def test_public_names_are_those_that_research_and_the_example_import():
    used: set[tuple[str, str]] = set()
    for path in (ROOT / "research").rglob("*.py"):
        used.update(imported_names(path))
    used.update(imported_names(ROOT / "tests" / "engine" / "test_another_transformer.py"))
    listed = set(listed_names())
    assert used, "nothing was read"
    assert not used - listed, "list it in public_names.json if research rightly needs it"
    assert not listed - used, "no longer needed: take it out of public_names.json"
    assert not [name for _, name in used if name.startswith("_")]
