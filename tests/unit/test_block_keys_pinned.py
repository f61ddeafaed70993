"""The keys of stored blocks, pinned. A render reuses a stored block only under the key that it was stored with."""

from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.methods.registry import method_policy, method_schedule
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.timeline.timeline import parse_timeline

CONFIG = WanConfig(dim=96, ffn_dim=128, num_layers=3, num_heads=3, freq_dim=32, text_dim=8, text_len=4)
PROFILE = HeadProfile(
    "a test", 3, 3, (("memory", "anchor", "local"), ("anchor", "memory", "memory"), ("local", "memory", "anchor"))
)
ONE, TWO = "0:00 a red ball", "0:00 a red ball\n0:06 a yellow ring"

# A change of one of these makes stored runs of that kind unusable: they
# are rendered anew. Say so in the changelog.
PINNED = [
    ("head_forcing", ONE, {}, "7585c13ab72aa791"),
    ("head_forcing", "0:00 a red ball\n0:06 [recache] a yellow ring", {}, "6c8cab1e04ba2427"),
    ("head_forcing", "0:00 a red ball\n0:06 [flush, re-anchor] a yellow ring", {}, "bc20518854feda09"),
    ("head_forcing", "0:00 a red ball\n0:06 [blend 2] a yellow ring", {}, "afecddaaedea7916"),
    ("head_forcing", ONE, {"profile": AutoProfile()}, "f71301a6e3ad9d6e"),
    ("head_forcing", TWO, {"start_frames": 6}, "9ac05e9f0282795d"),
    ("no_episodic_memory", ONE, {"roles": "shuffled"}, "d1899e2c6a3e4d04"),
    ("self_forcing_window_21", TWO, {}, "d0a8adde5d2a2756"), ("longlive", TWO, {"start_frames": 6}, "a604aae95d0e7be5"),
    ("infinity_rope", "0:00 a red ball\n0:06 [re-anchor] a yellow ring", {}, "14c5f22c9549bf47"),
    ("deep_forcing", ONE, {}, "f17f0cf16115efae"), ("forcing_kv", TWO, {}, "2d952450b616a083"),
    ("dummy_forcing", ONE, {}, "e6bdfb1d08ed66d2"), ("memflow", TWO, {}, "af39e6587ff1597a"),
    ("rolling_forcing", TWO, {}, "1f351ea9d2d98dec"), ("causvid", TWO, {}, "5d3dcbafefd28789"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "text", "options", "last"), PINNED)
def test_the_key_of_the_last_block_is_the_one_that_stored_runs_have(method, text, options, last):
    assert last_key(method, text, **options) == last


def last_key(method: str, text: str, profile=PROFILE, start_frames: int = 0, roles: str = "profile") -> str:
    policy = method_policy(method)
    made = CONFIG, policy, method_schedule(policy, "self_forcing"), parse_timeline(text), 96, 64, 9.0, profile
    plan = RenderPlan.make(*made, start_frames=start_frames, roles=roles, seed=3)
    start = torch.full((start_frames, 16, 8, 12), 0.25) if start_frames else None
    embeds = {segment.text: torch.full((4, 8), 0.5 + i) for i, segment in enumerate(plan.timeline.segments)}
    codec = SimpleNamespace(fingerprint=lambda: "an autoencoder")
    job = RenderJob(plan, embeds, "0123456789abcdef", torch.bfloat16, start_latents=start, codec=codec)
    return job.keys[-1][:16]
