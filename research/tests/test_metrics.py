"""Metrics with models of their own: formulas in a loop, recordings of the authors of two, and tiny
files of models.
"""

import json
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from headforcing.research.__main__ import main
from headforcing.research.metrics import flow as optical_flow
from headforcing.research.metrics.base import Panel, PanelMeasurement, VideoFacts
from headforcing.research.metrics.flow import (
    FlowMeasurement,
    MotionDriftMeasurement,
    motion,
    sampled,
)
from headforcing.research.metrics.frame_scores import ConsistencyMeasurement
from headforcing.research.metrics.models import CLIP, IMAGENET, ImageEncoder
from headforcing.research.metrics.registry import METRICS, load_panel
from headforcing.research.metrics.scores import score_video
from metric_models import HEIGHT, WIDTH, consistency_in_a_loop, frames, tiny_models
from recorded_clips import recordings, turning_red_to_green
from torch.nn import functional


def flows(flow, video: np.ndarray, fps: float, chunk: int = 5) -> dict[str, float | None]:
    panel = PanelMeasurement({METRICS["flow"]: FlowMeasurement(flow, VideoFacts(fps))})
    for start in range(0, len(video), chunk):
        panel.add(video[start : start + chunk])
    return panel.numbers()


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 21])
def test_consistency_is_vbenchs_loop_and_that_of_clips_of_two_seconds(count):
    """With the colours of the first pixels as features; two metrics with one encoder run it once
    for a batch.
    """
    runs: list[int] = []

    def encode(video_frames: torch.Tensor) -> torch.Tensor:
        runs.append(len(video_frames))
        return video_frames.float().reshape(len(video_frames), -1)[:, :96]

    video = frames(count)
    encoder = ImageEncoder(encode)
    one = ConsistencyMeasurement(encoder, VideoFacts(4))
    other = ConsistencyMeasurement(encoder, VideoFacts(4))
    panel = PanelMeasurement({METRICS["subject"]: one, METRICS["background"]: other})
    for start in range(0, count, 5):
        panel.add(video[start : start + 5])
    whole, within, across, *rest = panel.numbers().values()
    assert rest == [whole, within, across] and runs == [
        len(video[i : i + 8]) for i in range(0, count, 8)
    ]
    features = encoder(torch.from_numpy(video))
    loop = consistency_in_a_loop
    clips = [features[start : start + 8] for start in range(0, count - 7, 8)] + (
        [features[-8:]] if count % 8 else []
    )
    assert whole == (None if count == 1 else pytest.approx(loop(features), abs=1e-6))
    assert within == (
        None if count <= 8 else pytest.approx(np.mean([loop(clip) for clip in clips]), abs=1e-6)
    )
    firsts = torch.stack([clip[0] for clip in clips])
    assert across == (None if count <= 8 else pytest.approx(loop(firsts), abs=1e-6))
    assert len(one._last) <= 8, "what is held does not grow"


def flow_of(lengths):
    """A stub for RAFT: the flow of each pair in turn, the same in the largest 5 % of pixels and
    half in the others.
    """
    left = iter(lengths)

    def flow(before, after):
        height, width = before.shape[-2:]
        field = torch.full((1, 2, height, width), 0.0)
        field[0, 0] = (length := next(left)) / 2
        field[0, 0].view(-1)[: int(height * width * 0.05)] = -length
        return field

    return flow


def degree_in_a_loop(lengths, side, sampled):
    threshold = 6.0 * (side / 256)
    needed = round(4 * (sampled / 16))
    count = 0
    for length in lengths:
        count += length > threshold
        if count >= needed:
            return 1.0
    return 0.0


