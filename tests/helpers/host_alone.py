"""Modules of `nodes/host` by themselves: their package needs ComfyUI."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HOST = Path(__file__).resolve().parents[2] / "nodes" / "host"


def host_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headforcing.nodes.host.{name}_alone", HOST / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module
