"""Which programs made a file."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

import torch

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"  # in a clone; an installed wheel has none


def versions() -> dict[str, str]:
    """The versions of this pack, of torch and of Python."""
    return {"headforcing": _own(), "torch": torch.__version__, "python": platform.python_version()}


def _own() -> str:
    if _PROJECT.is_file():
        found = re.search(r'^version = "(.+)"$', _PROJECT.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    try:
        return metadata.version("headforcing")
    except metadata.PackageNotFoundError:
        return "unknown"
