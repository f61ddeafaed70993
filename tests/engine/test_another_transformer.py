"""A transformer that is not Wan's, with the head-wise caches; docs/python.md points here.

Its modules have other names, its rotary embedding divides a head otherwise, every second layer
attends to the prompt, and a block has two latent frames.
"""

from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.shape import CacheShape
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.methods.method import VideoFacts
from headforcing.headforcing_core.model.latents import LatentFormat
from headforcing.headforcing_core.model.wan import KeyValueCache, PromptKV, WanConfig
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderRequest
from headforcing.headforcing_core.render.measured_roles import with_measured_roles
from headforcing.headforcing_core.render.render import make_blocks
from headforcing.headforcing_core.rollout.loop import (
    BlockCache,
    RolloutInputs,
    VideoModel,
    rollout,
)
from headforcing.headforcing_core.rollout.rows import Script, SeededNoise, lay_out_rows
from headforcing.headforcing_core.rollout.schedule import SCHEDULES, Schedule
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS = 4
HEADS = 4
HEAD_DIM = 16
DIM = HEADS * HEAD_DIM
TEXT_DIM = 10
CHANNELS = 6
ROWS, COLUMNS = 2, 3  # of tokens in a latent frame, of 2 x 2 latent pixels each
SCHEDULE = Schedule((1.0, 0.6), frames_per_block=2)
_a, _b = torch.randn(2, 5, TEXT_DIM, generator=torch.Generator().manual_seed(0))
EMBEDS = {"a": _a, "b": _b}


# --- what such a model needs


class Layer(nn.Module):
    def __init__(self, reads_prompt: bool):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.ask = nn.Linear(DIM, DIM)
        self.text = nn.Linear(TEXT_DIM, 2 * DIM) if reads_prompt else None


