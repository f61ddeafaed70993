"""Names and shapes of Wan weights: wrapper keys, prefixes, those of diffusers, the dimensions that
they tell, and models that only look alike.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from ..errors import HeadForcingError
from ..model.latents import WAN21, WAN22
from ..model.speech import VIDEO_FRAMES, audio_tensors
from ..model.wan import WanConfig, WanModel
from .containers import Groups, Weights

Layouts = dict[str, Weights]  # the tensors of a file by the key or prefix that they stand under
BARE = "bare"
LORA_WRAPPER = "generator_lora"
# keys of training checkpoints, preferred first; in flat files they may be prefixes of names
_WRAPPERS = ("generator_ema", "generator", LORA_WRAPPER)
_EMA = re.compile(r"(?i)(?:^|[._])(?:ema|averaged)(?:$|[._])")
_TRAINING_ONLY = re.compile(
    r"(?i)critic|optimizer|teacher(?!_?forcing)|discriminator|(?:^|_)(?:fake|real)(?:$|_)"
)
PATCH = "patch_embedding.weight"  # whatever stands in front of it stands in front of all names
# what files put in front of some names only
_USUAL = re.compile(r"^(?:(?:model|module|transformer|diffusion_model|base_model)\.)+")
_INFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "base_layer.")
# no left-hand side occurs in original Wan names, so the table can always be applied
_DIFFUSERS = (
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


def plain_name(name: str) -> str:
    """A name without what FSDP, torch.compile and PEFT put into it."""
    for infix in _INFIXES:
        name = name.replace(infix, "")
    return name


def wan_name(name: str) -> str:
    """The original Wan name of a parameter of which nothing stands in front; unknown names stay."""
    if name == "scale_shift_table":
        return "head.modulation"
    for diffusers, wan in _DIFFUSERS:
        name = name.replace(diffusers, wan)
    return name


def diffusers_name(name: str) -> str:
    """The name of a Wan parameter in diffusers."""
    for diffusers, wan in _DIFFUSERS:
        name = name.replace(wan, diffusers)
    return name.replace("head.scale_shift_table", "scale_shift_table")


def find_layouts(groups: Groups) -> Layouts:
    """The tensors of a file by the key, or the prefix of names, that they stand under, preferred
    ones first.

    Averaged weights (EMA) come first. What stands in front of a model's names is taken off,
    whatever it is called; teachers, critics and optimizer states are left out.
    """
    layouts: Layouts = {}
    for place, tensors in groups.items():
        by_prefix = _by_prefix(tensors)
        models = [prefix for prefix, group in by_prefix.items() if PATCH in group]
        for prefix, group in by_prefix.items():
            parts = [*place, *prefix.split(".")[:-1]]
            if any(map(_TRAINING_ONLY.search, parts)):
                continue
            key = _layout_key(place, prefix, alone=len(models) < 2)
            if PATCH in layouts.get(key, ()) and PATCH in group:
                key = ".".join(parts)  # another model under the same last key
            layouts.setdefault(key, {}).update(group)
    return {key: layouts[key] for key in sorted(layouts, key=_order)}


def _order(key: str) -> tuple[bool, ...]:
    """By this the groups of tensors of a file are sorted, preferred ones first."""
    first, *wrappers = [key != wrapper for wrapper in _WRAPPERS]
    return first, _EMA.search(key) is None, *wrappers, key == BARE


def _by_prefix(tensors: Weights) -> Layouts:
    """The tensors of a dict by what stands in front of each model's names in it; those of no model
    under their wrapper.
    """
    names = {name: plain_name(name) for name in tensors}
    found = [name.removesuffix(PATCH) for name in names.values() if name.endswith(PATCH)]
    prefixes = [prefix for prefix in found if not prefix or prefix.endswith(".")]
    groups: Layouts = {}
    for name, plain in names.items():
        own = ""
        wrapper = plain.partition(".")[0]
        if wrapper in _WRAPPERS or _TRAINING_ONLY.search(wrapper):  # as in a flat file of a LoRA
            own = f"{wrapper}."
        for prefix in sorted(prefixes, key=len):  # the longest one counts
            if plain.startswith(prefix):
                own = prefix
        groups.setdefault(own, {})[plain.removeprefix(own)] = tensors[name]
    return groups


def _layout_key(place: tuple[str, ...], prefix: str, alone: bool) -> str:
    """The name of a group of tensors, by which a person chooses it."""
    inside = prefix.split(".")[:-1]
    for part in place:
        if _EMA.search(part):
            return part
    for wrapper in _WRAPPERS:
        if wrapper in place or wrapper in inside:
            return wrapper
    names = [*place[-1:]]
    if not alone:
        names += inside[:1]
    return ".".join(names) or BARE


def read_layout(layouts: Layouts, weights: str, file: str) -> tuple[str, Weights]:
    """The wrapper key `weights`, or for "auto" the first one that holds a Wan model, and its
    tensors by Wan's names.

    Raises HeadForcingError if the file has no such key, and if two tensors get the same name.
    """
    if not layouts:
        raise HeadForcingError(f"{file} holds no model weights: choose a Self Forcing checkpoint")
    models = models_of(layouts)
    if weights == "auto" or not models:  # without a model, the file is named as what it is
        weights = [*models, *layouts][0]
    if weights not in layouts:
        raise HeadForcingError(
            f"{file} has no weights called {weights!r}: choose 'auto' or one of {', '.join(models)}"
        )
    stored = layouts[weights]
    tensors: Weights = {}
    for name, tensor in stored.items():
        bare = _USUAL.sub("", name)
        if bare in stored:
            bare = name
        tensors[wan_name(bare)] = tensor
    if len(tensors) < len(stored):
        raise HeadForcingError(
            f"{file} holds two tensors for one parameter, such as one with Wan's and one with "
            "diffusers' name: choose a file with one model in it"
        )
    return weights, tensors


def models_of(layouts: Layouts) -> list[str]:
    """The keys of a file that hold a Wan model."""
    return [key for key, tensors in layouts.items() if PATCH in tensors]


# --- tensors of a Wan text-to-video model: their shapes, the model's dimensions, and models that
# only look alike

# few digits: a malicious name must not claim a billion layers
_BLOCK = re.compile(r"blocks\.(\d{1,2})\.")
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
_OTHER_MODELS = {  # by what a name has in it
    "vace_": f"is a VACE model, which is not supported: {_NEED}",
    "lora_": (
        "holds a LoRA beside its model that is not merged: give the LoRA as a file of its own, "
        "beside a file with the model alone"
    ),
    "memory_": (
        "holds Self Gradient Forcing+, whose clean passes have weights of their own, which is not "
        "supported: use the weights of Self Gradient Forcing"
    ),
    ".quantized_weight_values": (
        "holds LongLive 2.0 in NVFP4, which is not supported: use its model_bf16.pt; "
        "--fp8-linears makes that smaller"
    ),
}


def reject_other_models(tensors: Weights, file: str) -> None:
    """Raise HeadForcingError that names the kind of model if the renamed tensors are no Wan
    text-to-video model.
    """
    if PATCH not in tensors or tensors[PATCH].ndim != 5:
        first = next(iter(tensors), "nothing")
        raise HeadForcingError(
            f"{file} is not a Wan video model (it begins with {first!r}): {_NEED}"
        )
    for name in tensors:
        for part, what in _OTHER_MODELS.items():
            if part in name:
                raise HeadForcingError(f"{file} {what}")
    channels = tensors[PATCH].shape[1]
    images = any(map(_IMAGE_PARTS.search, tensors))
    head = tensors.get("head.head.bias")
    known = channels == WAN21.channels
    if channels == WAN22.channels:  # which Fun Control takes, too, and makes 16
        known = head is None or len(head) == 4 * WAN22.channels
    if channels == SPEECH_CHANNELS:
        known = bool(audio_tensors(tensors))
    if images or not known:
        raise HeadForcingError(f"{file} is {other_wan(channels, images)}: {_NEED}")
    for name, tensor in tensors.items():
        # unscaled fp8 weights only need a cast
        whole_numbers = (
            _BLOCK.match(name) and name.endswith("weight") and not tensor.dtype.is_floating_point
        )
        if whole_numbers or name.rpartition(".")[2] in _QUANTISED:
            raise HeadForcingError(
                f"{file} is quantised, which only ComfyUI can run: load it with ComfyUI's Load "
                "Diffusion Model node and connect its MODEL (LiveTalk, whose audio tensors that "
                "node drops: use the file as its authors published it)"
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
    # as it was given, every link on the way, and the file itself
    hops = [path.absolute()]
    while hops[-1].is_symlink() and len(hops) < _MOST_LINKS:
        hops.append(hops[-1].parent / os.readlink(hops[-1]))
    hops.append(path.resolve())
    names = ["\n".join(hop.parts[-2:]).lower() for hop in hops]
    if config.dim == 5120 and any(map(_EXPERT.search, names)):
        raise HeadForcingError(
            f"{path.name} is one expert of Wan2.2 A14B, which changes between two at a noise "
            f"level; that is not supported: {_NEED}"
        )


def stated_size(value: object) -> int | None:
    """A stated size, a number or its digits; what no model has counts as not stated."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value):
        value = int(value)
    return value if type(value) is int and 0 < value < 10_000 else None


