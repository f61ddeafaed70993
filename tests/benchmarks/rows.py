"""The rows of the table: what is compared, and why a row has no number where it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy, RolePolicy, preset
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.attention import AttentionFunction, attention_function
from headforcing.headforcing_core.model.cuda_graph import GraphedForward
from headforcing.kernels.attend import attend
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.modulate import norm_modulate, residual_norm_modulate
from headforcing.kernels.write import write_block
from torch import Tensor

from .case import HEAD_DIM, Case
from .kernels.merge import merge_frames
from .kernels.move import move_frames
from .kernels.pool import pooled_keys
from .paper_caches import CacheKernels, FusedAssembly, NaiveLoop, PackedHeads, dense
from .varlen import VARLEN_KERNELS, nothing, packed_attention

Build = Callable[[CacheShape, Case, bool], Any]  # the last says: without attention, to time the cache alone
Told = Callable[[Case], str]

ADMIT_ALL = 2.0  # a novelty threshold above every cosine: memory is full as early as it can be
HEAD_FORCING = preset("head_forcing").with_memory(5, 3, ADMIT_ALL, 3)
OF_THE_CACHE = (move_frames, merge_frames, pooled_keys)
ELEMENTWISE = (write_block, norm_modulate, residual_norm_modulate)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: its short name, unique.
        build: makes its cache.
        reason: why it cannot run on the case's device; empty if it may.
        backend: the name of its attention.
        policy: what heads keep; rows of one policy make the same latents.
        kernels: whether the engine may use its Triton kernels, as for `dispatch.using`.
        must_launch: kernels that the engine must launch for the row to be what it says.
        forward: makes what the model runs its passes with; `forward_block` where there is none.
    """

    name: str
    title: str
    build: Build
    reason: Told = lambda case: ""
    backend: Told = lambda case: ""
    policy: CachePolicy = HEAD_FORCING
    kernels: str = "reference"
    must_launch: tuple[Operation, ...] = ()
    forward: Callable[[], GraphedForward] | None = None


def no_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q


# --------------------------------------------------------------------------------------------- the paper's own


def _naive(shape: CacheShape, case: Case, hollow: bool) -> NaiveLoop:
    return NaiveLoop(shape, case.dtype, case.device, no_attention if hollow else dense)


def _packed_row(name: str, title: str, kind: type[PackedHeads], *operations: Operation) -> Row:
    def build(shape: CacheShape, case: Case, hollow: bool) -> PackedHeads:
        attention = nothing if hollow else packed_attention(case.device)[1]
        return kind(shape, case.dtype, case.device, attention=attention)

    def reason(case: Case) -> str:
        try:
            packed_attention(case.device)
        except ImportError as error:
            return str(error)
        return _needs_kernels(*operations)(case)

    return Row(name, title, build, reason, backend=lambda case: packed_attention(case.device)[0])


def _needs_kernels(*operations: Operation) -> Told:
    def reason(case: Case) -> str:
        if operations and case.device.type == "cpu":
            return "a CPU runs no Triton kernels"
        aside = [operation.name for operation in operations if not operation.usable(case.device, case.dtype)]
        return f"these Triton kernels do not run here: {', '.join(aside)}" if aside else ""

    return reason


# ------------------------------------------------------------------------------------------------------- ours


def engine_row(name: str, title: str, *attention: str, kernels: str = "reference", **options: Any) -> Row:
    """The engine with the first of these attention backends that works."""

    def build(shape: CacheShape, case: Case, hollow: bool) -> HeadCache:
        return HeadCache(shape, case.dtype, case.device, no_attention if hollow else _first(attention, case)[1])

    def reason(case: Case) -> str:
        if case.device.type == "cpu" and not {"auto", "sdpa"} & set(attention):
            return f"needs a GPU: {', '.join(attention)}"
        try:
            _first(attention, case)
        except HeadForcingError as error:
            return str(error)
        return _needs_kernels(*options.get("must_launch", ()))(case)

    return Row(name, title, build, reason, lambda case: _first(attention, case)[0], kernels=kernels, **options)


def _first(names: tuple[str, ...], case: Case) -> tuple[str, AttentionFunction]:
    reasons = []
    for name in names:
        try:
            return name, attention_function(name, case.device, case.dtype, HEAD_DIM)
        except HeadForcingError as error:
            reasons.append(str(error))
    raise HeadForcingError("; ".join(reasons))


def _window(sink: int, recent: int, rope: str) -> CachePolicy:
    return CachePolicy.uniform(RolePolicy(sink_frames=sink, recent_frames=recent), rope)


VARLEN = tuple(name for name, _, _ in VARLEN_KERNELS)
ROWS = (
    Row("V1", "paper: naive loop over heads", _naive, backend=lambda case: "dense calls, head by head"),
    _packed_row("V2", "paper: + varlen attention", PackedHeads),
    _packed_row("V3", "paper: + cache kernels", CacheKernels, *OF_THE_CACHE),
    _packed_row("V4", "paper: + fused assembly", FusedAssembly, *OF_THE_CACHE),
    engine_row("B1", "ours: grouped SDPA", "sdpa"),
    engine_row("B2", "ours: one varlen call a layer", *VARLEN),
    engine_row("B3", "ours: + fused elementwise", *VARLEN, kernels="auto", must_launch=ELEMENTWISE),
    engine_row("B4", "ours: + CUDA graph", *VARLEN, kernels="auto", must_launch=ELEMENTWISE, forward=GraphedForward),
    engine_row("B5", "ours: B3 with Triton attention", "triton", kernels="auto", must_launch=(*ELEMENTWISE, attend)),
    engine_row("W21", "ours: uniform window of 21", "auto", kernels="auto", policy=preset("self_forcing_window_21")),
    engine_row("W12", "ours: LongLive, 3 + 6 + 3", "auto", kernels="auto", policy=_window(3, 6, "absolute")),
    engine_row("W8", "ours: Infinity, 1 + 4 + 3", "auto", kernels="auto", policy=_window(1, 4, "contiguous")),
)
