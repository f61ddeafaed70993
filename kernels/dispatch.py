"""Which implementation of an operation runs: its Triton kernel, or the plain torch that specifies it.

Nothing is guessed from the system. The first time an operation meets a device and a dtype, its kernel runs on a small
example and must give what plain torch gives. A kernel that cannot be compiled, raises, or differs is put aside there,
with one line in the log, and plain torch does the work.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from .layout import LayoutError

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
CHOICES = ("auto", "reference", "triton")
_choice = "auto"


@contextmanager
def using(choice: str) -> Iterator[None]:
    """Within the block: `reference` or `triton`, whatever the device can do, or `auto`. For tests and benchmarks."""
    global _choice
    if choice not in CHOICES:
        raise ValueError(f"kernels must be one of {', '.join(CHOICES)}, got {choice!r}")
    before, _choice = _choice, choice
    try:
        yield
    finally:
        _choice = before


class Operation(Generic[P, R]):
    """An operation with two implementations; called like either.

    Attributes:
        reference: plain torch, the specification.
        launch: the same with a Triton kernel.
        example: `(device, dtype) -> keyword arguments` of a small case that tells the two apart if one is wrong.
    """

    def __init__(
        self,
        reference: Callable[P, R],
        launch: Callable[P, R],
        example: Callable[[torch.device, torch.dtype], dict[str, Any]],
    ):
        self.reference, self.launch, self.example = reference, launch, example
        self.name = reference.__name__.removesuffix("_reference")
        self.__doc__ = reference.__doc__
        self._usable: dict[tuple[torch.device, torch.dtype], bool] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        place = _place(*args, **kwargs)
        if not self.usable(*place):
            return self.reference(*args, **kwargs)
        if _choice == "triton":
            return self.kernel(*args, **kwargs)
        try:
            return self.kernel(*args, **kwargs)
        except (LayoutError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a compiler may throw, before anything was written
            self._put_aside(place, error)
            return self.reference(*args, **kwargs)

    def kernel(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The Triton kernel, whatever was chosen."""
        device, _ = _place(*args, **kwargs)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self.launch(*args, **kwargs)

    def usable(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether the kernel is used there; tries it the first time, so ask before a CUDA graph is captured.

        Processors have no compiled kernels; and where torch compiles the code around, it fuses by itself.
        """
        if torch.compiler.is_compiling():
            return False
        if _choice != "auto":
            return _choice == "triton"
        if (device, dtype) not in self._usable:
            self._usable[device, dtype] = device.type != "cpu" and self._agrees(device, dtype)
        return self._usable[device, dtype]

    def _agrees(self, device: torch.device, dtype: torch.dtype) -> bool:
        try:
            difference = self.difference(device, dtype)
            if difference <= TOLERANCE[dtype]:
                return True
            self._put_aside((device, dtype), f"it is off by {difference:.2g} in a self-test")
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # no triton, no driver, a compiler error: never the user's problem
            self._put_aside((device, dtype), error)
        return False

    def difference(self, device: torch.device, dtype: torch.dtype) -> float:
        """How far the kernel is from plain torch on the example, over everything returned and written in place.

        Absolute for numbers up to 1 and relative above; NaN in one alone counts as infinitely far.
        """
        example = self.example(device, dtype)
        expected, found = (_outcome(f, copy.deepcopy(example)) for f in (self.reference, self.kernel))
        return max(_distance(a, b) for a, b in zip(expected, found, strict=True))

    def _put_aside(self, place: tuple[torch.device, torch.dtype], reason: Exception | str) -> None:
        self._usable[place] = False
        log.info("%s runs without its Triton kernel on %s in %s: %s", self.name, *place, _first_line(reason))


def _first_line(reason: Exception | str) -> str:
    """The first sentence of what an exception says, or its name: compilers say pages."""
    return (str(reason).strip() or type(reason).__name__).splitlines()[0].split(". ")[0]


def _place(*args: Any, **kwargs: Any) -> tuple[torch.device, torch.dtype]:
    first = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
    return first.device, first.dtype


def _outcome(implementation: Callable, arguments: dict[str, Any]) -> list[Tensor]:
    result = implementation(**arguments)
    results = result if isinstance(result, tuple) else (result,)
    return [x for x in (*results, *arguments.values()) if isinstance(x, Tensor)]


def _distance(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    expected, found = expected.cpu().double(), found.cpu().double()
    gap = (expected - found).abs() / expected.abs().clamp(min=1)
    gap = torch.where(expected.isnan() & found.isnan(), 0.0, gap).nan_to_num(nan=float("inf"))
    return float(gap.max()) if gap.numel() else 0.0
