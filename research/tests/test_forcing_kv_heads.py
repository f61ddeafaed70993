"""Head profiles made of Forcing-KV's published lists."""

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import bundled_profiles, load_profile
from headforcing.research.forcing_kv_heads import import_forcing_kv, shipped_profiles


def test_shipped_files_equal_a_fresh_import(repo_root):
    shared = repo_root.parent / "shared"
    if not shared.is_dir():
        pytest.skip(f"the sources of the bundled profiles are not at {shared}")
    for name, profile in shipped_profiles(shared).items():
        assert load_profile(bundled_profiles()[name]) == profile, name


def test_an_import_maps_static_to_anchor_and_dynamic_to_memory():
    layers = [
        {"layer_idx": 0, "static_head": [2, 0], "dynamic_head": [1]},
        {"layer_idx": 1, "static_head": [], "dynamic_head": [0, 1, 2]},
    ]
    profile = import_forcing_kv(layers, "two", ["x"], "A remark.")
    assert profile.roles == (("anchor", "memory", "anchor"), ("memory",) * 3)
    assert (
        profile.shares is None and profile.anchor_fraction is None and profile.provenance["note"].endswith("A remark.")
    )
    assert import_forcing_kv({"description": "why", "layers": layers}, "two").provenance["criterion"] == "why"


@pytest.mark.parametrize(
    "layer",
    [
        {"layer_idx": 0, "static_head": [0, 1], "dynamic_head": [1]},
        {"layer_idx": 0, "static_head": [0], "dynamic_head": [2]},
        {"layer_idx": 3, "static_head": [0], "dynamic_head": [1]},
    ],
)
def test_an_import_refuses_lists_that_are_not_a_partition(layer):
    with pytest.raises(HeadForcingError, match="every head once"):
        import_forcing_kv([layer], "bad")
