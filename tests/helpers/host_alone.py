"""Modules of `nodes/host` by themselves: their package needs ComfyUI."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HOST = Path(__file__).resolve().parents[2] / "nodes" / "host"


PACKAGES = {"headforcing.nodes": HOST.parent, "headforcing.nodes.host": HOST}
PACKAGES |= {
    f"headforcing.nodes.host.{folder}": HOST / folder
    for folder in ("model", "graph", "browser", "render")
}
for package, folder in PACKAGES.items():
    # the modules import each other, and the packages' own files need ComfyUI
    stand_in = ModuleType(package)
    stand_in.__path__ = [str(folder)]
    sys.modules[package] = stand_in


def host_module(name: str) -> ModuleType:
    """A module by the name of its folder and its own, `graph.schema`."""
    path = HOST.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"headforcing.nodes.host.{name}_alone", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module
