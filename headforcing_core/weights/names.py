"""The original names of Wan's parameters, from those that programs write."""

from __future__ import annotations

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
