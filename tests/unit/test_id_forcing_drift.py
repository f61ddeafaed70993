"""Color Drift and Motion Drift against recordings of the authors' scripts; a formula stands for RAFT in both."""

import json

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.report.learned import flow
from headforcing.headforcing_core.report.learned.base import MeasuredVideo
from headforcing.headforcing_core.report.learned.flow import MotionDriftMeasurement, motion, sampled
from headforcing.headforcing_core.report.meter import DriftMeter, color_drift, hue, hue_distance, hue_histogram
from headforcing.headforcing_core.report.metrics import numbers_of
from safetensors.numpy import load_file


@pytest.fixture(scope="module")
def folders(repo_root, shared_dir):
    """The clips of the repository and, where they lie beside it, all of them."""
    own = repo_root / "tests" / "golden" / "metrics_id_forcing"
    full = [] if shared_dir is None else [shared_dir / "golden" / "metrics_id_forcing"]
    return [(json.loads((at / "config.json").read_text()), load_file(at / "golden.safetensors")) for at in (own, *full)]


def flow_formula(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The recordings' stand-in for RAFT, `[1, 3, h, w]` twice to `[1, 2, h, w]`."""
    return torch.stack((0.25 * (b.mean(dim=1) - a.mean(dim=1)), 0.125 * (b[:, 1] - a[:, 1])), dim=1)


@pytest.mark.parametrize("end", [0, 30])
def test_hues_are_opencvs_and_color_drift_is_the_authors(folders, end):
    for config, recorded in folders:
        assert np.array_equal(hue(recorded["hue_table/rgb"]), recorded["hue_table/hue"])
        found = config["results"]["color_end30" if end else "color"]
        for clip, expected in found["per_clip"].items():
            frames = recorded[f"clips/{clip}"][: end or None]
            histograms = [hue_histogram(frames[place]) for place in (0, -1)]
            if not end:
                assert np.abs(np.stack(histograms) - recorded[f"hist/{clip}"]).max() < 1e-12
            assert hue_distance(*histograms) == pytest.approx(expected["l1"], abs=1e-6)
        if "color_drift" in found:
            assert color_drift(found["mean_l1"]) == pytest.approx(found["color_drift"], abs=1e-6)


@pytest.mark.parametrize("run", ["motion_1.5s", "motion_5s", "motion_0.25s"])
def test_motion_drift_is_the_authors(folders, run):
    for config, recorded in folders:
        results, kept = config["results"][run], []
        for clip, expected in results["per_clip"].items():
            frames, fps = torch.from_numpy(recorded[f"clips/{clip}"]), config["clips"][clip]["fps"]
            moves = []
            for part, name in zip(sampled(len(frames), fps, results["seconds"]), ("first", "last"), strict=True):
                scores, moving = motion(flow_formula, [frames[i] for i in part])
                assert list(part) == expected[name]["frame_indices"], clip
                assert scores == pytest.approx(expected[name]["scores"], abs=1e-4, rel=1e-6)
                assert moving == expected[name]["moving"] == expected[f"{name}_move"], clip
                assert not scores or np.mean(scores) == pytest.approx(expected[f"{name}_flow"], abs=6e-4)
                moves.append(moving)
            kept.append(not moves[0] or moves[1])
        if "motion_drift" in results:
            assert 100 * sum(kept) / len(kept) == pytest.approx(results["motion_drift"], abs=1e-6)


def test_a_report_measures_the_drift_of_its_own_video(monkeypatch):
    """A video that turns from red to green and stops, through the same doors as any report."""
    frames = np.zeros((160, 16, 24, 3), np.uint8)
    for i in range(160):
        frames[i, :, :, 0 if i < 80 else 1] = 200
        frames[i, :, : 1 + min(i, 80) % 20] = 40 * (min(i, 80) % 3)
    meter = DriftMeter(16.0)
    meter.add(frames)
    expected = color_drift(hue_distance(hue_histogram(frames[0]), hue_histogram(frames[-1])))
    assert numbers_of(meter)["color_drift"] == pytest.approx(expected) and expected < 60
    assert numbers_of(meter, seconds=2)["color_drift"] > 60
    monkeypatch.setattr(flow, "LEAST_SIDE", 8)
    measurement = MotionDriftMeasurement(flow_formula, MeasuredVideo(16.0))
    for part in torch.from_numpy(frames).split(7):
        measurement.add(part)
    drift, first, last = measurement.values()
    assert (drift, last) == (0.0, 0.0) and first > 5 and measurement.values() == (drift, first, last)
    assert MotionDriftMeasurement(flow_formula, MeasuredVideo(16.0)).values() == (None,) * 3
