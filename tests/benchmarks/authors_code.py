"""The authors' code of a method as a `VideoModel`: one table, by the name of the method here.

The reader provides a checkout. Their model gets the weights of this pack's, and their program makes
its caches. On a CPU, in float32; parts of their program that their files import and do not use here
are replaced by empty ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from torch import Tensor
from torch.nn import functional as F

from .case import SCHEDULE, Case

CPU = torch.device("cpu")
# these ask for a GPU when they are imported, or bring the text encoder, the VAE and their packages
LEFT_OUT = (
    "demo_utils",
    "demo_utils.memory",
    "utils.interactive",
    "utils.memory",
    "utils.wan_wrapper",
)


@dataclass(frozen=True)
class Code:
    """The authors' code of a method.

    Attributes:
        window, sinks: latent frames that its cache holds with the current block, -1 where it does
            not say, and how many of these stay.
        options: further arguments of its model.
        ending: of the names of its files, in `wan/modules` and `pipeline`.
        layers: fewest that its mechanism needs.
        prepare: sets up the model, in the module that defines it.
    """

    window: int
    sinks: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    ending: str = ""
    layers: int = 1
    prepare: Callable[[ModuleType, Any, Case], None] = lambda module, network, case: None


def _prepare_echo_forcing(module: ModuleType, network: Any, case: Case) -> None:
    for block in network.blocks:
        # before the window is given in tokens of another size
        block.self_attn._ensure_score_metadata(CPU)
        block.self_attn.PC.history_capacity = 18 * case.frame_tokens


def _prepare_forcing_kv(module: Any, network: Any, case: Case) -> None:
    def rotate(x: Tensor, grid_sizes: Tensor, freqs: Tensor, start_frame: int) -> Tensor:
        return module.causal_rope_apply(x, grid_sizes.expand(len(x), -1), freqs, start_frame)

    # their functions in PyTorch in place of their Triton kernels
    module.rope_apply_triton = rotate
    module.extract_heads_triton = import_module(
        "wan.modules.extract_head_triton"
    ).extract_heads_torch
    settings = SimpleNamespace(
        ar_start=1,
        spatial_context_length=1,
        temporal_context_length=1,
        dynamic_context_length=1,
        dynamic_temporal_enabled=True,
        num_frame_patch=6,
        sim_retention_ratio=0.33,
        teacache_enabled=False,
        teacache_threshold=0.2,
        quantization_enabled=False,
    )
    for owner in (network, *(block.self_attn for block in network.blocks)):
        owner.args = settings
    network._offline_head_groups = []
    for roles in case.roles:
        dynamic = [head for head, role in enumerate(roles) if role == "memory"]
        static = [head for head, role in enumerate(roles) if role != "memory"]
        network._offline_head_groups.append({"dynamic_head": dynamic, "static_head": static})


# by the method here; sizes and options are those of the configurations that the authors publish for
# Wan 2.1 1.3B
CODES = {
    "self_forcing_window_21": Code(21),
    "longlive": Code(12, 3),
    "memrope": Code(12, 3, {"compression_method": "ema"}),
    "echo_forcing": Code(21, 1, prepare=_prepare_echo_forcing),
    "forcing_kv": Code(-1, 1, ending="_forcingkv", layers=2, prepare=_prepare_forcing_kv),
}


def authors_code(checkout: Path, code: Code, case: Case) -> tuple[Any, ModuleType]:
    """The authors' causal model with the weights of the case's model, and their program, which
    makes its caches.

    Attention in its two forms is PyTorch's: their own asks for a GPU, or computes in bfloat16.
    """
    # as packages without their `__init__`, which import everything
    for name in ("wan", "wan.modules", "pipeline"):
        package = ModuleType(name)
        package.__path__ = [str(checkout.joinpath(*name.split(".")))]
        sys.modules[name] = package
    for name in LEFT_OUT:
        sys.modules[name] = empty = ModuleType(name)
        empty.__getattr__ = lambda name: None
    sys.path.insert(0, str(checkout))
    module: Any = import_module(f"wan.modules.causal_model{code.ending}")
    program = import_module(f"pipeline.causal_inference{code.ending}")
    module.attention = import_module("wan.modules.model").flash_attention = _attention
    config = case.config
    network = module.CausalWanModel(
        dim=config.dim,
        ffn_dim=config.ffn_dim,
        num_heads=config.num_heads,
        num_layers=config.num_layers,
        local_attn_size=code.window,
        sink_size=code.sinks,
        **code.options,
    )
    ours = case.model().backbone.named_parameters()
    network.load_state_dict(
        {name: weight.view_as(network.get_parameter(name)) for name, weight in ours}
    )
    code.prepare(module, network, case)
    for part in network.modules():
        if hasattr(part, "max_attention_size"):
            part.max_attention_size = code.window * case.frame_tokens
    return network.eval().requires_grad_(False), program


def _attention(q: Tensor, k: Tensor, v: Tensor, **unused: Any) -> Tensor:
    """`[1, tokens, heads, d]` each."""
    attended = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    )
    return attended.transpose(1, 2)


class AuthorsCache:
    """The KV caches of the authors' model, made by their program, as a `BlockCache`."""

    device = CPU
    reads_queries = True

    def __init__(self, program: ModuleType, network: Any, case: Case):
        self.block_tokens = SCHEDULE.frames_per_block * case.frame_tokens
        self.block = 0
        pipeline: Any = next(
            item for item in vars(program).values() if hasattr(item, "_initialize_kv_cache")
        )
        made = SimpleNamespace(
            num_transformer_blocks=case.layers,
            frame_seq_length=case.frame_tokens,
            local_attn_size=network.local_attn_size,
            generator=SimpleNamespace(model=network),
            rope_transition_frames=3,
            compress_candidate_storage_frames=3,
        )
        pipeline._initialize_kv_cache(made, 1, torch.float32, CPU)
        pipeline._initialize_crossattn_cache(made, 1, torch.float32, CPU)
        self.layers = made.kv_cache1
        self.text = made.crossattn_cache

    def begin_block(self) -> None: ...

    def commit(self, prompt: Any) -> None:
        self.block += 1


def authors_model(network: Any, text: Tensor) -> WanVideoModel:
    """The authors' model as a `VideoModel`, for the prompt with the embedding `text [tokens,
    text_dim]`.
    """
    embed = network.text_embedding.forward
    embedded = list[Tensor]()

    def embed_once(x: Tensor) -> Tensor:  # as this pack does for a prompt
        embedded[:] = embedded or [embed(x)]
        return embedded[0]

    def forward(
        network: Any, x: Tensor, timesteps: Tensor, prompt: Any, cache: Any, **options: Any
    ) -> Tensor:
        flow = network(
            x.transpose(0, 1)[None],
            t=timesteps[None],
            context=[text],
            seq_len=x.shape[0] * x.shape[2] * x.shape[3] // 4,  # tokens, 2x2 latents each
            kv_cache=cache.layers,
            crossattn_cache=cache.text,
            current_start=cache.block * cache.block_tokens,
        )
        return flow[0].transpose(0, 1)

    network.text_embedding.forward = embed_once
    model = WanVideoModel(network, torch.float32, forward=forward)
    model.prompt = text
    return model
