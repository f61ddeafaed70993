"""Load Self Forcing: a checkpoint of the family as a native MODEL."""

from typing import Any

import folder_paths
import torch
from comfy_api.latest import io

from ..headforcing_core.weights.checkpoint import load_state_dict
from .host.graph import schema
from .host.model import native_model

WEIGHT_DTYPES = {
    "default": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3fn": torch.float8_e4m3fn,
}


class LoadSelfForcing(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingLoadModel",
            "Load Self Forcing",
            "loaders",
            aliases=(
                "LongLive, Causal Forcing, RAVEN, autoregressive, causal Wan, long video, infinite"
            ),
            inputs=[
                io.Combo.Input(
                    "checkpoint", options=folder_paths.get_filename_list("diffusion_models")
                ),
                io.Combo.Input(
                    "weights", options=["auto", "generator_ema", "generator"], default="auto"
                ),
                io.Combo.Input("weight_dtype", options=list(WEIGHT_DTYPES), default="default"),
            ],
            advanced="weights weight_dtype",
            outputs={"model": io.Model},
        )

    @classmethod
    @schema.shows_errors
    def execute(
        cls, checkpoint: str, weights: str = "auto", weight_dtype: str = "default"
    ) -> io.NodeOutput:
        path = folder_paths.get_full_path_or_raise("diffusion_models", checkpoint)
        return io.NodeOutput(
            native_model.reloadable(load_model, path, weights, WEIGHT_DTYPES[weight_dtype])
        )


def load_model(
    path: str, weights: str, dtype: torch.dtype | None, disable_dynamic: bool = False
) -> Any:
    """The MODEL of a checkpoint file, see `native_model.native_model`."""
    state_dict, _ = load_state_dict(path, weights=weights)
    return native_model.native_model(state_dict, dtype, disable_dynamic)
