"""The forward pass of the transformer: timesteps of each frame, the clean pass, prompts and their padding, dtypes."""

import pytest
import torch
from headforcing.headforcing_core.cache.base import Cache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.attention import explicit
from headforcing.headforcing_core.model.wan import PromptKV, WanConfig, WanModel, encode_prompt, forward_block
from small_engine import BUSY, HEIGHT, WIDTH, F, difference, embeds, film, latents, make, mixed, new_cache


class KeptKeysAndValues(Cache):
    """A cache that only remembers what was written: attention sees the block itself."""

    def __init__(self):
        self.written = {}

    def write(self, layer, k, v):
        self.written[layer] = (k, v)

    def attend(self, layer, q):
        k, v = (x.transpose(0, 1) for x in self.written[layer])
        return explicit(q.transpose(0, 1), k, v).transpose(0, 1)


X = torch.randn(F, 16, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))


def run_block(model, timesteps, write_only=False, prompt=None):
    cache = KeptKeysAndValues()
    prompt = prompt or encode_prompt(model, embeds(model)[0], torch.float32)
    times = torch.tensor(timesteps, dtype=torch.float64)
    return forward_block(model, X, times, prompt, cache, write_only=write_only), cache.written


def test_the_clean_pass_stores_what_a_full_pass_stores_and_stops_after_the_last_keys_and_values(model, monkeypatch):
    called, last = [], model.blocks[-1]
    for module in (last.self_attn.q, last.ffn, model.head.head):
        monkeypatch.setattr(module, "forward", lambda x, run=module.forward: called.append(1) or run(x))
    flow, full = run_block(model, [0.0] * F)
    assert flow.shape == (F, 16, HEIGHT, WIDTH) and len(called) == 3
    nothing, clean = run_block(model, [0.0] * F, write_only=True)
    assert nothing is None and len(called) == 3 and list(clean) == list(full) == [0, 1]
    for layer in full:
        assert all(torch.equal(a, b) for a, b in zip(clean[layer], full[layer], strict=True))


class OwnFrameOnly(KeptKeysAndValues):
    """Attention that never crosses frames, so that every frame is a video of its own."""

    def attend(self, layer, q):
        k, v = self.written[layer]
        by_frame = (x.unflatten(0, (-1, 6)).transpose(1, 2) for x in (q, k, v))
        return torch.cat([explicit(*frame).transpose(0, 1) for frame in zip(*by_frame, strict=True)])


def test_every_modulation_and_gate_belongs_to_its_own_frame(model):
    """With attention kept inside frames, a block at three timesteps is three one-frame blocks, to the last layer."""
    prompt = encode_prompt(model, embeds(model)[0], torch.float32)
    times = torch.tensor([900.0, 400.0, 0.0], dtype=torch.float64)
    together = forward_block(model, X, times, prompt, OwnFrameOnly())
    alone = [forward_block(model, X[i : i + 1], times[i : i + 1], prompt, OwnFrameOnly()) for i in range(F)]
    assert difference(together, torch.cat(alone)) < 1e-5


@pytest.mark.parametrize(
    ("rows", "zero_rows", "valid"),
    [(5, [1, 4], 4), (12, [], 7), (12, [5, 6], 5), (3, [0, 1, 2], 1), (0, [], 1)],
)
def test_trailing_zero_rows_of_a_prompt_are_padding_and_inner_ones_are_not(model, rows, zero_rows, valid):
    text = torch.randn(rows, 10, generator=torch.Generator().manual_seed(0))
    text[zero_rows] = 0
    prompt = encode_prompt(model, text, torch.float32)
    assert prompt.valid_tokens == valid
    assert all(k.shape == v.shape == (1, 4, 7, 22) for k, v in prompt.layers)
    expected = prompt.layers[1][0][0, :, :valid].mean(dim=1)
    assert difference(prompt.mean_key(1), expected) < 1e-6


def test_explicit_padding_rows_equal_missing_ones_and_take_part_in_cross_attention(model):
    text = embeds(model)[0]
    padded = torch.cat([text, torch.zeros(7 - len(text), 10)])
    short, long = encode_prompt(model, text, torch.float32), encode_prompt(model, padded, torch.float32)
    assert short.valid_tokens == long.valid_tokens == 4
    for a, b in zip(short.layers, long.layers, strict=True):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    cut = PromptKV([(k[:, :, :4], v[:, :, :4]) for k, v in short.layers], 4)
    flows = [run_block(model, [500.0] * F, prompt=prompt)[0] for prompt in (short, cut)]
    assert difference(*flows) > 1e-3


def test_weights_that_do_not_fill_the_model_are_named_and_heads_divide_its_width(model):
    state = dict(model.state_dict())
    bias = state.pop("blocks.1.ffn.2.bias")
    with pytest.raises(HeadForcingError, match=r"lack 1 tensors of a Wan model, first 'blocks\.1\.ffn\.2\.bias'"):
        WanModel.from_state_dict(model.config, state, torch.float32)
    with pytest.raises(HeadForcingError, match="1 unknown tensors, first 'extra'"):
        WanModel.from_state_dict(model.config, {**state, "blocks.1.ffn.2.bias": bias, "extra": bias}, torch.float32)
    with pytest.raises(HeadForcingError, match="num_heads must divide the model width 110, got 7"):
        WanConfig(dim=110, num_heads=7)


def test_a_bf16_rollout_follows_the_float32_one_for_a_while(model):
    """bf16 end to end: the first block within 5% of the latents' size, and the dtypes never leak into the latents."""
    exact = make(model, mixed(model), BUSY, 6)
    copy = WanModel.from_state_dict(model.config, dict(model.state_dict()), torch.bfloat16)
    assert copy.patch_embedding.weight.dtype == torch.float32 and copy.blocks[0].ffn[0].weight.dtype == torch.bfloat16
    blocks = film(copy, new_cache(model, mixed(model), BUSY, 6, dtype=torch.bfloat16), 6, dtype=torch.bfloat16)
    assert blocks[0].latents.dtype == torch.float32
    assert difference(blocks[0].latents, exact[0]) < 0.05 * float(exact[0].abs().max())
    assert latents(blocks).isfinite().all()
