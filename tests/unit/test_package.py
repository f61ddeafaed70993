"""What importing the pack costs, what its modules may import, and that the package names what is on disk."""

import ast
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headforcing.headforcing_core import names
from headforcing.headforcing_core.commands import cli, values
from headforcing.headforcing_core.methods.registry import method_names
from headforcing.headforcing_core.model import attention_backends
from headforcing.headforcing_core.names import bundled_profiles
from headforcing.headforcing_core.render import cards
from headforcing.headforcing_core.report.learned import registry
from headforcing.headforcing_core.video import tiny_decoder
from packed import packed_files
from path_arguments import commands
from PIL import Image

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("headforcing_core", "kernels", "nodes")
HOST_MODULES = {"comfy", "comfy_api", "comfy_extras", "comfy_execution", "folder_paths", "nodes", "server", "execution"}
OPTIONAL = set(
    "triton flash_attn flash_attn_interface sageattention xformers matplotlib transformers torchvision diffusers "
    "sentencepiece ftfy ray".split()
)
SOURCES = [ROOT / "__init__.py", *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]


def absolute_imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of everything imported absolutely, anywhere in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def runs_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements that importing the module runs: no function bodies, nothing under `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def modules_after(statement: str, folder: Path) -> set[str]:
    program = f"{statement}\nimport json, sys\nprint(json.dumps([sorted(sys.modules), sys.path]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules, path = json.loads(done.stdout)
    assert str(ROOT) not in {str(Path(entry).resolve()) for entry in path if entry}
    return {name.split(".")[0] for name in modules}


def test_importing_the_pack_imports_neither_torch_nor_comfy(tmp_path):
    use = "import headforcing; assert headforcing.WEB_DIRECTORY and headforcing.comfy_entrypoint"
    assert not modules_after(use, tmp_path) & {"torch", "numpy", "av", "comfy", "comfy_api", "folder_paths"}


def test_importing_the_command_line_imports_no_torch_and_the_core_no_optional_package(tmp_path):
    core = "headforcing.headforcing_core"
    assert not modules_after(f"import {core}.commands.cli", tmp_path) & (OPTIONAL | {"torch", "comfy"})
    found = modules_after(f"import {core}.render.render, {core}.report.metrics", tmp_path)
    assert "torch" in found and not found & (OPTIONAL | {"comfy"})


def test_help_of_every_command_and_a_mistake_import_no_torch(tmp_path):
    """It takes seconds."""
    lines = [[name, *more] for name in cli.COMMANDS for more in (["--help"], ["--bogus"])]
    lines += [[], ["--help"], ["nonsense"], ["runs", "list", "--help"], ["generate", "--decoder", "none"]]
    use = "import contextlib, io; from headforcing.headforcing_core.commands.cli import main\n"
    use += f"for words in {lines}:\n with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): "
    use += "main(words); raise AssertionError(words)\n"
    (tmp_path / "a.safetensors").touch()
    use += "assert main(['convert', 'a.safetensors', 'a.safetensors']) == 2"  # a file that is read and written
    assert not modules_after(use, tmp_path) & {"torch", "numpy", "av"}


def test_a_command_begins_with_its_modules_left_out_of_garbage_collection_which_goes_on(tmp_path):
    use = "import gc; from headforcing.headforcing_core.commands.cli import main\n"
    use += "assert main(['memory']) == 0 and gc.isenabled() and gc.get_freeze_count() > 100_000\n"
    use += "gc.unfreeze(); assert main(['memory']) == 0 and gc.get_freeze_count() == 0  # torch was there before"
    assert not subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True).returncode


def test_the_overview_has_a_line_for_every_command():
    known = " ".join(cli._parser().format_help().split())
    assert all(text in known for _, _, text in cli.COMMANDS.values())
    functions = {parser.get_default("run") for _, parser in commands(cli._parser())}
    assert functions and all(callable(cli._function(run)) for run in functions)


def test_the_names_on_the_command_line_are_those_of_the_tables():
    assert list(attention_backends.BACKENDS) == list(names.BACKENDS)
    assert method_names() == names.METHODS
    assert list(registry.METRICS) == list(names.METRICS)
    assert names.DECODERS == ("auto", "wan", *tiny_decoder.NORMALISED)
    assert list(cards.MODELS) == list(names.LISTED_FAMILIES)
    assert list(values.DTYPES) == list(names.DTYPES)


def test_every_source_imports_only_what_it_may():
    """Only nodes import the host, the pack's own modules are imported relatively, optional packages when needed."""
    assert len(SOURCES) > 20 and ROOT / "headforcing_core" / "model" / "wan.py" in SOURCES
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = set(absolute_imports(tree))
        assert ROOT / "nodes" in path.parents or not found & HOST_MODULES, path
        # `nodes` and `kernels` are also names of other people's modules, and the root is no import folder
        assert not found & {"nodes", "kernels", "headforcing_core", "headforcing"}, path
        at_import = {name for node in runs_at_import(tree) for name in absolute_imports_of(node)}
        assert not at_import & OPTIONAL, path


def absolute_imports_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from absolute_imports(ast.Module(body=[node], type_ignores=[]))


def test_requirements_are_the_dependencies_of_the_package_without_torch():
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    listed = {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")}
    assert {name for name in project()["project"]["dependencies"] if not name.startswith("torch")} == listed
    names = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in listed}
    assert not names & {"torch", "torchvision", "torchaudio", "triton", "triton-windows", "xformers", "flash-attn"}
    assert not any(line.startswith("-") for line in listed), "an option such as --extra-index-url"


def test_the_package_list_is_what_is_on_disk():
    folders = [ROOT, *(path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))]
    on_disk = {".".join(("headforcing", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert set(project()["tool"]["setuptools"]["packages"]) == on_disk
    assert project()["tool"]["setuptools"]["package-dir"] == {"headforcing": "."}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_address_of_the_repository_stands_in_one_file():
    owner = re.escape(project()["project"]["urls"]["Repository"].split("://")[1].split("/")[1])
    own = re.compile(rf"github(?:usercontent)?\.com/{owner}/")
    named = [name for name in tracked() if own.search((ROOT / name).read_bytes().decode("utf-8", "replace"))]
    assert named == ["pyproject.toml"]


def tracked() -> list[str]:
    """The files that git tracks, which `comfy node pack` starts from; without git the test cannot be made."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_comfyui_finds_workflows_subgraphs_and_locales_at_the_top():
    for folder, pattern in (("workflows", "*.json"), ("subgraphs", "*.json"), ("locales", "*/nodeDefs.json")):
        assert list((ROOT / folder).glob(pattern)), folder
    packed = project()["tool"]["setuptools"]["package-data"]["headforcing"]
    assert {"workflows/*", "subgraphs/*", "locales/**/*"} <= set(packed)


def test_help_pages_show_small_pictures_that_are_there():
    pages = ROOT / "nodes" / "web" / "docs"
    shown = {link for page in pages.glob("*.md") for link in re.findall(r"!\[.+\]\((.+)\)", page.read_text("utf-8"))}
    pictures = list((pages / "images").iterdir())
    assert shown and shown <= {f"images/{picture.name}" for picture in pictures}
    assert all(picture.stat().st_size < 150_000 for picture in pictures)


def test_what_comfy_node_pack_packs_is_small():
    """The registry takes no large packs; tests and pages stay out of it (.comfyignore)."""
    packed = packed_files()
    assert {"__init__.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE"} <= set(packed)
    assert {name for name in tracked() if name.startswith("nodes/")} <= set(packed), "help pages, too"
    assert not any(name.startswith(("tests/", "research/", "docs/", ".ci/", ".github/")) for name in packed)
    assert sum(len(zlib.compress((ROOT / name).read_bytes(), 1)) for name in packed) < 15e6


def test_profiles_are_shipped_for_the_model_and_the_demo():
    assert {"self_forcing", "toy_world"} <= set(bundled_profiles())


def test_icon_and_banner_are_in_the_repository_at_their_addresses():
    repository, tool = project()["project"]["urls"]["Repository"], project()["tool"]["comfy"]
    for key, size in (("Icon", (400, 400)), ("Banner", (1260, 540))):
        start = f"{repository.replace('github.com', 'raw.githubusercontent.com')}/main/"
        assert tool[key].startswith(start)
        with Image.open(ROOT / tool[key].removeprefix(start)) as picture:
            assert picture.size == size


def test_the_registry_takes_name_version_and_tags():
    about, tool = project()["project"], project()["tool"]["comfy"]
    assert re.fullmatch(r"[a-z][a-z0-9-]*", about["name"]) and "comfyui" not in about["name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", about["version"])
    assert re.fullmatch(r">=\d+\.\d+\.\d+", tool["requires-comfyui"])
    assert about["description"] and about["keywords"] and tool["DisplayName"] and tool["includes"] == []
