"""Small random Wan weights, and the same weights spelled and wrapped the way published files do
it.
"""

import json
import re
import struct
from pathlib import Path
from typing import Any

import torch
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from safetensors.torch import save_file
from torch import Tensor

Weights = dict[str, Tensor]

LAYERS = 3
_ATTENTION = {
    "q": "to_q",
    "k": "to_k",
    "v": "to_v",
    "o": "to_out.0",
    "norm_q": "norm_q",
    "norm_k": "norm_k",
}
_PARTS_DIFFUSERS = {
    "self_attn": "attn1",
    "cross_attn": "attn2",
    "ffn": "ffn.net",
    "norm3": "norm2",
    "modulation": "scale_shift_table",
}
_TOP_DIFFUSERS = {
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "patch_embedding": "patch_embedding",
    "head.head": "proj_out",
}


def wan_shapes(
    dim: int = 128,
    ffn: int = 192,
    layers: int = LAYERS,
    text: int = 24,
    freq: int = 32,
    channels: int = 16,
    out=16,
) -> dict[str, tuple[int, ...]]:
    """The original names and their shapes."""
    sizes = {"dim": dim, "ffn_dim": ffn, "num_layers": layers, "text_dim": text, "freq_dim": freq}
    return shapes_of(WanConfig(**sizes, num_heads=1, in_dim=channels, out_dim=out))


def shapes_of(config: WanConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = WanModel(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def wan_weights(seed: int = 0, **dimensions: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator) for n, s in wan_shapes(**dimensions).items()}


def prefixed(weights: Weights, prefix: str) -> Weights:
    return {prefix + name: tensor for name, tensor in weights.items()}


def fsdp(weights: Weights) -> Weights:
    """Names as FSDP writes them when it wraps the model and each of its layers."""
    wrapped = {
        re.sub(r"^(blocks\.\d+\.)", r"\1_fsdp_wrapped_module.", name): x
        for name, x in weights.items()
    }
    return prefixed(wrapped, "model._fsdp_wrapped_module.")


def peft(weights: Weights) -> Weights:
    """Names of a model that PEFT has wrapped: adapted layers hide their weight in a
    `base_layer`.
    """
    layer = re.compile(r"(blocks\..*\.(?:[qkvo]|0|2))(\.\w+)")
    return prefixed(
        {layer.sub(r"\1.base_layer\2", name): x for name, x in weights.items()}, "base_model.model."
    )


def diffusers(weights: Weights) -> Weights:
    """The same weights under the names of the diffusers library."""
    return {_diffusers_name(name): tensor for name, tensor in weights.items()}


def _diffusers_name(name: str) -> str:
    if name == "head.modulation":
        return "scale_shift_table"
    if not name.startswith("blocks."):
        module, _, parameter = name.rpartition(".")
        return f"{_TOP_DIFFUSERS[module]}.{parameter}"
    _, number, part, *rest = name.split(".")
    if part.endswith("attn"):
        rest[0] = _ATTENTION[rest[0]]
    elif part == "ffn":
        rest[0] = {"0": "0.proj", "2": "2"}[rest[0]]
    return ".".join(["blocks", number, _PARTS_DIFFUSERS[part], *rest])


def sparse_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    """A file of full size with zeros for weights, which takes no room on disk."""
    header = {}
    end = 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (end, end + size)}
        end += size
    encoded = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.truncate(8 + len(encoded) + end)
    return path


def lora_factors(module: str) -> tuple[Tensor, Tensor]:
    """Random (down, up) of rank 4 for a module of the weights."""
    out, into = WEIGHTS[f"{module}.weight"].shape
    return torch.randn(4, into, generator=_LORA), torch.randn(out, 4, generator=_LORA)


WEIGHTS = wan_weights()
OTHER = wan_weights(seed=1)
MODULES = ["blocks.0.self_attn.q", "blocks.1.cross_attn.o", "blocks.2.ffn.0", "blocks.2.ffn.2"]
_LORA = torch.Generator().manual_seed(7)
FACTORS = {module: lora_factors(module) for module in MODULES}


def save(path: Path, content: Any, metadata: dict[str, str] | None = None) -> Path:
    """A file of the kind that its name ends in."""
    if path.suffix == ".safetensors":
        save_file(content, path, metadata)
    else:
        torch.save(content, path)
    return path


def assert_same(state: Weights, expected: Weights) -> None:
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name
