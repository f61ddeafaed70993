"""The profiler: what every head looks at, measured while a rollout runs, and what is kept of it.

Shares are numbers in 0-1, float32 on CPU unless a test says otherwise. "Equal" means within 1e-5 where the arithmetic
differs (recorded cases, float64 references) and the same bytes where it must not (merging, resuming).
"""

import functools
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy, RolePolicy
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles import profiler
from headforcing.headforcing_core.head_profiles.profile import bundled_profiles, classify, load_profile, stability
from headforcing.headforcing_core.head_profiles.profile_setup import ProfileSetup
from headforcing.headforcing_core.head_profiles.profiler import (
    ShareMeter,
    measure_prompt,
    pick_part,
    profile_heads,
)
from headforcing.headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.model.attention import explicit, sdpa
from headforcing.headforcing_core.model.attention_shares import with_shares
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.recorded.replay import Case
from headforcing.headforcing_core.rollout.loop import rollout
from headforcing.headforcing_core.rollout.noise import RecordedNoise
from headforcing.headforcing_core.rollout.schedule import SCHEDULES, Schedule
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.headforcing_core.timeline.clock import BlockClock
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint, load_state_dict
from no_float64 import RefuseFloat64
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scripts import script_of
from torch.profiler import ProfilerActivity, profile

# ------------------------------------------------------------------------------------------------- recorded shares


RECORDED = [
    ("subset", "self_forcing_tiny_d32", "window9_sink3"),  # a window of 21 frames slides too late for the subset
    *(
        ("full", name, run)
        for name in ("self_forcing_tiny_d32", "self_forcing_tiny_d128")
        for run in ("window21", "window9_sink3")
    ),
]


def recorded_case(which: str, name: str, repo_root: Path, shared_dir: Path | None) -> Case:
    if which == "full" and (shared_dir is None or not (shared_dir / "golden").is_dir()):
        pytest.skip("the full set (../shared/golden) is not here; only the subset was checked")
    return Case.open((repo_root / "tests" / "golden" if which == "subset" else shared_dir / "golden") / name)


def recorded_rollout(case: Case, model: WanModel, run: str, blocks: int, measured: bool = True):
    """Roll out a recorded window run; yields after each denoising step `(block, step, meter)`."""
    settings = case.run(run)
    sink = settings["sink_frames"]
    policy = CachePolicy.uniform(RolePolicy(sink, settings["window_frames"] - sink - 3), settings["rope"])
    heads = [["memory"] * model.config.num_heads] * model.config.num_layers
    noise = case.tensor("noise")
    shape = CacheShape.for_model(model.config, heads, policy, *noise.shape[-2:], 3, 3 * blocks)
    cache = HeadCache(shape, torch.float32)
    meter = ShareMeter(model.config.num_layers, model.config.num_heads, cache.rope.frame_tokens)
    if measured:
        cache.meter = meter
    schedule = Schedule(tuple(timestep / 1000 for timestep in case.config["schedule"]["timesteps"]))
    seen = []

    def watch(block, step, latents):
        if latents is not None and meter.active:
            seen.append((block, step - 1, meter.shares.clone()))
        meter.active = measured and block >= 2 and step < len(schedule.sigmas)

    source, script = (
        RecordedNoise(noise, case.tensor("renoise")),
        script_of([0] * blocks, schedule, case.prompt_embeds()),
    )
    for _ in rollout(WanVideoModel(model, torch.float32), cache, script, source, on_step=watch):
        pass
    return seen


