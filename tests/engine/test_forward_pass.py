"""The forward pass of the transformer: the clean pass, prompts, dtypes, rotary embedding."""

import pytest
import torch
from headforcing.headforcing_core.cache.base import Cache
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model import rope as rope_module
from headforcing.headforcing_core.model.attention import explicit
from headforcing.headforcing_core.model.rope import RotaryEmbedding
from headforcing.headforcing_core.model.wan import (
    PromptKV,
    WanConfig,
    WanModel,
    encode_prompt,
    forward_block,
)
from small_engine import (
    BUSY,
    SHAPE,
    F,
    difference,
    embeds,
    latents,
    make,
    make_blocks,
    new_cache,
    random_roles,
)


class KeptKeysAndValues(Cache):
    """A cache that only remembers what was written: attention sees the block itself."""

    def __init__(self):
        self.written = {}

    def write_and_rotate(self, layer, k, v, q=None, norms=None):
        self.written[layer] = (k, v)
        return q

    def attend(self, layer, q):
        k, v = self.written[layer]
        attended = explicit(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        return attended.transpose(0, 1)


X = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def run_block(model, timestep, write_only=False, prompt=None):
    cache = KeptKeysAndValues()
    prompt = prompt or encode_prompt(model, embeds(model)[0], torch.float32)
    times = torch.full((F,), timestep, dtype=torch.float64)
    return forward_block(model, X, times, prompt, cache, write_only=write_only), cache.written


def test_the_clean_pass_stores_what_a_full_pass_stores_and_stops_after_the_last_keys_and_values(
    model, monkeypatch
):
    called = []
    last = model.blocks[-1]
    for module in (last.self_attn.q, last.ffn, model.head.head):
        monkeypatch.setattr(
            module, "forward", lambda x, run=module.forward: called.append(1) or run(x)
        )
    flow, full = run_block(model, 0.0)
    assert flow.shape == SHAPE and len(called) == 3
    nothing, clean = run_block(model, 0.0, write_only=True)
    assert nothing is None and len(called) == 3 and list(clean) == list(full) == [0, 1]
    for layer in full:
        assert all(torch.equal(a, b) for a, b in zip(clean[layer], full[layer], strict=True))


@pytest.mark.parametrize(
    ("rows", "zero_rows", "valid"),
    [(5, [1, 4], 4), (12, [], 7), (12, [5, 6], 5), (3, [0, 1, 2], 1), (0, [], 1)],
)
def test_trailing_zero_rows_of_a_prompt_are_padding_and_inner_ones_are_not(
    model, rows, zero_rows, valid
):
    text = torch.randn(rows, 10, generator=torch.Generator().manual_seed(0))
    text[zero_rows] = 0
    prompt = encode_prompt(model, text, torch.float32)
    assert prompt.valid_tokens == valid
    assert all(k.shape == v.shape == (1, 4, 7, 22) for k, v in prompt.layers)
    assert difference(prompt.mean_key(1), prompt.layers[1][0][0, :, :valid].mean(dim=1)) < 1e-6


def test_padding_takes_part_in_cross_attention(model):
    prompt = encode_prompt(model, embeds(model)[0], torch.float32)
    cut = PromptKV([(k[:, :, :4], v[:, :, :4]) for k, v in prompt.layers], 4, prompt.text)
    assert difference(*(run_block(model, 500.0, prompt=given)[0] for given in (prompt, cut))) > 1e-3


def test_weights_that_do_not_fill_the_model_are_named_and_heads_divide_its_width(model):
    state = dict(model.state_dict())
    bias = state.pop("blocks.1.ffn.2.bias")
    with pytest.raises(RuntimeError, match=r"Missing key.*blocks\.1\.ffn\.2\.bias"):
        WanModel.from_state_dict(model.config, state, torch.float32)
    with pytest.raises(RuntimeError, match='Unexpected key.*"extra"'):
        WanModel.from_state_dict(
            model.config, {**state, "blocks.1.ffn.2.bias": bias, "extra": bias}, torch.float32
        )
    with pytest.raises(
        HeadForcingError, match="num_heads must divide the model width 110 .* got 7"
    ):
        WanConfig(dim=110, num_heads=7)


def test_a_bf16_rollout_follows_the_float32_one_for_a_while(model):
    """bf16 end to end: the first block within 5% of the latents' size, and the dtypes never leak
    into the latents.
    """
    exact = make(model, random_roles(model), BUSY, 6)
    copy = WanModel.from_state_dict(model.config, dict(model.state_dict()), torch.bfloat16)
    assert (
        copy.patch_embedding.weight.dtype == torch.float32
        and copy.blocks[0].ffn[0].weight.dtype == torch.bfloat16
    )
    blocks = make_blocks(
        copy,
        new_cache(model, random_roles(model), BUSY, 6, dtype=torch.bfloat16),
        6,
        dtype=torch.bfloat16,
    )
    assert blocks[0].latents.dtype == torch.float32
    assert difference(blocks[0].latents, exact[0]) < 0.05 * float(exact[0].abs().max())
    assert latents(blocks).isfinite().all()


# --------------------------------------------------------------------------------- rotary embedding


@pytest.fixture
def keys() -> torch.Tensor:
    return torch.randn(4, 3, 6, 26, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("index", [3, 1024, 240_000, -7])
def test_temporal_angles_are_exact_at_any_index(keys, index):
    """A float32 angle at index 5000 would be off by 3e-4, a table would have ended at 1024."""
    rope = RotaryEmbedding(26, 2, 3)
    turned = rope.rotate_temporal(keys, range(index, index + 3))
    moved = rope.rerotate(
        rope.rotate_temporal(keys, [9, -4, 700]), [index - 9, index + 5, index - 698]
    )
    assert difference(moved, turned) < 5e-6
    frequencies = 10000.0 ** (-torch.arange(0, 10, 2).double() / 10)
    angle = torch.arange(index, index + 3).double()[:, None, None] * frequencies
    pairs = torch.view_as_complex(keys[..., :10].double().unflatten(-1, (-1, 2)).contiguous())
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    assert difference(turned[..., :10].double(), expected) < 2e-6
    assert torch.equal(turned[..., 10:], keys[..., 10:])


@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float32, 5e-7), (torch.bfloat16, 0.02), (torch.float16, 2e-3)]
)
def test_one_complex_multiplication_rotates_as_pair_after_pair(keys, dtype, off, monkeypatch):
    """Devices without complex numbers take the other way; each in place and into strided memory,
    too.
    """
    x = keys.to(dtype).permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)

    def ways() -> list[torch.Tensor]:
        rope = RotaryEmbedding(26, 2, 3)
        into = torch.zeros(4, 5, 6, 26, dtype=dtype)
        turned = x.clone()
        rope.rotate(x, [3, 1, 7], out=into[:, 1:4])
        return [
            rope.rotate(x, [3, 1, 7]),
            into,
            rope.rerotate(turned, [3, 1, 7]),
            rope.rotate_spatial(x),
        ]

    at_once = ways()
    monkeypatch.setattr(rope_module, "COMPLEX_DEVICES", ())
    for one, other in zip(at_once, ways(), strict=True):
        assert one.dtype == dtype and difference(one.float(), other.float()) <= off


