"""Triton, imported when a kernel is first launched and not before.

A kernel file looks like any other file of Triton kernels, with `@kernel` instead of `@triton.jit` and with `tl` from
here, which stands for `triton.language` but is None until a kernel of that file is needed. So the file, and the plain
torch beside its kernel, can be imported anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

tl: Any = None


class Kernel:
    """A function in Triton's language that becomes a compiled one when it is first asked for.

    `jit` then also gives the function's file the real `tl` and the compiled form of every other kernel it names.
    """

    def __init__(self, function: Callable):
        self.function = function
        self._jit: Any = None

    @property
    def jit(self) -> Any:
        if self._jit is None:
            import triton
            import triton.language

            self._jit = triton.jit(self.function)
            scope = self.function.__globals__
            scope["tl"] = triton.language
            scope.update({name: value.jit for name, value in scope.items() if isinstance(value, Kernel)})
        return self._jit

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.jit[grid]


def kernel(function: Callable) -> Any:
    """Marks a Triton kernel, or a function that kernels call."""
    return Kernel(function)


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU, which multiplies bfloat16 matrices wrongly."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least `n`: the sizes tiles may have."""
    return 1 << (n - 1).bit_length()


def tiles(count: int, size: int) -> int:
    """How many tiles of `size` cover `count`."""
    return -(-count // size)
