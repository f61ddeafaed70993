"""`torch.compile` for the part of a layer after self-attention: an alternative to the fused
kernels, off by default.

**Not yet tested on a GPU.**
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..headforcing_core.errors import HeadForcingError, first_sentence
from ..headforcing_core.model.wan import finish_layer, forward_block


def compiled_forward(
    backend: str | Callable[..., Any] = "inductor",
) -> Callable[..., Tensor | None]:
    """A replacement for `wan.forward_block` that runs `finish_layer` compiled, once for all layers.

    It raises HeadForcingError if torch cannot compile, for example without a C compiler.
    """
    compiled = torch.compile(finish_layer, dynamic=False, backend=backend)

    def finish(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return compiled(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise HeadForcingError(
                f"torch.compile failed: {first_sentence(error)}; render without compiling"
            ) from error

    return partial(forward_block, finish=finish)
