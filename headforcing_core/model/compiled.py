"""What a layer does without its cache, compiled by `torch.compile`: an alternative to the fused kernels there.

Off unless asked for: compiling takes a while, and a host that patches, moves or quantises weights inside its layers may
make torch compile again and again. **It has not run on a GPU yet.**
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..errors import HeadForcingError, first_sentence
from .wan import finish_layer, forward_block


def compiled_forward(backend: str | Callable = "inductor") -> Callable[..., Tensor | None]:
    """Takes the place of `wan.forward_block`. One compilation serves all layers: weights are its inputs.

    Raises HeadForcingError from the first pass on where torch cannot compile, for want of a C compiler for example.
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
