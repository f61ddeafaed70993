"""Faults of the file system, one at a time, at the places where Python asks it for something.

`Faults` counts the operations on files below a folder, by kind, and raises an error at one of them.
It stands on Python's audit events, which are raised before the operation takes place, and on
replacements of the three things that
have no event: `os.fsync`, and the native writers of safetensors and of the video container.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

POINTS = ("open", "read", "write", "fsync", "rename", "unlink", "mkdir", "lock")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.ENOENT, errno.EROFS)
_EVENTS = {
    "os.rename": "rename",
    "os.remove": "unlink",
    "os.rmdir": "unlink",
    "os.mkdir": "mkdir",
    "fcntl.flock": "lock",
    "os.listdir": "read",
    "os.scandir": "read",
}


class Faults:
    """Counts operations below `folder`; raises at operation number `at` of `point` while it is
    active.
    """

    def __init__(self, folder: Path):
        self.folder = str(folder.resolve())
        self.seen: Counter[str] = Counter()
        self.point = ""
        self.at = 0
        self.error = 0
        self.raised = False
        self._active = False

    @contextmanager
    def active(self, point: str = "", at: int = 0, error: int = 0) -> Iterator[None]:
        self.seen.clear()
        self.point = point
        self.at = at
        self.error = error
        self.raised = False
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def meet(self, point: str, path: Any) -> None:
        if not self._active or not self._below(path):
            return
        self.seen[point] += 1
        if point == self.point and self.seen[point] == self.at:
            self.raised = True
            raise OSError(self.error, os.strerror(self.error), str(path))

    def _below(self, path: Any) -> bool:
        if isinstance(path, int):
            path = (
                os.readlink(f"/proc/self/fd/{path}")
                if os.path.isdir("/proc/self/fd")
                else self.folder
            )
        return isinstance(path, (str, Path)) and os.path.realpath(path).startswith(self.folder)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event == "open":
            path, _, flags = args
            if not isinstance(path, int):
                self.meet(
                    "open" if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "read", path
                )
        elif event in _EVENTS:
            self.meet(_EVENTS[event], args[0])


_current: list[Faults] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    for faults in _current:
        faults.audit(event, args)


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """`Faults` for a folder until the test ends. An audit hook cannot be removed: one serves all
    tests.
    """
    if not getattr(sys, "_fault_hook", False):
        sys.addaudithook(_hook)
        sys._fault_hook = True  # type: ignore[attr-defined]
    faults = Faults(folder)
    monkeypatch.setattr(sys.modules[__name__], "_current", [faults])
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (faults.meet("fsync", file), fsync(file))[1])
    for module in list(sys.modules.values()):
        if getattr(module, "save_file", None) is safetensors.torch.save_file:
            monkeypatch.setattr(module, "save_file", _writing(faults, safetensors.torch.save_file))
    return faults


def _writing(faults: Faults, write: Any) -> Any:
    def wrapped(tensors: Any, path: Any, *args: Any, **options: Any) -> Any:
        faults.meet("write", path)
        return write(tensors, path, *args, **options)

    return wrapped
