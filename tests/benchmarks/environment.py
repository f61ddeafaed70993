"""What a benchmark ran on, and how fast a plain matrix product is there."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .stopwatch import Stopwatch, fastest

CLOCKS = {time.perf_counter: "wall time", time.process_time: "processor time"}


def environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Everything a time depends on besides the case."""
    return {
        "device": _device_name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "clock": "CUDA events" if device.type == "cuda" else CLOCKS[Stopwatch.clock],
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "triton": _triton(),
        "python": platform.python_version(),
        "system": platform.platform(),
        **gpu_state(device),
    }


def _triton() -> str | None:
    """Triton's version, by the name of the package that it is installed from."""
    for package in ("triton", "triton-windows"):
        with suppress(metadata.PackageNotFoundError):
            return f"{package} {metadata.version(package)}"
    return None


_ASKED = ("driver_version", "power.limit", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "pstate")


def gpu_state(device: torch.device) -> dict[str, str]:
    """What nvidia-smi says about the GPU: driver, power limit, clocks; empty where there is none."""
    if device.type != "cuda":
        return {}
    place = device.index or 0
    command = ["nvidia-smi", f"--id={place}", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return {name: value.strip() for name, value in zip(_ASKED, said.split(","), strict=False)}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if device.type != "cpu" or not info.exists():
        return f"{device.type}, {platform.machine()}"
    lines = (line.partition(":") for line in info.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.startswith("model name")), platform.machine())


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a square matrix product, the best of some."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2000 * size**3 / fastest(device, lambda: a @ b)
