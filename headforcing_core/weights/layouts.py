"""Names and shapes of Wan weights: wrapper keys, prefixes, those of diffusers, the dimensions that
they tell, and models that only look alike.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..model.latents import WAN21, WAN22
from ..model.speech import VIDEO_FRAMES, SpeechProjection, audio_tensors
from ..model.wan import WanConfig, WanModel
from .containers import Tree, Weights

Shape = tuple[int, ...]
Layouts = dict[str, Weights]  # the tensors of a file by the key or prefix that they stand under
BARE = "bare"
LORA_WRAPPER = "generator_lora"
# keys of training checkpoints, preferred first; in flat files they may be prefixes of names
_WRAPPERS = ("generator_ema", "generator", LORA_WRAPPER)
_EMA = re.compile(r"(?i)(?:^|[._])(?:ema|averaged)(?:$|[._])")
_TRAINING_ONLY = re.compile(
    r"(?i)critic|optimizer|teacher(?!_?forcing)|discriminator|(?:^|_)(?:fake|real)(?:$|_)"
)
_MOST_LEVELS = 4  # of dicts in dicts

_PREFIXES = (
    "model.diffusion_model.",
    "base_model.model.",
    "diffusion_model.",
    "transformer.",
    "module.",
    "model.",
)
_INFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "base_layer.")
# no left-hand side occurs in original Wan names, so the table can always be applied
DIFFUSERS_NAMES = (
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
LORA_SUFFIX = re.compile(
    r"\.(lora_(A|B|down|up)\b.*|lora\.(down|up)\b.*|diff|diff_b|diff_m|set_weight|alpha|dora_scale|hada_\w+|"
    r"lokr_\w+|b?oft_\w+|[ab][12](\.weight)?|[wb]_norm)$"
)


def strip_prefixes(name: str) -> str:
    """Remove the prefixes and infixes that FSDP, torch.compile, PEFT and pipelines add to parameter
    names.
    """
    name = _without_infixes(name)
    while name.startswith(_PREFIXES):
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
    return name


def wan_name(name: str) -> str:
    """The original Wan name of a parameter, without wrapper prefixes; unknown names only lose their
    prefixes.
    """
    name = strip_prefixes(name)
    if name == "scale_shift_table":
        return "head.modulation"
    for diffusers, wan in DIFFUSERS_NAMES:
        name = name.replace(diffusers, wan)
    return name


def looks_like_wan(names: Iterable[str]) -> bool:
    return any(wan_name(name) == "patch_embedding.weight" for name in names)


def is_lora(names: Collection[str]) -> bool:
    """Whether the names are those of a LoRA alone: adapter tensors without their base model."""
    return any(map(LORA_SUFFIX.search, names)) and not looks_like_wan(names)


def find_layouts(tree: Tree) -> Layouts:
    """Group the tensors of a file by the key, or the prefix of names, that they stand under,
    preferred groups first.

    Averaged weights (EMA) come first. Prefixes in front of a model's names are taken off, whatever
    they are called; teachers, critics and optimizer states are left out.
    """
    layouts: Layouts = {}
    for path, tensors in _mappings(tree, ()):
        by_prefix = _by_prefix(tensors)
        for prefix, group in by_prefix.items():
            parts = [part for part in (*path, *prefix.split(".")) if part]
            if any(map(_TRAINING_ONLY.search, parts)):
                continue
            key = _layout_key(path, prefix, alone=len(by_prefix) == 1)
            if key in layouts and looks_like_wan(layouts[key]) and looks_like_wan(group):
                key = ".".join(parts)  # another model under the same last key
            layouts.setdefault(key, {}).update(group)
    return {key: layouts[key] for key in sorted(layouts, key=_order)}


def _order(key: str) -> tuple[bool, ...]:
    """By this the groups of tensors of a file are sorted, preferred ones first."""
    first, *wrappers = [key != wrapper for wrapper in _WRAPPERS]
    return first, _EMA.search(key) is None, *wrappers, key == BARE


def _mappings(tree: Tree, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Weights]]:
    """Every dict in a file that holds tensors, with the keys that lead to it."""
    tensors = {
        str(name): value.detach() for name, value in tree.items() if isinstance(value, Tensor)
    }
    if tensors:
        yield path, tensors
    if len(path) < _MOST_LEVELS:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                yield from _mappings(value, (*path, str(name)))


def _by_prefix(tensors: Weights) -> Layouts:
    """The tensors of a dict by what stands in front of each model's names in it; those of no model
    under "".
    """
    names = {name: _without_infixes(name) for name in tensors}
    first = "patch_embedding.weight"
    found = {name.removesuffix(first) for name in names.values() if name.endswith(first)}
    # usual ones stay: `wan_name` takes them off, and two copies of a model in one dict are noticed
    # there
    unusual = [prefix for prefix in found if prefix.endswith(".") and strip_prefixes(prefix)]
    groups: Layouts = {}
    for name, plain in names.items():
        own = ""
        wrapper = plain.partition(".")[0]
        if wrapper in _WRAPPERS or _TRAINING_ONLY.search(wrapper):  # as in a flat file of a LoRA
            own = f"{wrapper}."
        for prefix in sorted(unusual, key=len):  # the longest one counts
            if plain.startswith(prefix):
                own = prefix
        groups.setdefault(own, {})[plain.removeprefix(own)] = tensors[name]
    return groups


def _layout_key(path: tuple[str, ...], prefix: str, alone: bool) -> str:
    """The name of a group of tensors, by which a person chooses it."""
    averaged = [part for part in path if _EMA.search(part)]
    if averaged and LORA_WRAPPER not in path:
        return averaged[0]
    for wrapper in _WRAPPERS:
        if wrapper in path or wrapper in prefix.split("."):
            return wrapper
    names = [*path[-1:]]
    if not alone and prefix:
        names.append(prefix.partition(".")[0])
    return ".".join(names) or BARE


def _without_infixes(name: str) -> str:
    """A name without what FSDP, torch.compile and PEFT put into it."""
    for infix in _INFIXES:
        name = name.replace(infix, "")
    return name


def read_layout(layouts: Layouts, weights: str, file: str) -> tuple[str, Weights]:
    """The wrapper key `weights`, or for "auto" the first one that holds a Wan model, and its
    tensors by Wan's names.

    Raises HeadForcingError if the file has no such key, and if two tensors get the same name.
    """
    if not layouts:
        raise HeadForcingError(f"{file} holds no model weights: choose a Self Forcing checkpoint")
    models = [name for name in layouts if looks_like_wan(layouts[name])]
    if weights == "auto" or not models:  # without a model, the file is named as what it is
        weights = (models or list(layouts))[0]
    if weights not in layouts:
        raise HeadForcingError(
            f"{file} has no weights called {weights!r}: choose 'auto' or one of {', '.join(models)}"
        )
    renamed: Weights = {}
    for name, tensor in layouts[weights].items():
        wan = wan_name(name)
        if wan in renamed:
            raise HeadForcingError(
                f"{file} holds two tensors for {wan} ({name}): choose a file with one model in it"
            )
        renamed[wan] = tensor
    return weights, renamed


# --- tensors of a Wan text-to-video model: their shapes, the model's dimensions, and models that
# only look alike

# few digits: a malicious name must not claim a billion layers
_BLOCK = re.compile(r"blocks\.(\d{1,3})\.")
_QUANTISED = (
    "scale_weight weight_scale weight_scale_2 scale_input input_scale comfy_quant scaled_fp8"
).split()
SPEECH_CHANNELS = 33  # noisy latents, a portrait and a mask
_NEED = "choose a Self Forcing (Wan2.1 text-to-video) checkpoint"
_IMAGE_PARTS = re.compile(
    r"^img_emb\.|^condition_embedder\.image_embedder\.|\.k_img\.|\.add_k_proj\."
)
_EXPERT = re.compile(r"(?:high|low)[-_ ]?noise|transformer_2|a14b.*(?:high|low)|(?:high|low).*a14b")
_MOST_LINKS = 20
_OTHER_MODELS = (  # pattern of a name, and what a file with such a tensor is
    (
        r"vace_(blocks|patch_embedding)\.",
        f"is a VACE model, which is not supported, not a Wan video model: {_NEED}",
    ),
    (r"(en|de)coder\.conv(1|_in)\.|decoder\.middle\.", f"is a VAE, not a Wan video model: {_NEED}"),
    (
        r"(shared|token_embedding)\.weight|encoder\.block\.|text_model\.",
        f"is a text encoder, not a Wan video model: {_NEED}",
    ),
    (
        ".*memory_",
        "holds Self Gradient Forcing+, whose clean passes have weights of their own, which is not "
        "supported: use the weights of Self Gradient Forcing",
    ),
    (
        r".*\.quantized_weight_values$",
        "holds LongLive 2.0 in NVFP4, which is not supported: use its model_bf16.pt; "
        "--fp8-linears makes that smaller",
    ),
)


def reject_other_models(tensors: Weights, file: str) -> None:
    """Raise HeadForcingError that names the kind of model if the renamed tensors are no Wan
    text-to-video model.
    """
    if is_lora(tensors):
        raise HeadForcingError(
            f"{file} is a LoRA, not a model: load its base model, and connect the LoRA with a LoRA "
            "loader node (command line: --lora)"
        )
    for pattern, what in _OTHER_MODELS:
        if any(re.match(pattern, name) for name in tensors):
            raise HeadForcingError(f"{file} {what}")
    if "patch_embedding.weight" not in tensors:
        first = next(iter(tensors), "nothing")
        raise HeadForcingError(
            f"{file} is not a Wan video model (it begins with {first!r}): {_NEED}"
        )
    channels = _shape(tensors, "patch_embedding.weight", 5, file)[1]
    images = any(map(_IMAGE_PARTS.search, tensors))
    head = tensors.get("head.head.weight")
    known = channels == WAN21.channels
    if channels == WAN22.channels:  # which Fun Control takes, too, and makes 16
        known = head is None or len(head) == 4 * WAN22.channels
    if channels == SPEECH_CHANNELS:
        known = bool(audio_tensors(tensors))
    if images or not known:
        raise HeadForcingError(f"{file} is {other_wan(channels, images)}: {_NEED}")
    for name, tensor in tensors.items():  # unscaled fp8 weights only need a cast
        whole_numbers = (
            _BLOCK.match(name) and name.endswith("weight") and not tensor.dtype.is_floating_point
        )
        if whole_numbers or name.rsplit(".", 1)[-1] in _QUANTISED:
            raise HeadForcingError(
                f"{file} is quantised, which only ComfyUI can run: load it with ComfyUI's Load "
                "Diffusion Model node and connect its MODEL"
            )


def other_wan(channels: int, images: bool) -> str:
    """Name a Wan model of other input channels, or one that reads CLIP's embeddings of images, in
    an error.
    """
    if images:
        return "an image-to-video (I2V) model of Wan 2.1, which is not supported"
    if channels == 36:
        return (
            "an expert of Wan2.2 I2V A14B, an image-to-video model of two experts, which is not "
            "supported"
        )
    if channels == SPEECH_CHANNELS:
        return (
            "a LiveTalk model without its 32 audio tensors (audio_proj, audio_cond_projs), which "
            "some programs drop when they load or save it, so that speech cannot drive it; use the "
            "file as its authors published it, and load it with Load Self Forcing"
        )
    return (
        f"a Wan model with {channels} input channels (Fun Control, inpainting, camera) where "
        "text-to-video takes 16, or 48 with Wan2.2 5B"
    )


def reject_experts(path: str | Path, config: WanConfig) -> None:
    """Refuse an expert of Wan 2.2 A14B by the names of file and folder: its tensors are as those of
    Wan 2.1 14B.
    """
    path = Path(path)
    if config.dim == 5120 and any(
        _EXPERT.search(name.lower()) for name in _names_through_links(path)
    ):
        raise HeadForcingError(
            f"{path.name} is one expert of Wan2.2 A14B, which changes between two at a noise "
            f"level; that is not supported: {_NEED}"
        )


def _names_through_links(path: Path) -> list[str]:
    """The names of a file and its folder: as they were given, of every link on the way, and of the
    file itself.
    """
    place = Path(os.path.abspath(path))
    hops = [place]
    while place.is_symlink() and len(hops) < _MOST_LINKS:
        place = Path(os.path.normpath(place.parent / os.readlink(place)))
        hops.append(place)
    hops.append(path.resolve())
    return [*(hop.parent.name for hop in hops), *(hop.name for hop in hops)]


def stated_size(value: object) -> int | None:
    """A stated size, a number or its digits; what no model has counts as not stated."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value):
        value = int(value)
    return value if type(value) is int and 0 < value < 10_000 else None


