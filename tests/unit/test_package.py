"""What importing the pack costs, and that the package names what is on disk and the registry
takes.
"""

import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from headforcing.cli import cards, cli, values
from headforcing.headforcing_core import names
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.model import attention_backends
from headforcing.headforcing_core.video import tiny_decoder
from packed import OPTIONAL, packed_files
from path_arguments import commands
from PIL import Image

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]
CORE = "headforcing.headforcing_core"
CLI = "headforcing.cli"
HELP = f"""import contextlib, io
from {CLI}.cli import COMMANDS, main
lines = [[name, *more] for name in COMMANDS for more in (["--help"], ["--bogus"])]
lines += [[], ["--help"], ["nonsense"], ["runs", "list", "--help"], ["generate", "--decoder", "none"]]
for words in lines:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(words)
        raise AssertionError(words)
open("a.safetensors", "w").close()
assert main(["convert", "a.safetensors", "a.safetensors"]) == 2, "a file that is read and written"
"""
COMMAND = f"""import gc, sys, {CLI}.cli as cli
assert cli.main(["memory"]) == 0 and gc.isenabled() and gc.get_freeze_count() > 100_000, "its modules are not collected"
import {CLI}.render, {CORE}.report.metrics
assert len(sys.modules) > 500
assert not [name for name in sys.modules if name.startswith("headforcing.") and ".distributed" in name]
"""
PACK = "import headforcing; assert headforcing.WEB_DIRECTORY and headforcing.comfy_entrypoint\n"


@pytest.mark.parametrize(
    ("program", "without"),
    [
        pytest.param(
            PACK, {"torch", "numpy", "av", "comfy", "comfy_api", "folder_paths"}, id="pack"
        ),
        pytest.param(HELP, OPTIONAL | {"torch", "numpy", "av", "comfy"}, id="help"),
        # torch takes seconds
        pytest.param(COMMAND, OPTIONAL | {"comfy"}, id="command", marks=pytest.mark.slow),
    ],
)
def test_an_import_brings_nothing_heavy_or_optional(program, without, tmp_path):
    program += "import json, sys\nprint()\nprint(json.dumps([sorted(sys.modules), sys.path]))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    modules, path = json.loads(done.stdout.splitlines()[-1])
    assert not {name.split(".")[0] for name in modules} & without
    assert str(ROOT) not in {str(Path(entry).resolve()) for entry in path if entry}


def test_the_command_line_lists_every_command_and_the_names_of_the_tables():
    known = " ".join(cli._parser().format_help().split())
    assert all(text in known for _, _, text in cli.COMMANDS.values())
    functions = {parser.get_default("run") for _, parser in commands(cli._parser())}
    assert functions and all(callable(cli._function(run)) for run in functions)
    assert names.DECODERS == ("auto", "wan", *tiny_decoder.NORMALISED)
    for table, listed in (
        (attention_backends.BACKENDS, names.BACKENDS),
        (PRESETS, names.PRESETS),
        (cards.MODELS, names.LISTED_FAMILIES),
        (values.DTYPES, names.DTYPES),
    ):
        assert list(table) == list(listed)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked() -> list[str]:
    """The files that git tracks, which `comfy node pack` starts from; without git the test cannot
    be made.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_requirements_are_the_dependencies_of_the_package_without_torch():
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    listed = {
        line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")
    }
    assert {
        name for name in project()["project"]["dependencies"] if not name.startswith("torch")
    } == listed
    assert not any(
        line.startswith(("-", "torch", "triton", "xformers", "flash")) for line in listed
    )


def test_the_package_is_what_is_on_disk_and_comfyui_finds_what_it_looks_for():
    folders = [ROOT]
    for package in ("headforcing_core", "cli", "kernels", "nodes"):
        folders += [path.parent for path in (ROOT / package).rglob("__init__.py")]
    tool = project()["tool"]["setuptools"]
    assert set(tool["packages"]) == {
        ".".join(("headforcing", *f.relative_to(ROOT).parts)) for f in folders
    }
    assert tool["package-dir"] == {"headforcing": "."}
    data = ("workflows/*", "subgraphs/*", "locales/**/*")
    assert set(data) <= set(tool["package-data"]["headforcing"]) and all(
        map(list, map(ROOT.glob, data))
    )
    assert {"self_forcing", "toy_world"} <= set(names.bundled_profiles())
    pages = ROOT / "nodes" / "web" / "docs"
    links: set[str] = set()
    for page in pages.glob("*.md"):
        links.update(re.findall(r"!\[.+\]\((.+)\)", page.read_text("utf-8")))
    pictures = list((pages / "images").iterdir())
    assert links and links <= {f"images/{picture.name}" for picture in pictures}
    assert all(picture.stat().st_size < 150_000 for picture in pictures)


def test_what_comfy_node_pack_packs_is_small():
    """The registry takes no large packs; tests and pages stay out of it (.comfyignore)."""
    packed = packed_files()
    needed = {"__init__.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE"}
    assert needed | {name for name in tracked() if name.startswith("nodes/")} <= set(packed), (
        "help pages, too"
    )
    assert not any(
        name.startswith(("tests/", "research/", "docs/", ".ci/", ".github/")) for name in packed
    )
    assert sum(len(zlib.compress((ROOT / name).read_bytes(), 1)) for name in packed) < 15e6


def test_the_registry_takes_name_version_tags_icon_and_banner_and_the_address_stands_in_one_file():
    about = project()["project"]
    tool = project()["tool"]["comfy"]
    assert re.fullmatch(r"[a-z][a-z0-9-]*", about["name"]) and "comfyui" not in about["name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", about["version"]) and about["version"] == names.VERSION
    assert re.fullmatch(r">=\d+\.\d+\.\d+", tool["requires-comfyui"])
    assert (
        about["description"]
        and about["keywords"]
        and tool["DisplayName"]
        and tool["includes"] == []
    )
    repository = about["urls"]["Repository"]
    for key, size in (("Icon", (400, 400)), ("Banner", (1260, 540))):
        start = f"{repository.replace('github.com', 'raw.githubusercontent.com')}/main/"
        assert tool[key].startswith(start)
        with Image.open(ROOT / tool[key].removeprefix(start)) as picture:
            assert picture.size == size
    own = re.compile(
        rf"github(?:usercontent)?\.com/{re.escape(repository.split('://')[1].split('/')[1])}/"
    )
    named = [
        name
        for name in tracked()
        if own.search((ROOT / name).read_bytes().decode("utf-8", "replace"))
    ]
    assert named == ["pyproject.toml"]
