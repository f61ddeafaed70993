"""The rows of the table: what is compared, and why a row has no number where it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from headforcing.cli.compiled import compiled_forward
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.roles import EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from headforcing.headforcing_core.model.attention import (
    ONE_CALL,
    AttentionFunction,
    LayerAttention,
    LayerSizes,
    attention_function,
    fastest_backend,
    sdpa,
)
from headforcing.headforcing_core.model.attention_backends import Operands
from headforcing.headforcing_core.model.fp8 import has_product
from headforcing.headforcing_core.model.wan import finish_layer, forward_block
from headforcing.headforcing_core.render.render import attention_name
from headforcing.kernels.attend import attend
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.modulate import norm_modulate
from headforcing.kernels.move import move_frames
from headforcing.kernels.pool import pooled_keys
from headforcing.kernels.quantise import quantise, quantise_gelu
from headforcing.kernels.write import write_block
from torch import Tensor

from .case import HEAD_DIM, Case
from .paper_caches import CacheKernels, FusedAssembly, NaiveLoop, PackedHeads

ADMIT_ALL = 2.0  # a novelty threshold above every cosine: memory is full as early as it can be
WINDOW_21 = PRESETS["self_forcing_window_21"]


def with_memory(entries: int, recent: int, novelty: float, interval: int) -> HeadForcing:
    """Head Forcing with these numbers for episodic memory."""
    episodic = EpisodicPolicy(novelty_threshold=novelty, update_interval=interval)
    return HeadForcing(
        memory=RolePolicy(recent_frames=recent, episodic_frames=entries), episodic=episodic
    )


HEAD_FORCING = with_memory(5, 3, ADMIT_ALL, 3)
KEPT_SCENES = replace(HEAD_FORCING, scenes="auto", kept_scenes=3)
OF_THE_CACHE = (move_frames, merge_frames, pooled_keys)
ELEMENTWISE = (write_block, norm_modulate)


@dataclass(frozen=True)
class Row:
    """One line of the table; the defaults are those of the engine without Triton kernels.

    Attributes:
        name: its short name, unique.
        attention: a backend of the engine, or `one call`: the fastest that takes all heads of a
            layer at once.
        cache: the kind of its cache.
        method: what heads keep; rows of one policy make the same latents.
        kernels: whether the engine may use its Triton kernels, as for `kernel_choice.using`.
        needs: kernels that must work for the row to be what it says; the engine must launch them.
        forward: makes what the model runs its passes with; `forward_block` where there is none.
        fp8: whether the linear layers of the blocks compute in 8-bit floating point: other latents.
    """

    name: str
    title: str
    attention: str = "auto"
    cache: type = HeadCache
    method: HeadForcing = HEAD_FORCING
    kernels: str = "reference"
    needs: tuple[Operation, ...] = ()
    forward: Callable[[], Any] | None = None
    fp8: bool = False

    def function(self, case: Case, sizes: LayerSizes) -> AttentionFunction:
        """Its attention at these sizes; raises HeadForcingError or ImportError where there is
        none.
        """
        if self.attention != "one call":
            return attention_function(self.attention, case.device, case.dtype, HEAD_DIM, sizes)
        if case.device.type == "cpu" and self.cache is not HeadCache:
            return sdpa  # of one head at a time
        if case.device.type == "cpu":
            raise ImportError("a CPU has no attention to sequences of different lengths")
        operands = Operands(case.device, case.dtype, HEAD_DIM)
        found = fastest_backend(ONE_CALL, operands, sizes)
        if not isinstance(found, LayerAttention):
            raise ImportError("no attention to sequences of different lengths works here")
        return found

    def build(self, case: Case, shape: CacheShape, hollow: bool = False) -> Any:
        """Its cache; hollow, without attention."""
        if hollow:
            packed = issubclass(self.cache, PackedHeads)
            function = LayerAttention(lambda q, k, v, spans: q) if packed else lambda q, k, v: q
        else:
            function = self.function(case, shape.layer_sizes)
        return self.cache(shape, case.dtype, case.device, attention=function)

    def reason(self, case: Case) -> str:
        """Why it cannot run on the case's device; empty if it may."""
        if self.fp8 and not has_product(case.device):
            return "this device does not multiply 8-bit floating point"
        try:
            self.function(case, case.shape(self.method, 100).layer_sizes)
        except (HeadForcingError, ImportError) as error:
            return str(error)
        aside = [
            operation.name
            for operation in self.needs
            if not operation.usable(case.device, case.dtype)
        ]
        return f"these Triton kernels do not run here: {', '.join(aside)}" if aside else ""

    def backend(self, case: Case, shape: CacheShape) -> str:
        """The name of its attention."""
        function = self.function(case, shape.layer_sizes)
        if self.cache is not HeadCache and function is sdpa:
            return "dense calls, head by head"
        return attention_name(function, self.attention)


