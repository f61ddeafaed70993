"""Writes into workflows/*.json where their model files come from and which pack each node is of.

    python tests/helpers/workflow_sources.py

The editor offers the download of a missing file, and the installation of a missing pack, from these properties.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
PACK, CORE = ("headforcing", "0.1.0"), ("comfy-core", "0.30.0")
_COMFY = "https://huggingface.co/Comfy-Org"
_WAN = f"{_COMFY}/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files"
MODELS = {
    "HeadForcingLoadModel": {
        "name": "self_forcing_dmd.pt",
        "url": "https://huggingface.co/gdhe17/Self-Forcing/resolve/main/checkpoints/self_forcing_dmd.pt",
        "directory": "diffusion_models",
    },
    "CLIPLoader": {
        "name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors",
        "url": f"{_WAN}/text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors",
        "directory": "text_encoders",
    },
    "VAELoader": {
        "name": "wan_2.1_vae.safetensors",
        "url": f"{_WAN}/vae/wan_2.1_vae.safetensors",
        "directory": "vae",
    },
    "UpscaleModelLoader": {
        "name": "RealESRGAN_x4plus.safetensors",
        "url": f"{_COMFY}/Real-ESRGAN_repackaged/resolve/main/RealESRGAN_x4plus.safetensors",
        "directory": "upscale_models",
    },
    "FrameInterpolationModelLoader": {
        "name": "rife_v4.26.safetensors",
        "url": f"{_COMFY}/frame_interpolation/resolve/main/frame_interpolation/rife_v4.26.safetensors",
        "directory": "frame_interpolation",
    },
}  # by the node that loads them
FRAMEWISE_MODEL = {
    "name": "causal_forcing-framewise.safetensors",
    "url": "https://huggingface.co/TalmajM/causal_forcing_framewise_ComfyUI_repackaged/resolve/main/split_files/"
    "diffusion_models/causal_forcing-framewise.safetensors",
    "directory": "diffusion_models",
}
LONGLIVE2_MODEL = {
    "name": "model_bf16.pt",
    "url": "https://huggingface.co/Efficient-Large-Model/LongLive-2.0-5B/resolve/main/model_bf16.pt",
    "directory": "diffusion_models",
}
WAN22_VAE = {
    "name": "wan2.2_vae.safetensors",
    "url": "https://huggingface.co/Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/vae/"
    "wan2.2_vae.safetensors",
    "directory": "vae",
}
OTHERS = (
    ("HeadForcingLoadModel", FRAMEWISE_MODEL),
    ("HeadForcingLoadModel", LONGLIVE2_MODEL),
    ("VAELoader", WAN22_VAE),
)


def models_of(names: set[str]) -> dict[str, dict[str, str]]:
    """The models with these names, by the node that loads them."""
    return {kind: model for kind, model in (*MODELS.items(), *OTHERS) if model["name"] in names}


def add_sources(graph: dict[str, Any]) -> None:
    """Add the properties to the nodes of a workflow in the editor's format."""
    files = {str(value) for node in graph["nodes"] for value in node.get("widgets_values") or ()}
    models = models_of(files)
    for node in graph["nodes"]:
        kind, properties = node["type"], node.setdefault("properties", {})
        if kind == "MarkdownNote":  # part of the editor itself
            continue
        properties["cnr_id"], properties["ver"] = PACK if kind.startswith("HeadForcing") else CORE
        if kind in models:
            properties["models"] = [models[kind]]


def write(graph: dict[str, Any], path: Path) -> None:
    """Write a workflow as a file."""
    path.write_text(json.dumps(graph, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for workflow in sorted(FOLDER.glob("*.json")):
        content = json.loads(workflow.read_text(encoding="utf-8"))
        add_sources(content)
        write(content, workflow)
