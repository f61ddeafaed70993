"""The kernels in Triton, without a GPU: run by its interpreter, and compiled for GPUs that are not there.

Each in a process of its own, since Triton decides at import whether it interprets. Triton is not a requirement of the
pack; `tasks.py` installs it for the tests where there is one.
"""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from own_process import run, run_tests

HERE = Path(__file__).resolve().parent
KIB = 1024
SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB that one kernel may use
SPILLS = {"attend": 128}  # bytes of registers that may spill
OLDER = (80, 86)  # have no conversion to 8-bit floating point: there the reference rounds
NO_TRITON = "triton is not installed, so no kernel was run or compiled (tasks.py installs it on Linux)"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=NO_TRITON)


@pytest.mark.slow
def test_every_kernel_equals_plain_torch_in_the_interpreter(tmp_path):
    run_tests(HERE / "kernels_interpreted.py", TRITON_INTERPRET="1", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.slow
def test_every_kernel_compiles_for_every_gpu_within_its_limits(tmp_path):
    told = run(HERE / "kernels_compiled.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    builds = [json.loads(line) for line in told.splitlines()]
    places = {(build["dtype"], build["target"]) for build in builds}
    everything = {(dtype, target) for dtype in ("bf16", "fp16") for target in SHARED_MEMORY}
    some = {("bf16", 86), ("bf16", 90), ("fp16", 100)}
    assert places == (everything if os.environ.get("HEADFORCING_EVERYTHING") else some)
    assert len({build["kernel"] for build in builds}) == 11 and len(builds) == 11 * len(places)
    for build in builds:
        kernel, target = build["kernel"], build["target"]
        if kernel.startswith("quantise") and target in OLDER:
            assert "fp8e4nv not supported in this architecture" in build["refused"], build
            continue
        assert build["shared"] <= SHARED_MEMORY[target] * KIB, build
        assert build["stack"] <= SPILLS.get(kernel, 0), build
        if kernel == "attend":  # on the matrix units, of the newest kind the GPU has
            assert build["matrix"] == {90: "wgmma", 100: "tcgen05"}.get(target, "mma.sync"), build
