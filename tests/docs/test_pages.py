"""The pages of the repository: links, commands and options exist, tables are those of the code,
examples run.
"""

import contextlib
import io
import json
import re
import runpy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from counts import COUNTED
from headforcing.cli.cli import _parser, main
from headforcing.headforcing_core.methods.registry import METHODS
from headforcing.headforcing_core.plan.resources import RESERVED
from headforcing.research.__main__ import main as research
from headforcing.tests.benchmarks import gains
from path_arguments import commands

ROOT = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file()
)
FOLDERS = (
    "docs",
    "headforcing_core",
    "kernels",
    "nodes",
    "profiles",
    "workflows",
    "tests",
    "research",
)
PAGES = sorted(ROOT.glob("*.md"))
for _folder in FOLDERS:
    PAGES += sorted((ROOT / _folder).rglob("*.md"))
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
COMMANDS = [name for name, _ in commands(_parser())]
RESEARCH = [
    "train",
    "gate",
    "accuracy",
    "flicker",
    "rooms",
    "returns",
    "memory",
    "memory4",
    "real-heads",
    "references",
    "profiling",
    "distances",
    "figure",
    "paper",
    "table",
    "check-claim",
    "metrics",
    "replay",
]
COMMANDS_WITH_PARTS = ("profiles", "runs")
PROGRAM = re.compile(r"^(?:headforcing|python -m headforcing(?= |$)|python tasks\.py(?= demo)) ")
PROGRAM_OF_RESEARCH = re.compile(r"^python (?:-m headforcing\.research|tasks\.py research) ")
OF_COMFYUI = {"--enable-cors-header", "--fast", "--listen", "--use-sage-attention"}
# where a path such as `methods/head_forcing.py` is looked for
PACKAGE_FOLDERS = ("headforcing_core", "research", "")
LAYERS = runpy.run_path(str(ROOT / "tests" / "unit" / "test_layers.py"))


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
    with (
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(io.StringIO()),
        pytest.raises(SystemExit),
    ):
        program([*command, "--help"])
    return frozenset(re.findall(r"--[a-z][a-z0-9-]+", shown.getvalue()))


def command_of(words: list[str]) -> tuple[str, ...]:
    return tuple(words[:2] if words[0] in COMMANDS_WITH_PARTS else words[:1])


def wrong_links(page: Path, text: str) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        if re.match(r"[a-z]+:", target):
            continue
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text("utf-8"))):
            yield f"the link {target} leads nowhere"


def wrong_commands(page: Path, text: str) -> Iterator[str]:
    for code in codes(text):
        found = PROGRAM.match(code) or PROGRAM_OF_RESEARCH.match(code)
        words = code[found.end() :].split() if found else []
        if not words or not words[0].islower():  # `headforcing COMMAND --help`
            continue
        known = options(*command_of(words), program=main if PROGRAM.match(code) else research)
        unknown = {word for word in words if re.fullmatch(r"--[a-z][a-z0-9-]*", word)} - known
        if not known or unknown:
            yield f"there is no command {code}" if not known else f"{code} has no {unknown}"


def wrong_options(page: Path, text: str) -> Iterator[str]:
    """Options that stand alone."""
    of_commands = (options(*command.split()) for command in COMMANDS)
    of_research = (options(command, program=research) for command in RESEARCH)
    known = OF_COMFYUI.union(*of_commands, *of_research)
    for code in codes(text) if page.parent.name != "benchmarks" else ():  # a program of its own
        yield from (
            f"no command has {option}"
            for option in re.findall(r"^--[a-z][a-z0-9-]*", code)
            if option not in known
        )


def wrong_files(page: Path, text: str) -> Iterator[str]:
    for code in codes(text):
        places = [*(ROOT / folder / code for folder in PACKAGE_FOLDERS), page.parent / code]
        is_file = re.fullmatch(r"[\w.-]+(/[\w.-]+)+\.(py|md|sh|toml|txt)", code)
        if is_file and not any(place.exists() for place in places):
            yield f"there is no file {code}"


