"""Metrics with models of their own: their formulas in a loop, with stubs for the models."""

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.report.learned import models as files
from headforcing.headforcing_core.report.learned.base import MeasuredVideo, PanelMeasurement
from headforcing.headforcing_core.report.learned.flow import FlowMeasurement
from headforcing.headforcing_core.report.learned.frame_scores import ConsistencyMeasurement, TextMeasurement
from headforcing.headforcing_core.report.learned.models import ImageEncoder
from headforcing.headforcing_core.report.learned.registry import METRICS, found_metrics
from metric_models import consistency_in_a_loop, frames
from torch.nn import functional


def measured(name: str, measurement, video: np.ndarray, chunk: int = 5) -> dict[str, float | None]:
    panel = PanelMeasurement({METRICS[name]: measurement})
    for start in range(0, len(video), chunk):
        panel.add(video[start : start + chunk])
    return panel.numbers()


def flows(flow, video: np.ndarray, fps: float, chunk: int = 5) -> dict[str, float | None]:
    return measured("flow", FlowMeasurement(flow, MeasuredVideo(fps)), video, chunk)


def plain_encoder(runs: list[int] | None = None) -> ImageEncoder:
    """Colours of the first pixels as features, which need no model; `runs` gets the size of every batch."""

    def encode(video_frames: torch.Tensor) -> torch.Tensor:
        if runs is not None:
            runs.append(len(video_frames))
        return video_frames.float().reshape(len(video_frames), -1)[:, :96]

    return ImageEncoder(encode)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 21])
def test_consistency_is_vbenchs_loop_and_that_of_clips_of_two_seconds(count):
    video, encoder = frames(count), plain_encoder()
    measurement = ConsistencyMeasurement(encoder, MeasuredVideo(4))
    whole, within, across = measured("subject", measurement, video).values()
    if count == 1:
        assert whole is within is across is None
        return
    features = encoder(torch.from_numpy(video))
    assert whole == pytest.approx(consistency_in_a_loop(features), abs=1e-6)
    if count <= 8:
        assert within is None and across is None
        return
    clips = [features[start : start + 8] for start in range(0, count - 7, 8)] + ([features[-8:]] if count % 8 else [])
    assert within == pytest.approx(np.mean([consistency_in_a_loop(clip) for clip in clips]), abs=1e-6)
    assert across == pytest.approx(consistency_in_a_loop(torch.stack([clip[0] for clip in clips])), abs=1e-6)
    assert len(measurement._last) <= 8, "what is held does not grow"


def flow_of(lengths):
    """A stub for RAFT: the flow of each pair in turn, the same in the largest 5 % of pixels and half in the others."""
    left = iter(lengths)

    def flow(before, after):
        height, width = before.shape[-2:]
        field = torch.full((1, 2, height, width), 0.0)
        field[0, 0] = (length := next(left)) / 2
        field[0, 0].view(-1)[: int(height * width * 0.05)] = -length
        return field

    return flow


def degree_in_a_loop(lengths, side, sampled):
    threshold, needed, count = 6.0 * (side / 256), round(4 * (sampled / 16)), 0
    for length in lengths:
        count += length > threshold
        if count >= needed:
            return 1.0
    return 0.0


@pytest.mark.parametrize("moving", [0, 3, 4, 5, 15])
def test_the_dynamic_degree_is_vbenchs_rule_and_the_flow_stands_beside_it(moving):
    lengths = [3.01] * moving + [2.99] * (15 - moving)  # the threshold of a shorter side of 128 is 3
    video = frames(32, size=(128, 160))  # 16 a second: every second frame, 16 of them
    found = flows(flow_of(lengths), video, 16)
    assert found["dynamic_degree"] == degree_in_a_loop(lengths, 128, 16) == (moving >= 4)
    assert found["top_flow"] == pytest.approx(2 * np.mean(lengths), abs=1e-5)
    assert found["mean_flow"] == pytest.approx(2 * np.mean(lengths) * (0.05 + 0.95 / 2), abs=1e-4)


@pytest.mark.parametrize("count", [32, 33, 75, 96])
def test_the_dynamic_degree_of_a_long_video_is_also_the_mean_over_clips_of_two_seconds(count):
    """16 frames a second: clips of 32 frames, of which 16 are sampled; the pairs between clips belong to none."""
    sampled = len(range(0, count, 2))
    lengths = list(np.random.default_rng(count).choice([2.99, 3.01], sampled - 1, p=[0.75, 0.25]))
    measurement = FlowMeasurement(flow_of(lengths), MeasuredVideo(16))
    found = measured("flow", measurement, frames(count, size=(128, 128)), chunk=7)
    firsts = list(range(0, sampled - 15, 16)) + ([sampled - 16] if sampled % 16 else [])
    clips = [degree_in_a_loop(lengths[first : first + 15], 128, 16) for first in firsts]
    assert found["dynamic_degree_within"] == (None if count == 32 else pytest.approx(np.mean(clips)))
    assert found["dynamic_degree"] == degree_in_a_loop(lengths, 128, sampled)
    assert len(measurement._last) == 15, "what is held does not grow"


def test_frames_are_padded_for_raft_large_ones_halved_and_those_that_are_too_small_have_no_flow():
    seen = []

    def flow(before, after):
        seen.append(before.shape[-2:])
        return torch.full((1, 2, *before.shape[-2:]), 5.0 / 2**0.5)

    flows(flow, frames(5, size=(129, 140)), 16)
    found = flows(flow, np.zeros((2, 2160, 3840, 3), np.uint8), 8)
    assert found["mean_flow"] == pytest.approx(5.0 * 256 / 540), "counts the same as at full size"
    flows(flow, np.zeros((2, 130, 8200, 3), np.uint8), 8)
    assert seen == [(136, 144)] * 2 + [(544, 960), (136, 8200)], "RAFT takes no frame below 128"
    assert set(flows(flow, frames(3), 16).values()) == {None}


def test_raft_is_read_from_torchvisions_file_and_a_still_video_has_one_flow(tmp_path):
    optical_flow = pytest.importorskip("torchvision.models.optical_flow", reason="torchvision is not installed")
    torch.manual_seed(0)
    raft = optical_flow.raft_large(weights=None).eval()
    torch.save(raft.state_dict(), tmp_path / files.RAFT.paths[0])
    assert found_metrics(tmp_path) == ["flow", "motion_drift"]
    flow = files.Models(tmp_path).flow
    image = torch.from_numpy(frames(1, size=(128, 128))).permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = raft(image / 255 * 2 - 1, image / 255 * 2 - 1, num_flow_updates=20)[-1]
        assert torch.allclose(flow(image, image), expected, atol=1e-4)


def test_two_metrics_with_one_encoder_run_it_once_for_a_batch():
    runs: list[int] = []
    encoder, video = plain_encoder(runs), MeasuredVideo(4)
    panel = PanelMeasurement(
        {METRICS[name]: ConsistencyMeasurement(encoder, video) for name in ("subject", "background")}
    )
    panel.add(frames(20))
    panel.numbers()
    assert runs == [8, 8, 4]


def test_frames_before_the_first_prompt_have_no_text_score():
    class Clip:
        images = plain_encoder()

        @staticmethod
        def texts(texts):
            return functional.normalize(torch.ones(len(texts), 96), dim=-1)

    found = measured("text", TextMeasurement(Clip(), MeasuredVideo(4, [(1.0, "late")])), frames(4))
    assert found == {"text_score": None}
