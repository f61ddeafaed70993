"""The file that a MODEL was loaded from, and the model family that it is of."""

from __future__ import annotations

from typing import Any

from ...headforcing_core.render.family import with_family
from ...headforcing_core.render.options import RenderOptions


def options_for(model: Any, options: RenderOptions) -> tuple[RenderOptions, list[str]]:
    """The options with the model family of the file in place of `auto`, and lines for the report."""
    options, line = with_family(options, file_of(model))
    return options, [line] if line else []


def file_of(model: Any) -> str | None:
    """The weights file of a MODEL, if its loader says so; in older versions of ComfyUI not behind a LoRA loader."""
    _, args, *_ = getattr(model, "cached_patcher_init", None) or (None, ())
    path = args[0] if args else None
    return path if isinstance(path, str) else None
