"""GELU in the same launch as the linear layer before it: an alternative to `wan.finish_layer`, not yet run on a GPU.

On CUDA cuBLAS applies the approximation with tanh to its sums, which saves writing and reading the widest activations
of a layer. On a CPU the same operator computes GELU by its definition, which differs by up to 5e-4.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from headforcing.headforcing_core.model.wan import finish_layer
from torch import Tensor, nn


def ffn_with_epilogue(ffn: Any, x: Tensor) -> Tensor:
    """The FFN of a layer; as it is where a host, LoRA or 8 bits have put layers of their own into it."""
    wide, _, narrow = ffn
    if type(wide) is not nn.Linear:
        return ffn(x)
    hidden = torch._addmm_activation(wide.bias, x.flatten(0, -2), wide.weight.T, use_gelu=True)
    return narrow(hidden.unflatten(0, x.shape[:-1]))


def finish_with_epilogue(block: Any, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    """`finish_layer` with GELU in the launch of the linear layer before it."""
    fused = partial(ffn_with_epilogue, block.ffn)
    layer = SimpleNamespace(norm3=block.norm3, cross_attn=block.cross_attn, norm2=block.norm2, ffn=fused)
    return finish_layer(layer, *arguments)
