"""The plain values of an object of another node: numbers, texts and tensors, in closures and
attributes, too.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ....headforcing_core.files import Fields

Named = Iterator[tuple[str, Tensor]]
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_KEEP_STATE = re.compile("(STORE|DELETE)_(DEREF|GLOBAL|ATTR)")  # names of instructions
# of an adapter: names in its file, which do not change what it computes
_BOOKKEEPING = {"loaded_keys"}
_NOT_THERE = object()
_NO_TENSOR = torch.empty(0)  # beside a value that its name tells


class UnreadableError(Exception):
    """An object whose values cannot be read, or that keeps a state between calls."""


class Reader:
    """Reads objects as `identity` takes them: values in names, tensors beside them.

    Args:
        parts: names of the MODEL's own modules, which stand for them.
    """

    def __init__(self, parts: Mapping[Any, str]):
        self._parts = parts
        # objects that are being read, for those that refer to themselves
        self._open: list[Any] = []

    def read(self, name: str, value: Any) -> Named:
        """Each value below `value`; raises UnreadableError."""
        if isinstance(value, _PLAIN) or isinstance(
            value, (type, types.ModuleType, types.BuiltinFunctionType)
        ):
            yield f"{name} {_text(value)}", _NO_TENSOR
        elif isinstance(value, Tensor):
            yield name, value
        elif self._is_own(value):
            yield f"{name} {self._parts.get(value, 'MODEL')}", _NO_TENSOR
        elif any(value is other for other in self._open):
            yield f"{name} itself", _NO_TENSOR
        else:
            self._open.append(value)
            yield f"{name} {type(value).__qualname__}", _NO_TENSOR
            yield from self._inside(name, value)
            self._open.pop()

    def _inside(self, name: str, value: Any) -> Named:
        if isinstance(value, Mapping):
            for key in sorted(value, key=repr):
                yield from self.read(f"{name} {_key(key)}", value[key])
        elif isinstance(value, (list, tuple)):
            for number, part in enumerate(value):
                yield from self.read(f"{name} {number}", part)
        elif isinstance(value, (set, frozenset)):
            for part in sorted(value, key=repr):
                yield from self.read(name, part)
        elif isinstance(value, functools.partial):
            yield from self.read(name, [value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            yield from self.read(name, [value.__func__, value.__self__])
        elif isinstance(value, types.FunctionType):
            yield from self._of_function(name, value)
        else:
            yield from self._of_object(name, value)

    def _of_function(self, name: str, function: types.FunctionType) -> Named:
        yield f"{name} {function.__module__}.{function.__qualname__}", _NO_TENSOR
        yield from self._of_code(name, function.__code__)
        yield from self.read(name, [function.__defaults__, function.__kwdefaults__])
        for variable in function.__code__.co_names:  # numbers and texts of its file that it reads
            value = function.__globals__.get(variable, _NOT_THERE)
            if isinstance(value, _PLAIN):
                yield from self.read(f"{name} {variable}", value)
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            yield from self.read(f"{name} {variable}", _contents(cell))

    def _of_code(self, name: str, code: types.CodeType) -> Named:
        if any(_KEEP_STATE.fullmatch(step.opname) for step in dis.get_instructions(code)):
            raise UnreadableError(name)
        yield f"{name} {code.co_code.hex()} {code.co_names}", _NO_TENSOR
        for part in code.co_consts:
            if isinstance(part, types.CodeType):
                yield from self._of_code(name, part)
            elif isinstance(part, (*_PLAIN, tuple, frozenset)):
                yield from self.read(name, part)

    def _of_object(self, name: str, value: Any) -> Named:
        attributes = _attributes(value)
        call = type(value).__dict__.get("__call__")
        if isinstance(call, types.FunctionType) and not isinstance(value, nn.Module):
            yield from self._of_code(name, call.__code__)
        for cls in type(value).__mro__:
            yield f"{name} {_text(cls)}", _NO_TENSOR
        for attribute in sorted(attributes):
            part = attributes[attribute]
            # layers of the MODEL are put into an object when they are loaded, and taken out
            if attribute not in _BOOKKEEPING and part is not None and not self._is_own_method(part):
                yield from self.read(f"{name} {attribute}", part)

    def _is_own(self, value: Any) -> bool:
        """Whether a value is a module of the MODEL, or a ModelPatcher around it."""
        module = value if isinstance(value, nn.Module) else getattr(value, "model", None)
        return isinstance(module, nn.Module) and module in self._parts

    def _is_own_method(self, value: Any) -> bool:
        return isinstance(value, types.MethodType) and self._is_own(value.__self__)


def author(function: Any) -> str:
    """The class that a function was made in, which is a node's, or the function's own name."""
    inner = getattr(function, "__func__", getattr(function, "func", function))
    qualified = getattr(inner, "__qualname__", type(function).__qualname__)
    return str(qualified).partition(".")[0]


def variable(function: Any, name: str) -> Any:
    """The value of a variable in a function's closure; None without it."""
    if not isinstance(function, types.FunctionType):
        return None
    return inspect.getclosurevars(function).nonlocals.get(name)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError as error:  # not assigned yet
        raise UnreadableError("an empty cell") from error


def _text(value: Any) -> str:
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return value.__name__ if isinstance(value, types.ModuleType) else repr(value)


def _key(key: Any) -> str:
    if isinstance(key, (*_PLAIN, tuple)):
        return repr(key)
    raise UnreadableError(type(key).__qualname__)


def _attributes(value: Any) -> Fields:
    """The attributes of an object of a class that Python code defines."""
    slots = []
    for cls in type(value).__mro__:
        slots += cls.__dict__.get("__slots__", ())
    if not hasattr(value, "__dict__") and not slots:
        raise UnreadableError(type(value).__qualname__)
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return found | getattr(value, "__dict__", {})
