"""Compile every kernel as the paper's model launches it, for GPUs that are not there; prints one
JSON line per build.

A build that Triton refuses is told with its reason; there the engine runs plain PyTorch.

Run as a program: Triton must not be in interpreter mode. What is compiled is what the launchers
launch: they are called with tensors that have shapes only, and the call that would start the kernel
is recorded.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton
from headforcing.kernels import attend, feature_frames, merge, modulate, move, pool, quantise, write
from kernel_choice import using
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError

TARGETS = {"bf16": (86, 90), "fp16": (100,)}
if os.environ.get("HEADFORCING_EVERYTHING"):
    TARGETS = dict.fromkeys(TARGETS, (80, 86, 89, 90, 100, 120))
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
}
POINTERS[quantise.DTYPE] = "*fp8e4nv"
HEADS = 12
HEAD_DIM = 128
FRAME_TOKENS = 1560
FRAMES = 3
SLOTS = 103
TOKENS = FRAMES * FRAME_TOKENS
DIM = HEADS * HEAD_DIM


def launches(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every launcher at 832 x 480: one layer, 12 heads."""
    data = partial(torch.empty, dtype=dtype, device="meta")
    table = partial(torch.empty, dtype=torch.int32, device="meta")
    angles = partial(torch.empty, dtype=torch.float32, device="meta")
    k = data(SLOTS * FRAME_TOKENS, HEAD_DIM)
    v = data(SLOTS * FRAME_TOKENS, HEAD_DIM)
    rows = data(FRAMES, 6, DIM)
    x = data(TOKENS, DIM)
    rotations = angles(32, 2, 22)
    q = data(HEADS, TOKENS, HEAD_DIM)
    yield "move", lambda: move.move_frames(k, v, k, v, table(HEADS, 3, 3), rotations, FRAME_TOKENS)
    yield "pool", lambda: pool.pooled_keys(k, table(HEADS, 2), rotations, FRAME_TOKENS)
    yield (
        "merge",
        lambda: merge.merge_frames(k, v, table(HEADS, 6), table(1, FRAME_TOKENS), rotations),
    )
    yield "norm", lambda: modulate.norm_modulate(x, None, None, rows[:, 1], rows[:, 0], 1e-6)
    yield (
        "residual_norm",
        lambda: modulate.norm_modulate(x, x, rows[:, 2], rows[:, 4], rows[:, 3], 1e-6),
    )
    tables = (table(HEADS, 3), rotations, angles(FRAME_TOKENS, 2, 42))
    norms = (data(DIM), data(DIM), 1e-6)
    yield "write", lambda: write.write_block(x, x, x, norms, k, v, *tables)
    yield "write_normed", lambda: write.write_block(x, x, x, None, k, v, *tables)
    gamma = data(96)
    past = data(2, 480, 832, 96)
    frames = data(4, 480, 832, 96)
    yield (
        "feature_frames",
        lambda: feature_frames.feature_frames(frames, past, gamma, gamma, frames),
    )
    yield "quantise", lambda: quantise.quantise(data(TOKENS, 8960))
    yield "quantise_gelu", lambda: quantise.quantise_gelu(data(TOKENS, 8960))
    yield "attend", lambda: attend.attend(q, k, v, table(HEADS, 2))
    sums = angles(HEADS, TOKENS)
    yield "attend_with_sums", lambda: attend.attend(q, k, v, table(HEADS, 2), sums)


def recorded(launch: Callable[[], Any]) -> tuple[ASTSource, dict[str, Any]]:
    """The kernel, with its arguments' types, and the options that a launcher would compile it
    with.
    """
    calls: list[tuple[Any, tuple, dict[str, Any]]] = []
    original = triton.JITFunction.run
    triton.JITFunction.run = lambda self, *args, grid, warmup, **kwargs: calls.append(
        (self, args, kwargs)
    )
    try:
        with using("triton"):
            launch()
    finally:
        triton.JITFunction.run = original
    ((kernel, args, kwargs),) = calls
    options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages") if name in kwargs}
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature = {}
    constants = {}
    attributes = {}
    for place, name in enumerate(kernel.arg_names):
        value = values[name]
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif kernel.params[place].is_constexpr:
            signature[name] = "constexpr"
            constants[(place,)] = value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or (signature[name] == "i32" and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes), options


def build(source: ASTSource, target: int, options: dict[str, Any]) -> dict[str, Any]:
    """One build's shared memory, bytes of stack (registers that did not fit) and matrix
    instructions.
    """
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    stack, local = re.search(
        r"STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage.stdout + usage.stderr
    ).groups()
    matrix = next(
        (kind for kind in ("tcgen05", "wgmma", "mma.sync") if f"{kind}." in compiled.asm["ptx"]),
        None,
    )
    return dict(shared=compiled.metadata.shared, stack=int(stack) + int(local), matrix=matrix)


if __name__ == "__main__":
    for dtype, targets in TARGETS.items():
        for name, launch in launches(DTYPES[dtype]):
            source, options = recorded(launch)
            for target in targets:
                try:
                    result = build(source, target, options)
                except CompilationError as error:
                    result = dict(refused=str(error).splitlines()[-1])
                sys.stdout.write(
                    json.dumps(dict(kernel=name, dtype=dtype, target=target, **result)) + "\n"
                )
