"""Head Forcing, the engine: pure PyTorch, usable from Python and from the command line, never imports ComfyUI.

The names of the README's example are offered here; each is imported when it is first asked for.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "RenderPlan": "render.plan",
    "VideoRollout": "render.video_rollout",
    "WanModel": "model.wan",
    "WanVideoModel": "rollout.wan_video_model",
    "load_state_dict": "weights.checkpoint",
    "parse_timeline": "timeline.timeline",
    "preset": "cache.policy",
    "schedule": "rollout.schedule",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
