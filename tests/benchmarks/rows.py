"""The rows of the table: what is compared, and why a row has no number where it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy, RolePolicy, preset
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.attention import (
    AttentionFunction,
    LayerSizes,
    attention_function,
)
from headforcing.headforcing_core.model.compiled import compiled_forward
from headforcing.headforcing_core.model.cuda_graph import GraphedForward
from headforcing.headforcing_core.model.fp8 import has_product
from headforcing.headforcing_core.model.wan import forward_block
from headforcing.headforcing_core.render.provenance import attention_name
from headforcing.kernels.attend import attend
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.modulate import norm_modulate, residual_norm_modulate
from headforcing.kernels.move import move_frames
from headforcing.kernels.pool import pooled_keys
from headforcing.kernels.quantise import quantise, quantise_gelu
from headforcing.kernels.write import write_block
from torch import Tensor

from .case import HEAD_DIM, Case
from .gelu_epilogue import finish_with_epilogue
from .paper_caches import CacheKernels, FusedAssembly, NaiveLoop, PackedHeads, dense
from .varlen import nothing, one_call, packed_attention

Build = Callable[[CacheShape, Case, bool], Any]  # the last says: without attention, to time the cache alone
Told = Callable[[Case], str]
Backend = Callable[[Case, CacheShape], str]

ADMIT_ALL = 2.0  # a novelty threshold above every cosine: memory is full as early as it can be
WINDOW_21 = preset("self_forcing_window_21")
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
        fp8: whether the linear layers of the blocks compute in 8-bit floating point: other latents.
    """

    name: str
    title: str
    build: Build
    reason: Told = lambda case: ""
    backend: Backend = lambda case, shape: ""
    policy: CachePolicy = HEAD_FORCING
    kernels: str = "reference"
    must_launch: tuple[Operation, ...] = ()
    forward: Callable[[], Any] | None = None
    fp8: bool = False


def no_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q


# --------------------------------------------------------------------------------------------- the paper's own


def _naive(shape: CacheShape, case: Case, hollow: bool) -> NaiveLoop:
    return NaiveLoop(shape, case.dtype, case.device, no_attention if hollow else dense)


def _packed_row(name: str, title: str, kind: type[PackedHeads], *operations: Operation) -> Row:
    def build(shape: CacheShape, case: Case, hollow: bool) -> PackedHeads:
        attention = nothing if hollow else packed_attention(case.device, case.dtype, shape.layer_sizes)[1]
        return kind(shape, case.dtype, case.device, attention=attention)

    def reason(case: Case) -> str:
        try:
            packed_attention(case.device, case.dtype, case.shape(HEAD_FORCING, 100).layer_sizes)
        except ImportError as error:
            return str(error)
        return _needs_kernels(*operations)(case)

    def backend(case: Case, shape: CacheShape) -> str:
        return packed_attention(case.device, case.dtype, shape.layer_sizes)[0]

    return Row(name, title, build, reason, backend)


def _needs_kernels(*operations: Operation) -> Told:
    def reason(case: Case) -> str:
        if operations and case.device.type == "cpu":
            return "a CPU runs no Triton kernels"
        aside = [operation.name for operation in operations if not operation.usable(case.device, case.dtype)]
        return f"these Triton kernels do not run here: {', '.join(aside)}" if aside else ""

    return reason


# ------------------------------------------------------------------------------------------------------- ours


def engine_row(
    name: str, title: str, attention: str, in_one_call: bool = False, kernels: str = "reference", **options: Any
) -> Row:
    """The engine with this attention backend; `in_one_call` if it must compute all heads of a layer in one call."""

    def chosen(case: Case, sizes: LayerSizes) -> AttentionFunction:
        if in_one_call:
            return one_call(case.device, case.dtype, sizes)
        return attention_function(attention, case.device, case.dtype, HEAD_DIM, sizes)

    def build(shape: CacheShape, case: Case, hollow: bool) -> HeadCache:
        return HeadCache(shape, case.dtype, case.device, no_attention if hollow else chosen(case, shape.layer_sizes))

    def reason(case: Case) -> str:
        if options.get("fp8") and not has_product(case.device):
            return "this device does not multiply 8-bit floating point"
        if case.device.type == "cpu" and (in_one_call or attention not in ("auto", "sdpa")):
            return "a CPU has no attention to sequences of different lengths"
        try:
            chosen(case, case.shape(options.get("policy", HEAD_FORCING), 100).layer_sizes)
        except (HeadForcingError, ImportError) as error:
            return str(error)
        return _needs_kernels(*options.get("must_launch", ()))(case)

    def backend(case: Case, shape: CacheShape) -> str:
        function = chosen(case, shape.layer_sizes)
        return attention_name(function, attention)

    return Row(name, title, build, reason, backend, kernels=kernels, **options)


def _window(sink: int, recent: int, rope: str) -> CachePolicy:
    return CachePolicy.uniform(RolePolicy(sink_frames=sink, recent_frames=recent), rope)


ROWS = (
    Row("V1", "paper: naive loop over heads", _naive, backend=lambda case, shape: "dense calls, head by head"),
    _packed_row("V2", "paper: + varlen attention", PackedHeads),
    _packed_row("V3", "paper: + cache kernels", CacheKernels, *OF_THE_CACHE),
    _packed_row("V4", "paper: + fused assembly", FusedAssembly, *OF_THE_CACHE),
    engine_row("B1", "ours: grouped SDPA", "sdpa"),
    engine_row("B2", "ours: one varlen call a layer", "auto", in_one_call=True),
    engine_row("B3", "ours: + fused elementwise", "auto", kernels="auto", must_launch=ELEMENTWISE),
    engine_row("B4", "ours: + CUDA graph", "auto", kernels="auto", must_launch=ELEMENTWISE, forward=GraphedForward),
    engine_row("B5", "ours: B3 with Triton attention", "triton", kernels="auto", must_launch=(*ELEMENTWISE, attend)),
    engine_row(
        "G",
        "ours: B3 with GELU as an epilogue",
        "auto",
        kernels="auto",
        must_launch=ELEMENTWISE,
        forward=lambda: partial(forward_block, finish=finish_with_epilogue),
    ),
    engine_row(
        "B6",
        "ours: B3 with cuDNN on streams",
        "cudnn_streams",
        kernels="auto",
        must_launch=ELEMENTWISE,
    ),
    engine_row(
        "C", "ours: torch.compile", "auto", kernels="auto", must_launch=(write_block,), forward=compiled_forward
    ),
    engine_row(
        "F8",
        "ours: B3 with fp8 linears, inexact",
        "auto",
        kernels="auto",
        must_launch=(*ELEMENTWISE, quantise, quantise_gelu),
        fp8=True,
    ),
    engine_row("W21", "ours: uniform window of 21", "auto", kernels="auto", policy=WINDOW_21),
    engine_row("W21S", "ours: uniform window of 21, SDPA", "sdpa", kernels="auto", policy=WINDOW_21),
    engine_row("W12", "ours: LongLive, 3 + 6 + 3", "auto", kernels="auto", policy=_window(3, 6, "absolute")),
    engine_row("W8", "ours: Infinity, 1 + 4 + 3", "auto", kernels="auto", policy=_window(1, 4, "contiguous")),
)
