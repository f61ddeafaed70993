"""One row, measured: blocks in a full cache, stage by stage, and the cache alone."""

from __future__ import annotations

import copy
import gc
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.rollout.loop import Block, RolloutInputs, rollout
from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.write import write_block
from headforcing.tests.helpers.kernel_choice import using
from torch import Tensor

from .apart import not_available, refusal
from .case import HEAD_DIM, SCHEDULE, SEED, VIDEO_FRAMES, Case, block_flops, warm_up_blocks
from .decoder import random_decoder
from .rows import Row
from .stopwatch import Stopwatch, peak_bytes, reset_peak, tensor_bytes

COMPARED_BLOCKS = 10
HANDLING_BLOCKS = 6  # two cycles of episodic memory


def measure(case: Case, row: Row, decodes: bool = True) -> dict[str, Any]:
    """The numbers of a row in a full cache, or why there are none.

    Milliseconds of the stages `denoise`, `clean`, `cache` and `vae`, and of `block`, which is all
    but the last and what lies between them, are medians. `latents` are those of the first blocks,
    to be compared with another row's.
    """
    try:
        if reason := row.reason(case):
            return not_available(reason)
        with using(row.kernels), torch.no_grad():
            return _measure(case, row, random_decoder(case) if decodes and case.vae_dim else None)
    # whatever a backend or a compiler may throw: the other rows still count
    except Exception as error:
        return refusal(error)


def _measure(case: Case, row: Row, vae: WanVideoDecoder | None) -> dict[str, Any]:
    warm_up = warm_up_blocks(row.method)
    blocks = warm_up + case.timed_blocks
    held = 0
    shape = case.shape(row.method, blocks)
    latents = list[Tensor]()
    laps = list[dict[str, float]]()
    with _launches(row.needs) as launched:
        for index, (stages, block, cache) in enumerate(
            timed_blocks(case, row, blocks, vae, warm_up - 1)
        ):
            laps.append(stages)
            if index < COMPARED_BLOCKS:
                latents.append(block.latents.cpu())
            if index == warm_up - 1:
                held = tensor_bytes(cache)
                reset_peak(case.device)
            del cache
    gc.collect()  # the next thing measured has the memory for itself
    if unused := [operation for operation in row.needs if operation.name not in launched]:
        names = ", ".join(operation.name for operation in unused)
        reasons = [_failure(operation, case) for operation in unused]
        raise RuntimeError(
            "\n".join([f"the engine did not use these kernels here: {names}", *reasons])
        )
    peak = peak_bytes(case.device)
    timed = laps[warm_up:]
    block = [stages["block"] for stages in timed]
    ms = {}
    for stage in timed[0]:
        ms[f"{stage}_ms"] = median(stages[stage] for stages in timed)
    return {
        "timed_blocks": len(timed),
        **ms,
        "p95_ms": float(torch.tensor(block, dtype=torch.float64).quantile(0.95)),
        "fastest_ms": min(block),
        "fps": 1000 * VIDEO_FRAMES / ms["block_ms"],
        "fps_with_vae": 1000 * VIDEO_FRAMES / (ms["block_ms"] + ms["vae_ms"])
        if "vae_ms" in ms
        else None,
        "tflops": block_flops(case.config, shape) / ms["block_ms"] / 1e9,
        "attention": row.backend(case, shape),
        **cache_steps(case, row, hollow=True),
        "with_attention_ms": cache_steps(case, row, hollow=False)["alone_ms"],
        "cache_by_formula_bytes": shape.bytes(case.dtype),
        "cache_bytes": held,
        "peak_bytes": peak,
        "warm_up_ms": [stages["block"] for stages in laps[:warm_up]],
        "latents": latents,
    }