@cache
def expected_shapes(config: WanConfig) -> dict[str, torch.Size]:
    """Names and shapes of all parameters of a Wan text-to-video model: 27 per layer and 15
    others, and the audio tensors of one that speech drives.
    """
    with torch.device("meta"):
        model = WanModel(config)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def read_config(
    tensors: Weights, num_heads: int | None, text_len: int | None, file: str
) -> WanConfig:
    """The dimensions by the shapes; `num_heads` (default: heads of 128) and `text_len` cannot be
    inferred.

    Raises HeadForcingError unless every parameter exists with its shape.
    """
    numbers = [int(match[1]) for match in map(_BLOCK.match, tensors) if match is not None]
    form = WanConfig(num_layers=1 + max(numbers, default=0))
    if tensors[PATCH].shape[1] == SPEECH_CHANNELS:
        form = replace(form, audio_dim=1, audio_width=1)
    _check_form(tensors, form, file)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    dim, in_dim, *patch = shapes[PATCH]
    if num_heads is None and dim % 128:
        raise HeadForcingError(
            f"{file} is {dim} wide, which is no multiple of the usual 128 per head: give num_heads"
        )
    if form.is_driven:
        audio_dim, width = shapes["audio_proj.proj.weight"]
        form = replace(form, audio_dim=audio_dim, audio_width=width // VIDEO_FRAMES)
    config = replace(
        form,
        dim=dim,
        ffn_dim=len(tensors["blocks.0.ffn.0.bias"]),
        num_heads=dim // 128 if num_heads is None else num_heads,
        in_dim=in_dim,
        out_dim=len(tensors["head.head.bias"]) // math.prod(patch),
        freq_dim=shapes["time_embedding.0.weight"][1],
        text_dim=shapes["text_embedding.0.weight"][1],
        text_len=text_len or WanConfig.text_len,
        patch_size=(patch[0], patch[1], patch[2]),
    )
    for name, shape in expected_shapes(config).items():
        if shapes[name] != shape:
            raise HeadForcingError(
                f"{file}: {name} has shape {tuple(shapes[name])} where a Wan 2.1 model of width "
                f"{dim} has {tuple(shape)}; download the file again or choose another one"
            )
    return config


def _check_form(tensors: Weights, form: WanConfig, file: str) -> None:
    """Raise HeadForcingError unless the parameters of such a model, of whatever width, exist with
    their number of dimensions.
    """
    expected = expected_shapes(form)
    missing = [name for name in expected if name not in tensors]
    if missing:
        shown = ", ".join(missing[:3])
        raise HeadForcingError(
            f"{file} is incomplete: {len(missing)} of {len(expected)} tensors are missing, such as "
            f"{shown}; download the whole model, or join its parts into one file"
        )
    for name, shape in expected.items():
        found = tensors[name].shape
        if len(found) != len(shape) or 0 in found:
            raise HeadForcingError(
                f"{file}: {name} has shape {tuple(found)}, not {len(shape)} dimensions above 0: it "
                "is no Wan 2.1 model"
            )


def take_out_unrelated(tensors: Weights, config: WanConfig, file: str) -> list[str]:
    """Take out tensors that are not part of the model, and return their names; raises
    HeadForcingError for those of layers.
    """
    unrelated = sorted(tensors.keys() - expected_shapes(config).keys())
    for name in unrelated:
        if name.startswith("blocks."):
            raise HeadForcingError(
                f"{file} is another Wan: its layers have {name}, which Wan 2.1 text-to-video "
                f"lacks; {_NEED}"
            )
        del tensors[name]
    return unrelated