@pytest.mark.parametrize("count", [32, 75, 96])
def test_the_dynamic_degree_is_vbenchs_rule_over_the_whole_and_the_mean_over_clips_of_two_seconds(
    count,
):
    """16 frames a second: clips of 32 frames, of which 16 are sampled; the pairs between clips
    belong to none.
    """
    sampled = len(range(0, count, 2))
    # 3 decides
    lengths = list(np.random.default_rng(count).choice([2.99, 3.01], sampled - 1, p=[0.75, 0.25]))
    found = flows(flow_of(lengths), frames(count, size=(128, 160)), 16, chunk=7)
    firsts = list(range(0, sampled - 15, 16)) + ([sampled - 16] if sampled % 16 else [])
    clips = [degree_in_a_loop(lengths[first : first + 15], 128, 16) for first in firsts]
    assert found["dynamic_degree_within"] == (
        None if count == 32 else pytest.approx(np.mean(clips))
    )
    assert found["dynamic_degree"] == degree_in_a_loop(lengths, 128, sampled)
    assert found["top_flow"] == pytest.approx(2 * np.mean(lengths), abs=1e-5)
    assert found["mean_flow"] == pytest.approx(2 * np.mean(lengths) * (0.05 + 0.95 / 2), abs=1e-4)


def test_frames_are_padded_for_raft_large_ones_halved_and_those_that_are_too_small_have_no_flow(
    monkeypatch,
):
    seen = []

    def flow(before, after):
        seen.append(before.shape[-2:])
        return torch.full((1, 2, *before.shape[-2:]), 5.0 / 2**0.5)

    monkeypatch.setattr(optical_flow, "MOST_PIXELS", 1 << 16)
    flows(flow, frames(5, size=(129, 140)), 16)
    found = flows(flow, np.zeros((2, 544, 960, 3), np.uint8), 8)
    assert found["mean_flow"] == pytest.approx(5.0 * 256 / 136), "counts the same as at full size"
    flows(flow, np.zeros((2, 130, 820, 3), np.uint8), 8)
    assert seen == [(136, 144)] * 2 + [(136, 240), (136, 824)], "RAFT takes no frame below 128"
    assert set(flows(flow, frames(3), 16).values()) == {None}


@pytest.fixture(scope="module")
def folders(repo_root, shared_dir):
    """The clips of the repository and, where they lie beside it, all of them."""
    return recordings(repo_root, shared_dir)


