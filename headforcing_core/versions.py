"""Software versions that are written into files, and packages that only some commands need."""

from __future__ import annotations

import platform
from importlib import import_module
from types import ModuleType

import torch

from .errors import HeadForcingError, one_line

VERSION = "0.1.0"  # of the pack; a test compares it with pyproject.toml


def versions() -> dict[str, str]:
    """The versions of this pack, of torch and of Python."""
    return {"headforcing": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}


def import_optional(package: str, use: str, extra: str) -> ModuleType:
    """Import a package of an `extra` of this one; where it is missing HeadForcingError names its `use`."""
    try:
        return import_module(package)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that belongs to another torch
        raise HeadForcingError(
            f"{use} need the package {package.split('.')[0]}, which cannot be imported ({one_line(error, 200)}): run "
            f'`pip install -e ".[{extra}]"` in the folder of the pack'
        ) from error
