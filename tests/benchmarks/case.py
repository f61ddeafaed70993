"""What is measured: a model of random weights, its head roles, sizes and the arithmetic of one block."""

from __future__ import annotations

import copy
import functools
import random
from dataclasses import asdict, dataclass
from typing import Any

import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape
from headforcing.headforcing_core.cache.policy import CachePolicy, HeadRole
from headforcing.headforcing_core.model.fp8 import has_product, use_fp8_linears
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.rows import Script, SeededNoise, lay_out_rows
from headforcing.headforcing_core.rollout.schedule import schedule
from torch import Tensor

HEAD_DIM = 128
VIDEO_FRAMES = 12  # of a block of three latent frames, after the first
PROMPT = "a red ball"
SCHEDULE = schedule("self_forcing")
# of the paper's 360 heads 72 are local and 90 anchors
LOCAL_SHARE, ANCHOR_SHARE = 72 / 360, 90 / 360


@dataclass(frozen=True)
class Case:
    """One configuration. Everything random in it follows from `seed`.

    Attributes:
        dim: width of the model, in heads of 128 channels; feed-forward layers keep Wan's proportion to it.
        timed_blocks: blocks that count; whole cycles of episodic memory's update interval show its mean cost.
        vae_dim: base width of the VAE's decoder, 96 in Wan 2.1; 0 leaves decoding out.
    """

    width: int = 832
    height: int = 480
    layers: int = 30
    dim: int = 1536
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = torch.device("cuda")
    timed_blocks: int = 21
    vae_dim: int = 96
    seed: int = 0

    @property
    def config(self) -> WanConfig:
        whole = WanConfig()
        return WanConfig(
            dim=self.dim,
            ffn_dim=whole.ffn_dim * self.dim // whole.dim // 16 * 16,  # fp8 multiplies in multiples of 16
            num_layers=self.layers,
            num_heads=self.dim // HEAD_DIM,
        )

    @property
    def roles(self) -> list[list[str]]:
        """The paper's shares of roles, spread over the model at random."""
        config = self.config
        heads = config.num_layers * config.num_heads
        local, anchors = round(LOCAL_SHARE * heads), round(ANCHOR_SHARE * heads)
        flat = [HeadRole.LOCAL.value] * local + [HeadRole.ANCHOR.value] * anchors
        flat += [HeadRole.MEMORY.value] * (heads - len(flat))
        random.Random(self.seed).shuffle(flat)
        return [flat[layer * config.num_heads :][: config.num_heads] for layer in range(config.num_layers)]

    @property
    def frame_tokens(self) -> int:
        return (self.height // 16) * (self.width // 16)

    def describe(self) -> dict[str, Any]:
        """The case as JSON can hold it."""
        numbers = {key: value for key, value in asdict(self).items() if key not in ("dtype", "device")}
        return numbers | {"heads": self.config.num_heads, "frame_tokens": self.frame_tokens}

    def shape(self, policy: CachePolicy, blocks: int) -> CacheShape:
        """The cache of a video of so many blocks."""
        frames = SCHEDULE.frames_per_block
        return CacheShape.for_model(
            self.config, self.roles, policy, self.height // 8, self.width // 8, frames, blocks * frames
        )

    def script(self, blocks: int) -> Script:
        """So many blocks of one prompt."""
        return Script(lay_out_rows([PROMPT] * blocks, SCHEDULE, self.seed), self.embeds)

    @property
    def embeds(self) -> dict[str, Tensor]:
        """The prompt's embedding."""
        return {PROMPT: random_prompt(self.config, self.seed)}

    def noise(self) -> SeededNoise:
        return SeededNoise((SCHEDULE.frames_per_block, 16, self.height // 8, self.width // 8))


@functools.lru_cache(maxsize=1)
def random_model(config: WanConfig, dtype: torch.dtype, device: torch.device, seed: int) -> WanVideoModel:
    """A model with its prompt active. Its queries and keys are long enough for attention to have an opinion."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        with torch.device(device):
            model = WanModel(config).requires_grad_(False)
            for block in model.blocks:
                block.modulation.normal_(0, 0.3)
                for attention in (block.self_attn, block.cross_attn):
                    attention.norm_q.weight.uniform_(0.8, 1.6)
                    attention.norm_k.weight.uniform_(0.8, 1.6)
            model.head.modulation.normal_(0, 0.3)
    model = model.eval().to(dtype)
    model.patch_embedding.float()
    video_model = WanVideoModel(model, dtype, device)
    video_model.use_prompt(random_prompt(config, seed).to(device))
    return video_model


def random_prompt(config: WanConfig, seed: int) -> Tensor:
    """The embedding of a prompt."""
    return torch.randn(64, config.text_dim, generator=torch.Generator().manual_seed(seed))


@functools.lru_cache(maxsize=1)
def fp8_model(config: WanConfig, dtype: torch.dtype, device: torch.device, seed: int) -> WanVideoModel:
    """`random_model` with linear layers in 8-bit floating point; both are in memory."""
    exact = random_model(config, dtype, device, seed)
    model = copy.copy(exact)
    model.backbone = copy.deepcopy(exact.backbone)
    use_fp8_linears(model.backbone, has_product(device))
    return model


def warm_up_blocks(policy: CachePolicy, least: int = 10) -> int:
    """Blocks until every slot is full and episodic memory has merged once."""
    frames = SCHEDULE.frames_per_block
    needed = [least]
    for role in (policy.local, policy.anchor, policy.memory):
        held = role.sink_frames + (role.recent_frames or 0)
        merged = (role.recent_frames or 0) // frames + role.episodic_frames * policy.episodic.update_interval + 1
        needed.append(merged if role.episodic_frames else -(-held // frames))
    return max(needed)


def block_flops(config: WanConfig, shape: CacheShape) -> float:
    """Floating-point operations of a block in a full cache: the denoising passes and the clean one.

    Matrix products only: linear layers, self- and cross-attention. The clean pass ends with the last layer's keys and
    values.
    """
    tokens = shape.frames_per_block * shape.rows * shape.columns
    square, feed_forward = 2 * tokens * config.dim**2, 2 * tokens * config.dim * config.ffn_dim
    text = 4 * tokens * config.text_len * config.dim
    layer = 6 * square + 2 * feed_forward + text
    attention = 4 * tokens * shape.rows * shape.columns * shape.head_dim * shape.frame_slots
    slots = shape.frames_per_block, shape.total_frames
    frames = [sum(shape.policy.of(role).capacity(*slots) for role in roles) for roles in shape.roles]
    left_out = layer - 2 * square + attention * frames[-1] / sum(frames)
    passes = len(SCHEDULE.sigmas) + 1
    return passes * (layer * config.num_layers + attention) - left_out
