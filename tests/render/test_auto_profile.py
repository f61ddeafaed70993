"""Roles found in the first seconds of a video: what is made, what the caches hold afterwards, and
what is kept.

Random model, float32 on CPU. Keys and values after the switch equal, to 1e-5, those of caches that
had the roles from the start.
"""

from dataclasses import replace

import pytest
import small_engine
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.roles import EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import (
    AutoProfile,
    AutoProfileCache,
    load_found_profile,
    store_found_profile,
    warm_up_frames,
    warm_up_shape,
)
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, classify
from headforcing.headforcing_core.head_profiles.profiler import profile_heads
from headforcing.headforcing_core.head_profiles.shares import HeadShares, ProfileSetup
from headforcing.headforcing_core.methods.head_forcing import CachePolicy, preset
from headforcing.headforcing_core.model.wan import PromptKV, WanConfig, WanModel
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.settings import RenderSettings
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.schedule import Schedule, schedule
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from small_engine import HEIGHT, SELF_FORCING, WIDTH, embeds

SIGMAS = (1.0, 0.8, 0.4)
CONFIG = WanConfig(
    dim=110, ffn_dim=48, freq_dim=32, text_dim=10, text_len=7, num_layers=3, num_heads=5
)
# a candidate after every block, all admitted: memory overflows within the warm-up
BUSY = CachePolicy(
    memory=RolePolicy(recent_frames=3, episodic_frames=3),
    episodic=EpisodicPolicy(novelty_threshold=2.0, update_interval=1),
)


@pytest.fixture(scope="module")
def model() -> WanModel:
    return small_engine.wan(layers=3, heads=5, norms=(0.5, 2.5))


def shape_of(policy: CachePolicy, frames: int, f: int = 3) -> CacheShape:
    roles = AutoProfile().expected_roles(CONFIG.num_layers, CONFIG.num_heads)
    return CacheShape.for_model(CONFIG, roles, policy, HEIGHT, WIDTH, f, frames)


def film(model, cache, blocks, f=3, prompts=None, **options):
    """The finished blocks; the prompt changes with block 4."""
    prompts = prompts or [int(block >= 4) for block in range(blocks)]
    return small_engine.film(
        model, cache, blocks, schedule=Schedule(SIGMAS, f), prompts=prompts, **options
    )


def latents(blocks) -> torch.Tensor:
    return torch.cat([block.latents for block in blocks])


