"""The day with a GPU on a stand-in for one. Run by test_stand_in_gpu.py in a process of its own."""

import json
from dataclasses import replace

import pytest
import torch
from headforcing.tests.benchmarks import command

WITHOUT_TRITON = ("attention: cudnn_varlen", "attention: torch_varlen", "attention: sdpa")


@pytest.mark.parametrize(("part", "names"), [("check", WITHOUT_TRITON), ("video", ()), ("rest", ())])
def test_the_day_with_a_gpu_measures(part: str, names: tuple[str, ...]):
    """All of a part, or these; profiles, rows with Triton and streams beside each other need the GPU itself."""
    case = replace(command.PRESETS["dry"], device=torch.device("cuda"), dtype=torch.bfloat16)
    tasks = command.tasks(part, case, dry=True)
    for name in names or tasks:
        told = json.dumps(tasks[name](case))
        assert "not_available" not in told and "traceback" not in told, told
