"""The bridge to ComfyUI inside a process of its own: same numbers as the core, and nothing left behind.

One process per ComfyUI version runs programs/parity_probes.py, where each probe of the files probes_*.py checks what it
finds.
"""

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from comfy_harness import run_in_comfy
from comfy_setup import FLOOR, NEWEST, installed
from tiny_checkpoints import wan_lora, wan_t2v, wan_vae

pytestmark = pytest.mark.comfy

PROGRAM = Path(__file__).parent / "programs" / "parity_probes.py"
PROBES = [
    each.name
    for file in sorted(PROGRAM.parent.glob("probes_*.py"))
    for each in ast.parse(file.read_text(encoding="utf-8")).body
    if isinstance(each, ast.FunctionDef) and "probe" in map(ast.unparse, each.decorator_list)
]
SMOKE = [  # in the oldest version, too
    "importing_the_pack_pulls_in_nothing_heavy_and_comfys_own_modules_keep_their_names",
    "a_rollout_on_the_native_model_equals_the_cores_own_and_frees_its_caches_at_once",
    "streaming_decode_equals_decoding_at_once",
    "a_fingerprint_names_weights_and_loras",
    "cancel_stops_within_one_model_call_and_frees_the_cache",
    "comfyui_is_asked_for_the_memory_of_the_estimate",
]


@pytest.fixture(scope="session")
def run_probes(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Callable[[str], dict[str, str | None]]:
    """The errors of all probes in a version, in the oldest of those of `SMOKE`."""
    folder = tmp_path_factory.mktemp("tiny-files")
    wan_t2v(folder / "tiny.safetensors")
    wan_lora(folder / "lora.safetensors")
    wan_vae(folder / "vae.safetensors")

    @cache
    def run(version: str) -> dict[str, str | None]:
        some = SMOKE if version == FLOOR else []
        told = run_in_comfy(installed(version), PROGRAM, folder, repo_root, *some)
        return json.loads(told.rsplit("RESULTS", 1)[1])

    return run


@pytest.mark.parametrize(
    ("version", "probe"), [(NEWEST, probe) for probe in PROBES] + [(FLOOR, probe) for probe in SMOKE]
)
@pytest.mark.repeat("0.3.75-importing")
def test_the_bridge_holds(run_probes: Callable[[str], dict[str, str | None]], version: str, probe: str):
    error = run_probes(version)[probe]
    if error is not None:
        pytest.fail(error, pytrace=False)
