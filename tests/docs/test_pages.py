"""The pages of the repository: links lead somewhere, commands and options exist, the folders are those of the code."""

import contextlib
import io
import json
import re
import runpy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from headforcing.headforcing_core.commands.cli import main
from headforcing.research.__main__ import main as research
from promises import COUNTED

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
FOLDERS = ("docs", "headforcing_core", "kernels", "nodes", "profiles", "workflows", "tests", "research")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=NAMES)

COMMANDS = (
    "demo", "generate", "batch", "compare", "convert", "inspect", "profile",
    "profiles merge", "profiles compare", "profiles show", "profiles plot", "report", "runs list", "runs takes",
    "runs show", "runs prune", "methods", "budget", "replay", "encode", "decode", "memory",
)  # fmt: skip
RESEARCH = (
    "train", "gate", "accuracy", "rooms", "returns", "references", "budget", "evaluate", "check-claim",
)  # fmt: skip
COMMANDS_WITH_PARTS = ("profiles", "runs")
PROGRAM = re.compile(r"^(?:headforcing|python -m headforcing\.headforcing_core(?= |$)|python tasks\.py(?= demo)) ")
PROGRAM_OF_RESEARCH = re.compile(r"^python (?:-m headforcing\.research|tasks\.py research) ")
PACKAGE_FOLDERS = ("headforcing_core", "research", "")  # where a path such as `cache/policy.py` is looked for
NOT_HERE_YET: set[str] = set()
MAY_IMPORT = runpy.run_path(str(next((ROOT / "tests").rglob("test_layers.py"))))["MAY_IMPORT"]


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def codes(text: str) -> Iterator[str]:
    """Every line of a code block and every inline code, on one line each."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from block.splitlines()
    for inline in re.findall(r"`([^`]+)`", without_blocks(text)):
        yield " ".join(inline.split())


@cache
def options(*command: str, program: Callable[[list[str]], int] = main) -> frozenset[str]:
    """The options that a command's help names; none for a command that does not exist."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        program([*command, "--help"])
    return frozenset(re.findall(r"--[a-z][a-z0-9-]+", shown.getvalue()))


def command_of(words: list[str]) -> tuple[str, ...]:
    return tuple(words[:2] if words[0] in COMMANDS_WITH_PARTS else words[:1])


def test_the_pages_were_found():
    assert {"README.md", "docs/ARCHITECTURE.md", "nodes/web/docs/HeadForcingSampler.md"} <= set(NAMES)


@EVERY_PAGE
def test_every_link_leads_somewhere(page: Path):
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text("utf-8")), target


@EVERY_PAGE
def test_every_command_has_the_options_that_the_page_gives_it(page: Path):
    for code in codes(page.read_text("utf-8")):
        found = PROGRAM.match(code) or PROGRAM_OF_RESEARCH.match(code)
        words = code[found.end() :].split() if found else []
        if not words or not words[0].islower():  # `headforcing COMMAND --help`
            continue
        known = options(*command_of(words), program=main if PROGRAM.match(code) else research)
        assert known, f"there is no command {code!r}"
        unknown = {word for word in words if re.fullmatch(r"--[a-z][a-z0-9-]*", word)} - known
        assert not unknown, f"{code!r} has no {unknown}"


OF_COMFYUI = {"--enable-cors-header", "--listen"}


@EVERY_PAGE
def test_options_that_stand_alone_exist(page: Path):
    if page.parent.name == "benchmarks":  # a program of its own
        return
    known = frozenset().union(
        *(options(*command.split()) for command in COMMANDS),
        *(options(command, program=research) for command in RESEARCH),
    )
    for code in codes(page.read_text("utf-8")):
        for option in re.findall(r"^--[a-z][a-z0-9-]*", code):
            assert option in known | OF_COMFYUI, option


