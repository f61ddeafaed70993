"""What a benchmark ran on, and how fast a plain matrix product is there."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .stopwatch import Stopwatch, fastest

CLOCKS = {time.perf_counter: "wall time", time.process_time: "processor time"}
ASKED = "driver_version,power.limit,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,pstate"


def environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Everything a time depends on besides the case; of a GPU also what nvidia-smi says about
    it.
    """
    about = {
        "device": _processor(),
        "dtype": str(dtype).removeprefix("torch."),
        "clock": CLOCKS[Stopwatch.clock],
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "triton": None,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    with suppress(ImportError):
        about["triton"] = import_module("triton").__version__
    if device.type == "cuda":
        about |= {"device": torch.cuda.get_device_name(device), "clock": "CUDA events"}
        with suppress(OSError, subprocess.SubprocessError):
            command = [
                "nvidia-smi",
                f"--id={device.index or 0}",
                f"--query-gpu={ASKED}",
                "--format=csv,noheader",
            ]
            said = subprocess.run(
                command, capture_output=True, text=True, timeout=10, check=True
            ).stdout
            about |= zip(ASKED.split(","), map(str.strip, said.split(",")), strict=False)
    return about


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    named = (
        re.search(r"^model name\s*: (.+)", info.read_text(), re.MULTILINE)
        if info.exists()
        else None
    )
    return named[1] if named else platform.machine()


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a square matrix product, the best of some."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    return 2000 * size**3 / fastest(device, lambda: a @ b)
