"""Docstrings begin with a noun or a verb: a sentence such as "What the farm has" names nothing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFUSED = re.compile(r"(What|Which|Those|That|As|How|Where|When)\b")


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of every docstring of the product and of research."""
    for folder in ("headforcing_core", "kernels", "nodes", "research"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    if text := ast.get_docstring(node):
                        yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", text


def test_no_docstring_begins_with_a_question_word_or_a_pronoun():
    found = list(docstrings())
    assert len(found) > 1000
    assert [f"{place}: {text.splitlines()[0]}" for place, text in found if REFUSED.match(text)] == []
