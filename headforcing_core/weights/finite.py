"""Tests for NaN and infinity."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    if not values.is_floating_point():
        return True
    values = values.float() if values.dtype.itemsize == 1 else values  # PyTorch has no such test for float8
    return bool(torch.isfinite(values).all())


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds NaN or infinity; tensors without data are passed over."""
    return next((name for name, tensor in tensors if not tensor.is_meta and not is_finite(tensor.detach())), None)
