"""Head Forcing for ComfyUI: minute-long, multi-prompt video from five-second autoregressive models.

ComfyUI calls `comfy_entrypoint`; importing the pack anywhere else pulls in neither ComfyUI nor
torch.
"""

WEB_DIRECTORY = "./nodes/web"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]


async def comfy_entrypoint():
    """Return the extension object with all nodes (ComfyUI's V3 registration)."""
    from .nodes import HeadForcingExtension

    return HeadForcingExtension()