@pytest.mark.parametrize(("which", "name", "run"), RECORDED, ids=["-".join(recorded) for recorded in RECORDED])
def test_shares_equal_the_recorded_ones(which, name, run, repo_root, shared_dir):
    """For every recorded block, denoising step, layer and head, to 1e-5."""
    case = recorded_case(which, name, repo_root, shared_dir)
    prefix = f"buckets/{run}/block"
    recorded = {int(key.removeprefix(prefix)): case.tensors[key] for key in case.tensors if key.startswith(prefix)}
    assert len(recorded) >= 2 and max(recorded) >= 5
    if run == "window21":
        assert max(recorded) > 7  # the window has slid: the first frame in the cache is not that of the video
    model = case.model()
    seen = recorded_rollout(case, model, run, max(recorded) + 1)
    config = model.config
    for block, expected in recorded.items():
        ours = [(step, shares) for at, step, shares in seen if at == block]
        assert [step for step, _ in ours] == [0, 1, 2, 3]
        shares = torch.stack([shares for _, shares in ours])
        assert shares.shape == expected.shape == (4, config.num_layers, config.num_heads, 3)
        assert (shares - expected).abs().max() < 1e-5
        assert (shares.sum(dim=-1) - 1).abs().max() < 1e-6
        assert expected.std(dim=(1, 2)).max() > 1e-3, "all heads look alike, so agreement means nothing"


@pytest.mark.alone
def test_measuring_costs_less_than_a_quarter_of_the_rollout(repo_root, shared_dir):
    """CPU time of one thread, the least of interleaved repetitions; measuring has the recorded setting's cost."""
    case = recorded_case("subset", "self_forcing_tiny_d32", repo_root, shared_dir)
    model, threads = case.model(), torch.get_num_threads()

    def cpu_seconds(measured: bool) -> float:
        began = time.process_time()
        recorded_rollout(case, model, "window21", 6, measured)
        return time.process_time() - began

    torch.set_num_threads(1)
    try:
        cpu_seconds(True)  # the first call tries the kernels
        plain, measured = [], []
        for _ in range(12):
            plain.append(cpu_seconds(False))
            measured.append(cpu_seconds(True))
            overhead = min(measured) / min(plain) - 1
            if len(plain) >= 4 and overhead < 0.25:
                return
    finally:
        torch.set_num_threads(threads)
    pytest.fail(f"measuring takes {overhead:.0%} more time than the rollout alone")


# ------------------------------------------------------------------------------------------------ one attention call


def some_heads(heads=3, queries=7, keys=31, dim=22, seed=0, dtype=torch.float32):
    """Queries and keys long enough for attention to have an opinion."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(heads, n, dim, generator=generator, dtype=dtype) for n in (queries, keys, keys))
    return 2 * q, k, v


def attention_map(q, k):
    """The definition, in float64: `[heads, queries, keys]`."""
    return (q.double() @ k.double().transpose(1, 2) / q.shape[-1] ** 0.5).softmax(dim=-1)


@pytest.mark.parametrize(("first", "last"), [(5, 7), (1, 29), (29, 1)])
def test_shares_are_sums_over_the_attention_map(first, last):
    q, k, v = some_heads()
    out, shares = with_shares(sdpa, q, k, v, first, last)
    exact = attention_map(q, k).mean(dim=1)
    expected = [exact[:, :first].sum(-1), exact[:, first : 31 - last].sum(-1), exact[:, 31 - last :].sum(-1)]
    assert shares.dtype == torch.float64 and shares.shape == (3, 3)
    torch.testing.assert_close(shares, torch.stack(expected, dim=-1), rtol=0, atol=1e-6)
    torch.testing.assert_close(out, explicit(q, k, v), rtol=0, atol=1e-5)


@pytest.mark.parametrize("part", [0, 2])
def test_a_head_that_looks_at_one_place_alone_has_shares_a_profile_accepts(part):
    """Rounding must not make the empty middle negative: a profile refuses that, after hours of measuring."""
    q, k, v = some_heads(heads=50, queries=11, keys=64, dim=32)
    looked_at = slice(0, 8) if part == 0 else slice(56, None)
    k[:, looked_at] += 5 * q.mean(dim=1, keepdim=True)
    q = q + 20 * q.mean(dim=1, keepdim=True)
    _, shares = with_shares(sdpa, q, k, v, 8, 8)
    assert shares[:, part].max() > 0.9999
    assert shares.min() >= 0 and (shares.sum(dim=-1) - 1).abs().max() < 1e-6


def test_bf16_shares_sum_to_one():
    """Even attention over 21 frames, where each share by itself is off by up to 0.2 % in bfloat16."""
    q, k, v = (torch.zeros(2, n, 32, dtype=torch.bfloat16) for n in (30, 210, 210))
    _, shares = with_shares(sdpa, q, k, v, 10, 30)
    torch.testing.assert_close(shares, torch.tensor([[1, 17, 3]] * 2).double() / 21, rtol=0, atol=2e-3)
    assert (shares.sum(dim=-1) - 1).abs().max() < 1e-6


def test_nothing_is_float64_on_the_device(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    q, k, v = (torch.empty(2, n, 16, device="meta") for n in (6, 24, 24))
    with RefuseFloat64():
        with_shares(sdpa, q, k, v, 3, 6)


def test_shares_come_from_values_as_wide_as_keys():
    """A narrower call would leave the fast kernels."""
    q, k, v = some_heads()
    seen = []

    def spy(q, k, v):
        seen.append(v.shape)
        return sdpa(q, k, v)

    shares = with_shares(spy, q, k, v, 5, 7)[1]
    torch.testing.assert_close(shares[:, 0], attention_map(q, k).mean(dim=1)[:, :5].sum(-1), rtol=0, atol=1e-6)
    assert seen == [v.shape] * 2


# ------------------------------------------------------------------------------------------------------------ memory


def peak_bytes(run) -> int:
    """The most that PyTorch's CPU allocator holds at a time during `run()`, on top of what it held before."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    assert events, "the profiler saw no allocation"
    return max(itertools.accumulate(event.nbytes() for event in events))


