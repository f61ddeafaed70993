"""Makes ComfyUI importable, on the CPU: the first import of a program that
comfy_harness.run_in_comfy starts.
"""

import importlib.util
import os
import sys
from types import ModuleType

sys.path[0] = os.environ["COMFY_TREE"]  # in place of the program's folder

import utils.install_util  # noqa: F401  before `nodes`, which puts another folder with `utils` first on the path
from comfy.cli_args import args

args.cpu = True
args.base_directory = os.environ["COMFY_BASE"]


def load_pack(folder: str = os.environ["COMFY_PACK"]) -> ModuleType:
    """Import the pack as ComfyUI's load_custom_node does: by path, under a name that is not an
    identifier.
    """
    name = folder.replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "__init__.py"))
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
