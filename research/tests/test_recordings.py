"""Recordings of a clone and bundled profiles are what their makers make: nothing is changed by
hand.
"""

from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.head_profiles.profile import (
    bundled_profiles,
    load_profile,
)
from headforcing.research.forcing_kv_heads import shipped_profiles
from headforcing.research.recordings.make_subset import (
    make_drift,
    make_livetalk,
    make_longlive2,
    make_peers,
    make_subset,
)
from headforcing.research.recordings.record_absolute import record_absolute
from headforcing.research.recordings.replay import Case

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
ABSOLUTE = "head_forcing_absolute"  # recorded here, by the reference
MOST_BYTES = 18 * 2**20
RECORDINGS = ("golden.safetensors", "model.safetensors", "config.json")


def recordings(folder: Path) -> dict[str, Path]:
    """All files of all cases, by their path in the folder."""
    found = [path for path in folder.rglob("*") if path.name in RECORDINGS]
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


@pytest.mark.slow
def test_the_subset_is_what_its_program_cuts_from_the_full_set_byte_for_byte(repo_root, tmp_path):
    full = repo_root.parent / "shared" / "golden"
    if not full.is_dir():
        pytest.skip(
            "the full set (../shared/golden) is not here, so the subset cannot be cut from it again"
        )
    make_subset(full, tmp_path)
    make_peers(full / "peers", tmp_path / "peers")
    make_longlive2(full / "longlive2", tmp_path / "longlive2")
    make_livetalk(full / "livetalk", tmp_path / "livetalk")
    make_drift(full / "metrics_id_forcing", tmp_path / "metrics_id_forcing")
    again = recordings(tmp_path)
    stored = recordings(GOLDEN)
    stored = {name: path for name, path in stored.items() if not name.startswith(f"{ABSOLUTE}/")}
    assert set(again) == set(stored)
    assert [name for name in stored if again[name].read_bytes() != stored[name].read_bytes()] == []


def test_the_reference_records_its_run_again(tmp_path):
    """To 1e-6, as other CPUs may round float64 in another way."""
    record_absolute(GOLDEN, tmp_path)
    again = Case.open(tmp_path / ABSOLUTE)
    stored = Case.open(GOLDEN / ABSOLUTE)
    assert set(again.tensors) == set(stored.tensors)
    for key, tensor in stored.tensors.items():
        torch.testing.assert_close(again.tensors[key], tensor, atol=1e-6, rtol=0)
    (run,) = again.config["runs"].values()
    (expected,) = stored.config["runs"].values()
    deltas = [event.pop("delta") for event in run["memory_events"]]
    expected_deltas = [event.pop("delta") for event in expected["memory_events"]]
    assert deltas == pytest.approx(expected_deltas, abs=1e-6)
    assert again.config == stored.config


def test_recordings_are_what_tests_need_and_stay_small():
    (run,) = Case.open(GOLDEN / ABSOLUTE).config["runs"].values()
    first_merge = next(event["after_block"] for event in run["memory_events"] if event["merged"])
    assert run["rope"] == "absolute" and first_merge < run["frames"] // 3 - 2, (
        "two blocks attend to merged entries"
    )
    for config in GOLDEN.glob("peers/*/config.json"):
        case = Case.open(config.parent)
        given = [name for name, run in case.config["runs"].items() if run.get("input_frames")]
        assert not given or "initial_latent" in case.tensors, (
            f"{given} take frames of their recording as given"
        )
    assert sum(path.stat().st_size for path in recordings(GOLDEN).values()) < MOST_BYTES


def test_bundled_profiles_equal_a_fresh_import_of_forcing_kvs_lists(repo_root):
    shared = repo_root.parent / "shared"
    if not shared.is_dir():
        pytest.skip(f"the sources of the bundled profiles are not at {shared}")
    for name, profile in shipped_profiles(shared).items():
        assert load_profile(bundled_profiles()[name]) == profile, name
