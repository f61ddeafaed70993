"""The Head Forcing engine: pure PyTorch, usable from Python and from the command line, never
imports ComfyUI.

The names that the example of docs/python.md uses can be imported from here. Each is loaded at first
use, so that importing the package stays fast.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "RenderOptions": "plan.options",
    "RenderRequest": "plan.request",
    "make_blocks": "render.render",
    "WanModel": "model.wan",
    "WanVideoModel": "rollout.loop",
    "load_state_dict": "weights.checkpoint",
    "parse_timeline": "timeline.timeline",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
