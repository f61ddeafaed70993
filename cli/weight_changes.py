"""A change of a model's weights before a render: linear layers in 8 bits, by `--fp8-linears`."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..headforcing_core.model import fp8
from ..headforcing_core.model.wan import WanConfig, WanModel
from ..headforcing_core.plan.resources import COMMAND_LINE, MemorySavings

OPTION = "--fp8-linears"


class EightBits:
    """Linear layers of all blocks in 8-bit floating point, which makes other numbers.

    Attributes:
        identity: part of the model's name, since its blocks are others.
    """

    identity = fp8.IDENTITY

    def describe(self, device: torch.device) -> str:
        """A line for reports."""
        how = OPTION
        if not fp8.has_product(device):
            how += ", emulated: this device does not multiply them, nothing is faster"
        return f"{fp8.INEXACT} ({how})"

    def saved_bytes(self, config: WanConfig, dtype: torch.dtype) -> int:
        """Bytes that the weights take less."""
        return fp8.saved_bytes(config, dtype)

    def emulated_bytes(self, config: WanConfig, device: torch.device) -> int:
        """Bytes that a pass takes more for each token; 0 where the device multiplies 8-bit
        numbers.
        """
        return 0 if fp8.has_product(device) else fp8.emulated_bytes(config)

    def apply(self, model: WanModel, device: torch.device) -> None:
        """Change the weights in place."""
        fp8.use_fp8_linears(model, fp8.has_product(device))


def command_line_savings() -> MemorySavings:
    """The ways of the command line to save memory, this change among them."""
    return replace(COMMAND_LINE, smaller_weights=(OPTION, fp8.saved_bytes))
