"""Triton, imported when a kernel is first launched and not before.

A kernel file uses `@kernel` instead of `@triton.jit`, and `tl` from this module, None until a
kernel of that file is launched, instead of `triton.language`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

tl: Any = None
# a kernel's file is changed at once, for all threads that launch kernels of it
_compiling = threading.RLock()


class Kernel:
    """A function in Triton's language that is compiled when it is first launched.

    `jit` then also sets `tl` in the function's module, and replaces every other kernel there by its
    compiled form.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self._jit: Any = None

    @property
    def jit(self) -> Any:
        with _compiling:
            if self._jit is None:
                import triton
                import triton.language

                self._jit = triton.jit(self.function)
                scope = self.function.__globals__
                scope["tl"] = triton.language
                scope.update(
                    {name: value.jit for name, value in scope.items() if isinstance(value, Kernel)}
                )
            return self._jit

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.jit[grid]


kernel: Any = Kernel  # decorator of a Triton kernel, or of a function that kernels call


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU.

    It multiplies bfloat16 matrices wrongly, and rounds to 8 bits wrongly.
    """
    return os.environ.get("TRITON_INTERPRET") == "1"


def power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least `n`: Triton's tile sizes are powers of 2."""
    return 1 << (n - 1).bit_length()


def tiles(count: int, size: int) -> int:
    """The number of tiles of `size` that cover `count` elements."""
    return -(-count // size)
