"""What a process keeps between two jobs, so that a worker of a farm loads a model once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .source import LoadedModel, Source


class Kept:
    """The last value that was made, under the key of what it was made from."""

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of this key; makes it, after the last one is let go, if it is another."""
        if key != self._key:
            self._key = self._value = None  # two models may not fit into memory
            self._value = make()
            self._key = key
        return self._value


_models = Kept()


def kept_model(source: Source, decodes: bool = True, encodes: bool = False) -> LoadedModel:
    """The model of a source as `Source.load` loads it, or the one that is there from the last job."""
    machine = source.machine
    key = (source.files, source.info.fingerprint, str(machine.device), machine.dtype, decodes, encodes)
    loaded = _models.get(key, lambda: source.load(decodes, encodes))
    return replace(loaded, machine=machine, scale=source.scale)
