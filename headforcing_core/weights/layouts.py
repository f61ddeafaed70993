"""Names of Wan weights: wrapper keys, prefixes, and those of diffusers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from ..errors import HeadForcingError
from .containers import Weights

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


def is_lora(names: Iterable[str]) -> bool:
    """Whether the names are those of a LoRA alone: adapter tensors without their base model."""
    names = list(names)
    return any(map(LORA_SUFFIX.search, names)) and not looks_like_wan(names)


def find_layouts(tree: Mapping[object, object]) -> dict[str, Weights]:
    """Group the tensors of a file by the key, or the prefix of names, that they stand under,
    preferred groups first.

    Averaged weights (EMA) come first. Prefixes in front of a model's names are taken off, whatever
    they are called; teachers, critics and optimizer states are left out.
    """
    layouts: dict[str, Weights] = {}
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


def _order(key: str) -> int:
    """Place of a group of tensors among those of a file, preferred ones first."""
    if key == _WRAPPERS[0]:
        return 0
    if _EMA.search(key):
        return 1
    if key in _WRAPPERS:
        return 1 + _WRAPPERS.index(key)
    return len(_WRAPPERS) + 2 if key == BARE else len(_WRAPPERS) + 1


def _mappings(
    tree: Mapping[object, object], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Weights]]:
    """Every dict in a file that holds tensors, with the keys that lead to it."""
    tensors = {
        str(name): value.detach() for name, value in tree.items() if isinstance(value, Tensor)
    }
    if tensors:
        yield path, tensors
    if len(path) < _MOST_LEVELS:
        for name, value in tree.items():
            if isinstance(value, Mapping) and not _TRAINING_ONLY.search(str(name)):
                yield from _mappings(value, (*path, str(name)))


def _by_prefix(tensors: Weights) -> dict[str, Weights]:
    """The tensors of a dict by what stands in front of each model's names in it; those of no model
    under "".
    """
    names = {name: _without_infixes(name) for name in tensors}
    found = set()
    for name in names.values():
        if name.endswith("patch_embedding.weight"):
            found.add(name.removesuffix("patch_embedding.weight"))
    # usual ones stay: `wan_name` takes them off, and two copies of a model in one dict are noticed
    # there
    unusual = [prefix for prefix in found if prefix.endswith(".") and strip_prefixes(prefix)]
    prefixes = sorted(unusual, key=len)
    groups: dict[str, Weights] = {}
    for name, plain in names.items():
        own = ""
        wrapper = plain.partition(".")[0]
        if wrapper in _WRAPPERS or _TRAINING_ONLY.search(wrapper):  # as in a flat file of a LoRA
            own = f"{wrapper}."
        for prefix in prefixes:  # the longest one counts
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
    if path and (alone or not prefix):
        return path[-1]
    if path:
        return f"{path[-1]}.{prefix.partition('.')[0]}"
    return BARE if alone or not prefix else prefix.partition(".")[0]


def _without_infixes(name: str) -> str:
    """A name without what FSDP, torch.compile and PEFT put into it."""
    for infix in _INFIXES:
        name = name.replace(infix, "")
    return name


def read_layout(layouts: Mapping[str, Weights], weights: str, file: str) -> tuple[str, Weights]:
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
