"""Loading a model on a CPU takes the memory of its weights once."""

import json
from pathlib import Path

import checkpoint_files
import pytest
import torch
from comfy_harness import run_in_comfy
from comfy_setup import ComfyInstall

PROGRAM = Path(__file__).parent / "programs" / "load_memory.py"
HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.mark.comfy
@pytest.mark.slow
def test_weights_on_a_cpu_are_used_where_the_file_is_mapped(tmp_path: Path, comfy_install: ComfyInstall) -> None:
    """The second model, in another dtype, takes half of the file again: 1.5 in all, where copies took 2.5 and more."""
    weights = checkpoint_files.wan_weights(dim=768, ffn=3072, layers=6, text=4096, freq=256)
    torch.save({"generator_ema": weights}, tmp_path / "x.pt")
    found = json.loads(run_in_comfy(comfy_install, PROGRAM, tmp_path / "x.pt", HELPERS).splitlines()[-1])
    assert found["names"] == sorted(weights) and found["same"] and found["halved"]
    assert found["mapped"] == len(weights)
    assert found["grown"] < 2.1 * found["file"], found