HEADS, QUERIES, KEYS, DIM = 2, 600, 6000, 32
OUTPUT, MAP = HEADS * QUERIES * DIM * 4, HEADS * QUERIES * KEYS * 4  # 0.15 MB, 29 MB


def extra_bytes(measure) -> int:
    q, k, v = some_heads(HEADS, QUERIES, KEYS, DIM)
    return peak_bytes(functools.partial(measure, q, k, v)) - peak_bytes(functools.partial(sdpa, q, k, v))


def test_no_attention_map_is_held():
    """From one-hot values: two outputs, and the values themselves, which all heads share, with their indices."""
    allowed = 2 * OUTPUT + 2 * KEYS * DIM * 4 + 8 * HEADS * QUERIES * 8
    assert extra_bytes(lambda q, k, v: with_shares(sdpa, q, k, v, 200, QUERIES)) < allowed < MAP / 10
    assert extra_bytes(explicit) > MAP / HEADS  # the yardstick sees a map


# ----------------------------------------------------------------------------------------- rollouts that are watched


CONFIG = WanConfig(dim=66, ffn_dim=48, freq_dim=32, text_dim=10, text_len=7, num_layers=2, num_heads=3)
WIDTH, HEIGHT = 48, 32  # pixels; 3 x 2 tokens a frame
SETUP = ProfileSetup(
    "ab12cd34", 2, 3, ("one", "two", "three"), 6, (1.0, 0.8, 0.6, 0.3), 3, WIDTH, HEIGHT, window_frames=10, seed=5
)


