"""Names and shapes of Wan 2.1 weights: wrapper keys, prefixes, diffusers names, dimensions.

Everything here uses names and shapes only; no file is opened and no weight is read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..model.wan import WanConfig, WanModel

Weights = Mapping[str, Tensor]

BARE = "bare"
LORA_WRAPPER = "generator_lora"
# top-level keys of training checkpoints, preferred first
WRAPPERS = ("generator_ema", "generator", LORA_WRAPPER, "model", "state_dict", "model_state_dict")
_DOTTED_WRAPPERS = ("generator_ema", "generator", LORA_WRAPPER)  # in flat files they may be prefixes of names
_TRAINING_ONLY = ("critic", "optimizer", "fake_score")

_PREFIXES = ("model.diffusion_model.", "base_model.model.", "diffusion_model.", "transformer.", "module.", "model.")
_INFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "base_layer.")
_DIFFUSERS = (  # no left-hand side occurs in original Wan names, so the table can always be applied
    ("condition_embedder.text_embedder.linear_1.", "text_embedding.0."),
    ("condition_embedder.text_embedder.linear_2.", "text_embedding.2."),
    ("condition_embedder.time_embedder.linear_1.", "time_embedding.0."),
    ("condition_embedder.time_embedder.linear_2.", "time_embedding.2."),
    ("condition_embedder.time_proj.", "time_projection.1."),
    ("proj_out.", "head.head."),
    (".attn1.", ".self_attn."),
    (".attn2.", ".cross_attn."),
    (".to_q.", ".q."),
    (".to_k.", ".k."),
    (".to_v.", ".v."),
    (".to_out.0.", ".o."),
    (".ffn.net.0.proj.", ".ffn.0."),
    (".ffn.net.2.", ".ffn.2."),
    (".norm2.", ".norm3."),
    (".scale_shift_table", ".modulation"),
)
_BLOCK = re.compile(r"blocks\.(\d{1,3})\.")  # few digits: a malicious name must not claim a billion layers
_QUANTISED = (
    "scale_weight",
    "weight_scale",
    "weight_scale_2",
    "scale_input",
    "input_scale",
    "comfy_quant",
    "scaled_fp8",
)
_LORA_SUFFIX = re.compile(r"\.(lora_(A|B|down|up)\b.*|diff|diff_b|diff_m|alpha|hada_w\d_\w|lokr_w\d.*)$")


def strip_prefixes(name: str) -> str:
    """Remove the prefixes and infixes that FSDP, torch.compile, PEFT and pipelines add to parameter names."""
    for infix in _INFIXES:
        name = name.replace(infix, "")
    while prefix := next((p for p in _PREFIXES if name.startswith(p)), None):
        name = name[len(prefix) :]
    return name


def wan_name(name: str) -> str:
    """The original Wan name of a parameter, without wrapper prefixes; unknown names only lose their prefixes."""
    name = strip_prefixes(name)
    if name == "scale_shift_table":
        return "head.modulation"
    for diffusers, wan in _DIFFUSERS:
        name = name.replace(diffusers, wan)
    return name


def is_diffusers(names: Iterable[str]) -> bool:
    return any(strip_prefixes(name) != wan_name(name) for name in names)


def looks_like_wan(names: Iterable[str]) -> bool:
    return any(wan_name(name) == "patch_embedding.weight" for name in names)


def find_layouts(tree: Mapping[object, object]) -> dict[str, dict[str, Tensor]]:
    """Group the tensors of a file by wrapper key, preferred key first; critic and optimizer states are dropped."""
    layouts: dict[str, dict[str, Tensor]] = {}
    for key, value in tree.items():
        name = str(key)
        if name.startswith(_TRAINING_ONLY):
            continue
        if isinstance(value, Mapping):
            tensors = {str(k): v.detach() for k, v in value.items() if isinstance(v, Tensor)}
            if tensors:
                layouts.setdefault(name, {}).update(tensors)
        elif isinstance(value, Tensor):
            wrapper, _, rest = name.partition(".")
            dotted = wrapper in _DOTTED_WRAPPERS and rest
            layouts.setdefault(wrapper if dotted else BARE, {})[rest if dotted else name] = value.detach()
    order = (*WRAPPERS, BARE)
    return dict(sorted(layouts.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def choose_layout(layouts: Mapping[str, Weights], weights: str, file: str) -> str:
    """The wrapper key to read: `weights`, or for "auto" the first one that holds a Wan model.

    Raises HeadForcingError if the file has no weights or no such key.
    """
    if not layouts:
        raise HeadForcingError(f"{file} holds no model weights: choose a Self Forcing checkpoint")
    models = [name for name in layouts if looks_like_wan(layouts[name])]
    if weights == "auto" or not models:  # without a model, `reject_look_alikes` reports what the file is
        return (models or list(layouts))[0]
    if weights not in layouts:
        raise HeadForcingError(f"{file} has no weights called {weights!r}: choose 'auto' or one of {', '.join(models)}")
    return weights


def rename_all(tensors: Weights, file: str) -> dict[str, Tensor]:
    """Rename every tensor to its Wan name; raises HeadForcingError if two tensors get the same name."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        wan = wan_name(name)
        if wan in renamed:
            raise HeadForcingError(
                f"{file} holds two tensors for {wan} (one is {name}): choose a file with one model in it"
            )
        renamed[wan] = tensor
    return renamed


