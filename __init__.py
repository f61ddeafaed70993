"""Head Forcing for ComfyUI: minute-long, multi-prompt video from five-second autoregressive models.

ComfyUI calls `comfy_entrypoint`; importing the pack anywhere else pulls in neither ComfyUI nor
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # ComfyUI is there when it loads the nodes
    from .nodes import HeadForcingExtension

WEB_DIRECTORY = "./nodes/web"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]


async def comfy_entrypoint() -> HeadForcingExtension:
    """Return the extension object with all nodes (ComfyUI's V3 registration)."""
    from .nodes import HeadForcingExtension
    from .nodes.host.others_methods import register

    register()
    return HeadForcingExtension()
