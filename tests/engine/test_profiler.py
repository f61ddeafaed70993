"""The profiler: what every head looks at, measured while a rollout runs, and what is kept of it.

"Equal" means within 1e-5 where the arithmetic differs (recorded cases, float64 references) and the
same bytes where it must not (merging, resuming).
"""

import itertools
import json
import logging
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles import profiler
from headforcing.headforcing_core.head_profiles.profile import classify
from headforcing.headforcing_core.head_profiles.profiler import ShareMeter, pick_part, profile_heads
from headforcing.headforcing_core.head_profiles.rules import with_rule
from headforcing.headforcing_core.head_profiles.shares import HeadShares, ProfileSetup
from headforcing.headforcing_core.model import attention_parts
from headforcing.headforcing_core.model.attention import (
    LayerAttention,
    end_shares,
    explicit,
    sdpa,
)
from headforcing.headforcing_core.model.attention_backends import Operands
from headforcing.headforcing_core.model.attention_parts import attend_in_parts, with_sums
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.research.recordings.replay import replay
from recorded_cases import each_run, open_case
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_engine import embeds, wan


@each_run("self_forcing_tiny_d32", "self_forcing_tiny_d128", wanted=("window9_sink3",).__contains__)
def test_shares_equal_the_recorded_ones(monkeypatch, which, name, run):
    """For every recorded block, denoising step, layer and head, to 1e-5."""
    case = open_case(which, name)
    seen = {}
    denoise = WanVideoModel.denoise

    def measured(self, latents, sigma, cache):
        layers = cache.shape.layers
        heads = cache.shape.heads
        cache.meter = ShareMeter(layers, heads, cache.rope.frame_tokens, attention_parts._sdpa)
        cache.meter.active = True
        clean = denoise(self, latents, sigma, cache)
        cache.meter.active = False
        seen.setdefault(cache.block, []).append(cache.meter.shares)
        return clean

    monkeypatch.setattr(WanVideoModel, "denoise", measured)
    replay(case, run)
    prefix = f"buckets/{run}/block"
    recorded = {
        int(key.removeprefix(prefix)): case.tensors[key]
        for key in case.tensors
        if key.startswith(prefix)
    }
    assert len(recorded) >= 2 and max(recorded) >= 5
    for block, expected in recorded.items():
        torch.testing.assert_close(
            torch.stack(seen[block]).to(expected), expected, atol=1e-5, rtol=0
        )
        assert expected.std(dim=(1, 2)).max() > 1e-3, (
            "all heads look alike, so agreement means nothing"
        )


SETUP = ProfileSetup(  # of videos of 48 x 32 pixels, 3 x 2 tokens a frame
    "ab12cd34",
    2,
    3,
    ("one", "two", "three"),
    6,
    (1.0, 0.8, 0.6, 0.3),
    3,
    48,
    32,
    window_frames=10,
    seed=5,
)


@pytest.fixture(scope="module")
def small() -> WanModel:
    return wan(2, 3, norms=(0.5, 3.0))


def measure(
    model: WanModel, setup: ProfileSetup = SETUP, prompts=range(3), same=False, into=None, **options
):
    """The shares of some prompts of a setup, which may all have the `same` embedding."""
    shares = into or HeadShares(setup)
    texts = embeds(model, 3)
    chosen = {prompt: texts[0 if same else prompt] for prompt in prompts}
    profile_heads(
        WanVideoModel(model, torch.float32),
        model.config,
        shares,
        chosen,
        dtype=torch.float32,
        **options,
    )
    return shares


@pytest.fixture(scope="module")
def measured(small) -> HeadShares:
    return measure(small)


