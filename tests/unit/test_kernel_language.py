"""Kernels of a file are compiled together, when one of them is first launched; Triton is stood in for."""

import sys
import threading
from types import FunctionType, SimpleNamespace
from typing import Any

from headforcing.kernels.language import kernel


def test_a_thread_waits_while_another_compiles_the_kernels_of_a_file(monkeypatch):
    """Else it would launch a kernel whose file does not know Triton's language yet."""
    scope: dict[str, Any] = {"tl": None}
    for name in ("first", "second"):
        scope[name] = kernel(FunctionType((lambda: None).__code__, scope, name))
    first, seen = scope["first"], []

    def launch():
        seen.append((first.jit, scope["first"], scope["second"], scope["tl"]))

    other = threading.Thread(target=launch)

    def jit(function):
        if function.__name__ == "second":  # the file is half done
            other.start()
            other.join(0.2)
        return f"compiled {function.__name__}"

    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(jit=jit, language="Triton's language"))
    monkeypatch.setitem(sys.modules, "triton.language", "Triton's language")
    launch()
    other.join()
    assert seen == [("compiled first", "compiled first", "compiled second", "Triton's language")] * 2
