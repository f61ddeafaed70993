"""Research and the example of another transformer import the names of
headforcing_core/PUBLIC_NAMES.md, and the page lists no name that nothing imports.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "headforcing_core" / "PUBLIC_NAMES.md").read_text("utf-8")
LISTED = set(re.findall(r"`(\w+)`", PAGE))


def imported_names(path: Path) -> Iterator[str]:
    """The names that a file imports from the engine."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and "headforcing_core" in (node.module or "").split(
            "."
        ):
            yield from (alias.name for alias in node.names)


def test_public_names_are_those_that_research_and_the_example_import():
    files = [path for path in (ROOT / "research").rglob("*.py") if "tests" not in path.parts]
    files.append(ROOT / "tests" / "engine" / "test_another_transformer.py")
    used = {name for path in files for name in imported_names(path)}
    assert used, "nothing was read"
    assert not used - LISTED, "list it in PUBLIC_NAMES.md if research rightly needs it"
    assert not LISTED - used, "no longer needed: take it out of PUBLIC_NAMES.md"
    assert not [name for name in used if name.startswith("_")]