def expected_shapes(config: WanConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all parameters of a Wan text-to-video model: 27 per layer and 15 others."""
    with torch.device("meta"):
        model = WanModel(replace(config, num_layers=1))
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        layers = range(config.num_layers) if name.startswith("blocks.0.") else (0,)
        shapes |= {name.replace("blocks.0.", f"blocks.{layer}."): tuple(parameter.shape) for layer in layers}
    return shapes


def infer_config(tensors: Weights, num_heads: int | None, text_len: int | None, file: str) -> WanConfig:
    """Infer the dimensions from the shapes; `num_heads` (default: heads of 128) and `text_len` cannot be inferred.

    Raises HeadForcingError for missing tensors and impossible dimensions.
    """
    patch = probe(tensors, "patch_embedding.weight", 5, file)
    dim = probe(tensors, "head.modulation", 3, file)[-1]
    if num_heads is None and (dim == 0 or dim % 128):
        raise HeadForcingError(f"{file} is {dim} wide, which is no multiple of the usual 128 per head: give num_heads")
    heads = dim // 128 if num_heads is None else num_heads
    if heads < 1 or dim % heads or (dim // heads) % 2:
        raise HeadForcingError(f"num_heads is {heads}, but must divide {file}'s width {dim} into heads of even size")
    config = WanConfig(
        dim=dim,
        ffn_dim=probe(tensors, "blocks.0.ffn.0.weight", 2, file)[0],
        num_layers=1 + max(int(match[1]) for name in tensors if (match := _BLOCK.match(name))),
        num_heads=heads,
        in_dim=patch[1],
        out_dim=probe(tensors, "head.head.weight", 2, file)[0] // max(1, math.prod(patch[2:])),
        freq_dim=probe(tensors, "time_embedding.0.weight", 2, file)[1],
        text_dim=probe(tensors, "text_embedding.0.weight", 2, file)[1],
        text_len=text_len or WanConfig.text_len,
        patch_size=(patch[2], patch[3], patch[4]),
    )
    sizes = (dim, config.ffn_dim, config.out_dim, config.freq_dim, config.text_dim, *config.patch_size)
    if min(sizes) < 1:
        raise HeadForcingError(f"{file} is damaged: a size of its model is 0 ({config}); download it again")
    return config


def probe(tensors: Weights, name: str, dimensions: int, file: str) -> tuple[int, ...]:
    """The shape of a tensor that must be there with this many dimensions; raises HeadForcingError if it is not."""
    if name not in tensors:
        raise HeadForcingError(f"{file} is incomplete: {name} is missing; download the whole file again")
    shape = tuple(tensors[name].shape)
    if len(shape) != dimensions:
        raise HeadForcingError(f"{file}: {name} has shape {shape}, not {dimensions} dimensions: it is no Wan 2.1 model")
    return shape


def check_complete(tensors: Weights, config: WanConfig, file: str) -> list[str]:
    """Raise HeadForcingError unless every parameter exists with its shape; return the names of unrelated tensors."""
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise HeadForcingError(
            f"{file} is incomplete: {len(missing)} of {len(expected)} tensors are missing ({shown}); "
            "download the whole model, or join its parts into one file"
        )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise HeadForcingError(
                f"{file}: {name} has shape {tuple(tensors[name].shape)} where a Wan 2.1 model of width {config.dim} "
                f"has {shape}; download the file again or choose another one"
            )
    extra = [name for name in tensors if name not in expected]
    changed = next((name for name in extra if name.startswith("blocks.")), None)
    if changed and _LORA_SUFFIX.search(changed):
        raise HeadForcingError(
            f"{file} holds a LoRA beside its model that is not merged ({changed}): merge it with the tool that trained "
            "it, or use the base model and the LoRA as two files"
        )
    if changed:
        raise HeadForcingError(
            f"{file} is another variant of Wan: its layers hold {changed}, which Wan 2.1 text-to-video lacks; "
            "choose a Self Forcing (text-to-video) checkpoint"
        )
    return extra


def is_lora(names: Iterable[str]) -> bool:
    """Whether the names are those of a LoRA alone: adapter tensors without their base model."""
    names = list(names)
    return any(_LORA_SUFFIX.search(name) for name in names) and not looks_like_wan(names)


def is_quantised(tensors: Weights) -> bool:
    """Whether weights are stored with scales or as integers; unscaled fp8 weights only need a cast."""
    return any(
        name.rsplit(".", 1)[-1] in _QUANTISED
        or (_BLOCK.match(name) and name.endswith("weight") and not tensor.dtype.is_floating_point)
        for name, tensor in tensors.items()
    )


def storage_dtype(tensors: Weights) -> torch.dtype:
    """The dtype of most of the weights, by number of elements."""
    sizes: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.numel()
    return sizes.most_common(1)[0][0]
