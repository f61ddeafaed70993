"""The profiler: what every head looks at, measured while a rollout runs, and what is kept of it.

"Equal" means within 1e-5 where the arithmetic differs (recorded cases, float64 references) and the same bytes where it
must not (merging, resuming).
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy, RolePolicy
from headforcing.headforcing_core.head_profiles import profiler
from headforcing.headforcing_core.head_profiles.profile import load_profile
from headforcing.headforcing_core.head_profiles.profiler import ShareMeter, pick_part, profile_heads
from headforcing.headforcing_core.head_profiles.shares import HeadShares, ProfileSetup
from headforcing.headforcing_core.model.attention import with_shares
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.recorded.replay import Case, read_run
from headforcing.headforcing_core.rollout.loop import WanVideoModel, rollout
from headforcing.headforcing_core.rollout.rows import RecordedNoise
from headforcing.headforcing_core.rollout.schedule import Schedule
from scripts import script_of
from small_engine import wan

RECORDED = [  # a window of 21 frames slides too late for the subset
    ("subset", "self_forcing_tiny_d32", "window9_sink3"),
    ("full", "self_forcing_tiny_d32", "window21"),
    ("full", "self_forcing_tiny_d128", "window21"),
    ("full", "self_forcing_tiny_d128", "window9_sink3"),
]


def recorded_rollout(case: Case, model: WanModel, run: str, blocks: int):
    """Roll out a recorded window run; the `(block, step, shares)` of every measured denoising step."""
    settings = case.run(run)
    sink = settings["sink_frames"]
    policy = CachePolicy.uniform(RolePolicy(sink, settings["window_frames"] - sink - 3), settings["rope"])
    heads = [["memory"] * model.config.num_heads] * model.config.num_layers
    noise = case.tensors["noise"]
    shape = CacheShape.for_model(model.config, heads, policy, *noise.shape[-2:], 3, 3 * blocks)
    cache = HeadCache(shape, torch.float32)
    cache.meter = meter = ShareMeter(model.config.num_layers, model.config.num_heads, cache.rope.frame_tokens)
    schedule = Schedule(tuple(timestep / 1000 for timestep in case.config["schedule"]["timesteps"]))
    seen = []

    def watch(block, step, latents):
        if latents is not None and meter.active:
            seen.append((block, step - 1, meter.shares.clone()))
        meter.active = block >= 2 and step < len(schedule.sigmas)

    source = RecordedNoise(noise, case.tensors["renoise"])
    script = script_of([0] * blocks, schedule, read_run(case, run).embeds)
    for _ in rollout(WanVideoModel(model, torch.float32), cache, script, source, on_step=watch):
        pass
    return seen


@pytest.mark.parametrize(("which", "name", "run"), RECORDED, ids=["-".join(recorded) for recorded in RECORDED])
def test_shares_equal_the_recorded_ones(which, name, run, repo_root, shared_dir):
    """For every recorded block, denoising step, layer and head, to 1e-5."""
    if which == "full" and (shared_dir is None or not (shared_dir / "golden").is_dir()):
        pytest.skip("the full set (../shared/golden) is not here; only the subset was checked")
    case = Case.open((repo_root / "tests" / "golden" if which == "subset" else shared_dir / "golden") / name)
    prefix = f"buckets/{run}/block"
    recorded = {int(key.removeprefix(prefix)): case.tensors[key] for key in case.tensors if key.startswith(prefix)}
    assert len(recorded) >= 2 and max(recorded) >= 5
    model = case.model()
    seen = recorded_rollout(case, model, run, max(recorded) + 1)
    for block, expected in recorded.items():
        ours = [(step, shares) for at, step, shares in seen if at == block]
        assert [step for step, _ in ours] == [0, 1, 2, 3]
        shares = torch.stack([shares for _, shares in ours])
        assert (shares - expected).abs().max() < 1e-5
        assert expected.std(dim=(1, 2)).max() > 1e-3, "all heads look alike, so agreement means nothing"


CONFIG = WanConfig(dim=66, ffn_dim=48, freq_dim=32, text_dim=10, text_len=7, num_layers=2, num_heads=3)
WIDTH, HEIGHT = 48, 32  # pixels; 3 x 2 tokens a frame
SETUP = ProfileSetup(
    "ab12cd34", 2, 3, ("one", "two", "three"), 6, (1.0, 0.8, 0.6, 0.3), 3, WIDTH, HEIGHT, window_frames=10, seed=5
)


@pytest.fixture(scope="module")
def small() -> WanModel:
    return wan(2, 3, norms=(0.5, 3.0))


def embeds_of(prompts: Sequence[int]) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    embeds = [torch.randn(4 + i % 3, 10, generator=generator) for i in range(3)]
    return {prompt: embeds[prompt] for prompt in prompts}


def measure(model: WanModel, setup: ProfileSetup = SETUP, prompts=None, into=None, **options) -> HeadShares:
    shares = into or HeadShares(setup)
    chosen = embeds_of(range(len(setup.prompts)) if prompts is None else prompts)
    profile_heads(WanVideoModel(model, torch.float32), CONFIG, shares, chosen, dtype=torch.float32, **options)
    return shares


@pytest.fixture(scope="module")
def measured(small) -> HeadShares:
    return measure(small)


def assert_same(a: HeadShares, b: HeadShares) -> None:
    assert a.setup == b.setup
    for name in ("sums", "counts", "query_sums"):
        assert torch.equal(vars(a)[name], vars(b)[name]), name


def test_the_same_passes_give_the_statistics_of_the_queries(small, monkeypatch, tmp_path):
    """Queries with their spatial and without their temporal rotation, averaged over steps and blocks, then prompts."""
    seen = []  # per pass and layer, the queries before any rotation
    attend = HeadCache.attend

    def watched(cache, layer, q):
        if cache.meter.active:
            seen.append(cache.rope.rotate_spatial(q.unflatten(0, (3, -1)).permute(2, 0, 1, 3)).flatten(1, 2))
        return attend(cache, layer, q)

    monkeypatch.setattr(HeadCache, "attend", watched)
    shares = measure(small, prompts=[0, 2])
    q = torch.stack(seen).unflatten(0, (2, -1, 2)).double()  # prompts, passes, layers, heads, queries, channels
    mean = q.unflatten(-1, (-1, 2)).mean(dim=(1, 4)).mean(dim=0)
    size = q.unflatten(-1, (-1, 2)).norm(dim=-1).mean(dim=(1, 4)).mean(dim=0)
    statistics = shares.profile("x").query_statistics
    torch.testing.assert_close(torch.view_as_real(statistics.mean).double(), mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(statistics.size.double(), size, rtol=1e-3, atol=1e-3)

    shares.profile("x").save(tmp_path / "x.json")
    assert load_profile(tmp_path / "x.json").queries == shares.profile("x").queries


@pytest.mark.parametrize(("first_block", "blocks"), [(2, 6), (1, 3)])
def test_every_denoising_step_is_measured_once_and_neither_the_clean_pass_nor_the_blocks_before_the_first(
    small, monkeypatch, first_block, blocks
):
    calls = []

    def counted(attention, q, k, v, first_tokens, last_tokens):
        calls.append((first_tokens, last_tokens, k.shape[1]))
        return with_shares(attention, q, k, v, first_tokens, last_tokens)

    monkeypatch.setattr(profiler, "with_shares", counted)
    shares = measure(small, replace(SETUP, first_block=first_block, blocks=blocks), [0])
    keys = [min(10, 3 * (block + 1)) * 6 for block in range(first_block, blocks) for _ in range(4 * 2)]
    assert calls == [(6, 18, n) for n in keys]  # 4 steps x 2 layers a block; the first frame, the current block
    assert shares.counts[0].shape == (blocks - first_block, 4) and (shares.counts[0] == 1).all()
    flat = shares.sums[0].flatten(0, 1)
    assert (flat.sum(dim=-1) - 1).abs().max() < 1e-6 and flat.min() >= 0
    assert (flat[1:] - flat[:-1]).abs().amax(dim=(1, 2)).min() > 1e-4, "two passes gave the same shares"


def test_a_longer_first_block_is_rolled_out_as_the_family_has_it_and_rope_noise_and_prompt_matter(small, measured):
    setup = replace(SETUP, sigmas=(1.0,), first_block_sigmas=(1.0, 0.8, 0.4), blocks=4)
    steps = []
    shares = measure(small, setup, [0], on_step=lambda block, step, x: steps.append(block) if x is not None else None)
    assert steps == [0, 0, 0, 1, 2, 3] and (shares.counts[0] == 1).all()
    same = HeadShares(replace(SETUP, prompts=("same", "same", "same")))  # each is a video of its own, with its noise
    embeds = dict.fromkeys(range(2), embeds_of([0])[0])
    profile_heads(WanVideoModel(small, torch.float32), CONFIG, same, embeds, dtype=torch.float32)
    first = measured.mean([0])
    assert torch.equal(same.mean([0]), first)
    others = [measure(small, replace(SETUP, rope="contiguous"), [0]), measure(small, replace(SETUP, seed=6), [0])]
    for shares in (*(other.mean() for other in others), measured.mean([1]), same.mean([1])):
        assert (shares - first).abs().max() > 1e-4


def test_shards_merge_in_any_order_to_the_same_bytes(small, measured):
    parts = [measure(small, prompts=pick_part(3, f"{part}/3")) for part in (1, 2, 3)]
    assert [part.missing_prompts() for part in parts] == [[1, 2], [0, 2], [0, 1]]
    measure(small, prompts=[1], into=parts[1], on_prompt=lambda prompt: pytest.fail("measured again"))
    assert parts[1].describe(parts[1].profile("part"))[-1] == "2 of 3 prompts are not measured yet"
    for order in itertools.permutations(parts):
        merged = HeadShares(SETUP)
        for part in order:
            merged.merge(part)
        assert_same(merged, measured)
        assert merged.profile("x") == measured.profile("x")