def flow_formula(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The recordings' stand-in for RAFT."""
    return torch.stack((0.25 * (b.mean(dim=1) - a.mean(dim=1)), 0.125 * (b[:, 1] - a[:, 1])), dim=1)


@pytest.mark.parametrize("run", ["motion_1.5s", "motion_5s", "motion_0.25s"])
def test_motion_drift_is_the_authors(folders, run):
    for config, recorded in folders:
        results = config["results"][run]
        kept = []
        for clip, expected in results["per_clip"].items():
            frames = torch.from_numpy(recorded[f"clips/{clip}"])
            fps = config["clips"][clip]["fps"]
            moves = []
            for part, name in zip(
                sampled(len(frames), fps, results["seconds"]),
                ("first", "last"),
                strict=True,
            ):
                scores, moving = motion(flow_formula, [frames[i] for i in part])
                assert list(part) == expected[name]["frame_indices"], clip
                assert scores == pytest.approx(expected[name]["scores"], abs=1e-4, rel=1e-6)
                assert moving == expected[name]["moving"] == expected[f"{name}_move"], clip
                assert not scores or np.mean(scores) == pytest.approx(
                    expected[f"{name}_flow"], abs=6e-4
                )
                moves.append(moving)
            kept.append(not moves[0] or moves[1])
        if "motion_drift" in results:
            assert 100 * sum(kept) / len(kept) == pytest.approx(results["motion_drift"], abs=1e-6)


def test_motion_drift_is_that_of_the_first_and_the_last_seconds_of_a_video(
    monkeypatch,
):
    """A video that stops half-way."""
    frames = turning_red_to_green()
    monkeypatch.setattr(optical_flow, "LEAST_SIDE", 8)
    measurement = MotionDriftMeasurement(flow_formula, VideoFacts(16.0))
    for part in torch.from_numpy(frames).split(7):
        measurement.add(part)
    drift, first, last = measurement.values()
    assert (
        (drift, last) == (0.0, 0.0) and first > 5 and measurement.values() == (drift, first, last)
    )
    assert MotionDriftMeasurement(flow_formula, VideoFacts(16.0)).values() == (None,) * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("transformers")
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def panel(folder: Path) -> Panel:
    return load_panel(folder)


def measured_by(panel: Panel, video: np.ndarray, prompts=()) -> dict[str, float | None]:
    measurement = panel.begin(VideoFacts(4, prompts))
    measurement.add(video)
    return measurement.numbers()


def prepared(video: np.ndarray, side: int, mode: str, statistics) -> torch.Tensor:
    """As VBench's transforms do it: resize, then 0 to 1, then by channel."""
    pixels = torch.from_numpy(video).permute(0, 3, 1, 2).float()
    size = (side, int(side * WIDTH / HEIGHT))
    pixels = functional.interpolate(pixels, size=size, mode=mode, align_corners=False).div(255)
    mean, deviation = map(torch.tensor, statistics)
    return (pixels - mean.view(1, 3, 1, 1)) / deviation.view(1, 3, 1, 1)


def clip_features(folder: Path, name: str, video: np.ndarray) -> torch.Tensor:
    from transformers import CLIPVisionModelWithProjection

    model = CLIPVisionModelWithProjection.from_pretrained(
        folder / name, local_files_only=True
    ).eval()
    pixels = prepared(video, 32, "bicubic", CLIP)
    left = round((pixels.shape[-1] - 32) / 2)
    with torch.no_grad():
        return functional.normalize(model(pixels[..., left : left + 32]).image_embeds, dim=-1)


@pytest.mark.slow
def test_consistency_aesthetics_and_text_are_those_of_dinos_class_token_and_of_clip(folder, panel):
    from transformers import CLIPTextModelWithProjection, CLIPTokenizer, ViTModel

    video = frames(11)
    prompts = [(0.0, "a red ball"), (1.5, "an owl"), (60.0, "never shown")]
    found = measured_by(panel, video, prompts)
    dino = ViTModel.from_pretrained(folder / "dino-vitb16", local_files_only=True).eval()
    with torch.no_grad():
        pixels = prepared(video, 32, "bilinear", IMAGENET)
        features = dino(pixels, interpolate_pos_encoding=True).last_hidden_state[:, 0]
    assert found["subject_consistency"] == pytest.approx(consistency_in_a_loop(features), abs=1e-6)
    base = clip_features(folder, "clip-vit-base-patch32", video)
    assert found["background_consistency"] == pytest.approx(consistency_in_a_loop(base), abs=1e-6)

    head = torch.load(folder / "sa_0_4_vit_l_14_linear.pth", weights_only=True)
    large = clip_features(folder, "clip-vit-large-patch14", video)
    expected = (large @ head["weight"].T + head["bias"]).squeeze(1).div(10).mean().item()
    assert found["aesthetic_quality"] == pytest.approx(expected, abs=1e-6)

    place = folder / "clip-vit-base-patch32"
    tokens = CLIPTokenizer.from_pretrained(place)(
        [text for _, text in prompts], padding=True, return_tensors="pt"
    )
    model = CLIPTextModelWithProjection.from_pretrained(place, local_files_only=True).eval()
    with torch.no_grad():
        texts = functional.normalize(model(**tokens).text_embeds, dim=-1)
    by_frame = [100 * float(base[i] @ texts[0 if i < 6 else 1]) for i in range(11)]
    assert found["text_score_1"] == pytest.approx(np.mean(by_frame[:6]), abs=1e-4)
    assert found["text_score_2"] == pytest.approx(np.mean(by_frame[6:]), abs=1e-4)
    assert found["text_score"] == pytest.approx(np.mean(by_frame), abs=1e-4)
    assert found["text_score_3"] is None
    assert measured_by(panel, frames(2), [(0.0, "owl " * 200)])["text_score"] is not None, (
        "a long prompt is cut"
    )
    for prompts in ((), [(1.0, "late")]):
        assert measured_by(panel, frames(4), prompts)["text_score"] is None, (
            "no prompt, or none yet"
        )


def video_of(path: Path, count: int, prompts=()) -> Path:
    texts = [text for _, text in prompts]
    starts = [start for start, _ in prompts]
    tags = {"head_forcing": json.dumps({"prompts": texts, "starts_seconds": starts})}
    with VideoWriter(
        VideoSettings(path, fps=16, crf=10, preset="ultrafast", tags=tags), WIDTH, HEIGHT
    ) as writer:
        writer.write(torch.from_numpy(frames(count)))
    return path


@pytest.mark.slow
def test_the_command_compares_videos_and_asks_nothing_of_the_network(
    folder, tmp_path, capsys, monkeypatch
):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric wanted the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    prompts = [(0.0, "a red ball"), (45 / 16, "an owl")]
    one = str(video_of(tmp_path / "one.mp4", 9))
    other = str(video_of(tmp_path / "other.mp4", 90, prompts))
    arguments = [
        "metrics",
        one,
        other,
        "--models",
        str(folder),
        "--metric-device",
        "cpu",
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["videos"]) == [one, other]
    whole = found["videos"][one]["whole"]
    assert whole["subject_consistency"] > 0 and "flicker" in whole and "dynamic_degree" not in whole
    assert (
        whole["text_score"] is None and found["videos"][other]["whole"]["text_score_2"] is not None
    )
    assert main(arguments) == 0
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("| subject consistency |")]
    assert (
        line.split("|")[2].strip()
        == f"{whole['subject_consistency']:.4f} ({whole['subject_consistency']:.4f})"
    )
    assert "text score, prompt 2" in text and "not measured: flow: " in text
    assert main([*arguments, "--metrics", "flow"]) == 2
    assert "raft_large_C_T_V1-22a6c225.pth was not found" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        HeadForcingError,
        match="need the package transformers.*pip install transformers",
    ):
        load_panel(folder, ["subject"])