@pytest.fixture(scope="module")
def small() -> WanModel:
    """A random model whose heads differ in what they look at."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = WanModel(CONFIG).requires_grad_(False)
        for block in model.blocks:
            block.modulation.normal_(0, 0.3)
            block.self_attn.norm_q.weight.uniform_(0.5, 3.0)
            block.self_attn.norm_k.weight.uniform_(0.5, 3.0)
    return model


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


def numbers(shares: HeadShares) -> dict[str, torch.Tensor]:
    return {name: getattr(shares, name) for name in ("sums", "counts")}


def assert_same(a: HeadShares, b: HeadShares) -> None:
    assert a.setup == b.setup
    for name, tensor in numbers(a).items():
        assert torch.equal(tensor, numbers(b)[name]), name


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

    shares.save(tmp_path / "x.safetensors")
    shares.profile("x").save(tmp_path / "x.json")
    assert load_profile(tmp_path / "x.json").queries == shares.profile("x").queries
    loaded = HeadShares.load(tmp_path / "x.safetensors")
    assert loaded.profile("x") == shares.profile("x")
    other = measure(small, prompts=[1])
    other.merge(loaded)
    assert other.profile("x") == measure(small).profile("x"), "the order of merging must not matter"


def test_every_denoising_step_of_every_block_is_measured_once(measured):
    assert measured.counts.shape == (3, 4, 4)  # prompts, blocks 2 to 5, steps
    assert (measured.counts == 1).all() and measured.missing_prompts() == []
    assert (measured.sums.sum(dim=-1) - 1).abs().max() < 1e-6 and measured.sums.min() >= 0
    flat = measured.sums.flatten(0, 2)
    assert (flat[1:] - flat[:-1]).abs().amax(dim=(1, 2, 3)).min() > 1e-4, "two passes gave the same shares"


@pytest.mark.parametrize(("first_block", "blocks"), [(2, 6), (1, 3)])
def test_the_clean_pass_and_the_blocks_before_the_first_are_not_measured(small, monkeypatch, first_block, blocks):
    calls = []

    def counted(attention, q, k, v, first_tokens, last_tokens):
        calls.append((first_tokens, last_tokens, k.shape[1]))
        return with_shares(attention, q, k, v, first_tokens, last_tokens)

    monkeypatch.setattr(profiler, "with_shares", counted)
    setup = replace(SETUP, first_block=first_block, blocks=blocks)
    shares = measure(small, setup, [0])
    keys = [min(10, 3 * (block + 1)) * 6 for block in range(first_block, blocks) for _ in range(4 * 2)]
    assert calls == [(6, 18, n) for n in keys]  # 4 steps x 2 layers a block; the first frame, the current block
    assert shares.counts[0].shape == (blocks - first_block, 4) and (shares.counts[0] == 1).all()


def test_a_longer_first_block_is_rolled_out_as_the_family_has_it(small, tmp_path):
    setup = replace(SETUP, sigmas=(1.0,), first_block_sigmas=(1.0, 0.8, 0.4), blocks=4)
    steps = []
    shares = measure(small, setup, [0], on_step=lambda block, step, x: steps.append(block) if x is not None else None)
    assert steps == [0, 0, 0, 1, 2, 3] and (shares.counts[0] == 1).all()
    shares.save(tmp_path / "x.safetensors")
    assert HeadShares.load(tmp_path / "x.safetensors").setup == setup
    with pytest.raises(HeadForcingError, match="differ in first_block_sigmas"):
        shares.merge(HeadShares(replace(setup, first_block_sigmas=None)))


def test_measuring_does_not_change_the_video(small):
    """The predicted clean latents of every step, within 1e-5."""
    seen: dict[bool, list[torch.Tensor]] = {}
    for first_block in (2, 5):
        steps = seen.setdefault(first_block == 2, [])
        setup = replace(SETUP, first_block=first_block)
        measure(small, setup, [1], on_step=lambda block, step, x, steps=steps: steps.append(x))
    pairs = [(a, b) for a, b in zip(seen[True], seen[False], strict=True) if a is not None]
    assert len(pairs) == 24 and max(float((a - b).abs().max()) for a, b in pairs) < 1e-5


def test_the_rope_the_noise_and_the_prompt_matter(small, measured):
    other = {
        "contiguous": measure(small, replace(SETUP, rope="contiguous"), [0]),
        "seed": measure(small, replace(SETUP, seed=6), [0]),
    }
    for name, shares in other.items():
        assert (shares.mean([0]) - measured.mean([0])).abs().max() > 1e-4, name
    assert (measured.mean([0]) - measured.mean([1])).abs().max() > 1e-4


# ------------------------------------------------------------------------------------------------ stop, and go on


class Stop(Exception):
    pass


def stop_at(block: int, step: int, prompt_starts: int):
    """An `on_step` that raises at that step of the `prompt_starts`-th rollout."""
    starts = []

    def on_step(at_block, at_step, latents):
        if (at_block, latents) == (0, None):
            starts.append(1)
        if len(starts) == prompt_starts and (at_block, at_step) == (block, step):
            raise Stop

    return on_step


@pytest.mark.parametrize(("block", "step"), [(2, 1), (5, 4)])
def test_an_interrupted_measurement_goes_on_to_the_same_numbers(small, measured, tmp_path, block, step):
    file = tmp_path / "shares.safetensors"
    shares = HeadShares(SETUP)
    with pytest.raises(Stop):
        measure(small, into=shares, on_step=stop_at(block, step, 2), on_prompt=lambda prompt: shares.save(file))
    shares.save(file)
    again = HeadShares.load(file)
    missing = [2] if (block, step) == (5, 4) else [1, 2]  # the very last step is all that a prompt needs
    assert again.missing_prompts() == missing
    assert torch.equal(again.sums[0], measured.sums[0])  # what was finished is kept
    begun = []
    measure(small, into=again, on_step=lambda b, s, x: begun.append(1) if (b, x) == (0, None) else None)
    assert len(begun) == len(missing) and again.missing_prompts() == []
    assert_same(again, measured)


def test_a_complete_prompt_is_not_measured_again(small, measured, tmp_path):
    measured.save(tmp_path / "x.safetensors")
    copy = HeadShares.load(tmp_path / "x.safetensors")
    measure(small, into=copy, on_step=stop_at(0, 0, 1), on_prompt=lambda prompt: pytest.fail("measured again"))
    assert_same(copy, measured)


# ------------------------------------------------------------------------------------------------------------- farms


def test_shards_merge_in_any_order_to_the_same_bytes(small, measured):
    parts = [measure(small, prompts=pick_part(3, f"{part}/3")) for part in (1, 2, 3)]
    assert [part.missing_prompts() for part in parts] == [[1, 2], [0, 2], [0, 1]]
    for order in itertools.permutations(parts):
        merged = HeadShares(SETUP)
        for part in order:
            merged.merge(part)
        assert_same(merged, measured)
        assert merged.profile("x") == measured.profile("x")


@pytest.mark.parametrize("parts", [1, 3, 30])
def test_shards_part_the_prompts_evenly(parts):
    for count in range(26):
        shares = [pick_part(count, f"{part}/{parts}") for part in range(1, parts + 1)]
        assert sorted(itertools.chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert pick_part(8, "2/4") == [1, 5]


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1 / 4", "1/99999", "²/4"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(HeadForcingError, match="a shard must look like 2/4"):
        pick_part(8, text)


@pytest.mark.parametrize("changes", [
    {"fingerprint": "ffff"}, {"prompts": ("one", "two", "four")}, {"seed": 6, "rope": "contiguous"},
    {"sigmas": (1.0, 0.8, 0.6, 0.4)}, {"window_frames": 9, "width": 64}, {"first_block": 3},
])  # fmt: skip
def test_measurements_of_different_setups_do_not_merge(measured, changes):
    with pytest.raises(HeadForcingError) as error:
        HeadShares(replace(SETUP, **changes)).merge(measured)
    named = str(error.value).rpartition("differ in ")[2]
    assert sorted(named.split(", ")) == sorted(changes)


# ------------------------------------------------------------------------------------------------------------- files


def test_what_is_saved_comes_back(measured, tmp_path):
    file = tmp_path / "new folder" / "x.safetensors"
    measured.save(file)
    assert_same(HeadShares.load(file), measured)
    assert [path.name for path in file.parent.iterdir()] == ["x.safetensors"]


def damaged(tmp_path: Path, shares: HeadShares, tags=None, setup=None, **tensors) -> Path:
    """A file of shares with other contents in some places."""
    file = tmp_path / "x.safetensors"
    shares.save(file)
    with safe_open(file, "pt") as opened:
        stored = opened.metadata()["head_shares"]
    stored = json.dumps(json.loads(stored) | (setup or {}))
    kept = {name: tensor for name, tensor in (load_file(file) | tensors).items() if tensor is not None}
    save_file(kept, file, metadata={"head_shares": stored} if tags is None else tags)
    return file


DAMAGE = {
    "no metadata": ({"tags": {}}, "is not a file of measured head shares"),
    "metadata that is no JSON": ({"tags": {"head_shares": "{"}}, "is not a file of measured head shares"),
    "metadata that is a list": ({"tags": {"head_shares": "[1]"}}, "is not a file of measured head shares"),
    "a setup without a field": ({"tags": {"head_shares": '{"format_version": 1}'}}, "is not a file of measured"),
    "a newer format": ({"setup": {"format_version": 2}}, "format version 2, this program reads 1"),
    "a newer format with more in it": ({"setup": {"format_version": 2, "x": 1}}, "format version 2, this program"),
    "an impossible setup": ({"setup": {"blocks": 1}}, "measures from block 3 on, but the rollout has only 1"),
    "a setup of other size": ({"setup": {"num_layers": 3}}, "is damaged: its sums do not fit"),
    "one tensor missing": ({"counts": None}, "is not a file of measured head shares"),
    "a wrong shape": ({"counts": torch.ones(3, 4, 3, dtype=torch.float64)}, "is damaged: its counts"),
    "a wrong kind of number": ({"sums": torch.zeros(3, 4, 4, 2, 3, 3, dtype=torch.float16)}, "damaged: its sums"),
    "not a number": ({"sums": torch.full((3, 4, 4, 2, 3, 3), torch.nan, dtype=torch.float64)}, "damaged: its sums"),
    "less than nothing": ({"counts": -torch.ones(3, 4, 4, dtype=torch.float64)}, "is damaged: its counts"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_gives_one_clear_error(measured, tmp_path, name):
    changes, expected = DAMAGE[name]
    with pytest.raises(HeadForcingError, match=expected) as error:
        HeadShares.load(damaged(tmp_path, measured, **changes))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("keep", [0, 7, 5000])
def test_a_file_that_was_cut_short_gives_one_clear_error(measured, tmp_path, keep):
    file = tmp_path / "cut.safetensors"
    measured.save(file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(HeadForcingError, match="cut.safetensors is not a file of measured head shares"):
        HeadShares.load(file)


def test_a_file_that_is_something_else_gives_one_clear_error(tmp_path):
    (tmp_path / "profile.safetensors").write_text('{"format_version": 1}')
    (tmp_path / "folder.safetensors").mkdir()
    for name, complaint in {
        "profile.safetensors": "is not a file of measured head shares",
        "folder.safetensors": "is a folder: choose a file in it",
        "missing.safetensors": "was not found",
    }.items():
        with pytest.raises(HeadForcingError, match=f"{name} {complaint}"):
            HeadShares.load(tmp_path / name)


# ---------------------------------------------------------------------------------------------------------- averages


def handmade(prompts=2, blocks=2, steps=2) -> HeadShares:
    names = tuple(f"prompt {i}" for i in range(prompts))
    sigmas = (1.0, 0.8, 0.6, 0.3)[:steps]
    setup = ProfileSetup("00", 1, 1, names, blocks + 2, sigmas, 3, WIDTH, HEIGHT, window_frames=10)
    return HeadShares(setup)


def add(shares: HeadShares, prompt: int, block: int, step: int, sink: float) -> None:
    shares.add(prompt, block + 2, step, torch.tensor([[[sink, 0.5, 0.5 - sink]]], dtype=torch.float64))


def test_steps_are_averaged_first_then_blocks_then_prompts():
    """What is missing has no weight, and what is measured more often has no more than one."""
    shares = handmade()
    add(shares, 0, 0, 0, 0.1)
    add(shares, 0, 0, 1, 0.3)  # block 0: 0.2
    add(shares, 0, 1, 0, 0.4)  # block 1: 0.4, so prompt 0: 0.3
    add(shares, 1, 1, 1, 0.2)
    add(shares, 1, 1, 1, 0.0)  # the same cell twice: 0.1
    add(shares, 1, 1, 0, 0.4)  # prompt 1: 0.25
    assert shares.mean()[0, 0].tolist() == pytest.approx([0.275, 0.5, 0.225])
    assert shares.mean(prompts=[0])[0, 0, 0] == pytest.approx(0.3)
    assert shares.mean(blocks=[1])[0, 0, 0] == pytest.approx((0.4 + 0.25) / 2)
    assert shares.mean(steps=[0])[0, 0, 0] == pytest.approx(((0.1 + 0.4) / 2 + 0.4) / 2)
    assert shares.mean(blocks=[0], steps=[1])[0, 0, 0] == pytest.approx(0.3)


def test_nothing_measured_is_an_error_and_not_a_division():
    shares = handmade()
    for chosen in ({}, {"prompts": [1]}):
        with pytest.raises(HeadForcingError, match="nothing has been measured yet"):
            shares.mean(**chosen)
    with pytest.raises(HeadForcingError, match="nothing has been measured yet"):
        shares.profile("x")
    assert shares.stability() == {}


def test_stability_holds_two_conditions_fixed_and_varies_the_third():
    """Two heads, one of them the anchor (half of two), none local: which one, by prompt, block and step.

    Prompts 0 and 2 are of one mind, prompt 1 of the other: of the anchor's runs no head is common to all three. Over
    blocks and steps (of the first prompt) the same head stays.
    """
    names = ("a", "b", "c", "d")
    setup = ProfileSetup("00", 1, 4, names, 5, (1.0, 0.8, 0.6, 0.3), 3, WIDTH, HEIGHT, window_frames=10)
    shares = HeadShares(setup)
    for prompt, block, step in itertools.product(range(3), range(2, 5), range(4)):
        anchor = 1 if prompt == 1 else 3 if step == 0 else 0
        rows = [(0.5, 0.4, 0.1) if head == anchor else (0.1, 0.8 - head / 10, 0.1 + head / 10) for head in range(4)]
        shares.add(prompt, block, step, torch.tensor([rows], dtype=torch.float64))
    assert shares.missing_prompts() == [3]  # left out of everything
    found = shares.stability()
    assert set(found) == {"blocks", "steps", "prompts"}
    assert found["blocks"] == {"local": 1.0, "anchor": 1.0, "memory": 1.0, "mean": 1.0}
    by_step = [["memory", "memory", "local", "anchor"]] + [["anchor", "memory", "memory", "local"]] * 3
    assert found["steps"] == stability([[row] for row in by_step])
    by_prompt = [["anchor", "memory", "memory", "local"], ["memory", "anchor", "memory", "local"]]
    assert found["prompts"] == stability([[row] for row in (*by_prompt, by_prompt[0])])
    assert found["prompts"]["anchor"] == 0 and found["steps"]["anchor"] == 0 and found["steps"]["memory"] == 0.5


def test_at_most_four_evenly_spaced_conditions_are_compared():
    """Of seven blocks the first, third, fifth and last: 0, 2, 4, 6. The others may disagree as they like."""
    setup = ProfileSetup("00", 1, 4, ("a",), 9, (1.0, 0.5), 3, WIDTH, HEIGHT, window_frames=10)
    shares = HeadShares(setup)
    for block, step in itertools.product(range(7), range(2)):
        anchor = block % 2
        rows = [(0.5, 0.4, 0.1) if head == anchor else (0.1, 0.8 - head / 10, 0.1 + head / 10) for head in range(4)]
        shares.add(0, block + 2, step, torch.tensor([rows], dtype=torch.float64))
    assert shares.stability()["blocks"]["mean"] == 1.0
    assert "prompts" not in shares.stability()  # one prompt cannot be compared


def test_a_measured_profile_has_the_right_numbers_of_heads_and_says_how_it_was_measured(measured):
    made = measured.profile("mine", {"source": "test"})
    assert made.counts() == {"local": 1, "anchor": 2, "memory": 3}  # 6 heads: 1.2 and 1.5, halves round up
    assert made.roles == classify(made.shares)
    torch.testing.assert_close(torch.tensor(made.shares).double(), measured.mean(), rtol=0, atol=1e-7)
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
    assert measured.profile("mine", {}, 0.5, 0.5).counts() == {"local": 3, "anchor": 3, "memory": 0}
    lines = measured.describe(made)
    assert lines[0] == "1 local, 2 anchor, 3 memory" and len(lines) == 4


def test_a_profile_of_part_of_the_prompts_says_how_many_there_were(small):
    part = measure(small, replace(SETUP, blocks=3), [1])
    made = part.profile("part")
    assert made.measured["prompts"] == 1
    assert part.describe(made)[-1] == "2 of 3 prompts are not measured yet"


def test_the_hash_of_prompts_depends_on_their_words_and_order():
    hashes = {replace(SETUP, prompts=names).prompts_hash for names in (("a", "b"), ("b", "a"), ("a",), ("a", "c"))}
    assert len(hashes) == 4 and replace(SETUP, seed=1).prompts_hash == SETUP.prompts_hash


# ---------------------------------------------------------------------------------------------- presets and prompts


def test_twenty_different_prompts_come_with_the_pack():
    assert len(PROFILING_PROMPTS) == len(set(PROFILING_PROMPTS)) == 20
    subjects = {" ".join(prompt.split()[:3]) for prompt in PROFILING_PROMPTS}
    assert len(subjects) == 20
    for prompt in PROFILING_PROMPTS:
        assert "\n" not in prompt and 60 < len(prompt) < 200
    assert len(set(word_hash.sample_prompts(20))) == 20
    assert not any(word_hash.check_prompt(prompt) for prompt in word_hash.sample_prompts(20))


def demo_profile(prompts: int, seconds: float):
    info = inspect_checkpoint(assets.model_path())
    model = WanModel.from_state_dict(info.config, load_state_dict(assets.model_path())[0], torch.float32)
    family, texts = SCHEDULES["self_forcing"], word_hash.sample_prompts(prompts)
    blocks = BlockClock(3).blocks_for(seconds)
    setup = ProfileSetup(info.fingerprint, 8, 6, texts, blocks, family.sigmas, 3, 64, 64)
    shares = HeadShares(setup)
    embeds = {number: word_hash.encode(text) for number, text in enumerate(texts)}
    profile_heads(WanVideoModel(model, torch.float32), info.config, shares, embeds, dtype=torch.float32)
    return shares.profile("demo")


@pytest.mark.slow
def test_a_quick_and_a_longer_measurement_of_the_demo_model_agree():
    """With the shipped profile at least 28 of 48 roles (chance is 19): its 30 s leave the range of training."""
    quick, longer = demo_profile(2, 8.0), demo_profile(4, 10.0)
    shipped = load_profile(bundled_profiles()["toy_world"])
    assert quick.counts() == longer.counts() == shipped.counts() == {"local": 10, "anchor": 12, "memory": 26}
    roles = [[role for layer in one.roles for role in layer] for one in (quick, longer, shipped)]
    agree = [sum(x == y for x, y in zip(a, b, strict=True)) for a, b in itertools.combinations(roles, 2)]
    assert agree[0] >= 44 and min(agree) >= 28, agree


def test_a_prompt_is_measured_with_noise_of_its_own(small):
    """Two prompts with the same words still differ: each is a video of its own."""
    setup = replace(SETUP, prompts=("same", "same"), blocks=3)
    shares = HeadShares(setup)
    model, same = WanVideoModel(small, torch.float32), embeds_of([0])[0]
    for prompt in range(2):
        measure_prompt(model, CONFIG, shares, prompt, same, dtype=torch.float32)
    assert (shares.mean([0]) - shares.mean([1])).abs().max() > 1e-4
