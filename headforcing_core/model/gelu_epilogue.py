"""GELU in the same launch as the linear layer before it: an alternative to `wan.finish_layer`, not yet run on a GPU.

On CUDA cuBLAS applies the approximation with tanh to its sums, which saves writing and reading the widest activations
of a layer. On a CPU the same operator computes GELU by its definition, which differs by up to 5e-4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .wan import finish_layer


class _Layer:
    """A layer whose FFN is computed with the epilogue; everything else is the layer's own."""

    def __init__(self, block: Any):
        self._block = block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)

    def ffn(self, x: Tensor) -> Tensor:
        return ffn_with_epilogue(self._block.ffn, x)


def ffn_with_epilogue(ffn: Any, x: Tensor) -> Tensor:
    """The FFN of a layer; as it is where a host, LoRA or 8 bits have put layers of their own into it."""
    wide, _, narrow = ffn
    if type(wide) is not nn.Linear:
        return ffn(x)
    hidden = torch._addmm_activation(wide.bias, x.flatten(0, -2), wide.weight.T, use_gelu=True)
    return narrow(hidden.unflatten(0, x.shape[:-1]))


def finish_with_epilogue(block: Any, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    """`wan.finish_layer` with GELU in the launch of the linear layer before it."""
    return finish_layer(_Layer(block), *arguments)
