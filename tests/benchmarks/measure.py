"""One row, measured: blocks in a full cache, stage by stage, and the cache alone."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.model.cuda_graph import STEADY_BLOCKS, GraphedForward
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.headforcing_core.rollout.loop import rollout
from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder
from headforcing.kernels import dispatch
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.write import write_block
from torch import Tensor

from .apart import not_available, refusal
from .case import HEAD_DIM, SCHEDULE, VIDEO_FRAMES, Case, block_flops, fp8_model, random_model, warm_up_blocks
from .decoder import random_decoder
from .rows import Row
from .stopwatch import Stopwatch, peak_bytes, reset_peak, tensor_bytes

COMPARED_BLOCKS = 10
HANDLING_BLOCKS = 6  # two cycles of episodic memory


def measure(case: Case, row: Row, decodes: bool = True) -> dict[str, Any]:
    """The numbers of a row in a full cache, or why there are none.

    Milliseconds per block are those of the stages `denoise`, `clean`, `cache` and `vae`, and of `block`, which is all
    but the last and what lies between them. `latents` are those of the first blocks, to be compared with another row's.
    """
    try:
        if reason := row.reason(case):
            return not_available(reason)
        with dispatch.using(row.kernels), torch.no_grad():
            return _measure(case, row, random_decoder(case) if decodes and case.vae_dim else None)
    except Exception as error:  # whatever a backend or a compiler may throw: the other rows still count
        return refusal(error)


def _measure(case: Case, row: Row, vae: WanVideoDecoder | None) -> dict[str, Any]:
    warm_up = warm_up_blocks(row.policy) + (STEADY_BLOCKS + 1 if row.forward else 0)
    blocks, held = warm_up + case.timed_blocks, 0
    shape, latents, laps = case.shape(row.policy, blocks), list[Tensor](), list[dict[str, float]]()
    with _launches(row.needs) as launched:
        for index, (stages, block, cache) in enumerate(timed_blocks(case, row, blocks, vae, warm_up - 1)):
            laps.append(stages)
            if index < COMPARED_BLOCKS:
                latents.append(block.cpu())
            if index == warm_up - 1:
                held = tensor_bytes(cache)
                reset_peak(case.device)
            del cache
    gc.collect()  # the next thing measured has the memory for itself
    if unused := [operation.name for operation in row.needs if operation.name not in launched]:
        raise RuntimeError(f"the engine did not use these kernels here: {', '.join(unused)}\n{failures(row.needs)}")
    peak, timed = peak_bytes(case.device), laps[warm_up:]
    ms = {stage: _spread([stages[stage] for stages in timed]) for stage in timed[0]}
    with_vae = ms["block"]["median"] + ms["vae"]["median"] if "vae" in ms else None
    prompt = random_model(case.config, case.dtype, case.device, case.seed).prompt
    return {
        "timed_blocks": len(timed),
        "ms_per_block": ms,
        "fps": 1000 * VIDEO_FRAMES / ms["block"]["median"],
        "fps_with_vae": 1000 * VIDEO_FRAMES / with_vae if with_vae else None,
        "tflops": block_flops(case.config, shape) / ms["block"]["median"] / 1e9,
        "attention_backend": row.backend(case, shape),
        "cache_handling_ms": cache_steps(case, row, prompt, hollow=True),
        "cache_and_attention_ms": cache_steps(case, row, prompt, hollow=False)["total"],
        "cache_formula_bytes": shape.bytes(case.dtype),
        "cache_bytes": held,
        "peak_bytes": peak,
        "warm_up_ms": [stages["block"] for stages in laps[:warm_up]],
        "latents": latents,
    }


def _spread(times: Sequence[float]) -> dict[str, float]:
    p95 = float(torch.tensor(times, dtype=torch.float64).quantile(0.95))
    return {"median": median(times), "p95": p95, "fastest": min(times)}


def timed_blocks(
    case: Case, row: Row, blocks: int, vae: WanVideoDecoder | None = None, first_decoded: int = 0
) -> Iterator[tuple[dict[str, float], Tensor, Any]]:
    """Every block's milliseconds by stage and its latents, as it is made, and the cache."""
    watch = Stopwatch(case.device)
    cache = row.build(case, case.shape(row.policy, blocks))
    made_by = fp8_model if row.fp8 else random_model
    model: Any = copy.copy(made_by(case.config, case.dtype, case.device, case.seed))
    graphed = row.forward() if row.forward else None
    model.forward = graphed or model.forward
    model.denoise, model.write_clean = watch.timed("denoise", model.denoise), watch.timed("clean", model.write_clean)
    cache.begin_block, cache.commit = watch.timed("cache", cache.begin_block), watch.timed("cache", cache.commit)
    made = rollout(model, cache, case.script(blocks), case.noise())
    admitted = 0
    for index in range(blocks):
        with watch.stage("block"):
            block = next(made)
        if vae is not None and index >= first_decoded:
            with watch.stage("vae"):
                vae.decode(block.latents)
        admitted += block.event is not None and block.event.admitted
        yield watch.lap(), block.latents, cache
    if blocks >= warm_up_blocks(row.policy) and admitted < row.policy.memory.episodic_frames:
        raise RuntimeError("episodic memory did not fill, so this is no steady state")
    if isinstance(graphed, GraphedForward) and not graphed.replays:
        raise RuntimeError("no CUDA graph could be recorded, the log says why")


