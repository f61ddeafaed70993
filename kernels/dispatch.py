"""Choose the implementation of an operation: its Triton kernel, or the plain PyTorch reference that
specifies it.

The first time an operation is called for a device and dtype, its kernel runs on a small example and
must give the reference's result. If it cannot be compiled, raises or differs, one line is logged
and the reference is used there.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from .layout import LayoutError

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Place = tuple[torch.device, torch.dtype]
Arguments = dict[str, Any]  # of an operation, by name

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# `auto`, or for tests and benchmarks `reference` or `triton` on any device
choice = "auto"
# operations that run without their kernel, and why
_put_aside: dict[torch.device, dict[str, str]] = {}


def kernels_put_aside(device: torch.device) -> str:
    """Names of Triton kernels that have not worked on a device so far, and why the first did not;
    empty if all did.
    """
    if device.type == "mps":
        return ""
    # cuda is any GPU
    reasons = _put_aside.get(device, {}) | _put_aside.get(torch.device(device.type), {})
    if not reasons:
        return ""
    reason = next(iter(reasons.values()))
    line = f"Triton kernels not used: {', '.join(reasons)} ({reason})"
    if "No module named 'triton'" in reason:
        line += (
            "; on Windows the package triton-windows provides Triton, and renders are faster with "
            "it"
        )
    return line


class Operation(Generic[P, R]):
    """An operation with two implementations; calling it runs one of them.

    Attributes:
        reference: plain PyTorch, the specification.
        launch: launches the Triton kernel.
        example: `(device, dtype) -> keyword arguments` of a small call for the self-test.
    """

    def __init__(
        self,
        reference: Callable[P, R],
        launch: Callable[P, R],
        example: Callable[[torch.device, torch.dtype], Arguments],
    ):
        self.reference = reference
        self.launch = launch
        self.example = example
        self.name = reference.__name__.removesuffix("_reference")
        self._usable: dict[Place, bool] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        place = _place(*args, **kwargs)
        if not self.usable(*place):
            return self.reference(*args, **kwargs)
        try:
            return self.kernel(*args, **kwargs)
        # compilers raise many classes, and they do so before the kernel has written
        except Exception as error:
            if choice == "triton" or isinstance(error, (LayoutError, torch.cuda.OutOfMemoryError)):
                raise
            self._disable(place, error)
            return self.reference(*args, **kwargs)

    def kernel(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the Triton kernel, whatever `choice` or the self-test says."""
        device, _ = _place(*args, **kwargs)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self.launch(*args, **kwargs)

    def usable(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether the kernel is used on this device and dtype; not on a CPU, nor under
        torch.compile, which fuses the reference itself. The first call runs the self-test, which
        must not happen while a CUDA graph is captured."""
        if torch.compiler.is_compiling():
            return False
        if choice != "auto":
            return choice == "triton"
        place = device, dtype
        if place not in self._usable:
            self._usable[place] = device.type != "cpu"
            if device.type != "cpu":
                self._test(place)
        return self._usable[place]

    def _test(self, place: Place) -> None:
        """Put the kernel aside if it does not give the reference's result on the example."""
        try:
            difference = self.difference(*place)
            if difference > TOLERANCE[place[1]]:
                raise ArithmeticError(f"it is off by {difference:.2g} in a self-test")
        except torch.cuda.OutOfMemoryError:
            raise
        # no triton, no driver, a compiler error, other results: the reference works without
        except Exception as error:
            self._disable(place, error)

    def difference(self, device: torch.device, dtype: torch.dtype) -> float:
        """The largest difference between kernel and reference on the example, over all results and
        arguments.

        Absolute for values up to 1 and relative above; NaN in only one of them counts as infinite.
        """
        example = self.example(device, dtype)
        expected = _outcome(self.reference, copy.deepcopy(example))
        found = _outcome(self.kernel, example)
        return max(map(_distance, expected, found))

    def _disable(self, place: Place, error: Exception) -> None:
        self._usable[place] = False
        text = str(error).strip() or type(error).__name__
        # the first sentence; messages of compilers fill pages
        line = text.splitlines()[0].split(". ")[0]
        _put_aside.setdefault(place[0], {})[self.name] = line
        log.info("%s runs without its Triton kernel on %s in %s: %s", self.name, *place, line)


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed numbers for examples, float32 on the CPU, the same in every process."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _place(*args: Any, **kwargs: Any) -> Place:
    first = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return first.device, first.dtype


def _outcome(implementation: Callable[..., Any], arguments: Arguments) -> list[Tensor]:
    result = implementation(**arguments)
    results = result if isinstance(result, tuple) else (result,)
    return [value for value in (*results, *arguments.values()) if isinstance(value, Tensor)]


def _distance(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if not expected.numel():
        return 0.0
    expected = expected.cpu().double()
    found = found.cpu().double()
    gap = (expected - found).abs() / expected.abs().clamp(min=1)
    same = (expected == found) | (expected.isnan() & found.isnan())  # infinities have no difference
    return float(gap.masked_fill(same, 0.0).nan_to_num(nan=float("inf")).max())
