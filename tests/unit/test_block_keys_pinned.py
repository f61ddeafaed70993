"""The keys of stored blocks, pinned. A render reuses a stored block only under the key that it was stored with."""

import pytest
import torch
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.methods.registry import method_policy, method_schedule
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.block_keys import setup_hash, video_keys
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.timeline.timeline import parse_timeline

CONFIG = WanConfig(dim=96, ffn_dim=128, num_layers=3, num_heads=3, freq_dim=32, text_dim=8, text_len=4)
PROFILE = HeadProfile(
    "a test", 3, 3, (("memory", "anchor", "local"), ("anchor", "memory", "memory"), ("local", "memory", "anchor"))
)
ONE, TWO = "0:00 a red ball", "0:00 a red ball\n0:06 a yellow ring"

# Computed before the methods got one interface. A change of one of these makes stored runs of that kind unusable: they
# are rendered anew. Say so in the changelog.
PINNED = [
    ("head_forcing", ONE, {}, "86f193a3e66c6c68"),
    ("head_forcing", "0:00 a red ball\n0:06 [recache] a yellow ring", {}, "1dfa63ee6ee4616c"),
    ("head_forcing", "0:00 a red ball\n0:06 [flush, re-anchor] a yellow ring", {}, "c91e3dcb186bb9d1"),
    ("head_forcing", "0:00 a red ball\n0:06 [blend 2] a yellow ring", {}, "8bab13036dbd9bcd"),
    ("head_forcing", ONE, {"profile": AutoProfile()}, "edd189a2cc350970"),
    ("head_forcing", TWO, {"start_frames": 6}, "3405c4417e78ce58"),
    ("no_episodic_memory", ONE, {"roles": "shuffled"}, "937770894bb1dd51"),
    ("self_forcing_window_21", TWO, {}, "a57391fa34b05893"),
    ("longlive", TWO, {"start_frames": 6}, "209f7fc14fcf6325"),
    ("infinity_rope", "0:00 a red ball\n0:06 [re-anchor] a yellow ring", {}, "170dfbdfa664b437"),
    ("deep_forcing", ONE, {}, "5a25d5a384adcf76"),
    ("forcing_kv", TWO, {}, "be6277b7c02d86ab"),
    ("dummy_forcing", ONE, {}, "5839796460ff7f62"),
    ("memflow", TWO, {}, "70100bdfee44de17"),
    ("rolling_forcing", TWO, {}, "d961334737b6b435"),
    ("causvid", TWO, {}, "1aa02b38026adba4"),
]


@pytest.mark.parametrize(("method", "text", "options", "last"), PINNED)
def test_the_key_of_the_last_block_is_the_one_that_stored_runs_have(method, text, options, last):
    assert last_key(method, text, **options) == last


def last_key(method: str, text: str, profile=PROFILE, start_frames: int = 0, roles: str = "profile") -> str:
    policy = method_policy(method)
    plan = RenderPlan.make(
        CONFIG,
        policy,
        method_schedule(policy, "self_forcing"),
        parse_timeline(text),
        96,
        64,
        9.0,
        profile,
        start_frames=start_frames,
        roles=roles,
        seed=3,
    )
    start = torch.full((start_frames, 16, 8, 12), 0.25) if start_frames else None
    embeds = plan.embeddings([torch.full((4, 8), 0.5 + i) for i in range(len(plan.timeline.segments))])
    setup = setup_hash(plan, "0123456789abcdef", 3, 0, torch.bfloat16, start)
    return video_keys(plan, setup, embeds, "an autoencoder")[-1][:16]