def cache_steps(case: Case, row: Row, prompt: PromptKV, hollow: bool) -> dict[str, float]:
    """Milliseconds per block of what a full cache does in the calls of a video, in its fastest block.

    There is no transformer around them. Hollow, attention is left out: what remains is rotary embedding, storing,
    assembly, the order of the heads' outputs, and the update after the block. A fused write does its norms, too.
    """
    warm_up = warm_up_blocks(row.policy)
    shape = case.shape(row.policy, warm_up + HANDLING_BLOCKS)
    cache = row.build(case, shape, hollow)
    watch = Stopwatch(case.device)
    write, attend = _calls(cache, case)
    passes = len(SCHEDULE.sigmas) + 1
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
    return fastest | {"total": sum(fastest.values())}


def _calls(cache: Any, case: Case) -> tuple[Callable[[int], Any], Callable[[int, Any], Any]]:
    """Functions of a layer: one stores keys and values and hands on the queries, one attends; fused where that is."""
    tokens, heads = SCHEDULE.frames_per_block * case.frame_tokens, case.config.num_heads
    generator = torch.Generator().manual_seed(case.seed)
    q, k, v = torch.randn(3, tokens, heads, HEAD_DIM, generator=generator).to(case.device, case.dtype)
    if isinstance(cache, HeadCache) and write_block.usable(q.device, q.dtype):
        rows, weight = [x.flatten(1) for x in (q, k, v)], q.new_ones(q[0].numel())
        return lambda layer: cache.write_projections(layer, *rows, (weight, weight), 1e-6), cache.attend_rotated

    def write(layer: int) -> Tensor:
        cache.write(layer, k, v)
        return q

    return write, cache.attend


def failures(operations: Sequence[Operation]) -> str:
    """Why kernels were put aside, tracebacks included."""
    return "\n".join(
        f"{operation.name} on {device} in {dtype}:\n{reason}"
        for operation in operations
        for (device, dtype), reason in operation.failures.items()
    )


@contextmanager
def _launches(operations: Sequence[Operation]) -> Iterator[list[str]]:
    """The names of those operations whose Triton kernel is launched meanwhile."""
    launched: list[str] = []

    def noted(operation: Operation, launch: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            launched.append(operation.name)
            return launch(*args, **kwargs)

        return run

    before = {operation: operation.launch for operation in operations}
    for operation, launch in before.items():
        operation.launch = noted(operation, launch)
    try:
        yield launched
    finally:
        for operation, launch in before.items():
            operation.launch = launch
