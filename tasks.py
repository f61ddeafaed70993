"""The project's commands; everything they need is installed into .venv first.

python tasks.py demo             make a one-minute video with the embedded model
python tasks.py quick            run the tests that take seconds, without ComfyUI and browser
python tasks.py test             run all tests, or those of the paths and options that follow
python tasks.py check            lint and types
python tasks.py write            write generated files anew: workflows, locales, thumbnails ...
python tasks.py benchmark        measure speed and memory on this machine; --help lists options
python tasks.py benchmark-tests  run the tests of the folder benchmarks
python tasks.py research         run a command of the folder research; --help lists them
python tasks.py research-tests   run the tests of the folder research
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Many containers set it; then each process compiles all that it imports anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
TORCH = "torch==2.13.0"  # what the tests run with; any version from 2.7 on works for use
# the one that belongs to this torch; the CPU build of torch does not bring it
TRITON = "triton==3.7.1"
TYPESCRIPT = "5.9.3"  # reads the comments with types in nodes/web; each version finds more
DEMO_SEED = "3"  # see generators/workflow_graphs.py
QUICK_FOLDERS = [ROOT / "tests" / name for name in ("unit", "engine", "speech", "docs")]
MOST_PROCESSES = 8  # of tests; each takes about 1 GB


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> None:
    """Run a command and stop everything when it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **env}, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)


def install(python: Path, *what: str) -> None:
    """Install packages for a Python. Their modules are compiled when they are imported first: pip
    would compile all of them, which takes longer than the rest of the installation.
    """
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *what)


def environment(extra: str = "") -> Path:
    """A virtual environment with the package and, for `dev` or `test`, its requirements, installed
    once; its Python.
    """
    python = BIN / ("python.exe" if os.name == "nt" else "python")
    stamp = VENV / (f"installed-package-{extra}" if extra else "installed-package")
    sources = [ROOT / "pyproject.toml", *ROOT.glob("requirements-*.txt")]
    newest = max(path.stat().st_mtime for path in sources)
    # what the tests need holds what the checks need
    stamps = [stamp, VENV / "installed-package-test"]
    if any(each.exists() and each.stat().st_mtime > newest for each in stamps):
        return python
    if not python.exists():
        run(sys.executable, "-m", "venv", "--upgrade-deps", VENV)
    # torch first: a range would make pip look for the newest build, which may be another one
    install(python, TORCH)
    install(python, "--editable", ".")
    if extra:
        install(python, "--requirement", f"requirements-{extra}.txt")
        if sys.platform == "linux":  # elsewhere there is none, and the tests that need it say so
            install(python, "--no-deps", TRITON)
    stamp.touch()
    return python


def demo(arguments: list[str]) -> None:
    """The embedded model's video, with scenes that come back; more arguments go to `headforcing
    demo`.
    """
    python = environment()
    if not any(
        argument.startswith(("--method", "--set", "--profile", "--rule")) for argument in arguments
    ):
        arguments = [
            "--method",
            "head_forcing_scenes",
            "--profile",
            "toy_world",
            "--rule",
            "function",
            *arguments,
        ]
    run(
        python,
        "-m",
        "headforcing",
        "demo",
        "--seed",
        DEMO_SEED,
        *arguments,
        cwd=Path.cwd(),
        OMP_NUM_THREADS="1",
    )


def pytest(*arguments: str | Path) -> int:
    """Run tests with one thread each, since tiny tensors on several threads are slower; returns the
    exit status.
    """
    command = [str(part) for part in (BIN / "pytest", *arguments)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    ).returncode