def timed_blocks(
    case: Case, row: Row, blocks: int, vae: WanVideoDecoder | None = None, first_decoded: int = 0
) -> Iterator[tuple[dict[str, float], Block, Any]]:
    """Every block's milliseconds by stage, the block, as it is made, and the cache."""
    watch = Stopwatch(case.device)
    cache = row.build(case, case.shape(row.method, blocks))
    model: Any = copy.copy(case.model(row.fp8))
    if row.forward:
        model.forward = row.forward()
    model.denoise, model.write_clean = (
        watch.stage("denoise")(model.denoise),
        watch.stage("clean")(model.write_clean),
    )
    cache.begin_block, cache.commit = (
        watch.stage("cache")(cache.begin_block),
        watch.stage("cache")(cache.commit),
    )
    made = rollout(model, cache, RolloutInputs(case.script(blocks), case.noise()))
    admitted = 0
    for index in range(blocks):
        with watch.stage("block"):
            block = next(made)
        if vae is not None and index >= first_decoded:
            with watch.stage("vae"):
                vae.decode(block.latents)
        admitted += block.event is not None and block.event.admitted
        yield watch.lap(), block, cache
    if blocks >= warm_up_blocks(row.method) and admitted < row.method.memory.episodic_frames:
        raise RuntimeError("episodic memory did not fill, so this is no steady state")


def cache_steps(case: Case, row: Row, hollow: bool) -> dict[str, float]:
    """Milliseconds per block of what a full cache does in the calls of a video, in its fastest
    block.

    There is no transformer around them. Hollow, attention is left out: what remains is rotary
    embedding, storing, assembly, the order of the heads' outputs, and the update after the block. A
    fused write does its norms, too.
    """
    warm_up = warm_up_blocks(row.method)
    passes = len(SCHEDULE.sigmas) + 1
    cache = row.build(case, case.shape(row.method, warm_up + HANDLING_BLOCKS), hollow)
    write, attend = _calls(cache, case)
    prompt = case.model().prompt
    watch = Stopwatch(case.device)
    timed = []
    for block in range(warm_up + HANDLING_BLOCKS):
        with watch.stage("open"):
            cache.begin_block()
        for _ in range(passes if block >= warm_up else 1):
            for layer in range(case.layers):
                with watch.stage("write"):
                    queries = write(layer)
                with watch.stage("attend"):
                    attend(layer, queries)
        with watch.stage("commit"):
            cache.commit(prompt)
        timed.append(watch.lap())
    fastest = min(timed[warm_up:], key=lambda steps: sum(steps.values()))
    return {f"{step}_ms": ms for step, ms in fastest.items()} | {"alone_ms": sum(fastest.values())}


def _failure(operation: Operation, case: Case) -> str:
    """Why a kernel does not work: the traceback of its self-test, or its result."""
    try:
        off = operation.difference(case.device, case.dtype)
    except Exception:
        return traceback.format_exc()
    return f"{operation.name} is off by {off:.2g} in a self-test"


def _calls(cache: Any, case: Case) -> tuple[Callable[[int], Any], Callable[[int, Any], Any]]:
    """Functions of a layer: one stores keys and values and hands on the queries, one attends; fused
    where that is.
    """
    tokens = SCHEDULE.frames_per_block * case.frame_tokens
    heads = case.config.num_heads
    generator = torch.Generator().manual_seed(SEED)
    q, k, v = torch.randn(3, tokens, heads, HEAD_DIM, generator=generator).to(
        case.device, case.dtype
    )
    if isinstance(cache, HeadCache) and write_block.usable(q.device, q.dtype):
        weight = q.new_ones(q[0].numel())
        return lambda layer: cache.write_and_rotate(
            layer, k, v, q, (weight, weight, 1e-6)
        ), cache.attend
    return lambda layer: cache.write_and_rotate(layer, k, v, q), cache.attend


@contextmanager
def _launches(operations: Sequence[Operation]) -> Iterator[set[str]]:
    """The names of those operations whose Triton kernel is launched meanwhile."""
    launched: set[str] = set()
    with ExitStack() as stack:
        for operation in operations:

            def launch(
                *args: Any, name: str = operation.name, own: Any = operation.launch, **options: Any
            ) -> Any:
                launched.add(name)
                return own(*args, **options)

            stack.enter_context(patch.object(operation, "launch", launch))
        yield launched