class Recording(HeadCache):
    """Plain Self Forcing that notes, per block, the last keys and values written to every layer,
    and the prompt.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.written: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = []
        self.given: list[PromptKV] = []

    def begin_block(self):
        self.written.append({})
        super().begin_block()

    def write(self, layer, k, v, q=None, norms=None):
        self.written[-1][layer] = k.clone(), v.clone()
        return super().write(layer, k, v, q, norms)

    def commit(self, prompt):
        self.given.append(prompt)
        return super().commit(prompt)


def plain(model, frames, f=3, **options):
    cache = Recording(replace(shape_of(SELF_FORCING, frames, f)), torch.float32)
    return cache, film(model, cache, frames // f, f, **options)


def fed(shape: CacheShape, recorded: Recording):
    """Caches with these roles, given the recorded blocks one after another, and what their memory
    did.
    """
    cache = HeadCache(shape, torch.float32)
    events = []
    for block, prompt in zip(recorded.written, recorded.given, strict=True):
        cache.begin_block()
        for layer, (k, v) in block.items():
            cache.write(layer, k, v)
        events.append(cache.commit(prompt))
    return cache, [event for event in events if event is not None]


def assert_same_contents(ours: HeadCache, theirs: HeadCache) -> None:
    assert len(ours.groups) == len(theirs.groups) and ours.block == theirs.block
    for a, b in zip(ours.groups, theirs.groups, strict=True):
        assert a.policy == b.policy and a.frames > 0
        assert (a.sources, a.indices, a.entries) == (b.sources, b.indices, b.entries)
        assert [heads.tolist() for heads in a.heads] == [heads.tolist() for heads in b.heads]
        back = [-index for index in a.indices]
        for layer in range(CONFIG.num_layers):
            keys = [
                ours.rope.rotate_temporal(group.k[layer][:, : group.frames], back)
                for group in (a, b)
            ]
            torch.testing.assert_close(*keys, rtol=0, atol=1e-5)
            values = [group.v[layer][:, : group.frames] for group in (a, b)]
            torch.testing.assert_close(*values, rtol=0, atol=1e-5)
    assert (
        ours.memory.sources == theirs.memory.sources
        and ours.memory.has_summary == theirs.memory.has_summary
    )
    for entry, other in zip(ours.memory.entries, theirs.memory.entries, strict=True):
        torch.testing.assert_close(entry.pooled, other.pooled, rtol=0, atol=1e-5)


def facts(events):
    return [
        (event.after_block, event.frame, event.admitted, event.merged, event.dropped)
        for event in events
    ]


@pytest.mark.parametrize("frames", [18, 30])
def test_the_first_21_frames_are_plain_self_forcing_and_a_shorter_video_ends_without_roles(
    model, frames
):
    """Within 1e-6: the same attention, once measured. Later frames differ: the heads see less."""
    cache = AutoProfileCache(shape_of(CachePolicy(), frames), AutoProfile(), torch.float32)
    auto = latents(film(model, cache, frames // 3))
    expected = latents(plain(model, frames)[1])
    assert (auto[:21] - expected[:21]).abs().max() < 1e-6
    if frames < 21:
        assert cache.profile is None and cache.earlier_events == []
    else:
        assert cache.profile.counts() == {"local": 3, "anchor": 4, "memory": 8}
        assert (auto[21:24] - expected[21:24]).abs().max() > 1e-3 and auto.isfinite().all()


CASES = {
    "paper": (CachePolicy(), 3, 0),
    "overflow": (BUSY, 3, 0),
    "overflow, random tokens": (
        replace(BUSY, episodic=replace(BUSY.episodic, token_selection="random")),
        3,
        0,
    ),
    "absolute positions": (replace(BUSY, rope="absolute"), 3, 0),
    "framewise": (BUSY, 1, 0),
    "after start frames": (BUSY, 3, 6),
    "after as many start frames as there can be": (CachePolicy(), 3, 18),
}


@pytest.mark.parametrize("case", CASES)
def test_the_caches_hold_what_they_would_had_the_roles_been_known_from_the_start(model, case):
    policy, f, given = CASES[case]
    generator = torch.Generator().manual_seed(9)
    start = torch.randn(given, 16, HEIGHT, WIDTH, generator=generator) if given else None
    auto = AutoProfileCache(shape_of(policy, 60, f), AutoProfile(), torch.float32)
    made = film(model, auto, 21 // f, f, start=start)
    assert auto._passes == (21 // f - max(2, given // f)) * len(SIGMAS), (
        "neither given blocks nor clean passes"
    )
    recorded, _ = plain(model, 21, f, start=start)
    roles = auto.profile.roles
    assert {role for layer in roles for role in layer} == {"local", "anchor", "memory"}

    expected, events = fed(replace(shape_of(policy, 60, f), roles=roles), recorded)
    assert_same_contents(auto, expected)
    last = [made[-1].event] if made[-1].event is not None else []
    assert facts(auto.earlier_events + last) == facts(events)
    if policy is BUSY:
        assert any(event.merged for event in events), (
            "memory never overflowed, so merging was not compared"
        )
    assert auto.bytes == expected.bytes


def test_the_roles_are_those_of_a_measurement_of_the_same_passes(model):
    auto = AutoProfileCache(shape_of(CachePolicy(), 60), AutoProfile(0.4, 0.2), torch.float32)
    film(model, auto, 7, prompts=[0] * 7)
    size = WIDTH * 8, HEIGHT * 8
    setup = ProfileSetup(
        "00", 3, 5, ("one",), 7, SIGMAS, 3, *size, sink_frames=0, window_frames=21, seed=3
    )
    offline = HeadShares(setup)
    profile_heads(
        WanVideoModel(model, torch.float32),
        CONFIG,
        offline,
        {0: embeds(model)[0]},
        dtype=torch.float32,
    )
    torch.testing.assert_close(
        torch.tensor(auto.profile.shares).double(), offline.mean(), rtol=0, atol=1e-6
    )
    assert auto.profile.roles == classify(offline.mean().tolist(), 0.4, 0.2)
    assert (auto.profile.anchor_fraction, auto.profile.local_fraction) == (0.4, 0.2)
    assert auto.profile.measured["window_frames"] == 21


def plan(profile=None, seconds=20.0, start_frames=0, family="self_forcing", **options):
    told = CONFIG, preset("head_forcing"), schedule(family), parse_timeline("a video")
    settings = RenderSettings(width=48, height=32, seconds=seconds, **options)
    return RenderPlan.make(*told, settings, profile, start_frames)


def test_the_caches_never_hold_more_than_the_plan_says(model):
    made = plan(profile=AutoProfile(), seconds=117 / 16)  # 30 latent frames
    cache = made.make_cache(torch.float32, "cpu")
    held = []
    film(model, cache, 10, on_step=lambda *_: held.append(cache.bytes))
    assert max(held) <= made.cache_bytes(torch.float32)
    assert (
        held[0]
        == warm_up_shape(made.shape).bytes(torch.float32)
        > made.shape.bytes(torch.float32)
        == cache.bytes
    )


@pytest.mark.parametrize(
    ("family", "most"), [("self_forcing", 18), ("causal_forcing_framewise", 20)]
)
def test_what_leaves_nothing_to_measure_or_needs_known_roles_is_refused(family, most):
    step = schedule(family).frames_per_block
    assert warm_up_frames(step) == 21 and warm_up_frames(64) == 192, "at least one measured block"
    assert plan(profile=AutoProfile(), start_frames=most, family=family).auto is not None
    with pytest.raises(
        HeadForcingError, match=f"at most {most} start frames, got {most + step}; load or measure"
    ):
        plan(profile=AutoProfile(), start_frames=most + step, family=family)
    with pytest.raises(
        HeadForcingError, match="roles = 'shuffled' rearranges a head profile; load one instead"
    ):
        plan(profile=AutoProfile(), roles="shuffled")
    with pytest.raises(HeadForcingError, match="_fraction must be a number in 0-1"):
        plan(profile=AutoProfile(float("nan"), 0.2))
    profile = HeadProfile("mine", 3, 5, AutoProfile().expected_roles(3, 5))
    assert plan(profile=profile, start_frames=most + step, family=family).auto is None


def test_a_found_profile_is_there_in_the_next_run_also_for_other_thresholds(
    model, tmp_path, caplog
):
    cache = AutoProfileCache(shape_of(CachePolicy(), 21), AutoProfile(), torch.float32)
    film(model, cache, 7)
    found = cache.profile
    folder = tmp_path / "not there yet"
    assert load_found_profile(folder, "0123abcd", AutoProfile()) is None
    path = store_found_profile(folder, "0123abcd", found)
    again, other = (
        load_found_profile(folder, "0123abcd", auto)
        for auto in (AutoProfile(), AutoProfile(0.6, 0.0))
    )
    assert (again.roles, again.shares) == (found.roles, found.shares)
    assert again.measured == {**found.measured, "fingerprint": "0123abcd"}
    assert load_found_profile(folder, "0123abce", AutoProfile()) is None
    assert other.counts() == {"local": 0, "anchor": 9, "memory": 6} and other.shares == found.shares
    path.write_text(path.read_text()[:200])
    assert (
        load_found_profile(folder, "0123abcd", AutoProfile()) is None and path.name in caplog.text
    ), "damaged"
