"""What is measured: a model of random weights, its head roles, sizes and the arithmetic of one
block.
"""

from __future__ import annotations

import copy
import functools
import random
from dataclasses import asdict, dataclass
from typing import Any

import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.model.fp8 import has_product, use_fp8_linears
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.rows import Script, SeededNoise, lay_out_rows
from headforcing.headforcing_core.rollout.schedule import schedule
from torch import Tensor

HEAD_DIM = 128
SEED = 0
VIDEO_FRAMES = 12  # of a block of three latent frames, after the first
PROMPT = "a red ball"
SCHEDULE = schedule("self_forcing")


@dataclass(frozen=True)
class Case:
    """One configuration; what is random in it is the same in every run.

    Attributes:
        dim: width of the model, in heads of 128 channels; feed-forward layers keep Wan's proportion
            to it.
        timed_blocks: blocks that count; whole cycles of episodic memory's update interval show its
            mean cost.
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

    def __post_init__(self) -> None:
        if self.width % 16 or self.height % 16 or self.dim % HEAD_DIM:
            size = f"{self.width}x{self.height}, {self.dim}"
            raise ValueError(
                f"pixels are multiples of 16 and a model's width is one of {HEAD_DIM}, got {size}"
            )

    @property
    def config(self) -> WanConfig:
        whole = WanConfig()
        return WanConfig(
            dim=self.dim,
            # fp8 multiplies in multiples of 16
            ffn_dim=whole.ffn_dim * self.dim // whole.dim // 16 * 16,
            num_layers=self.layers,
            num_heads=self.dim // HEAD_DIM,
        )

    @property
    def roles(self) -> list[list[str]]:
        """The paper's shares of roles, spread at random over the model: of its 360 heads 72 are
        local, 90 anchors.
        """
        a_layer = self.dim // HEAD_DIM
        heads = self.layers * a_layer
        flat = ["local"] * round(heads / 5) + ["anchor"] * round(heads / 4)
        flat += ["memory"] * (heads - len(flat))
        random.Random(SEED).shuffle(flat)
        return [flat[first : first + a_layer] for first in range(0, heads, a_layer)]

    @property
    def frame_tokens(self) -> int:
        return (self.height // 16) * (self.width // 16)

    def describe(self) -> dict[str, Any]:
        """The case as JSON can hold it."""
        numbers = {
            key: value for key, value in asdict(self).items() if key not in ("dtype", "device")
        }
        return numbers | {"heads": self.config.num_heads, "frame_tokens": self.frame_tokens}

    def shape(self, method: HeadForcing, blocks: int) -> CacheShape:
        """The cache of a video of so many blocks."""
        frames = SCHEDULE.frames_per_block
        size = (self.height // 8, self.width // 8)
        return CacheShape.for_model(self.config, self.roles, method, *size, frames, blocks * frames)

    def script(self, blocks: int) -> Script:
        """So many blocks of one prompt."""
        return Script(lay_out_rows([PROMPT] * blocks, SCHEDULE, SEED), self.embeds)

    @property
    def embeds(self) -> dict[str, Tensor]:
        """The prompt's embedding."""
        return {PROMPT: _prompt(self.config)}

    def noise(self) -> SeededNoise:
        return SeededNoise((SCHEDULE.frames_per_block, 16, self.height // 8, self.width // 8))

    def model(self, fp8: bool = False) -> WanVideoModel:
        """A model of random weights with its prompt active; one with linear layers in fp8 is a
        second one in memory.
        """
        return (_fp8_model if fp8 else _model)(self.config, self.dtype, self.device)


@functools.lru_cache(maxsize=1)
def _model(config: WanConfig, dtype: torch.dtype, device: torch.device) -> WanVideoModel:
    """Its queries and keys are long enough for attention to have an opinion."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        with torch.device(device):
            model = WanModel(config).requires_grad_(False)
            for name, weight in model.named_parameters():
                if name.endswith("modulation"):
                    weight.normal_(0, 0.3)
                elif "norm_q" in name or "norm_k" in name:
                    weight.uniform_(0.8, 1.6)
    model = model.eval().to(dtype)
    model.patch_embedding.float()
    video_model = WanVideoModel(model, dtype, device)
    video_model.use_prompt(_prompt(config).to(device))
    return video_model


@functools.lru_cache(maxsize=1)
def _fp8_model(config: WanConfig, dtype: torch.dtype, device: torch.device) -> WanVideoModel:
    exact = _model(config, dtype, device)
    model = copy.copy(exact)
    model.backbone = copy.deepcopy(exact.backbone)
    use_fp8_linears(model.backbone, has_product(device))
    return model


def _prompt(config: WanConfig) -> Tensor:
    return torch.randn(64, config.text_dim, generator=torch.Generator().manual_seed(SEED))


def warm_up_blocks(method: HeadForcing, least: int = 10) -> int:
    """Blocks until every slot is full and episodic memory has merged once."""
    frames = SCHEDULE.frames_per_block
    needed = [least]
    for role in (method.local, method.anchor, method.memory):
        held = role.sink_frames + (role.recent_frames or 0)
        merged = (
            (role.recent_frames or 0) // frames
            + role.episodic_frames * method.episodic.update_interval
            + 1
        )
        needed.append(merged if role.episodic_frames else -(-held // frames))
    return max(needed)


def block_flops(config: WanConfig, shape: CacheShape) -> float:
    """Floating-point operations of a block in a full cache: the denoising passes and the clean one.

    Matrix products only: linear layers, self- and cross-attention. The clean pass ends with the
    last layer's keys and values.
    """
    tokens = shape.frames_per_block * shape.rows * shape.columns
    square = 2 * tokens * config.dim**2
    feed_forward = 2 * tokens * config.dim * config.ffn_dim
    text = 4 * tokens * config.text_len * config.dim
    layer = 6 * square + 2 * feed_forward + text
    attention = 4 * tokens * shape.rows * shape.columns * shape.head_dim * shape.frame_slots
    slots = shape.frames_per_block, shape.total_frames
    frames = []
    for roles in shape.roles:
        frames.append(sum(shape.method.of(role).capacity(*slots) for role in roles))
    left_out = layer - 2 * square + attention * frames[-1] / sum(frames)
    passes = len(SCHEDULE.sigmas) + 1
    return passes * (layer * config.num_layers + attention) - left_out
