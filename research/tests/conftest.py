"""Fixtures shared by the tests of research; their helpers are those of the other tests."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "helpers"), str(Path(__file__).parent)]


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_dir(repo_root: Path) -> Path | None:
    """The project's folder of recorded cases beside the repository, if there is one."""
    folder = repo_root.parent / "shared"
    return folder if folder.is_dir() else None
