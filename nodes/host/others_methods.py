"""Methods that other custom nodes bring: each has a file `headforcing_methods.py` in its folder,
whose `METHODS` are rows of `headforcing_core.methods.registry` by name.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ...headforcing_core.errors import first_line
from ...headforcing_core.methods.registry import add_methods
from . import folders

FILE = "headforcing_methods.py"
NAME = "headforcing"  # by which other packages import the pack, whatever its folder is called

log = logging.getLogger(__name__)
_PACK = __name__.removesuffix(".nodes.host.others_methods")


class PackFinder(MetaPathFinder, Loader):
    """Finds the modules of this pack under the name `headforcing`: ComfyUI imports it by the path
    of its folder, and a second copy would have methods of its own.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_ours = name == NAME or name.startswith(f"{NAME}.")
        return ModuleSpec(name, self) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_PACK + spec.name.removeprefix(NAME))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # of the import that ran it


def register() -> None:
    """Register the methods of all custom nodes; what cannot be read is left out, with a warning."""
    if _PACK != NAME:
        sys.meta_path.insert(0, PackFinder())
    for path in folders.files_of_custom_nodes(FILE):
        try:
            add_methods(_read(path).METHODS)
        except Exception as error:
            log.warning("Head Forcing: %s is left out: %s", path, first_line(error))


def _read(path: Path) -> ModuleType:
    """The module in a file."""
    name = f"{path.stem}_of_{path.parent.name}"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for the types of fields
    spec.loader.exec_module(module)
    return module
