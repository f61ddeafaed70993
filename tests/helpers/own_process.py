"""Programs and tests in a process of their own, for what changes PyTorch or Triton when it is
imported.
"""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
_PYTEST = "import sys, pytest; sys.path.pop(0); sys.exit(pytest.main(sys.argv[1:]))"


def run(*command: object, **environment: str) -> str:
    """What a Python program prints that may import the tests' helpers; it must end well."""
    folders = [TESTS / "helpers", TESTS / "benchmarks" / "tests"]
    path = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment}
    arguments = [sys.executable, *map(str, command)]
    done = subprocess.run(arguments, env=environ, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    return done.stdout


def run_tests(file: Path, *options: str, **environment: str) -> None:
    """Run the tests of a file; only repetitions may be skipped, and how many of them is said in
    pytest's warnings.
    """
    told = run("-c", _PYTEST, "-q", "-p", "no:cacheprovider", *options, file, **environment)
    assert " passed" in told
    skipped = re.findall(r"^SKIPPED \[(\d+)\] (.*)", told, re.MULTILINE)
    assert all("HEADFORCING_EVERYTHING" in reason for _, reason in skipped), told
    if skipped:
        left_out = sum(int(count) for count, _ in skipped)
        warnings.warn(
            f"{file.name}: {left_out} repetitions skipped; HEADFORCING_EVERYTHING=1 runs them",
            stacklevel=2,
        )
