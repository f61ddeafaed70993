"""A loaded MODEL: its dimensions, what names it, what is inexact in it, its file.

Imports nothing of ComfyUI: all that is read here are attributes of what it has loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.model.latents import WAN21, WAN22, latent_format
from ....headforcing_core.model.speech import VIDEO_FRAMES, SpeechProjection
from ....headforcing_core.model.wan import WanConfig
from ....headforcing_core.plan.family import with_family
from ....headforcing_core.plan.options import RenderOptions
from ....headforcing_core.weights.identity import identity
from ....headforcing_core.weights.layouts import SPEECH_CHANNELS, other_wan, reject_experts
from .model_contents import AUDIO, contents
from .plain_values import Named, Reader, UnreadableError

# fields of a WanConfig that ComfyUI's network and its configuration call the same
SAME_NAMES = (
    "dim",
    "ffn_dim",
    "num_heads",
    "in_dim",
    "out_dim",
    "freq_dim",
    "text_dim",
    "text_len",
)


def wan_config(model: Any) -> WanConfig:
    """Dimensions of the Wan text-to-video transformer of a MODEL; raises HeadForcingError for any
    other model.
    """
    net = model.model.diffusion_model
    blocks = getattr(net, "blocks", nn.ModuleList())
    # the first child and not the first item, since some models name their blocks
    if not hasattr(next(blocks.children(), None), "cross_attn") or not hasattr(
        net, "patch_embedding"
    ):
        raise HeadForcingError(
            "model: expected Wan 2.1 text-to-video weights (Self Forcing family), got "
            f"{type(model.model).__name__}; load one with Load Self Forcing"
        )
    images = getattr(net, "img_emb", None) is not None
    vace = hasattr(net, "vace_blocks")
    audio = audio_of(model)
    known = [(16, 16), (48, 48)]
    if audio:
        known = [(SPEECH_CHANNELS, 16)]
    if (net.in_dim, net.out_dim) not in known or images or vace:
        found = "VACE" if vace else other_wan(net.in_dim, images)
        raise HeadForcingError(
            "model: expected Wan text-to-video weights with 16 or 48 latent channels, got "
            f"{net.in_dim}: {found}; load one of the Self Forcing family with Load Self Forcing"
        )
    own = {name: getattr(net, name) for name in SAME_NAMES}
    if audio:
        own["audio_dim"], width = audio["audio_proj.proj.weight"].shape
        own["audio_width"] = width // VIDEO_FRAMES
    config = WanConfig(num_layers=len(blocks), patch_size=tuple(net.patch_size), **own)
    if file := file_of(model):
        reject_experts(file, config)
    return config


def audio_of(model: Any) -> Mapping[str, Tensor]:
    """The audio tensors of a MODEL that speech drives, by the names of the published file; none of
    another one.
    """
    attached = getattr(model, "attachments", None) or {}
    return attached.get(AUDIO, {})


def condition_modules(model: Any, device: torch.device) -> SpeechProjection:
    """The modules for what drives a MODEL, made of its audio tensors: on a device, in the dtype of
    its other weights.
    """
    dtype = compute_dtype(model)
    placed = {name: tensor.to(device, dtype) for name, tensor in audio_of(model).items()}
    return SpeechProjection.of(wan_config(model), placed)


def check_text_width(model: Any, embeds: Iterable[Tensor]) -> None:
    """Refuse text embeddings of another width than the MODEL reads, and models that are not Wan."""
    expected = wan_config(model).text_dim
    found = next(iter(embeds)).shape[-1]
    if found != expected:
        raise HeadForcingError(
            f"positive: the model reads text embeddings of width {expected}, got {found}; use the "
            "CLIP that belongs to it (umt5_xxl with type wan, or the demo model's own)"
        )


def compute_dtype(model: Any) -> torch.dtype:
    """The dtype ComfyUI runs this MODEL in; core's ModelComputeDtype and SelectModelDevice set it
    on a clone.
    """
    return model.get_model_object("manual_cast_dtype") or model.model.get_dtype()


# --------------------------------------------------------------------------------- names of weights


@dataclass(frozen=True)
class ModelName:
    """Name of a MODEL by what it computes, under which blocks and head roles are stored.

    Attributes:
        weights: 16 hexadecimal digits, see `name_model`.
        unread: things on it that could not be told apart by their values.
    """

    weights: str
    unread: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether files under this name are those of the same model."""
        return not self.unread

    @property
    def notes(self) -> list[str]:
        """A line for the report where nothing is kept."""
        if self.is_known:
            return []
        return [
            "stored blocks and measured head roles are neither read nor written: values on the "
            f"model could not be read ({', '.join(self.unread)})"
        ]


NO_NAME = ModelName("")