@pytest.mark.slow
def test_a_video_has_numbers_of_its_first_seconds_beside_those_of_the_whole(
    folder, panel, tmp_path
):
    path = video_of(tmp_path / "long.mp4", 100)
    scores = score_video(path, panel)
    alone = score_video(path, None)
    assert scores.report.whole == alone.report.whole and not alone.whole
    assert scores.first["subject_consistency"] != pytest.approx(
        scores.whole["subject_consistency"], abs=1e-6
    )
    moved = shutil.copy(folder / HEAD, tmp_path / "head.pth")
    assert len(load_panel(folder, ["aesthetic"], aesthetic_head=moved).metrics) == 1


MEASURABLE = [
    "subject",
    "background",
    "text",
    "aesthetic",
]  # without the file of RAFT
DINO = "dino-vitb16/model.safetensors"
HEAD = "sa_0_4_vit_l_14_linear.pth"
DAMAGE = {  # what is done to a folder of models, the metric that misses a file, and what is said of it
    "missing": (
        lambda at: (at / DINO).unlink(),
        "subject",
        f"{DINO} was not found: take .* from https://huggingface.co/facebook",
    ),
    "cut": (
        lambda at: (at / DINO).write_bytes((at / DINO).read_bytes()[:5000]),
        "subject",
        "dino-vitb16 cannot be re",
    ),
    "of other width": (
        lambda at: torch.save({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, at / HEAD),
        "aesthetic",
        "is not a linear head for 24 features",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_or_missing_file_is_named_and_takes_only_its_own_metric_away(
    folder, tmp_path, name
):
    place, (spoil, metric, why) = tmp_path / "models", DAMAGE[name]
    shutil.copytree(folder, place)
    spoil(place)
    with pytest.raises(HeadForcingError, match=f"^{metric}: .*{why}"):
        load_panel(place, [metric])
    panel = load_panel(place)
    assert [row.name for row in panel.metrics] == [row for row in MEASURABLE if row != metric]
    assert {line.split(":")[0] for line in panel.left_out} == {
        metric,
        "flow",
        "motion_drift",
    }
