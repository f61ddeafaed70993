"""Values that a process keeps between two jobs, so that a worker of a farm loads a model once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..distributed.farm import Farm
from ..errors import HeadForcingError
from ..files import TargetInUse, claimed
from ..render.job import RenderJob
from .loaded import LoadedModel
from .source import Source


class Kept:
    """The last value that was made, under the key of what it was made from."""

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of this key; makes it, after the last one is let go, if it is another."""
        if not self.has(key):
            self._value = make()
            self._key = key
        return self._value

    def has(self, key: Any) -> bool:
        """Whether the value is of this key; another one is let go, since two models may not fit into memory."""
        if key != self._key:
            self._key = self._value = None
        return self._key is not None


_models = Kept()

PATIENCE_SECONDS = 120.0  # of a worker of a farm: a network disk may keep a dead machine's lock for so long
_ASK_AGAIN_SECONDS = 2.0


def check_roles(videos: Mapping[str, tuple[RenderJob, Source]], farm: Farm) -> None:
    """Refuse videos at the same time that would each find head roles: one after the other all use the first's."""
    if not farm.parallel or len(videos) == 1:
        return
    for name, (job, source) in videos.items():
        if job.take_found_roles(source.plan).auto is not None and not job.finished_blocks:
            raise HeadForcingError(
                f"{name}: the roles of this model's heads are not known yet, and videos made at the same time would "
                "each find their own: make one video first, measure them with `headforcing profile`, or give a profile"
            )


def kept_model(source: Source, decodes: bool = True, encodes: bool = False) -> LoadedModel:
    """The model of a source as `Source.load` loads it, or the one that is there from the last job."""
    loaded = _models.get(_key(source, decodes, encodes), lambda: source.load(decodes, encodes))
    return replace(loaded, machine=source.machine, scale=source.scale)


def let_go() -> None:
    """Drop the model of the last job and free its memory."""
    _models.has(None)


def has_model(source: Source, decodes: bool = True, encodes: bool = False) -> bool:
    """Whether `kept_model` has it already; another model is let go, so that its memory is free."""
    return _models.has(_key(source, decodes, encodes))


def _key(source: Source, decodes: bool, encodes: bool) -> Any:
    machine = source.machine
    devices = str(machine.device), str(machine.vae_device)
    return source.files, source.info.fingerprint, devices, machine.dtype, decodes, encodes


@contextmanager
def claimed_after(patience: float, *paths: Path | None) -> Iterator[None]:
    """Wait for the process that has claimed the files, then claim them as `claimed` does."""
    end = time.monotonic() + patience
    while True:
        claim = claimed(*paths)
        try:
            claim.__enter__()
            break
        except TargetInUse:
            if time.monotonic() > end:
                raise
            time.sleep(_ASK_AGAIN_SECONDS)
    try:
        yield
    finally:
        claim.__exit__(None, None, None)
