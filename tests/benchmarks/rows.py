"""The rows of the table: what is compared, and why a row has no number where it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headforcing.headforcing_core.attention import attention_function
from headforcing.headforcing_core.cache import CacheShape, HeadCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.policy import CachePolicy, RolePolicy, preset
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.modulate import norm_modulate, residual_norm_modulate
from headforcing.kernels.move import move_frames
from headforcing.kernels.pool import pooled_keys
from headforcing.kernels.write import write_block
from torch import Tensor

from .case import Case
from .paper_caches import CacheKernels, FusedAssembly, NaiveLoop, PackedHeads, dense
from .varlen import nothing, packed_attention

Build = Callable[[CacheShape, Case, bool], Any]  # the last says: without attention, to time the cache alone
Reason = Callable[[Case], str]  # why a row cannot run, or nothing

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
        policy: what heads keep; rows of one policy make the same latents.
        kernels: whether the engine may use its Triton kernels, as for `dispatch.using`.
        must_launch: kernels of which the engine must launch one for the row to be what it says.
    """

    name: str
    title: str
    build: Build
    reason: Reason = lambda case: ""
    policy: CachePolicy = HEAD_FORCING
    kernels: str = "reference"
    must_launch: tuple[Operation, ...] = ()


def no_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q


def _naive(shape: CacheShape, case: Case, hollow: bool) -> NaiveLoop:
    return NaiveLoop(shape, case.dtype, case.device, no_attention if hollow else dense)


def _packed(kind: type[PackedHeads]) -> Build:
    def build(shape: CacheShape, case: Case, hollow: bool) -> PackedHeads:
        return kind(shape, case.dtype, case.device, attention=nothing if hollow else packed_attention(case.device))

    return build


def engine(attention: str) -> Build:
    """The engine's own cache with an attention backend of that name."""

    def build(shape: CacheShape, case: Case, hollow: bool) -> HeadCache:
        return HeadCache(shape, case.dtype, case.device, no_attention if hollow else attention_function(attention))

    return build


def _needs_packed_attention(case: Case) -> str:
    try:
        packed_attention(case.device)
    except ImportError:
        return "neither torch (2.10 or newer) nor flash-attn offers varlen attention here"
    return ""


def _needs_kernels(*operations: Operation) -> Reason:
    def reason(case: Case) -> str:
        if case.device.type == "cpu":
            return "a CPU runs no Triton kernels"
        aside = [operation.name for operation in operations if not operation.usable(case.device, case.dtype)]
        return f"these Triton kernels do not run here: {', '.join(aside)}" if aside else ""

    return reason


def _needs_attention(name: str) -> Reason:
    def reason(case: Case) -> str:
        if case.device.type == "cpu":
            return f"{name} attention does not run on a CPU"
        try:
            attention_function(name)
        except HeadForcingError as error:
            return f"the engine does not offer it: {error}"
        return ""

    return reason


def _either(*reasons: Reason) -> Reason:
    return lambda case: next((told for told in (reason(case) for reason in reasons) if told), "")


def _paper_kernels(case: Case) -> str:
    return _either(_needs_kernels(*OF_THE_CACHE), _needs_packed_attention)(case)


def _window(sink: int, recent: int, rope: str) -> CachePolicy:
    return CachePolicy.uniform(RolePolicy(sink_frames=sink, recent_frames=recent), rope)


ROWS = (
    Row("V1", "paper: naive loop over heads", _naive),
    Row("V2", "paper: + varlen attention", _packed(PackedHeads), _needs_packed_attention),
    Row("V3", "paper: + cache kernels", _packed(CacheKernels), _paper_kernels),
    Row("V4", "paper: + fused assembly", _packed(FusedAssembly), _paper_kernels),
    Row("B1", "ours: grouped SDPA", engine("sdpa")),
    Row("B2", "ours: varlen, longest head first", engine("varlen"), _needs_attention("varlen")),
    Row(
        "B3", "ours: + fused elementwise", engine("varlen"),
        _either(_needs_attention("varlen"), _needs_kernels(*ELEMENTWISE)), kernels="auto", must_launch=ELEMENTWISE,
    ),
    Row("B4", "ours: + CUDA graph", engine("varlen"), lambda case: "the engine captures no CUDA graph"),
    Row(
        "B5", "ours: Triton attention", engine("triton"), _needs_attention("triton"),
        kernels="auto",
    ),
    Row("W21", "ours: uniform window of 21", engine("auto"), policy=preset("self_forcing_window_21"), kernels="auto"),
    Row("W12", "ours: LongLive, 3 + 6 + 3", engine("auto"), policy=_window(3, 6, "absolute"), kernels="auto"),
    Row("W8", "ours: Infinity, 1 + 4 + 3", engine("auto"), policy=_window(1, 4, "contiguous"), kernels="auto"),
)  # fmt: skip
