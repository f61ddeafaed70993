"""The keys of stored blocks, pinned. A render reuses a stored block only under the key that it was stored with."""

from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.timeline.timeline import parse_timeline

CONFIG = WanConfig(dim=96, ffn_dim=128, num_layers=3, num_heads=3, freq_dim=32, text_dim=8, text_len=4)
PROFILE = HeadProfile(
    "a test", 3, 3, (("memory", "anchor", "local"), ("anchor", "memory", "memory"), ("local", "memory", "anchor"))
)
ONE, TWO = "0:00 a red ball", "0:00 a red ball\n0:06 a yellow ring"

# A change of one of these makes stored runs of that kind unusable: they
# are rendered anew. Say so in the changelog.
PINNED = [
    ("head_forcing", ONE, {}, "ca59cfac62020ebe"),
    ("head_forcing", "0:00 a red ball\n0:06 [recache] a yellow ring", {}, "3e475408df259437"),
    ("head_forcing", "0:00 a red ball\n0:06 [flush, re-anchor] a yellow ring", {}, "2010b696b83a26da"),
    ("head_forcing", "0:00 a red ball\n0:06 [blend 2] a yellow ring", {}, "744cbaac5c7e44b1"),
    ("head_forcing", ONE, {"profile": AutoProfile()}, "f836add0e8a6c510"),
    ("head_forcing", TWO, {"start_frames": 6}, "765364fcb5289ac7"),
    ("no_episodic_memory", ONE, {"roles": "shuffled"}, "1c2911fe890f46e2"),
    ("self_forcing_window_21", TWO, {}, "0ffcc1299600c805"), ("longlive", TWO, {"start_frames": 6}, "0a719f3db189727e"),
    ("infinity_rope", "0:00 a red ball\n0:06 [re-anchor] a yellow ring", {}, "2d7901085d9bbee5"),
    ("deep_forcing", ONE, {}, "19d05c9871932e49"), ("forcing_kv", TWO, {}, "9fe93b601decfbae"),
    ("dummy_forcing", ONE, {}, "579b9a79e746903d"), ("memflow", TWO, {}, "60407f167d5195eb"),
    ("rolling_forcing", TWO, {}, "27540f10d17a501d"), ("causvid", TWO, {}, "e6553b8756bbc607"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "text", "options", "last"), PINNED)
def test_the_key_of_the_last_block_is_the_one_that_stored_runs_have(method, text, options, last):
    assert last_key(method, text, **options) == last


def last_key(method: str, text: str, profile=PROFILE, start_frames: int = 0, roles: str = "profile") -> str:
    options = RenderOptions(method=method, width=96, height=64, seconds=9.0, roles=roles, seed=3)
    plan = options.plan(CONFIG, parse_timeline(text), start_frames, profile)
    start = torch.full((start_frames, 16, 8, 12), 0.25) if start_frames else None
    embeds = {segment.text: torch.full((4, 8), 0.5 + i) for i, segment in enumerate(plan.timeline.segments)}
    codec = SimpleNamespace(fingerprint=lambda: "an autoencoder")
    job = RenderJob(plan, embeds, "0123456789abcdef", torch.bfloat16, start_latents=start, codec=codec)
    return job.keys[-1][:16]
