"""One row, measured: blocks in a full cache, stage by stage, and the cache alone."""

from __future__ import annotations

import copy
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.memory import MemoryEvent
from headforcing.headforcing_core.model.cuda_graph import STEADY_BLOCKS, GraphedForward
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.headforcing_core.rollout.loop import rollout
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.headforcing_core.timeline.switch import Switch
from headforcing.kernels import dispatch
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.write import write_block
from torch import Tensor

from .case import SCHEDULE, Case, block_flops, fp8_model, random_model, warm_up_blocks
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
        latents: of the first blocks, to compare rows; not written to files.
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

    def save(self, folder: Path) -> None:
        """Write it to `ROW.json` and `ROW.pt`, for another process."""
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.latents, folder / f"{self.row}.pt")
        numbers = {name: value for name, value in vars(self).items() if name != "latents"}
        (folder / f"{self.row}.json").write_text(json.dumps(numbers), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, row: str) -> Measurement:
        """What `save` wrote; OSError if it did not."""
        numbers = json.loads((folder / f"{row}.json").read_text(encoding="utf-8"))
        return cls(**numbers, latents=torch.load(folder / f"{row}.pt", weights_only=True))


class TimedModel:
    """A `VideoModel` whose passes are timed. The backbone gets the bare cache, so that the engine sees its own."""

    def __init__(self, model: WanVideoModel, watch: Stopwatch):
        self.model, self.watch = model, watch
        self.backbone = model.backbone

    @property
    def prompt(self) -> PromptKV:
        return self.model.prompt

    def use_prompt(self, embedding: Tensor) -> None:
        """The prompt is active already."""

    def denoise(self, latents: Tensor, sigma: float, cache: TimedCache) -> Tensor:
        with self.watch.stage("denoise"):
            return self.model.denoise(latents, sigma, cache.cache)

    def write_clean(self, latents: Tensor, cache: TimedCache) -> None:
        with self.watch.stage("clean"):
            self.model.write_clean(latents, cache.cache)


class TimedCache:
    """What the block loop sees of a cache; what it does to it between passes is timed."""

    def __init__(self, cache: Any, watch: Stopwatch):
        self.cache, self.watch = cache, watch
        self.shape, self.device = cache.shape, cache.device

    @property
    def block(self) -> int:
        return self.cache.block

    def switch_blocks(self, switch: Switch) -> int:
        return 0

    def begin_block(self) -> None:
        with self.watch.stage("cache"):
            self.cache.begin_block()

    def begin_clean_pass(self) -> None:
        self.cache.begin_clean_pass()

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        with self.watch.stage("cache"):
            return self.cache.commit(prompt)


def measure(case: Case, row: Row, vae: StreamingDecoder | None = None) -> Measurement:
    """Measure a row, or say why it cannot be."""
    result = Measurement(row.name, row.title)
    try:
        result.reason = row.reason(case)
        if not result.reason:
            with dispatch.using(row.kernels), torch.no_grad():
                _measure(case, row, vae, result)
    except Exception as error:  # whatever a backend or a compiler may throw: the other rows still count
        said = str(error).strip().splitlines() or [""]
        result = Measurement(row.name, row.title, f"{type(error).__name__}: {said[0][:160]}", traceback.format_exc())
    return result


def _measure(case: Case, row: Row, vae: StreamingDecoder | None, result: Measurement) -> None:
    warm_up = warm_up_blocks(row.policy) + (STEADY_BLOCKS + 1 if row.forward else 0)
    blocks = warm_up + case.timed_blocks
    shape = case.shape(row.policy, blocks)
    model = random_model(case.config, case.dtype, case.device, case.seed)
    with _launches(row.must_launch) as launched:
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
            del cache  # the next thing measured has the memory for itself
    unused = [operation.name for operation in row.must_launch if operation.name not in launched]
    if unused:
        result.reason, result.blocks = f"the engine did not use these kernels here: {', '.join(unused)}", []
        result.traceback = failures(row.must_launch)
        return
    result.peak_bytes = peak_bytes(case.device)
    result.cache_formula_bytes = shape.bytes(case.dtype)
    result.flops = block_flops(case.config, shape)
    result.backend = row.backend(case, shape)
    result.handling = cache_steps(case, row, model.prompt, hollow=True)
    result.with_attention = cache_steps(case, row, model.prompt, hollow=False)["total"]


def timed_blocks(
    case: Case, row: Row, blocks: int, vae: StreamingDecoder | None = None, first_decoded: int = 0
) -> Iterator[tuple[dict[str, float], Tensor, Any]]:
    """Every block's milliseconds by stage and its latents, as it is made, and the cache."""
    watch = Stopwatch(case.device)
    cache = row.build(case.shape(row.policy, blocks), case, False)
    made_by = fp8_model if row.fp8 else random_model
    model = copy.copy(made_by(case.config, case.dtype, case.device, case.seed))
    graphed = row.forward() if row.forward else None
    model.forward = graphed or model.forward
    made = rollout(TimedModel(model, watch), TimedCache(cache, watch), case.script(blocks), case.noise())
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
    cache = row.build(shape, case, hollow)
    watch = Stopwatch(case.device)
    write, attend = _calls(cache, _projections(case, shape))
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


def _calls(
    cache: Any, projections: Sequence[Tensor]
) -> tuple[Callable[[int], Tensor], Callable[[int, Tensor], Tensor]]:
    """What stores a layer's keys and values and hands on the queries, and what attends to them: fused where that is."""
    q, k, v = projections
    if isinstance(cache, HeadCache) and write_block.usable(q.device, q.dtype):
        rows, weight = [x.flatten(1) for x in projections], q.new_ones(q[0].numel())
        return lambda layer: cache.write_projections(layer, *rows, (weight, weight), 1e-6), cache.attend_rotated

    def write(layer: int) -> Tensor:
        cache.write(layer, k, v)
        return q

    return write, cache.attend


def _projections(case: Case, shape: CacheShape) -> Sequence[Tensor]:
    tokens = shape.frames_per_block * shape.rows * shape.columns
    generator = torch.Generator().manual_seed(case.seed)
    q, k, v = torch.randn(3, tokens, case.config.num_heads, shape.head_dim, generator=generator)
    return [x.to(case.device, case.dtype) for x in (q, k, v)]


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

    before = [operation.launch for operation in operations]
    for operation in operations:
        operation.launch = noted(operation, operation.launch)
    try:
        yield launched
    finally:
        for operation, launch in zip(operations, before, strict=True):
            operation.launch = launch