def test_keys_kept_in_bf16_are_turned_in_place_for_60_blocks_with_a_bounded_error():
    """Against one float32 rotation of the raw key: within 2% of a key's size, and no worse late
    than early.

    Values carry the frame and token they came from, so that every slot is checked, a summary's
    mixed tokens too.
    """
    blocks = 60
    tokens = 6
    heads = 3
    shape = CacheShape([["memory", "anchor", "memory"]], BUSY, 2, 3, 26, F, blocks * F)
    cache = HeadCache(shape, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(blocks * F, tokens, heads, 26, generator=generator).bfloat16()
    prompt = PromptKV(
        [(torch.randn(1, heads, 4, 26, generator=generator),) * 2], 4, torch.empty(4, 26)
    )
    values = torch.zeros(blocks * F, tokens, heads, 26)
    values[..., 0] = torch.arange(blocks * F)[:, None, None]
    values[..., 1] = torch.arange(tokens)[None, :, None]
    rope = RotaryEmbedding(26, 2, 3)
    in_place = rope.rotate_spatial(raw.float().transpose(1, 2))  # [frames, heads, tokens, d]

    def error(group, slot: int) -> float:
        frame, token = group.v[0][:, slot, :, :2].long().unbind(-1)  # [heads, tokens] each
        assert set(frame.flatten().tolist()) <= set(group.sources[slot])
        keys = in_place[frame, group.heads[0][:, None], token][:, None]
        exact = rope.rotate_temporal(keys, [group.indices[slot]])[:, 0]
        apart = (group.k[0][:, slot].float() - exact).norm(dim=-1)
        return float((apart / exact.norm(dim=-1)).max())

    errors = []
    for block in range(blocks):
        cache.begin_block()
        frames = slice(F * block, F * block + F)
        cache.write_and_rotate(
            0, raw[frames].flatten(0, 1), values[frames].flatten(0, 1).bfloat16()
        )
        worst = 0.0
        for group in cache.groups:
            for slot in range(group.frames):
                worst = max(worst, error(group, slot))
        errors.append(worst)
        cache.commit(prompt)
    assert cache.memory.has_summary and len(cache.memory.sources[0]) > 40
    assert 1e-4 < max(errors) < 0.02
    assert max(errors[40:]) < 1.5 * max(errors[10:30])
