"""One row, measured: blocks in a full cache, stage by stage, and the cache alone."""

from __future__ import annotations

import copy
import gc
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.model.cuda_graph import STEADY_BLOCKS, GraphedForward
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.headforcing_core.rollout.loop import rollout
from headforcing.kernels import dispatch
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.write import write_block
from torch import Tensor

from .apart import first_line
from .case import HEAD_DIM, SCHEDULE, Case, block_flops, fp8_model, random_model, warm_up_blocks
from .rows import Row
from .stopwatch import Stopwatch, peak_bytes, reset_peak, tensor_bytes

if TYPE_CHECKING:
    from headforcing.headforcing_core.video.stream import StreamingDecoder

COMPARED_BLOCKS = 10
HANDLING_BLOCKS = 6  # two cycles of episodic memory


@dataclass
class Measurement:
    """What a row gave.

    Attributes:
        reason: why there is nothing else here; `traceback` where that was an exception.
        blocks: per timed block, milliseconds by stage: `denoise`, `clean`, `cache`, and `block`, which is all of these
            and what lies between them.
        warm_up: the same for the blocks before.
        decoding: milliseconds of the VAE per timed block; empty where nothing was decoded.
        handling: milliseconds per block that the cache takes with attention left out, by step; fastest block.
        with_attention: the same with attention, in all.
        backend: which attention it is.
        latents: of the first blocks, to compare rows.
    """

    row: str
    title: str
    reason: str = ""
    traceback: str = ""
    blocks: list[dict[str, float]] = field(default_factory=list)
    warm_up: list[dict[str, float]] = field(default_factory=list)
    decoding: list[float] = field(default_factory=list)
    handling: dict[str, float] = field(default_factory=dict)
    with_attention: float = 0.0
    backend: str = ""
    flops: float = 0.0
    cache_formula_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int | None = None
    latents: list[Tensor] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write it for another process."""
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(vars(self), file)

    @classmethod
    def load(cls, file: Path) -> Measurement:
        """What `save` wrote; OSError if it did not."""
        return cls(**torch.load(file, weights_only=True))


def measure(case: Case, row: Row, vae: StreamingDecoder | None = None) -> Measurement:
    """Measure a row, or say why it cannot be."""
    result = Measurement(row.name, row.title)
    try:
        result.reason = row.reason(case)
        if not result.reason:
            with dispatch.using(row.kernels), torch.no_grad():
                _measure(case, row, vae, result)
    except Exception as error:  # whatever a backend or a compiler may throw: the other rows still count
        said = f"{type(error).__name__}: {first_line(error)}"
        result = Measurement(row.name, row.title, said, traceback.format_exc())
    return result


def _measure(case: Case, row: Row, vae: StreamingDecoder | None, result: Measurement) -> None:
    warm_up = warm_up_blocks(row.policy) + (STEADY_BLOCKS + 1 if row.forward else 0)
    blocks = warm_up + case.timed_blocks
    shape = case.shape(row.policy, blocks)
    with _launches(row.needs) as launched:
        for index, (times, latents, cache) in enumerate(timed_blocks(case, row, blocks, vae, warm_up - 1)):
            if index < COMPARED_BLOCKS:
                result.latents.append(latents.cpu())
            decoding = times.pop("vae", None)
            (result.warm_up if index < warm_up else result.blocks).append(times)
            if index >= warm_up and decoding is not None:
                result.decoding.append(decoding)
            if index == warm_up - 1:
                result.cache_bytes = tensor_bytes(cache)
                reset_peak(case.device)
            del cache
    gc.collect()  # the next thing measured has the memory for itself
    unused = [operation.name for operation in row.needs if operation.name not in launched]
    if unused:
        result.reason, result.blocks = f"the engine did not use these kernels here: {', '.join(unused)}", []
        result.traceback = failures(row.needs)
        return
    result.peak_bytes = peak_bytes(case.device)
    result.cache_formula_bytes = shape.bytes(case.dtype)
    result.flops = block_flops(case.config, shape)
    result.backend = row.backend(case, shape)
    prompt = random_model(case.config, case.dtype, case.device, case.seed).prompt
    result.handling = cache_steps(case, row, prompt, hollow=True)
    result.with_attention = cache_steps(case, row, prompt, hollow=False)["total"]


def timed_blocks(
    case: Case, row: Row, blocks: int, vae: StreamingDecoder | None = None, first_decoded: int = 0
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
    if vae is not None:
        vae.reset()
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
