"""Wan checkpoints (.safetensors or .pt): inspection, loading under Wan's original names,
conversion.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from ..errors import HeadForcingError, one_line
from ..files import Fields, check_kept, json_object
from ..model.latents import WAN21, WAN22
from ..model.wan import WanConfig
from . import layouts
from .containers import (
    Metadata,
    Weights,
    file_bytes,
    first_not_finite,
    read_groups,
    write_safetensors,
)
from .identity import file_identity, identity
from .lora import LoraPatch, comfyui_names, read_patches
from .lora_names import is_lora
from .lora_scale import StatedAlpha, stated_alpha

log = logging.getLogger(__name__)

_FAMILIES = {  # by dim, ffn_dim, num_layers
    (1536, 8960, 30): "wan2.1-t2v-1.3b",
    (5120, 13824, 40): "wan2.1-t2v-14b",
    (3072, 14336, 30): "wan2.2-ti2v-5b",
}
_CUSTOM = {WAN21: "wan2.1-t2v-custom", WAN22: "wan2.2-ti2v-custom"}


@dataclass(frozen=True)
class CheckpointInfo:
    """Contents of a checkpoint. `frames_per_block` (latent frames) is None if the file lacks it."""

    path: Path
    # the top-level key that the weights were read from: "generator_ema", "generator", ..., "bare"
    layout: str
    available: tuple[str, ...]  # every top-level key that holds a model
    config: WanConfig
    family: str
    parameters: int
    dtype: str
    bytes: int  # of the file
    frames_per_block: int | None = None
    lora: str | None = None  # file names of merged LoRAs
    # computes `fingerprint`
    identify: Callable[[], str] = field(default=str, compare=False, repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """The identity of all weights under Wan's names, the same for every layout; at first reads
        the whole file.
        """
        return self.identify()

    def summary(self) -> str:
        """One line for a log or a node."""
        layout = f"read from {self.layout}"
        others = [name for name in self.available if name != self.layout]
        if others:
            layout += f" (also there: {', '.join(others)})"
        parts = [
            f"{self.path.name}: {self.family}",
            f"{self.config.num_layers} layers x {self.config.num_heads} heads",
            f"{self.parameters / 1e9:.3g} B parameters in {self.dtype}",
            f"{self.bytes / 1e9:.3g} GB",
            layout,
        ]
        if self.frames_per_block:
            parts.append(f"{self.frames_per_block} frames per block")
        if self.lora:
            parts.append(f"with LoRA {self.lora}")
        return one_line(", ".join([*parts, f"fingerprint {self.fingerprint}"]))


def inspect_checkpoint(
    path: Path, weights: str = "auto", num_heads: int | None = None
) -> CheckpointInfo:
    """Describe a checkpoint from its header; raises HeadForcingError if it cannot be used.

    `weights` is the top-level key to read ("generator_ema", "generator", "bare", ...); "auto"
    prefers the EMA weights. `num_heads` is needed only if heads are not 128 wide and the file does
    not state it.
    """
    return _open(path, weights, num_heads).info


def load_state_dict(
    path: str | Path,
    weights: str = "auto",
    num_heads: int | None = None,
    lora: Path | None = None,
    lora_strength: float = 1.0,
    dtype: torch.dtype | None = None,
) -> tuple[Weights, CheckpointInfo]:
    """Load weights under their original Wan names, memory-mapped where neither a LoRA nor `dtype`
    changes them.

    `dtype` None keeps the stored dtype, except that unscaled fp8 becomes bf16, because PyTorch
    cannot compute in fp8. Other arguments and errors as in `inspect_checkpoint`.
    """
    opened = _open_patched(Path(path), weights, num_heads, lora=lora, strength=lora_strength)
    state = {name: opened.value(name, dtype) for name in opened.tensors}
    if not opened.patches:
        return state, opened.info
    merged = identity(sorted(state.items()))
    return state, replace(opened.info, identify=lambda: merged)


def convert(
    path: Path,
    out: Path,
    weights: str = "auto",
    dtype: torch.dtype = torch.bfloat16,
    lora: Path | None = None,
    lora_strength: float = 1.0,
    num_heads: int | None = None,
    frames_per_block: int | None = None,
    model_family: str | None = None,
    on_progress: Callable[[int, int], None] = lambda written, total: None,
) -> CheckpointInfo:
    """Write the weights as a safetensors file with bare Wan names and the metadata by which ComfyUI
    detects AR models.

    Memory use is about one tensor. `on_progress(written_bytes, total_bytes)`.
    """
    _check_output(out, filter(None, (path, lora)))
    opened = _open_patched(path, weights, num_heads, lora=lora, strength=lora_strength)
    info = opened.info
    value = partial(opened.value, dtype=dtype)
    stated = {
        "lora_strength": lora_strength if lora else None,
        "frames_per_block": frames_per_block or info.frames_per_block,
        "model_family": model_family or stated_family(path)[0],
        "fingerprint": identity((name, value(name)) for name in sorted(opened.tensors)),
    }
    metadata = _metadata(info, stated)
    write_safetensors(
        out,
        opened.tensors,
        dtype,
        metadata,
        value=value,
        on_progress=on_progress,
    )
    return inspect_checkpoint(out)


def _metadata(info: CheckpointInfo, stated: Mapping[str, object]) -> Metadata:
    """The metadata of a converted file, with what is `stated` besides its source."""
    history: Fields = {
        "source": info.path.name,
        "source_layout": info.layout,
        "lora": info.lora,
        **stated,
    }
    transformer: Fields = {"num_heads": info.config.num_heads}
    if info.config.latents is WAN21:
        # ComfyUI takes every model with this key for one of Wan 2.1
        transformer["causal_ar"] = True
    if info.config.text_len != WanConfig.text_len:
        transformer["text_len"] = info.config.text_len
    known = {key: value for key, value in history.items() if value is not None}
    return {
        "config": json.dumps({"transformer": transformer}),
        "head_forcing": json.dumps(known),
    }


def convert_lora(path: Path, out: Path, dtype: torch.dtype = torch.bfloat16) -> int:
    """Write a LoRA such as LongLive's as a safetensors file that ComfyUI's LoRA loaders read; its
    number of tensors.
    """
    _check_output(out, [path])
    adapters, stated = _adapters(path)
    renamed = comfyui_names(adapters, path.name, stated)
    metadata = {"head_forcing": json.dumps({"source": path.name})}
    write_safetensors(out, renamed, dtype, metadata, value=lambda name: renamed[name].to(dtype))
    return len(renamed)


def holds_lora(path: Path) -> bool:
    """Whether a file holds a LoRA and no model."""
    found = layouts.find_layouts(read_groups(path)[0])
    return any(map(is_lora, found.values())) and not layouts.models_of(found)


def _adapters(lora: Path) -> tuple[Weights, StatedAlpha | None]:
    """The tensors of a LoRA file, and the alpha that it states other than by them."""
    groups, metadata = read_groups(lora)
    by_layout = layouts.find_layouts(groups)
    found = {name: by_layout[name] for name in by_layout if is_lora(by_layout[name])}
    if not found:
        raise HeadForcingError(
            f"{lora.name} is not a LoRA: give a LoRA file, or load it as the checkpoint"
        )
    # a training file may hold running means of a LoRA, too
    adapters = found.get(layouts.LORA_WRAPPER, next(iter(found.values())))
    return adapters, stated_alpha(lora, metadata, adapters)


def _open(path: Path, weights: str, num_heads: int | None) -> _OpenedCheckpoint:
    """Memory-map a checkpoint and validate it; the tensors have Wan names and are exactly the
    model's.
    """
    groups, metadata = read_groups(path)
    by_layout = layouts.find_layouts(groups)
    layout, tensors = layouts.read_layout(by_layout, weights, path.name)
    if layouts.PATCH not in tensors and is_lora(tensors):
        raise HeadForcingError(
            f"{path.name} is a LoRA, not a model: load its base model, and connect the LoRA with a "
            "LoRA loader node (command line: --lora)"
        )
    layouts.reject_other_models(tensors, path.name)
    transformer = json_object(metadata, "config").get("transformer")
    if not isinstance(transformer, dict):
        transformer = {}
    history = json_object(metadata, "head_forcing")
    if num_heads is None:
        # a tag in the recorded cases
        num_heads = layouts.stated_size(transformer.get("num_heads", metadata.get("num_heads")))
    config = layouts.read_config(
        tensors, num_heads, layouts.stated_size(transformer.get("text_len")), path.name
    )
    layouts.reject_experts(path, config)
    unrelated = layouts.take_out_unrelated(tensors, config, path.name)
    if unrelated:
        log.warning(
            "%s: ignoring %d tensors that are not part of the model (%s, ...)",
            path.name,
            len(unrelated),
            one_line(unrelated[0], 100),
        )
    sizes: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.numel()
    most_used = sizes.most_common(1)[0][0]
    size = (config.dim, config.ffn_dim, config.num_layers)
    family = _FAMILIES.get(size, _CUSTOM[config.latents])
    if config.is_driven:
        family = family.replace("wan2.1-t2v", "livetalk")
    merged = history.get("lora")
    info = CheckpointInfo(
        path=path,
        layout=layout,
        available=tuple(layouts.models_of(by_layout)),
        config=config,
        family=family,
        parameters=sizes.total(),
        dtype=str(most_used).removeprefix("torch."),
        bytes=file_bytes(path),
        frames_per_block=layouts.stated_size(history.get("frames_per_block")),
        lora=merged if isinstance(merged, str) else None,
        identify=lambda: file_identity(
            path, layout, lambda: _identity_of_file(path, layout, num_heads)
        ),
    )
    return _OpenedCheckpoint(info, tensors)


@dataclass(frozen=True)
class _OpenedCheckpoint:
    """The stored tensors of a model under Wan's names, and the patches of a LoRA by the tensors
    that they change.
    """

    info: CheckpointInfo
    tensors: Weights
    patches: Mapping[str, LoraPatch] = field(default_factory=dict)
    strength: float = 1.0

    def value(self, name: str, dtype: torch.dtype | None) -> Tensor:
        """A tensor with its patch; `dtype` as for `load_state_dict`."""
        stored = self.tensors[name]
        if dtype is None:
            dtype = torch.bfloat16 if stored.dtype.itemsize == 1 else stored.dtype
        if name in self.patches:
            stored = self.patches[name].apply(stored, self.strength)
        return stored.to(dtype)


def _open_patched(
    path: Path, weights: str, num_heads: int | None, *, lora: Path | None, strength: float
) -> _OpenedCheckpoint:
    """Open a checkpoint, and a LoRA after checking that it fits the model."""
    opened = _open(path, weights, num_heads)
    if lora is None:
        return opened
    if not math.isfinite(strength):
        raise HeadForcingError(f"lora_strength is {strength}: give a number such as 1.0")
    adapters, stated = _adapters(lora)
    patches = read_patches(opened.tensors, adapters, lora.name, stated)
    names = " + ".join(filter(None, (opened.info.lora, lora.name)))
    info = replace(opened.info, lora=names)
    return replace(opened, info=info, patches=patches, strength=strength)


def _identity_of_file(path: Path, layout: str, num_heads: int | None) -> str:
    tensors = _open(path, layout, num_heads).tensors
    bad = first_not_finite(tensors.items())
    if bad is not None:
        raise HeadForcingError(
            f"{path.name} is damaged: {bad} holds NaN or infinity; download or convert it again"
        )
    return identity(sorted(tensors.items()))


def stated_family(path: Path) -> tuple[str | None, int | None, int | None]:
    """The model family and latent frames of a block that `convert` wrote, and the input channels;
    None if absent.
    """
    groups, metadata = read_groups(path)
    history = json_object(metadata, "head_forcing")
    family = history.get("model_family")
    if not isinstance(family, str):
        family = None
    channels = None
    for tensors in layouts.find_layouts(groups).values():
        patch = tensors.get(layouts.PATCH)
        if channels is None and patch is not None and patch.ndim == 5:
            channels = patch.shape[1]
    return family, layouts.stated_size(history.get("frames_per_block")), channels


def _check_output(out: Path, inputs: Iterable[Path]) -> None:
    if out.suffix != ".safetensors" or out.is_dir():
        raise HeadForcingError(
            f"The output is {out.name}, but must be a file name that ends in .safetensors"
        )
    check_kept([("the input", path) for path in inputs], [("the output", out)])
