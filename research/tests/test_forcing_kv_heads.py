"""Head profiles made of Forcing-KV's published lists."""

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import bundled_profiles, load_profile
from headforcing.research.forcing_kv_heads import import_forcing_kv, shipped_profiles


def layer(number, static, dynamic):
    return {"layer_idx": number, "static_head": static, "dynamic_head": dynamic}


def test_shipped_files_equal_a_fresh_import(repo_root):
    shared = repo_root.parent / "shared"
    if not shared.is_dir():
        pytest.skip(f"the sources of the bundled profiles are not at {shared}")
    for name, profile in shipped_profiles(shared).items():
        assert load_profile(bundled_profiles()[name]) == profile, name


def test_an_import_maps_static_to_anchor_and_dynamic_to_memory_and_needs_every_head_once():
    layers = [layer(0, [2, 0], [1]), layer(1, [], [0, 1, 2])]
    profile = import_forcing_kv(layers, "two", ["x"], "A remark.")
    assert profile.roles == (("anchor", "memory", "anchor"), ("memory",) * 3)
    assert profile.shares is None and profile.anchor_fraction is None
    assert profile.provenance["note"].endswith("A remark.")
    assert import_forcing_kv({"description": "why", "layers": layers}, "two").provenance["criterion"] == "why"
    for bad in (layer(0, [0, 1], [1]), layer(0, [0], [2]), layer(3, [0], [1])):
        with pytest.raises(HeadForcingError, match="every head once"):
            import_forcing_kv([bad], "bad")