@pytest.mark.parametrize(("first_block", "blocks"), [(2, 6), (1, 3)])
def test_every_step_from_the_first_block_on_is_measured_by_one_attention(
    small, monkeypatch, first_block, blocks
):
    """Every query meets every key once: the three ranges of keys are all keys, in every layer and
    step; and no clean pass and no earlier block is measured.
    """
    calls = []
    met = Counter()  # products of queries and keys, by the kind of attention

    def counted(kind, attention):
        def attend(q, k, v):
            met[kind] += q.shape[1] * k.shape[1]
            if kind == "measured":
                calls.append((q.shape[1], k.shape[1]))
            return attention(q, k, v)

        return attend

    monkeypatch.setattr(
        profiler, "with_sums", lambda *_: counted("measured", attention_parts._explicit)
    )
    setup = replace(SETUP, first_block=first_block, blocks=blocks)
    shares = measure(small, setup, [0], attention=counted("plain", sdpa))
    expected = []
    products = 0
    for block in range(first_block, blocks):
        keys = min(10, 3 * (block + 1)) * 6
        # 4 steps x 2 layers a block: the first frame, the middle, the current block
        expected += [(18, 6), (18, keys - 24), (18, 18)] * (4 * 2)
        products += 4 * 2 * 18 * keys
    assert calls == expected and met["measured"] == products
    # a clean pass, which ends before the last layer attends; and earlier blocks
    passes = [(1 + (4 * 2 if block < first_block else 0), block) for block in range(blocks)]
    assert met["plain"] == sum(count * 18 * min(10, 3 * (block + 1)) * 6 for count, block in passes)
    assert shares.counts[0].shape == (blocks - first_block, 4) and (shares.counts[0] == 1).all()
    flat = shares.sums[0].flatten(0, 1)
    assert (flat.sum(dim=-1) - 1).abs().max() < 1e-6 and flat.min() >= 0
    assert (flat[1:] - flat[:-1]).abs().amax(dim=(1, 2)).min() > 1e-4, (
        "two passes gave the same shares"
    )


def test_a_longer_first_block_is_rolled_out_as_the_family_has_it(small):
    setup = replace(SETUP, sigmas=(1.0,), first_block_sigmas=(1.0, 0.8, 0.4), blocks=4)
    steps = []
    shares = measure(
        small,
        setup,
        [0],
        on_step=lambda block, step, x: steps.append(block) if x is not None else None,
    )
    assert steps == [0, 0, 0, 1, 2, 3] and (shares.counts[0] == 1).all()


def test_rope_seed_prompt_and_the_number_of_the_prompt_matter(small):
    setup = replace(SETUP, sigmas=(1.0, 0.6), blocks=5, prompts=("one", "two"))
    measured = measure(small, setup, range(2))
    same = measure(small, setup, range(2), same=True)
    first = measured.mean([0])
    assert torch.equal(same.mean([0]), first)
    others = [
        measure(small, replace(setup, **change), [0]).mean()
        for change in ({"rope": "contiguous"}, {"seed": 6})
    ]
    # each prompt is a video of its own, with its noise
    for shares in (*others, measured.mean([1]), same.mean([1])):
        assert (shares - first).abs().max() > 1e-4


def test_shards_merge_in_any_order_to_the_same_bytes(small, measured):
    parts = [measure(small, prompts=pick_part(3, f"{part}/3")) for part in (1, 2, 3)]
    assert [part.missing_prompts() for part in parts] == [[1, 2], [0, 2], [0, 1]]
    measure(
        small, prompts=[1], into=parts[1], on_prompt=lambda prompt: pytest.fail("measured again")
    )
    assert parts[1].describe(parts[1].profile("part"))[-1] == "2 of 3 prompts are not measured yet"
    for order in itertools.permutations(parts):
        merged = HeadShares(SETUP)
        for part in order:
            merged.merge(part)
        assert torch.equal(merged.sums, measured.sums)
        assert torch.equal(merged.counts, measured.counts)
        assert merged.profile("x") == measured.profile("x")


# ------------------------------------------------------------------------------- averages and files


