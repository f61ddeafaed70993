"""Rotary embedding: exact angles at any index, rotations that add up, contexts that depend on differences only."""

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy, RolePolicy
from headforcing.headforcing_core.model import rope as rope_module
from headforcing.headforcing_core.model.rope import RotaryEmbedding
from headforcing.headforcing_core.model.wan import PromptKV
from small_engine import BUSY, F, difference, every_head, make


def test_re_encoding_changes_nothing_in_a_sliding_window_and_something_behind_a_sink(model):
    roles = every_head(model, "memory")
    for sinks, same in ((0, True), (1, False)):
        policies = [CachePolicy.uniform(RolePolicy(sinks, 4), rope) for rope in ("absolute", "contiguous")]
        absolute, contiguous = (make(model, roles, policy, 9) for policy in policies)
        assert (difference(absolute, contiguous) < 1e-4) == same
        assert difference(absolute[:2], contiguous[:2]) < 1e-5


def complex_rotation(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The definition, in float64: `x [..., d]` as complex pairs times e^(i angle `[..., d/2]`)."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def frequencies(dim: int) -> torch.Tensor:
    return torch.tensor([10000.0 ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)


@pytest.fixture
def keys() -> torch.Tensor:
    return torch.randn(4, 3, 6, 26, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("index", [3, 1024, 240_000, -7])
def test_temporal_angles_are_exact_at_any_index(keys, index):
    """A float32 angle at index 5000 would be off by 3e-4, a table would have ended at 1024."""
    rope = RotaryEmbedding(26, 2, 3)
    turned = rope.rotate_temporal(keys, range(index, index + 3))
    moved = rope.rerotate(rope.rotate_temporal(keys, [9, -4, 700]), [index - 9, index + 5, index - 698])
    assert difference(moved, turned) < 5e-6
    positions = torch.arange(index, index + 3, dtype=torch.float64)
    expected = complex_rotation(keys[..., :10], positions[:, None, None] * frequencies(10))
    assert difference(turned[..., :10].double(), expected) < 2e-6
    assert torch.equal(turned[..., 10:], keys[..., 10:])


def test_spatial_rotation_follows_row_and_column_of_each_token(keys):
    turned = RotaryEmbedding(26, 2, 3).rotate_spatial(keys)
    for part, places in ((slice(10, 18), [0, 0, 0, 1, 1, 1]), (slice(18, 26), [0, 1, 2, 0, 1, 2])):
        angle = torch.tensor(places, dtype=torch.float64)[:, None] * frequencies(8)
        assert difference(turned[..., part].double(), complex_rotation(keys[..., part], angle)) < 2e-6
    assert torch.equal(turned[..., :10], keys[..., :10])


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 5e-7), (torch.bfloat16, 0.02), (torch.float16, 2e-3)])
def test_one_complex_multiplication_rotates_as_pair_after_pair(keys, dtype, off, monkeypatch):
    """Devices without complex numbers take the other way; each in place and into strided memory, too."""
    x = keys.to(dtype).permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)

    def ways() -> list[torch.Tensor]:
        rope = RotaryEmbedding(26, 2, 3)
        into, turned = torch.zeros(4, 5, 6, 26, dtype=dtype), x.clone()
        rope.rotate(x, [3, 1, 7], out=into[:, 1:4])
        return [rope.rotate(x, [3, 1, 7]), into, rope.rerotate(turned, [3, 1, 7]), rope.rotate_spatial(x)]

    at_once = ways()
    monkeypatch.setattr(rope_module, "COMPLEX_DEVICES", ())
    for one, other in zip(at_once, ways(), strict=True):
        assert one.dtype == dtype and difference(one.float(), other.float()) <= off


def test_keys_kept_in_bf16_are_turned_in_place_for_60_blocks_with_a_bounded_error():
    """Against one float32 rotation of the raw key: within 2% of a key's size, and no worse late than early.

    Values carry the frame and token they came from, so that every slot is checked, a summary's mixed tokens too.
    """
    blocks, tokens, heads = 60, 6, 3
    shape = CacheShape([["memory", "anchor", "memory"]], BUSY, 2, 3, 26, F, blocks * F)
    cache = HeadCache(shape, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(blocks * F, tokens, heads, 26, generator=generator).bfloat16()
    prompt = PromptKV([(torch.randn(1, heads, 4, 26, generator=generator),) * 2], 4)
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
        return float(((group.k[0][:, slot].float() - exact).norm(dim=-1) / exact.norm(dim=-1)).max())

    errors = []
    for block in range(blocks):
        cache.begin_block()
        frames = slice(F * block, F * block + F)
        cache.write(0, raw[frames].flatten(0, 1), values[frames].flatten(0, 1).bfloat16())
        errors.append(max(error(group, slot) for group in cache.groups for slot in range(group.frames)))
        cache.commit(prompt)
    assert cache.memory.has_summary and len(cache.memory.sources[0]) > 40
    assert 1e-4 < max(errors) < 0.02
    assert max(errors[40:]) < 1.5 * max(errors[10:30])
