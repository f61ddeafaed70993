"""Which programs made a file."""

from __future__ import annotations

import platform

import torch

VERSION = "0.1.0"  # of the pack; a test holds it to pyproject.toml


def versions() -> dict[str, str]:
    """The versions of this pack, of torch and of Python."""
    return {"headforcing": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}