def _finish_with_gelu(block: Any, *arguments: Tensor) -> tuple[Tensor, Tensor]:
    """`finish_layer` with GELU in the launch of the linear layer before it; not yet run on a GPU.

    There cuBLAS applies the approximation with tanh to its sums, which saves writing and reading
    the widest activations of a layer. On a CPU the same operator computes GELU by its definition,
    which differs by up to 5e-4.
    """
    wide, _, narrow = block.ffn

    def ffn(x: Tensor) -> Tensor:
        hidden = torch._addmm_activation(wide.bias, x.flatten(0, -2), wide.weight.T, use_gelu=True)
        return narrow(hidden.unflatten(0, x.shape[:-1]))

    return finish_layer(SimpleNamespace(**block._modules | {"ffn": ffn}), *arguments)


def _window(sink: int, recent: int, rope: str) -> HeadForcing:
    return HeadForcing.uniform(RolePolicy(sink_frames=sink, recent_frames=recent), rope)


FUSED: dict[str, Any] = dict(kernels="auto", needs=ELEMENTWISE)  # B3, on which others build
WITH_GELU = partial(forward_block, finish=_finish_with_gelu)
IN_8_BITS = (*ELEMENTWISE, quantise, quantise_gelu)

ROWS = (
    Row("V1", "paper: naive loop over heads", "sdpa", NaiveLoop),
    Row("V2", "paper: + varlen attention", "one call", PackedHeads),
    Row("V3", "paper: + cache kernels", "one call", CacheKernels, needs=OF_THE_CACHE),
    Row("V4", "paper: + fused assembly", "one call", FusedAssembly, needs=OF_THE_CACHE),
    Row("B1", "ours: grouped SDPA", "sdpa"),
    Row("B2", "ours: one varlen call a layer", "one call"),
    Row("B3", "ours: + fused elementwise", **FUSED),
    Row(
        "B5",
        "ours: B3 with Triton attention",
        "triton",
        kernels="auto",
        needs=(*ELEMENTWISE, attend),
    ),
    Row("G", "ours: B3 with GELU as an epilogue", **FUSED, forward=lambda: WITH_GELU),
    Row("B6", "ours: B3 with cuDNN", "cudnn", **FUSED),
    Row("C", "ours: torch.compile", kernels="auto", needs=(write_block,), forward=compiled_forward),
    Row("F8", "ours: B3 with fp8 linears, inexact", kernels="auto", needs=IN_8_BITS, fp8=True),
    Row("S", "ours: B1 with frames of scenes kept", "sdpa", method=KEPT_SCENES),
    Row("W21", "ours: uniform window of 21", kernels="auto", method=WINDOW_21),
    Row("W21S", "ours: uniform window of 21, SDPA", "sdpa", kernels="auto", method=WINDOW_21),
    Row("W12", "ours: LongLive, 3 + 6 + 3", kernels="auto", method=_window(3, 6, "absolute")),
    Row("W8", "ours: Infinity, 1 + 4 + 3", kernels="auto", method=_window(1, 4, "contiguous")),
)
BY_NAME = {row.name: row for row in ROWS}