def expected_shapes(config: WanConfig) -> dict[str, Shape]:
    """Names and shapes of all parameters of a Wan text-to-video model: 27 per layer and 15
    others, and the audio tensors of one that speech drives.
    """
    with torch.device("meta"):
        model = WanModel(replace(config, num_layers=1, audio_dim=0))
        projection = SpeechProjection(config) if config.speaks else nn.Module()
    shapes: dict[str, Shape] = {}
    for name, parameter in model.named_parameters():
        shapes[name] = tuple(parameter.shape)
        if name.startswith("blocks.0."):
            for layer in range(1, config.num_layers):
                shapes[name.replace("blocks.0.", f"blocks.{layer}.")] = tuple(parameter.shape)
    for name, parameter in projection.named_parameters():
        shapes[name] = tuple(parameter.shape)
    return shapes


def infer_config(
    tensors: Weights, num_heads: int | None, text_len: int | None, file: str
) -> WanConfig:
    """Infer the dimensions from the shapes; `num_heads` (default: heads of 128) and `text_len`
    cannot be inferred.

    Raises HeadForcingError for missing tensors and impossible dimensions.
    """
    shape = partial(_shape, tensors, file=file)
    patch = shape("patch_embedding.weight", 5)
    numbers = [int(match[1]) for match in map(_BLOCK.match, tensors) if match is not None]
    dim = shape("head.modulation", 3)[-1]
    if num_heads is None and (dim == 0 or dim % 128):
        raise HeadForcingError(
            f"{file} is {dim} wide, which is no multiple of the usual 128 per head: give num_heads"
        )
    audio: Shape = (0, 0)
    if patch[1] == SPEECH_CHANNELS:
        audio = shape("audio_proj.proj.weight", 2)
    config = WanConfig(
        dim=dim,
        ffn_dim=shape("blocks.0.ffn.0.weight", 2)[0],
        num_layers=1 + max(numbers),
        num_heads=dim // 128 if num_heads is None else num_heads,
        in_dim=patch[1],
        out_dim=shape("head.head.weight", 2)[0] // max(1, math.prod(patch[2:])),
        freq_dim=shape("time_embedding.0.weight", 2)[1],
        text_dim=shape("text_embedding.0.weight", 2)[1],
        text_len=text_len or WanConfig.text_len,
        patch_size=(patch[2], patch[3], patch[4]),
        audio_width=audio[1] // VIDEO_FRAMES,
        audio_dim=audio[0],
    )
    sizes = (dim, config.ffn_dim, config.out_dim, config.freq_dim, config.text_dim)
    if min(*sizes, *config.patch_size) < 1:
        raise HeadForcingError(
            f"{file} is damaged: a size of its model is 0 ({config}); download it again"
        )
    return config