def test_shards_part_the_prompts_evenly_and_a_shard_that_is_none_is_refused():
    for parts, count in itertools.product((1, 3, 30), range(26)):
        shares = [pick_part(count, f"{part}/{parts}") for part in range(1, parts + 1)]
        assert sorted(itertools.chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert pick_part(8, "2/4") == [1, 5]
    for text in ("", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1 / 4", "1/99999", "²/4"):
        with pytest.raises(HeadForcingError, match="a shard must look like 2/4"):
            pick_part(8, text)


def test_measurements_of_different_setups_do_not_merge(measured):
    changes = {"prompts": ("one", "two", "four"), "seed": 6, "first_block_sigmas": (1.0, 0.5)}
    with pytest.raises(HeadForcingError, match="they differ in prompts, seed, first_block_sigmas"):
        HeadShares(replace(SETUP, **changes)).merge(measured)


DAMAGE = {  # what is wrong: the changed setup or tensors, and what is said of it
    "a newer format": ({"format_version": 2, "x": 1}, "format version 2, this program reads 1"),
    "an impossible setup": ({"blocks": 1}, ""),
    "a setup of other size": ({"num_layers": 3}, "its sums do not fit its setup"),
    "one tensor missing": ({"counts": None}, ""),
    "a wrong shape": ({"counts": torch.ones(3, 4, 3)}, "its counts do not fit its setup"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_gives_one_clear_error(measured, tmp_path, name):
    change, expected = DAMAGE[name]
    file = tmp_path / "x.safetensors"
    measured.save(file)
    with safe_open(file, "pt") as opened:
        setup = json.loads(opened.metadata()["head_shares"])
    tensors = load_file(file)
    for key, value in change.items():
        (tensors if key in tensors else setup)[key] = value
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    save_file(kept, file, metadata={"head_shares": json.dumps(setup)})
    with pytest.raises(
        HeadForcingError, match=f"is not a file of measured head shares: .*{expected}"
    ) as error:
        HeadShares.load(file)
    assert "\n" not in str(error.value)


def handmade(heads=1, **sizes) -> HeadShares:
    changes = {"prompts": ("one", "two"), "blocks": 4, "sigmas": (1.0, 0.8)} | sizes
    return HeadShares(replace(SETUP, num_layers=1, num_heads=heads, **changes))


def test_steps_are_averaged_first_then_blocks_then_prompts():
    """What is missing has no weight, and what is measured more often has no more than one."""
    shares = handmade()
    for prompt, block, step, sink in (
        (0, 0, 0, 0.1),
        (0, 0, 1, 0.3),  # block 0: 0.2
        (0, 1, 0, 0.4),  # block 1: 0.4, so prompt 0: 0.3
        (1, 1, 1, 0.2),
        (1, 1, 1, 0.0),  # the same cell twice: 0.1
        (1, 1, 0, 0.4),  # prompt 1: 0.25
    ):
        shares.add(
            prompt, block + 2, step, torch.tensor([[[sink, 0.5, 0.5 - sink]]], dtype=torch.float64)
        )
    assert shares.mean()[0, 0].tolist() == pytest.approx([0.275, 0.5, 0.225])
    assert shares.mean(prompts=[0])[0, 0, 0] == pytest.approx(0.3)
    assert shares.mean(blocks=[1])[0, 0, 0] == pytest.approx((0.4 + 0.25) / 2)
    assert shares.mean(steps=[0])[0, 0, 0] == pytest.approx(((0.1 + 0.4) / 2 + 0.4) / 2)


def test_a_return_story_counts_once_though_two_measurements_have_it():
    one = handmade()
    other = handmade()
    one.returns[0] = 0.4
    other.returns[0] = 0.6
    other.returns[1] = 0.2
    one.merge(other)
    assert one.returns[:, 0, 0].tolist() == [0.4, 0.2]


def test_nothing_measured_is_an_error_and_not_a_division():
    with pytest.raises(HeadForcingError, match="nothing has been measured yet"):
        handmade().profile("x")
    assert handmade().stability() == {}


def test_stability_holds_two_conditions_fixed_and_varies_the_third():
    """Two heads, one of them the anchor (half of two), none local: which one, by prompt, block and
    step.

    Prompts 0 and 2 are of one mind, prompt 1 of the other: of the anchor's runs no head is common
    to all three. Over blocks and steps (of the first prompt) the same head stays.
    """
    shares = handmade(heads=4, prompts=tuple("abcd"), blocks=5, sigmas=SETUP.sigmas)
    for prompt, block, step in itertools.product(range(3), range(3), range(4)):
        anchor = 1 if prompt == 1 else 3 if step == 0 else 0
        rows = [
            (0.5, 0.4, 0.1) if head == anchor else (0.1, 0.8 - head / 10, 0.1 + head / 10)
            for head in range(4)
        ]
        shares.add(prompt, block + 2, step, torch.tensor([rows], dtype=torch.float64))
    assert shares.missing_prompts() == [3]  # left out of everything
    assert shares.stability() == {
        "blocks": {"local": 1.0, "anchor": 1.0, "memory": 1.0, "mean": 1.0},
        "steps": {"local": 0.0, "anchor": 0.0, "memory": 0.5, "mean": pytest.approx(1 / 6)},
        "prompts": {"local": 1.0, "anchor": 0.0, "memory": 0.5, "mean": 0.5},
    }


def test_a_measured_profile_has_the_right_numbers_of_heads_and_says_how_it_was_measured(measured):
    made = measured.profile("mine", {"source": "test"})
    # 6 heads: 1.2 and 1.5, halves round up
    assert made.counts() == {"local": 1, "anchor": 2, "memory": 3}
    assert made.roles == classify(made.shares)
    torch.testing.assert_close(
        torch.tensor(made.shares).double(), measured.mean(), rtol=0, atol=1e-7
    )
    assert made.provenance == {"source": "test"}
    assert made.measured == {
        "fingerprint": "ab12cd34",
        "window_frames": 10,
        "sink_frames": 1,
        "rope": "absolute",
        "prompts": 3,
        "prompts_hash": SETUP.prompts_hash,
        "blocks": 6,
        "first_block": 2,
        "steps": 4,
        "size": "48x32",
        "seed": 5,
    }
    assert with_rule(made, None, 0.5, 0.5).counts() == {"local": 3, "anchor": 3, "memory": 0}
    lines = measured.describe(made)
    assert lines[0] == "1 local, 2 anchor, 3 memory" and len(lines) == 4


# ---------------------------------------------------------------------- attention to parts of the keys


def test_the_outputs_of_parts_combine_to_that_of_all_keys():
    """In float64 to 1e-15 of the largest value, with empty parts and one of a single key."""
    q, k, v = some_heads(dtype=torch.float64)
    maps = (q @ k.transpose(1, 2) / 22**0.5).softmax(dim=-1)
    for ends in ((6, 24), (0, 1), (31, 31), (0, 31)):
        for attention in (attention_parts._explicit, attention_parts._sdpa):
            out, shares = attend_in_parts(attention, q, k, v, ends)
            parts = maps.tensor_split(ends, dim=2)
            expected = torch.stack([part.sum(dim=2).mean(dim=1) for part in parts], dim=-1)
            assert (out - maps @ v).abs().max() <= 1e-15 * v.abs().max(), ends
            assert (shares - expected).abs().max() <= 1e-15 and shares.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_backend_that_renders_measures_and_a_broken_one_is_passed_over(
    monkeypatch, caplog, dtype
):
    operands = Operands(torch.device("cpu"), dtype, 32)
    first_working = attention_parts._first_working
    first_working.cache_clear()
    layers = LayerAttention(lambda *given: None, "any name", "explicit")
    assert with_sums(sdpa, operands) is attention_parts._sdpa
    assert with_sums(layers, operands) is with_sums(explicit, operands)
    assert with_sums(explicit, operands) is attention_parts._explicit
    # another program's attention, and a backend without sums
    assert with_sums(lambda q, k, v: q, operands) is attention_parts._sdpa
    assert with_sums(replace(layers, backend="sage"), operands) is attention_parts._sdpa
    assert not caplog.records

    def off(q, k, v):
        out, sums = attention_parts._sdpa(q, k, v)
        return out, sums * 1.05

    first_working.cache_clear()
    monkeypatch.setitem(attention_parts.SUMMED, "sdpa", off)
    with caplog.at_level(logging.INFO):
        assert with_sums(sdpa, operands) is attention_parts._explicit
    assert "roles are measured by explicit, not sdpa (its largest error" in caplog.text
    first_working.cache_clear()


def test_a_visit_is_measured_among_the_other_frames():
    """The middle share is that of the visit's frames, wherever they lie in the context."""
    meter = ShareMeter(1, 3, 2, attention_parts._sdpa, visited=range(4, 7))
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 6, 16, generator=generator)
    k, v = torch.randn(2, 3, 16, 16, generator=generator)
    group = SimpleNamespace(
        sources=[[0], *([frame] for frame in range(3, 10))],
        heads=[torch.arange(3)],
        context=lambda layer: (k, v),
    )
    out = meter.attend(0, group, q)
    maps = (q.double() @ k.double().transpose(1, 2) / 4).softmax(dim=-1)
    torch.testing.assert_close(out, (maps @ v.double()).float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        meter.shares[0, :, 1], maps[..., 4:10].sum(dim=2).mean(dim=1), atol=1e-6, rtol=0
    )


# -------------------------------------------------------------------------- shares beside attention


def some_heads(heads=3, queries=7, keys=31, dim=22, dtype=torch.float32):
    """Queries and keys long enough for attention to have an opinion."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(heads, queries, dim, generator=generator).to(dtype)
    k = torch.randn(heads, keys, dim, generator=generator).to(dtype)
    v = torch.randn(heads, keys, dim, generator=generator).to(dtype)
    return 2 * q, k, v


@pytest.mark.parametrize(("first", "last"), [(5, 7), (1, 29)])
def test_shares_are_sums_over_the_attention_map(first, last):
    """From values as wide as keys: a narrower call would leave the fast kernels."""
    q, k, v = some_heads()
    seen = []

    def note_values(q, k, v):
        seen.append(v.shape)
        return sdpa(q, k, v)

    shares = end_shares(note_values, q, k, first, last)
    exact = (q.double() @ k.double().transpose(1, 2) / 22**0.5).softmax(dim=-1).mean(dim=1)
    expected = [
        exact[:, :first].sum(-1),
        exact[:, first : 31 - last].sum(-1),
        exact[:, 31 - last :].sum(-1),
    ]
    assert shares.dtype == torch.float64 and shares.shape == (3, 3) and seen == [v.shape]
    torch.testing.assert_close(shares, torch.stack(expected, dim=-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("part", [0, 2])
def test_a_head_that_looks_at_one_place_alone_has_shares_a_profile_accepts(part):
    """Rounding must not make the empty middle negative: a profile refuses that, after hours of
    measuring.
    """
    q, k, v = some_heads(heads=50, queries=11, keys=64, dim=32)
    looked_at = slice(0, 8) if part == 0 else slice(56, None)
    k[:, looked_at] += 5 * q.mean(dim=1, keepdim=True)
    q = q + 20 * q.mean(dim=1, keepdim=True)
    shares = end_shares(sdpa, q, k, 8, 8)
    assert shares[:, part].max() > 0.9999
    assert shares.min() >= 0 and (shares.sum(dim=-1) - 1).abs().max() < 1e-6


def test_bf16_shares_sum_to_one():
    """Even attention over 21 frames, where each share by itself is off by up to 0.2 % in
    bfloat16.
    """
    q = torch.zeros(2, 30, 32, dtype=torch.bfloat16)
    k = torch.zeros(2, 210, 32, dtype=torch.bfloat16)
    shares = end_shares(sdpa, q, k, 10, 30)
    torch.testing.assert_close(
        shares, torch.tensor([[1, 17, 3]] * 2).double() / 21, rtol=0, atol=2e-3
    )
    assert (shares.sum(dim=-1) - 1).abs().max() < 1e-6
