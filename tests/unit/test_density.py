"""Code is read, not decoded: how much a reader meets on a line."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

PRODUCT = ("headforcing_core", "cli", "nodes", "kernels")
MOST_A_LINE = {
    "headforcing_core": 10.0,
    "cli": 10.0,
    "nodes": 10.0,
    "kernels": 13.5,
    "tests": 9.5,
    "generators": 9.5,
    "research": 9.5,
}
MOST_A_LINE_OF_A_FOLDER = 11.0  # of the product, but for folders of arithmetic
ARITHMETIC = ("kernels",)
PARTS = {"product": PRODUCT, "tests": ("tests", "generators"), "research": ("research",)}
MOST_PER_1000_LINES = {  # of each part
    "assignments of three and more values": 1.0,
    "generators unpacked into names": 0.0,
    "nested comprehensions": 1.0,
    "conditional expressions": 14.0,
}
POSITIONAL = "calls with more than four positional arguments"
VARS = "vars() of an object"
MOST = {
    "product": {POSITIONAL: 60, VARS: 0},
    # modules, objects of others, and what all an object holds is found by
    "tests": {POSITIONAL: 185, VARS: 7},
    "research": {POSITIONAL: 40, VARS: 0},
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def forms_of(node: ast.AST) -> list[str]:
    """The forms that one node is, by the names in the tables above."""
    forms = []
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 2:
            forms.append("assignments of three and more values")
        if isinstance(node.value, ast.GeneratorExp):
            forms.append("generators unpacked into names")
    if isinstance(node, COMPREHENSIONS):
        inner = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
        if len(inner) > 1 or len(node.generators) > 1:
            forms.append("nested comprehensions")
    if isinstance(node, ast.IfExp):
        forms.append("conditional expressions")
    if isinstance(node, ast.Call):
        if sum(not isinstance(argument, ast.Starred) for argument in node.args) > 4:
            forms.append(POSITIONAL)
        # vars(arguments), a namespace of argparse, is a dict by another name
        if isinstance(node.func, ast.Name) and node.func.id == "vars":
            forms.append(VARS)
    return forms


def measured(text: str) -> Counter[str]:
    """How often each form stands in a source text, its nodes, its lines, and those of code."""
    found: Counter[str] = Counter()
    lines = text.splitlines()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        found["nodes"] += 1
        found.update(forms_of(node))
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            docstrings.update(range(docstring.lineno, docstring.end_lineno + 1))
    found["lines"] = len(lines)
    found["code"] = sum(
        bool(line.strip()) and place not in docstrings for place, line in enumerate(lines, start=1)
    )
    return found


@pytest.fixture(scope="module")
def folders(repo_root: Path) -> dict[str, Counter[str]]:
    """What was measured, by folder, as in `headforcing_core/cache`."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=repo_root, capture_output=True, text=True, check=True
    ).stdout.split()
    found: dict[str, Counter[str]] = {}
    for name in listed:
        path = repo_root / name
        if path.exists():
            folder = found.setdefault(str(Path(name).parent), Counter())
            folder.update(measured(path.read_text(encoding="utf-8")))
    return found


def total(folders: dict[str, Counter[str]], *roots: str) -> Counter[str]:
    """The sum over all folders below these."""
    return sum(
        (found for folder, found in folders.items() if folder.split("/")[0] in roots), Counter()
    )


@pytest.mark.parametrize("root", MOST_A_LINE)
def test_lines_are_plain(folders, root):
    found = total(folders, root)
    assert found["nodes"] / found["code"] <= MOST_A_LINE[root]


def test_no_folder_is_denser_than_the_others(folders):
    dense = {
        folder: found["nodes"] / found["code"]
        for folder, found in folders.items()
        if folder.split("/")[0] in PRODUCT and folder not in ARITHMETIC and found["code"] > 20
    }
    assert len(dense) > 10
    assert {
        folder for folder, density in dense.items() if density > MOST_A_LINE_OF_A_FOLDER
    } == set()


@pytest.mark.parametrize("part", PARTS)
def test_packed_forms_are_rare(folders, part):
    found = total(folders, *PARTS[part])
    assert found["lines"] > 10_000
    for form, most in MOST_PER_1000_LINES.items():
        assert found[form] <= most * found["lines"] / 1000, form
    for form, most in MOST[part].items():
        assert found[form] <= most, form


def test_what_is_measured_is_found():
    lines = (
        '"""Text."""',
        "a, b, c = 1, 2, 3",
        "d, e = (x for x in y)",
        "f(1, 2, 3, 4, vars(5))",
        "g = [[h for h in i] for i in j if k if l]",
        "m = 1 if n else 2",
    )
    found = measured("\n".join(lines))
    assert (found["lines"], found["code"]) == (6, 5)
    forms = (*MOST_PER_1000_LINES, POSITIONAL, VARS)
    assert {form: found[form] for form in forms} == dict.fromkeys(forms, 1)