@pytest.mark.parametrize("mistakes", [wrong_links, wrong_commands, wrong_options, wrong_files])
def test_links_commands_options_and_files_that_pages_name_exist(mistakes):
    assert {"README.md", "docs/ARCHITECTURE.md", "nodes/web/docs/HeadForcingSampler.md"} <= set(
        NAMES
    )
    found = {
        name: list(mistakes(page, page.read_text("utf-8")))
        for name, page in zip(NAMES, PAGES, strict=True)
    }
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("page", "end", "named", "program"),
    [
        ("docs/command_line.md", "Exit code", COMMANDS, main),
        ("research/README.md", "| folder or file", RESEARCH, research),
    ],
    ids=["commands", "research"],
)
def test_a_page_of_commands_has_them_all(page: str, end: str, named: list[str], program):
    table = (ROOT / page).read_text("utf-8").split(end)[0]
    rows = "".join(re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE))
    assert {" ".join(command_of(code.split())) for code in re.findall(r"`([^`]+)`", rows)} == set(
        named
    )
    assert all(options(*command.split(), program=program) for command in named)


def test_tables_of_memory_are_what_the_commands_compute(capsys):
    assert main(["budget", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    computed = {
        (f"{row['seconds']:g}", f"{row['frame_slots']:,}", f"{row['bytes'] / 1e9:.2f} GB")
        for row in rows
    }
    readme = (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs" / "long_renders.md").read_text("utf-8")
    cards = (ROOT / "docs" / "memory.md").read_text("utf-8")
    shown = re.findall(r"^\| (\d+) \| .+ \| ([\d,]+) \| ([\d.]+ GB) \|$", page, re.MULTILINE)
    assert len(shown) == 5 and set(shown) <= computed
    assert all(size in readme for _, _, size in shown[:3])
    assert main(["memory"]) == 0
    table = capsys.readouterr().out.partition("| card |")[2].rstrip()
    assert len(table.splitlines()) == 8 and f"| card |{table}" in cards


def test_the_table_of_single_changes_is_what_the_command_computes():
    page = (ROOT / "docs" / "speed.md").read_text("utf-8")
    assert f"\n\n{gains.table()}\n\n" in page


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_of_live_videos_has_rows_of_that_of_single_changes():
    page = (ROOT / "docs" / "live.md").read_text("utf-8")
    shown = [cells(line)[1:] for line in page.splitlines() if line.startswith("|")]
    rows = [cells(line) for line in gains.table().splitlines()]
    computed = {row[0]: row[1:2] + row[3:] for row in rows}  # without the second column of the H100
    titles = (
        "frames a second",
        "---",
        "as it is",
        f"{gains.TINY} (drafts)",
        f"{gains.TINY} + sage",
    )
    assert shown == [computed[title] for title in titles]


def test_memory_reserved_on_an_h100_is_what_was_measured():
    measured = json.loads((ROOT / "tests/benchmarks/gpu/h100_2_video.json").read_text("utf-8"))
    video = measured["tasks"]["sampled and decoded"]
    reserved, used = video["reserved_bytes"] / 1e9, video["peak_bytes"] / 1e9
    page = " ".join((ROOT / "docs" / "memory.md").read_text("utf-8").split())
    assert f"*reserved* {reserved:.2f} GB for {used:.2f} GB in use" in page
    assert reserved / used < RESERVED < 1.02 * reserved / used


def test_the_architecture_describes_every_folder_and_every_import_follows_arrows_of_its_picture():
    """And each arrow stands for an import."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    place = LAYERS["place"]
    imported: dict[str, set[str]] = {}
    for file in set(LAYERS["FILES"]) - LAYERS["ENTRY"]:
        below = {place(other) for other in LAYERS["imports"](file)}
        imported.setdefault(place(file), set()).update(below - {place(file)})
    assert set(re.findall(r"^\| `([\w/]+)` \| .+ \|$", text, re.MULTILINE)) == set(imported)
    (picture,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    arrows = {
        above: set(below.split(" & ")) for above, below in re.findall(r"(\w+) --> (.+)", picture)
    }

    def reached(folder: str) -> set[str]:
        direct = arrows.get(folder, set())
        return direct.union(*(reached(below) for below in direct))

    for folder, below in imported.items():
        assert arrows.get(folder, set()) <= below <= reached(folder), folder


def test_every_file_on_the_pages_of_the_method_and_every_name_in_the_glossary_is_in_the_code():
    page = (ROOT / "headforcing_core" / "METHOD.md").read_text("utf-8")
    beyond = (ROOT / "headforcing_core" / "BEYOND_THE_PAPER.md").read_text("utf-8")
    files = re.findall(r"`([\w/]+\.py)`", page + beyond)
    assert len(files) >= 12 and all((ROOT / "headforcing_core" / file).is_file() for file in files)
    rows = [
        line.split("|")[2]
        for line in page.split("## Glossary")[1].splitlines()
        if line.startswith("| ")
    ][2:]
    names: set[str] = set()
    for code in re.findall(r"`([^`]+)`", "\n".join(rows)):
        names.update(re.findall(r"[A-Za-z_]+", code))
    source = "\n".join(
        path.read_text("utf-8") for path in (ROOT / "headforcing_core").rglob("*.py")
    )
    assert len(names) > 25
    assert not [name for name in names if not re.search(rf"\b{name}\b", source)]


def test_the_page_on_reliability_holds_the_counts_that_a_complete_run_must_reach():
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", page, flags=re.MULTILINE))
    assert {label: int(count) for label, count in rows.items()} == COUNTED


def examples() -> list[str]:
    return re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text("utf-8"), re.DOTALL
    )


@pytest.mark.slow
def test_the_python_examples_make_a_video_and_another_when_its_story_is_changed(tmp_path: Path):
    video, story, live, _ = examples()
    (tmp_path / "example.py").write_text(video + story + live, encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "example.py"))
    # 6 s: 96 video frames of the 105 that 9 blocks hold
    assert names["latents"].shape == (27, 16, 8, 8)
    texts = [segment.text for segment in names["result"].plan.timeline.segments]
    assert texts == [
        "a red ball bouncing in the teal plain room",
        "a blue star circling in the navy checkerboard room",
    ]
    assert re.fullmatch(
        r"0:00 a red .*\n0:02.* \[re-anchor\] a blue .*\n0:03.* \[recall 1\] a red .*",
        names["performed"],
    )


@pytest.mark.slow
def test_the_example_of_a_new_method_renders_a_video(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(METHODS, "thinned", METHODS["causvid"])  # removed after the test
    (tmp_path / "thinned.py").write_text(examples()[3], encoding="utf-8")
    runpy.run_path(str(tmp_path / "thinned.py"))
    words = ["--prompts", "a red ball", "--seconds", "9", "--scale", "1", "--out", str(tmp_path)]
    assert main(["demo", "--method", "thinned", *words]) == 0 and (tmp_path / "demo.mp4").is_file()


def test_the_table_of_nodes_names_every_node():
    page = (ROOT / "docs" / "using_the_graph.md").read_text("utf-8")
    shown = re.findall(r"^\| ([A-Z][\w ]+) \| ", page.partition("## Nodes")[2], re.MULTILINE)
    nodes = (ROOT / "nodes").rglob("*.py")
    schema = r'node_schema\(\s*"HeadForcing\w+",\s*"([A-Z][\w ]+)",'
    names = []
    for path in nodes:
        names += re.findall(schema, path.read_text("utf-8"))
    assert len(names) > 8 and sorted(names) == sorted(shown)