class Model(nn.Module):
    """A `VideoModel`: what the block loop asks of a model."""

    prompt: PromptKV

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Linear(4 * CHANNELS, DIM)
        self.level = nn.Linear(1, DIM)
        self.layers = nn.ModuleList(Layer(number % 2 == 0) for number in range(LAYERS))
        self.flow = nn.Linear(DIM, 4 * CHANNELS)
        self.requires_grad_(False)
        self.backbone = self

    def use_prompt(self, embedding: Tensor) -> None:
        layers = []
        for layer in self.layers:
            if layer.text is not None:
                k, v = layer.text(embedding).unflatten(-1, (2, HEADS, HEAD_DIM)).unbind(1)
                pair = (k.transpose(0, 1)[None], v.transpose(0, 1)[None])
            layers.append(pair)  # one per layer, since compression asks for the keys of each
        self.prompt = PromptKV(layers, valid_tokens=len(embedding), text=embedding)

    def use_conditions(self, conditions: object) -> None:
        raise NotImplementedError

    def forward(self, latents: Tensor, sigma: Tensor, cache: KeyValueCache) -> Tensor:
        frames, channels, height, width = latents.shape
        x = F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)  # [frames, tokens, 4 c]
        x = (self.patches(x) + self.level(sigma.expand(frames, 1))[:, None]).flatten(0, 1)
        for number, layer in enumerate(self.layers):
            # normalised, before rotary embedding: [tokens, heads, head_dim], frame after frame
            q, k, v = layer.qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(1)
            q = 2 * F.normalize(q, dim=-1) * HEAD_DIM**0.5
            queries = cache.write_and_rotate(number, F.normalize(k, dim=-1) * HEAD_DIM**0.5, v, q=q)
            x = x + layer.out(cache.attend(number, queries).flatten(1))
            if layer.text is not None:
                k, v = self.prompt.layers[number]
                asked = layer.ask(x).unflatten(-1, (HEADS, -1)).transpose(0, 1)[None]
                read = F.scaled_dot_product_attention(asked, k, v)
                x = x + read[0].transpose(0, 1).flatten(1)
        flow = self.flow(x).unflatten(0, (frames, -1)).transpose(1, 2)
        return F.pixel_shuffle(flow.unflatten(2, (height // 2, width // 2)), 2)

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        level = torch.as_tensor(sigma).reshape(-1, 1)
        return latents - level[..., None, None] * self(latents, level, cache)

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        self(latents, torch.zeros(1, 1), cache)


class OwnConfig(WanConfig):
    """The dimensions that caches, plans and estimates of memory read."""

    rope_axes = (4, 6, 6)

    @property
    def latents(self) -> LatentFormat:
        return LATENTS


LATENTS = LatentFormat(
    CHANNELS, "own", stride=8, fps=16, size=(48, 32), vae="own VAE", vae_file="own_vae"
)
CONFIG = OwnConfig(
    dim=DIM,
    ffn_dim=4 * DIM,
    num_layers=LAYERS,
    num_heads=HEADS,
    in_dim=CHANNELS,
    out_dim=CHANNELS,
    text_dim=TEXT_DIM,
)


def cache_for(method: str, roles: list[list[str]], blocks: int) -> HeadCache:
    """The cache of a video without a plan; `for_video` fits the method to the blocks."""
    method = PRESETS[method].for_video(VideoFacts(SCHEDULE, blocks))
    frames = blocks * SCHEDULE.frames_per_block
    shape = CacheShape.for_model(CONFIG, roles, method, 2 * ROWS, 2 * COLUMNS, 2, frames)
    return HeadCache(shape, torch.float32)


def video(cache: BlockCache, prompts: str) -> list[Tensor]:
    """The latents of the blocks of a video, one prompt for each."""
    script = Script(lay_out_rows(prompts, SCHEDULE), EMBEDS)
    noise = SeededNoise((2, CHANNELS, 2 * ROWS, 2 * COLUMNS))
    model: VideoModel = Model()
    return [block.latents for block in rollout(model, cache, RolloutInputs(script, noise))]


# --- what is compared with it


class History(BlockCache):
    """All keys and values of a video and plain attention."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.block = 0
        self.past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(LAYERS)]

    def begin_block(self) -> None:
        pass

    def rotated(self, x: Tensor) -> Tensor:
        """`x [tokens, heads, head_dim]` of the current block at its place in the video."""
        token = torch.arange(len(x))
        frame = 2 * self.block + token // (ROWS * COLUMNS)
        places = (frame, token // COLUMNS % ROWS, token % COLUMNS)
        turns = []
        for place, width in zip(places, CONFIG.rope_axes, strict=True):
            frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
            turns.append(torch.polar(torch.ones(1, 1).double(), place[:, None] * frequencies))
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.cat(turns, dim=1)[:, None]).flatten(-2).float()

    def write_and_rotate(self, layer, k, v, q=None, norms=None):
        self.past[layer][self.block :] = [(self.rotated(k), v)]
        return self.rotated(q)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        k = torch.cat([keys for keys, _ in self.past[layer]])
        v = torch.cat([values for _, values in self.past[layer]])
        weights = torch.einsum("qhd,khd->hqk", queries, k).div(HEAD_DIM**0.5).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def commit(self, prompt: PromptKV) -> None:
        self.block += 1


def test_the_full_history_is_plain_causal_attention():
    cached = video(cache_for("self_forcing", [["memory"] * HEADS] * LAYERS, 5), "aaabb")
    plain = video(History(), "aaabb")
    torch.testing.assert_close(torch.stack(cached), torch.stack(plain), rtol=1e-4, atol=1e-5)


def test_the_division_of_a_head_by_rotary_axes_matters(monkeypatch):
    monkeypatch.setattr(OwnConfig, "rope_axes", None)  # that of Wan
    cached = video(cache_for("self_forcing", [["memory"] * HEADS] * LAYERS, 2), "aa")
    monkeypatch.undo()
    assert (torch.stack(cached) - torch.stack(video(History(), "aa"))).abs().max() > 0.01


def test_memory_heads_of_every_layer_merge_by_the_prompt():
    cache = cache_for("head_forcing", [["local", "anchor", "memory", "memory"]] * LAYERS, 30)
    made = video(cache, "a" * 15 + "b" * 15)
    assert torch.stack(made).isfinite().all()
    assert cache.memory.has_summary, "compression has asked for the prompt's mean keys"


@pytest.mark.parametrize("method", ["head_forcing", "longlive"])
def test_a_request_makes_blocks_with_it(method, monkeypatch):
    monkeypatch.setitem(SCHEDULES, "own", replace(SCHEDULE, latents=LATENTS))
    options = RenderOptions(
        model_family="own", width=48, height=32, seconds=3, method_name=method, switch="reset"
    )
    timeline = parse_timeline("0:00 a\n0:01.5 b", 3)
    request = RenderRequest(CONFIG, options, timeline, EMBEDS)
    job, _ = with_measured_roles(request.job(), Model())
    made = list(make_blocks(job, Model()))
    assert [block.latents.shape for block in made] == [(2, CHANNELS, 4, 6)] * len(made)
    assert torch.stack([block.latents for block in made]).isfinite().all() and len(made) == 7
