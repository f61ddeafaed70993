"""The form of a stored cache: nested values as tensors by name and plain JSON."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and plain JSON


def pack(value: Any) -> State:
    """Nested lists, dictionaries and dataclasses of tensors, numbers, texts and None as a `State`.

    Keys are texts or numbers.
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, dict):
            return {"items": [[key, plain(part, f"{name}.{key}")] for key, part in value.items()]}
        if is_dataclass(value):
            return {"class": type(value).__name__, **plain(vars(value), name)}
        if isinstance(value, (list, tuple)):
            return [plain(part, f"{name}.{place}") for place, part in enumerate(value)]
        return value

    return tensors, {"value": plain(value, "state")}


def unpack(state: State, device: torch.device, *classes: type) -> Any:
    """The inverse of `pack`, with tensors on `device` and lists for tuples; KeyError for a state of another form.

    Dataclasses that are not among `classes` become dictionaries.
    """
    tensors, fields = state
    known = {cls.__name__: cls for cls in classes}

    def full(value: Any) -> Any:
        if isinstance(value, list):
            return [full(part) for part in value]
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return tensors[value["tensor"]].to(device)
        items = {key: full(part) for key, part in value["items"]}
        return known[value["class"]](**items) if value.get("class") in known else items

    return full(fields["value"])
