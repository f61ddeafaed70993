"""The bridge to ComfyUI inside a process of its own: same numbers as the core, and nothing left
behind.

One process per ComfyUI version runs programs/parity_probes.py, where each probe of the files
probes_*.py checks what it finds.
"""

import json
from pathlib import Path

import pytest
from comfy_harness import run_in_comfy
from comfy_setup import FLOOR, NEWEST, installed
from safetensors.torch import save_file
from tiny_checkpoints import interpolator, livetalk_weights, upscaler, wan_lora, wan_t2v, wan_vae

PROGRAM = Path(__file__).parent / "programs" / "parity_probes.py"


@pytest.mark.repeat("smoke")
@pytest.mark.parametrize(("version", "probes", "least"), [(NEWEST, "all", 37), (FLOOR, "smoke", 8)])
def test_the_bridge_holds(version: str, probes: str, least: int, tmp_path: Path, repo_root: Path):
    wan_t2v(tmp_path / "tiny.safetensors")
    save_file(livetalk_weights(features=16), tmp_path / "livetalk.safetensors")
    wan_lora(tmp_path / "lora.safetensors")
    wan_vae(tmp_path / "vae.safetensors")
    upscaler(tmp_path / "upscale_models.safetensors")
    interpolator(tmp_path / "frame_interpolation.safetensors")
    told = run_in_comfy(installed(version), PROGRAM, tmp_path, repo_root, probes)
    results = json.loads(told.rsplit("RESULTS", 1)[1])
    assert len(results) >= least
    failed = [f"{name}:\n{error}" for name, error in results.items() if error is not None]
    if failed:
        pytest.fail("\n\n".join(failed), pytrace=False)