def name_model(model: Any) -> ModelName:
    """Name a MODEL by every weight, every patch on it with its strength, and all else that a
    rollout runs of it.

    The same whether the model is loaded or not, with dynamic VRAM or without: where a LoRA was
    merged into a loaded weight, the original counts, and each weight counts in its
    `computed_dtype`.
    """
    carried = contents(model)
    run = {f"patch {name}": patches for name, patches in model.patches.items()} | carried.run
    net = model.model.diffusion_model
    whole = model.model
    parts = {module: name for name, module in net.named_modules()}
    if isinstance(whole, nn.Module):
        parts[whole] = "whole model"
    read: list[tuple[str, Tensor]] = []
    unread = list(carried.unknown)
    for name in sorted(run):
        try:
            read += list(Reader(parts).read(name, run[name]))
        except (UnreadableError, RecursionError):
            unread.append(name)
    return ModelName(identity(chain(_tensors(model), read)), tuple(unread))


def computed_dtype(module: Any, name: str, weight: Tensor) -> torch.dtype:
    """The dtype in which ComfyUI gives `weight`, a module's parameter or buffer of that name, to
    the device.

    With dynamic VRAM main memory holds the dtype of the file. Most weights are cast as they are
    copied to the device, others in place when the model is first loaded. Older versions of ComfyUI
    cast all while the file is read, and name no dtype. A quantised weight stays as it is.
    """
    named = getattr(module, f"{name}_comfy_model_dtype", None)
    return weight.dtype if named is None or _packing(weight) else named


def multiplies_fp8(model: Any) -> bool:
    """Whether ComfyUI computes products of linear layers in 8-bit floating point (fp8_e4m3fn_fast,
    --fast).
    """
    for layer in {type(layer) for layer in model.model.diffusion_model.modules()}:
        if any(cls.__qualname__ == "fp8_ops.Linear" for cls in layer.__mro__):
            return True
    return False


def _tensors(model: Any) -> Named:
    for place, module, name, held in _weights(model.model.diffusion_model):
        full = f"{place}.{name}".removeprefix(".")
        original = model.backup.get(f"diffusion_model.{full}")
        weight = held if original is None else getattr(original, "weight", original)
        if isinstance(weight, Tensor) and not weight.is_meta:
            dtype = computed_dtype(module, name, weight)
            if weight.dtype != dtype:
                weight = weight.to(dtype)
            yield f"{full} {_packing(weight)}", weight
    if multiplies_fp8(model):  # the same weights with another arithmetic
        yield "products in 8-bit floating point", torch.empty(0)


def _weights(net: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """All weights, each with the name of its module, the module, and its own name in it; those
    included that a loader of quantised files keeps as plain attributes.

    In the order of the modules, `weight` and `bias` first: with dynamic VRAM layers hold them in
    the order of the file.
    """
    modules = dict(net.named_modules())
    for kind in ("_parameters", "_buffers"):
        for place, module in modules.items():
            own = getattr(module, kind)
            for name in sorted(own, key=lambda name: (name != "weight", name != "bias", name)):
                if own[name] is not None:
                    yield place, module, name, own[name]
    for place, module in modules.items():
        for name in ("weight", "bias"):
            if name not in module._parameters and name not in module._buffers:
                yield place, module, name, getattr(module, name, None)


def _packing(weight: Tensor) -> str:
    """Storage format of a quantised weight; nothing for a plain one."""
    if type(weight) in (Tensor, nn.Parameter):
        return ""
    # the type of ComfyUI-GGUF
    return f"{type(weight).__name__} {getattr(weight, 'tensor_type', '')}"


def approximations(model: Any) -> list[str]:
    """Lines for the report; empty for a model in 16 or 32 bits."""
    layer = model.model.diffusion_model.blocks[0].self_attn.q
    kind = type(layer.weight).__name__
    dtype = str(computed_dtype(layer, "weight", layer.weight)).removeprefix("torch.")
    if multiplies_fp8(model):
        return [f"linear layers in 8-bit floating point ({dtype}, ComfyUI's products)"]
    if dtype.startswith("float8"):
        return [f"weights stored in 8-bit floating point ({dtype})"]
    if "Quantized" in kind or "GGML" in kind:
        return [f"quantised weights ({kind})"]
    return []


def options_for(model: Any, options: RenderOptions) -> tuple[RenderOptions, list[str]]:
    """The options with the model family of the file in place of `auto`, and lines for the
    report.
    """
    options, line = with_family(options, file_of(model))
    channels = getattr(model.model.diffusion_model, "in_dim", WAN21.channels)
    if latent_format(channels) is WAN22 and options.schedule.latents is not WAN22:
        options = replace(options, model_family="longlive2")
        line = "model family longlive2 (by its latent channels)"
    if audio_of(model) and not options.schedule.is_driven:
        options = replace(options, model_family="livetalk")
        line = "model family livetalk (by its audio tensors)"
    return options, [line] if line else []


def file_of(model: Any) -> str | None:
    """The weights file of a MODEL, if its loader says so; in older versions of ComfyUI not behind a
    LoRA loader.
    """
    _, arguments, *_ = getattr(model, "cached_patcher_init", None) or (None, ())
    first = next(iter(arguments), None)
    return first if isinstance(first, str) else None