def _shape(tensors: Weights, name: str, dimensions: int, file: str) -> Shape:
    """The shape of a tensor that must be there with this many dimensions; raises HeadForcingError
    if it is not.
    """
    if name not in tensors:
        raise HeadForcingError(
            f"{file} is incomplete: {name} is missing; download the whole file again"
        )
    shape = tuple(tensors[name].shape)
    if len(shape) != dimensions:
        raise HeadForcingError(
            f"{file}: {name} has shape {shape}, not {dimensions} dimensions: it is no Wan 2.1 model"
        )
    return shape


def check_complete(tensors: Weights, config: WanConfig, file: str) -> list[str]:
    """Raise HeadForcingError unless every parameter exists with its shape; return the names of
    unrelated tensors.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        shown = ", ".join(missing[:3])
        if len(missing) > 3:
            shown += ", ..."
        raise HeadForcingError(
            f"{file} is incomplete: {len(missing)} of {len(expected)} tensors are missing "
            f"({shown}); download the whole model, or join its parts into one file"
        )
    for name, shape in expected.items():
        found = tuple(tensors[name].shape)
        if found != shape:
            raise HeadForcingError(
                f"{file}: {name} has shape {found} where a Wan 2.1 model of width {config.dim} has "
                f"{shape}; download the file again or choose another one"
            )
    extra = [name for name in tensors if name not in expected]
    for name in extra:
        if name.startswith("blocks."):
            what = "is another Wan"
            if LORA_SUFFIX.search(name):
                what = "holds a LoRA beside its model that is not merged"
            raise HeadForcingError(
                f"{file} {what} (its layers have {name}, which Wan 2.1 text-to-video lacks): "
                "choose a Self Forcing (text-to-video) checkpoint, and give a LoRA as a file of "
                "its own"
            )
    return extra