@EVERY_PAGE
def test_every_file_that_a_page_names_exists(page: Path):
    for code in codes(page.read_text("utf-8")):
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)+\.(py|md|sh|toml|txt)", code) or code in NOT_HERE_YET:
            continue
        places = [ROOT / folder / code for folder in PACKAGE_FOLDERS] + [page.parent / code]
        assert any(place.exists() for place in places), code


@pytest.mark.parametrize(
    ("page", "end", "commands", "program"),
    [
        ("docs/command_line.md", "Exit code", COMMANDS, main),
        ("research/README.md", "| folder or file", RESEARCH, research),
    ],
    ids=["commands", "research"],
)
def test_a_page_of_commands_has_them_all(page: str, end: str, commands: tuple[str, ...], program):
    table = (ROOT / page).read_text("utf-8").split(end)[0]
    rows = "".join(re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE))
    assert {" ".join(command_of(code.split())) for code in re.findall(r"`([^`]+)`", rows)} == set(commands)
    assert all(options(*command.split(), program=program) for command in commands)


def test_the_memory_table_is_what_the_command_computes(capsys):
    assert main(["budget", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    computed = {(f"{row['seconds']:g}", f"{row['frame_slots']:,}", f"{row['bytes'] / 1e9:.2f} GB") for row in rows}
    page = (ROOT / "docs" / "long_renders.md").read_text("utf-8")
    shown = re.findall(r"^\| (\d+) \| .+ \| ([\d,]+) \| ([\d.]+ GB) \|$", page, re.MULTILINE)
    assert len(shown) == 5 and set(shown) <= computed
    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(size in readme for _, _, size in shown[:3])


def architecture() -> str:
    return (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")


def test_the_architecture_describes_every_folder():
    described = re.findall(r"^\| `([\w/]+)` \| .+ \|$", architecture(), re.MULTILINE)
    assert described == list(MAY_IMPORT)


def test_the_picture_of_the_folders_allows_what_the_table_of_directions_allows():
    """An arrow is a direction in use, and every direction in use follows arrows."""
    (picture,) = re.findall(r"```mermaid\n(.*?)```", architecture(), re.DOTALL)
    arrows = {above: set(below.split(" & ")) for above, below in re.findall(r"(\w+) --> (.+)", picture)}

    def reached(folder: str) -> set[str]:
        direct = arrows.get(folder, set())
        return direct.union(*(reached(below) for below in direct))

    for folder, allowed in MAY_IMPORT.items():
        assert arrows.get(folder, set()) <= set(allowed.split()), folder
        assert set(allowed.split()) <= reached(folder), folder


def test_the_table_of_cards_is_that_of_the_command(capsys):
    assert main(["memory"]) == 0
    cards = capsys.readouterr().out.partition("| card |")[2].rstrip()
    assert len(cards.splitlines()) == 8 and f"| card |{cards}" in (ROOT / "docs" / "memory.md").read_text("utf-8")


METHOD = (ROOT / "headforcing_core" / "METHOD.md").read_text("utf-8")


def test_every_file_on_the_page_of_the_method_exists():
    files = re.findall(r"`([\w/]+\.py)`", METHOD)
    assert len(files) >= 6
    assert not [file for file in files if not (ROOT / "headforcing_core" / file).is_file()]


def test_every_name_in_the_glossary_is_in_the_code():
    rows = [line.split("|")[2] for line in METHOD.split("## Glossary")[1].splitlines() if line.startswith("| ")][2:]
    names = {name for row in rows for code in re.findall(r"`([^`]+)`", row) for name in re.findall(r"[A-Za-z_]+", code)}
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "headforcing_core").rglob("*.py"))
    assert len(names) > 25
    assert not [name for name in names if not re.search(rf"\b{name}\b", source)]


def test_the_page_on_reliability_holds_the_counts_that_a_complete_run_must_reach():
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", page, flags=re.MULTILINE))
    assert {label: int(count) for label, count in rows.items()} == COUNTED
