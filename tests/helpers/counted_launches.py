"""Launches of a GPU, counted without one: operators on `meta` tensors, and Triton kernels by their
launchers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from headforcing import kernels
from headforcing.kernels.language import Kernel
from kernel_choice import using
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

NO_LAUNCH = (
    "empty",
    "new_empty",
    "detach",
    "alias",
    "_unsafe_view",
    "lift_fresh",
    "_reshape_alias",
    "is_pinned",
)


class Launches(TorchDispatchMode):
    """Counts what a GPU would launch.

    Attributes:
        names: how often each operator or kernel was launched.
        traffic: per name, bytes of tensors read and written; whole buffers, where a kernel is told
            of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.traffic: Counter[str] = Counter()

    def add(self, name: str, *tensors: Any) -> None:
        self.names[name] += 1
        self.traffic[name] += sum(x.nbytes for x in tensors if isinstance(x, Tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        made_all = made if isinstance(made, (tuple, list)) else (made,)
        on_device = any(isinstance(x, Tensor) and x.is_meta for x in made_all)
        if on_device and not func.is_view and not name.startswith(NO_LAUNCH):
            given: list[Any] = []
            for value in args:
                given += value if isinstance(value, (list, tuple)) else (value,)
            self.add(name, *given, *made_all)
        return made


@contextmanager
def counted_launches() -> Iterator[Launches]:
    """Count within it: Triton kernels are used and not run; norms and attention are one launch
    each, as on CUDA.
    """
    found = Launches()

    class Launcher:
        def __init__(self, name: str):
            self.name = name

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **_: found.add(self.name, *args)

    def one_launch(name: str, function: Any) -> Any:
        def run(x: Tensor, *args: Any, **_: Any) -> Tensor:
            found.add(name, x, *args)
            with torch._C._DisableTorchDispatch():
                return torch.empty_like(x)

        return run

    with pytest.MonkeyPatch.context() as patch, using("triton"), torch.no_grad(), found:
        for module in map(
            import_module,
            (f"{kernels.__name__}.{file.name}" for file in iter_modules(kernels.__path__)),
        ):
            for name, value in list(vars(module).items()):
                # the second is what Triton has made of the first, where it was launched before
                if isinstance(value, Kernel) or type(value).__name__ in (
                    "JITFunction",
                    "InterpretedFunction",
                ):
                    patch.setattr(module, name, Launcher(name))
        patch.setattr(F, "rms_norm", one_launch("rms_norm", F.rms_norm))
        patch.setattr(F, "scaled_dot_product_attention", one_launch("attention", None))
        yield found
