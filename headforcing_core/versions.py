"""Software versions that are written into files."""

from __future__ import annotations

import platform

import torch

VERSION = "0.1.0"  # of the pack; a test compares it with pyproject.toml


def versions() -> dict[str, str]:
    """The versions of this pack, of torch and of Python."""
    return {"headforcing": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}
