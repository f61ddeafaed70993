"""Names of tensors in LoRA files of all programs: the layer of a Wan model, and what a tensor is of
its change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from .layouts import diffusers_name, plain_name

_ADAPTER = r"(?:\.[^.]+)?"  # PEFT may add the adapter's name
_LYCORIS = (
    "hada_w1_a hada_w1_b hada_w2_a hada_w2_b hada_t1 hada_t2 "
    "lokr_w1 lokr_w1_a lokr_w1_b lokr_w2 lokr_w2_a lokr_w2_b lokr_t2"
).split()
# By what a tensor is: the end of its name. The first that fits counts.
SPELLINGS: Mapping[str, re.Pattern[str]] = {
    what: re.compile(rf"^(?P<module>.+?)\.{ending}$")
    for what, ending in {
        # PEFT, kohya, old diffusers
        "down": rf"(?:lora_A{_ADAPTER}|lora_down{_ADAPTER}|lora\.down)(?:\.weight)?",
        "up_bias": rf"lora_B{_ADAPTER}\.bias",
        "up": rf"(?:lora_B{_ADAPTER}|lora_up{_ADAPTER}|lora\.up)(?:\.weight)?",
        "mid": r"lora_mid(?:\.weight)?",
        "alpha": r"(?:alpha|lora_alpha)",  # FastVideo writes the latter, beside a rank
        "rank": r"lora_rank",
        # LyCORIS, PEFT
        "magnitude": rf"(?:dora_scale|lora_magnitude_vector{_ADAPTER}(?:\.weight)?)",
        "diff": r"diff",
        "diff_b": r"diff_b",
        "diff_m": r"diff_m",
        "set": r"set_weight",
        **{name: name for name in _LYCORIS},
        "oft": r"(?:oft_blocks|oft_diag|oft_R|boft_[A-Z]|rescale)(?:\.weight)?",
        "glora": r"(?:a1|a2|b1|b2)(?:\.weight)?",
        "norm": r"(?:w_norm|b_norm)",
        "reshape": r"reshape_weight",
    }.items()
}
# Kinds that are not merged here, by a tensor that shows them.
OTHER_KINDS = {
    "mid": "a LoCon with lora_mid",
    "hada_t1": "a LoHa in Tucker form",
    "hada_t2": "a LoHa in Tucker form",
    "lokr_t2": "a LoKr in Tucker form",
    "oft": "an OFT or BOFT adapter",
    "glora": "a GLoRA",
    "norm": "an adapter that sets norms",
    "reshape": "a LoRA that changes the shape of weights",
}

# whatever stands in front of the names of layers: of kohya, musubi and LyCORIS, and of others,
# `diffusion_model.`, `pipe.dit.`, `base_model.model.` ...
_FRONT = re.compile(
    r"(?:lora_unet_+|lora_transformer_+|lycoris_+|(?:.*?\.)??(?=(?:blocks\.\d+|patch_embedding|"
    r"text_embedding|time_embedding|time_projection|head|condition_embedder|proj_out|"
    r"scale_shift_table)\b))"
)
# of layers for images, which text-to-video models lack
OF_IMAGES = re.compile(
    r"(?:^|[._])(?:k_img|v_img|norm_k_img|add_k_proj|add_v_proj|norm_added_k|img_emb|image_embedder)"
)
_PARAMETERS = {"diff_b": "bias", "up_bias": "bias", "diff_m": "modulation"}


def split_key(key: str) -> tuple[str, str] | None:
    """The layer that a tensor's name states, and what the tensor is of it, a key of `SPELLINGS`;
    None if unknown.
    """
    for what, pattern in SPELLINGS.items():
        found = pattern.match(key)
        if found is not None:
            return found["module"], what
    return None


def is_lora(names: Collection[str]) -> bool:
    """Whether there are tensors of a LoRA among them."""
    return any(map(split_key, names))


def parameters_by_layer(names: Collection[str]) -> dict[str, str]:
    """The parameters of a model by Wan's and by diffusers' names with "_" in place of dots, since
    some programs leave no dots.
    """
    table = {}
    for name in names:
        table[_flat(name)] = name
        table[_flat(diffusers_name(name))] = name
    return table


def find_parameter(table: Mapping[str, str], module: str, what: str) -> str | None:
    """The parameter that a tensor changes, from the two parts of its name; None if the model lacks
    it.

    Args:
        table: `parameters_by_layer`.
    """
    layer = _FRONT.sub("", plain_name(module), count=1)
    found = table.get(_flat(f"{layer}.{_PARAMETERS.get(what, 'weight')}"))
    if found is None and what in ("diff", "set"):  # of a parameter without ".weight"
        return table.get(_flat(layer))
    return found


def _flat(name: str) -> str:
    return name.replace(".", "_")
