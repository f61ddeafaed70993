"""Contents of a MODEL that other nodes put there: what counts in its identity, what is not used,
what is refused.

A rollout calls the layers of the network itself. What stands around the network's own forward pass,
around the
sampling, or in place of its blocks is therefore not run: it is taken away while we sample, and the
report names it. What runs counts in the identity with its values. What is in no row, or cannot be
read, leaves no stored blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from .plain_values import author, variable

KEY = "head_forcing"  # of our wrappers, and of the hosted model among the options of a pass
AUDIO = "head_forcing_audio"  # attachment that holds the audio tensors of a model, by their names
COMPILED = "torch.compile"  # key of the wrapper that ComfyUI's TorchCompileModel and others add
_SHIFT = 5.0  # of the noise levels of all model families
_RUN = "counts in the identity"
_SILENT = ""  # neither run nor told: it does nothing by itself
_PATCHES = "patches of attention or blocks"
# what stands around a native sampler
_AROUND = ("wrappers of the whole sampling", "wrappers of loading", "wrappers of the sampler")
_BLOCK_FUNCTIONS = ("forward", "_forward", "forward_orig")

# By place and name: `_RUN`, `_SILENT`, or what the report calls something that is not used.
TABLE = {
    "wrappers": {
        "outer_sample": _AROUND[0],
        "prepare_sampling": _AROUND[1],
        "sampler_sample": _AROUND[2],
        "predict_noise": "wrappers of a sampling step",
        "calc_cond_batch": "wrappers of the conditions",
        "apply_model": _RUN,
        "diffusion_model": "wrappers of the whole forward pass",
    },
    "model_options": {
        "sampler_cfg_function": _RUN,
        "sampler_pre_cfg_function": _RUN,
        "sampler_post_cfg_function": _RUN,
        "sampler_calc_cond_batch_function": _RUN,
        "model_function_wrapper": _RUN,
        "denoise_mask_function": "functions of a noise mask",
        "context_handler": "context windows",
        # without a negative prompt there is one pass in any case
        "disable_cfg1_optimization": _SILENT,
        "torch_compile_kwargs": _SILENT,  # what is compiled is named
        "multigpu_options": _SILENT,
        "multigpu_clones": _SILENT,
    },
    "transformer_options": {
        "optimized_attention_override": _RUN,
        "callbacks": _RUN,
        "patches": _PATCHES,
        "patches_replace": _PATCHES,
        "rope_options": "a scaled or shifted RoPE, as of ScaleROPE",
        "easycache": _SILENT,  # values of wrappers that are named
        "minimax_h3_sigma_shift_video": _SILENT,  # of another model
        "minimax_h3_sigma_shift_audio": _SILENT,
        KEY: _SILENT,
    },
    "attributes": {
        "injections": _RUN,
        "weight_wrapper_patches": _RUN,
        "callbacks": _RUN,
    },
    "attachments": {"lora_metadata": _SILENT, AUDIO: _RUN},
    "additional_models": {"multigpu": _SILENT, KEY: _SILENT},
    "object_patches": {"manual_cast_dtype": _SILENT},  # the dtype of a render counts by itself
}


@dataclass
class Contents:
    """All that other nodes have put on a MODEL, its weight patches apart.

    Attributes:
        run: what a rollout runs, by name; counts in the identity.
        unused: what it does not run, with names of nodes, wrappers or parts.
        unknown: what is in no row of the table.
    """

    run: Fields = field(default_factory=dict)
    unused: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def add(self, place: str, name: str, value: Any, names: Sequence[str] = ()) -> None:
        """Sort one thing in by its row."""
        if value is None or (isinstance(value, (Mapping, list, tuple, str)) and not value):
            return
        outcome = TABLE[place].get(name)
        if outcome is None:
            self.unknown.append(f"{place} {name}")
        elif outcome == _RUN:
            self.run[f"{place} {name}"] = value
        elif outcome != _SILENT:
            self.leave(outcome, names)

    def leave(self, what: str, names: Sequence[str] = ()) -> None:
        """Note something that is not used."""
        self.unused.setdefault(what, []).extend(names)

    def lines(self, around: bool = True) -> list[str]:
        """For the report, one for each kind of thing that is not used.

        Args:
            around: whether we sample by ourselves, without what stands around a native sampler.
        """
        lines = []
        for what, names in self.unused.items():
            if not around and what in _AROUND:
                continue
            line = f"not used in a rollout: {what}"
            if names:
                line += f" ({', '.join(sorted(set(names)))})"
            lines.append(line)
        return lines


def contents(model: Any) -> Contents:
    """Look through all that a MODEL can carry."""
    found = Contents()
    options = _part(model, "model_options")
    for name, value in options.items():
        if name != "transformer_options":
            found.add("model_options", name, value, _authors(value))
    for name, value in options.get("transformer_options", {}).items():
        if name != "wrappers":
            keys = list(map(str, value)) if "patches" in name else ()
            found.add("transformer_options", name, value, keys)
    wrappers: dict[str, list[Any]] = {}
    names: dict[str, list[str]] = {}
    for kind, key, functions in _other_wrappers(model):
        if (kind, key) == ("apply_model", COMPILED):
            found.leave(COMPILED)
        else:
            wrappers.setdefault(kind, []).extend(functions)
            names.setdefault(kind, []).append(str(key or author(functions[0])))
    for kind, functions in wrappers.items():
        found.add("wrappers", kind, functions, names[kind])
    for name in TABLE["attributes"]:
        found.add("attributes", name, _part(model, name))
    for place in ("attachments", "additional_models"):
        for name, value in _part(model, place).items():
            found.add(place, str(name), value)
    if any(_part(model, name) for name in ("hook_patches", "forced_hooks", "current_hooks")):
        found.unknown.append("hooks")
    for name, value in _part(model, "object_patches").items():
        _add_object(found, model, name, value)
    _add_hooks(found, model.model.diffusion_model)
    return found


def check_contents(model: Any) -> None:
    """Refuse guidance that a node sets for a step: a rollout has no negative prompt."""
    for kind, _, functions in _other_wrappers(model):
        for function in functions:
            cfg = variable(function, "cfg")
            if kind == "predict_noise" and cfg not in (None, 1):
                raise HeadForcingError(
                    f"model: {author(function)} sets cfg to {cfg}, but Head Forcing runs without "
                    "guidance: cfg must be 1; remove the node or set it to 1"
                )


def guiding(model_options: Fields) -> list[str]:
    """Names of the nodes whose functions of guidance run in each step."""
    found = set()
    for name, value in model_options.items():
        if name.startswith("sampler_") and "cfg" in name:
            found.update(_authors(value))
    return sorted(found)


def used_options(model_options: Fields) -> Fields:
    """`model_options` without what a rollout does not run.

    Behind MultiGPU CFG Split ComfyUI would also run the model in threads of its own, outside
    inference mode.
    """
    transformer = model_options.get("transformer_options", {})
    wrappers = used_wrappers(transformer.get("wrappers", {}))
    used: Fields = {"transformer_options": {**transformer, "wrappers": wrappers}}
    for name, value in model_options.items():
        if name not in used and not name.startswith("multigpu_") and _runs("model_options", name):
            used[name] = value
    return used


def used_wrappers(wrappers: Fields) -> Fields:
    """Wrappers by type and key without those that a rollout does not run; ours stay.

    What compiles the model goes, too: Dynamo would follow a pass into the KV cache, and fail.
    """
    kept = {}
    for kind, by_key in wrappers.items():
        runs = _runs("wrappers", kind)
        kept[kind] = {
            key: list(made)
            for key, made in by_key.items()
            if key == KEY or (runs and key != COMPILED)
        }
    return kept


def _runs(place: str, name: str) -> bool:
    """Whether a rollout runs a thing, or nothing is known about it."""
    return TABLE[place].get(name, _RUN) == _RUN


def _add_object(found: Contents, model: Any, name: str, value: Any) -> None:
    """Sort in an object in place of one of the model, as `name` says where."""
    if name == "model_sampling" and _same_steps(model, value):
        if settings := _settings(value):
            found.leave("noise levels of the model sampling", settings)
    elif _is_around_layers(model.model.diffusion_model, name, value):
        found.leave("replaced parts of the model", [name])
    elif name not in TABLE["object_patches"]:
        found.run[f"object {name}"] = value


def _same_steps(model: Any, sampling: Any) -> bool:
    """Whether a model sampling makes the same step as the model's own; the noise levels are a
    rollout's.
    """
    own = _part(model, "object_patches_backup").get(
        "model_sampling", getattr(model.model, "model_sampling", None)
    )
    for step in ("calculate_input", "calculate_denoised"):
        if getattr(type(own), step, own) != getattr(type(sampling), step, sampling):
            return False
    return True


def _settings(sampling: Any) -> list[str]:
    """Values of a model sampling that differ from those of the model families."""
    settings = []
    for name, usual in (("shift", _SHIFT), ("noise_scale", 1.0)):
        value = getattr(sampling, name, usual)
        if value != usual:
            settings.append(f"{name} {value:g}")
    return settings


def _is_around_layers(net: nn.Module, name: str, value: Any) -> bool:
    """Whether an object patch replaces a function of something that holds layers, which a rollout
    calls by itself.
    """
    path = name.split(".")
    if path[0] != "diffusion_model" or isinstance(value, nn.Module) or not callable(value):
        return False
    try:
        owner = net.get_submodule(".".join(path[1:-1]))
    except AttributeError:  # within something that is itself replaced
        return False
    return not _is_called(owner)


def _is_called(module: nn.Module) -> bool:
    """Whether a rollout calls this module, and not only the layers in it."""
    return isinstance(module, nn.Sequential) or next(module.children(), None) is None


def _add_hooks(found: Contents, net: Any) -> None:
    """Sort in functions that were set on the network itself."""
    replaced = [f"diffusion_model.{name}" for name in _BLOCK_FUNCTIONS if name in net.__dict__]
    if replaced:
        found.leave("replaced parts of the model", replaced)
    hooked = 0
    blocks = set(net.blocks)
    for name, module in net.named_modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if hooks and module in blocks:
            hooked += 1
        elif hooks and _is_called(module):
            found.run[f"hooks on {name}"] = hooks
    if hooked:
        found.leave(f"hooks on {hooked} blocks of layers, such as those of a block swap")


def _other_wrappers(model: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    """Type, key and functions of all wrappers on a MODEL but ours."""
    options = _part(model, "model_options").get("transformer_options", {})
    for wrappers in (options.get("wrappers", {}), _part(model, "wrappers")):
        for kind, by_key in wrappers.items():
            for key, functions in by_key.items():
                if functions and key != KEY:
                    yield kind, key, functions


def _authors(value: Any) -> list[str]:
    """Names of the nodes that made a function, or each of several; none for other values."""
    functions = value if isinstance(value, list) else [value]
    return [author(function) for function in functions if callable(function)]


def _part(model: Any, name: str) -> Any:
    """An attribute of a ModelPatcher, which older versions of ComfyUI may lack."""
    return getattr(model, name, None) or {}