def in_parallel(more: int) -> list[str]:
    """Options of pytest for a process per core and some more.

    The tests of a file or a ComfyUI server stay in one process.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return [
        "--numprocesses",
        str(min(cores + more, MOST_PROCESSES)),
        "--dist",
        "loadscope",
        "--no-loadscope-reorder",
    ]


def quick(arguments: list[str]) -> None:
    """The quick tests; more arguments go to pytest."""
    environment("dev")
    raise SystemExit(pytest(*in_parallel(0), "-m", "not slow", *arguments, *QUICK_FOLDERS))


def named_tests(arguments: list[str]) -> list[Path]:
    """The files and folders of tests that arguments for pytest name."""
    paths = [(ROOT / argument.partition("::")[0]).resolve() for argument in arguments]
    return [path for path in paths if path.is_relative_to(ROOT / "tests") and path.exists()]


def is_quick(path: Path) -> bool:
    """Whether a path of tests lies in the folders of the quick ones, which need no browser."""
    return any(path.is_relative_to(folder) for folder in QUICK_FOLDERS)


def test(arguments: list[str]) -> None:
    """All tests but the longest; or, with arguments for pytest, what these choose."""
    named = named_tests(arguments)
    all_quick = bool(named) and all(is_quick(path) for path in named)
    environment("dev" if all_quick else "test")
    if not all_quick:
        browser()
    if arguments:
        raise SystemExit(pytest(*arguments))
    # a page or server that did not answer in minutes is asked once more, and the summary names it
    again = [
        "--durations",
        "30",
        "--reruns",
        "1",
        "--only-rerun",
        "TimeoutError",
        "--only-rerun",
        "promise was garbage collected",
        "-raR",
        "--rerun-show-tracebacks",
    ]
    # one more, since servers and browsers let theirs wait
    raise SystemExit(pytest(*in_parallel(1), *again))


def check(arguments: list[str]) -> None:
    """Lint of Python and JavaScript, format and types; a warning while the repository's address is
    a placeholder.
    """
    environment("dev")
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")
    run(BIN / "oxlint", "--deny-warnings", ROOT / "nodes" / "web")
    with ThreadPoolExecutor() as beside:
        javascript = beside.submit(check_javascript_types)
        check_python_types()
    javascript.result()  # ends the check where it has failed
    if "OWNER" in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        sys.stderr.write(
            "warning: repository and publisher in pyproject.toml are placeholders "
            "(docs/releasing.md)\n"
        )


def check_python_types() -> None:
    """Check the types with mypy; the repository root is the package `headforcing`, whatever the
    folder is called.
    """
    folder = ROOT / "build" / "types"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "headforcing"
    if not link.exists():
        link.symlink_to(ROOT, target_is_directory=True)
    run(BIN / "mypy", "--config-file", ROOT / "pyproject.toml", "-p", "headforcing", cwd=folder)


def check_javascript_types() -> None:
    """Check the types in nodes/web with TypeScript, which npm installs into build/ once."""
    npm = shutil.which("npm")
    node = shutil.which("node")
    if npm is None or node is None:
        sys.stderr.write(
            "The types of JavaScript are not checked, since node and npm are not installed.\n"
        )
        return
    folder = ROOT / "build" / f"typescript-{TYPESCRIPT}"
    compiler = folder / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        run(npm, "install", "--silent", "--no-save", "--prefix", folder, f"typescript@{TYPESCRIPT}")
    for project in ("jsconfig.json", "jsconfig.pure.json"):  # the second also finds missing values
        run(node, compiler, "--project", ROOT / project)


def benchmark(arguments: list[str]) -> None:
    """Speed and memory, beside the paper's implementation; arguments go to
    tests/benchmarks/run.py.
    """
    python = environment("dev")
    run(
        python,
        ROOT / "tests" / "benchmarks" / "run.py",
        *arguments,
        cwd=Path.cwd(),
        OMP_NUM_THREADS="1",
    )


def benchmark_tests(arguments: list[str]) -> None:
    """The tests of the benchmark, those that measure time before the others; more arguments go to
    pytest.
    """
    environment("test")
    folder = ROOT / "tests" / "benchmarks" / "tests"
    timing_failed = pytest("-m", "alone", *arguments, folder)
    raise SystemExit(
        pytest(*in_parallel(0), "-m", "not alone", *arguments, folder) or timing_failed
    )


def write(arguments: list[str]) -> None:
    """Generated files, written anew by generators/make_NAME.py; further arguments go to it."""
    names = (
        "workflows",
        "locales",
        "thumbnails",
        "panel_film",
        "live_film",
        "story_screenshots",
    )
    if not arguments or arguments[0] not in names:
        raise SystemExit(f"python tasks.py write needs one of {', '.join(names)}.")
    python = environment("test")
    script = ROOT / "generators" / f"make_{arguments[0]}.py"
    # the server and the browser of the tests
    run(python, script, *arguments[1:], PYTHONPATH=str(ROOT / "tests" / "helpers"))


def research(arguments: list[str]) -> None:
    """A command of research; `train` in a process per core, at most two."""
    python = environment()
    workers = min(2, os.cpu_count() or 1) if arguments[:1] == ["train"] else 1
    several = (
        ("-m", "torch.distributed.run", "--nproc-per-node", str(workers)) if workers > 1 else ()
    )
    run(
        python,
        *several,
        "-m",
        "headforcing.research",
        *arguments,
        cwd=Path.cwd(),
        OMP_NUM_THREADS="1",
    )


def research_tests(arguments: list[str]) -> None:
    """The tests of research; more arguments go to pytest."""
    environment("dev")
    raise SystemExit(pytest(*in_parallel(0), *arguments, ROOT / "research" / "tests"))


def browser() -> None:
    """Chromium for the editor test: the system's, or Debian's package where that can be
    installed.
    """
    if any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        return
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        run("apt-get", "update", "-qq")
        run(
            "apt-get",
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            "chromium",
            "fonts-dejavu-core",
            DEBIAN_FRONTEND="noninteractive",
        )
        return
    raise SystemExit(
        "The editor test needs Chromium: install it (Debian: apt install chromium) and run this "
        "again."
    )


COMMANDS = {
    "demo": demo,
    "quick": quick,
    "test": test,
    "check": check,
    "write": write,
    "benchmark": benchmark,
    "benchmark-tests": benchmark_tests,
    "research": research,
    "research-tests": research_tests,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        raise SystemExit(__doc__)
    COMMANDS[sys.argv[1]](sys.argv[2:])
