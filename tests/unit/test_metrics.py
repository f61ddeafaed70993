"""Metrics with models of their own: tiny random models in the published files' layouts, and the formulas in a loop."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.report.drift import report_frames, report_video
from headforcing.headforcing_core.report.learned import models as files
from headforcing.headforcing_core.report.learned.base import MeasuredVideo, Panel, PanelMeasurement
from headforcing.headforcing_core.report.learned.flow import FlowMeasurement, magnitudes
from headforcing.headforcing_core.report.learned.frame_scores import ConsistencyMeasurement, TextMeasurement
from headforcing.headforcing_core.report.learned.models import CLIP, IMAGENET, ImageEncoder
from headforcing.headforcing_core.report.learned.registry import COLUMNS, METRICS, found_metrics, load_panel, stamps
from headforcing.headforcing_core.video.writer import VideoWriter
from metric_models import tiny_models
from torch.nn import functional

HEIGHT, WIDTH = 40, 56  # awkward: neither square nor whole patches


def frames(count: int, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> np.ndarray:
    """Noise that changes slowly."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 256, (*size, 3)) for _ in range(2))
    return np.stack([(a + (b - a) * i / max(count - 1, 1)).astype(np.uint8) for i in range(count)])


def measured(name: str, measurement, video: np.ndarray, chunk: int = 5):
    panel = PanelMeasurement({METRICS[name]: measurement})
    for start in range(0, len(video), chunk):
        panel.add(video[start : start + chunk])
    return panel.numbers()


def consistency(video: np.ndarray, fps: float, encoder: ImageEncoder | None = None) -> list[float | None]:
    """Of the whole video, in clips of 2 s, and across them."""
    measurement = ConsistencyMeasurement(encoder or plain_encoder(), MeasuredVideo(fps))
    return list(measured("subject", measurement, video).values())


def flows(flow, video: np.ndarray, fps: float, chunk: int = 5) -> dict[str, float | None]:
    return measured("flow", FlowMeasurement(flow, MeasuredVideo(fps)), video, chunk)


def plain_encoder() -> ImageEncoder:
    """Mean colours as features, which need no model."""
    return ImageEncoder(lambda x: x, lambda x: x.float().reshape(len(x), -1)[:, :96], "cpu")


def consistency_in_a_loop(features: torch.Tensor) -> float:
    total = 0.0
    for i in range(1, len(features)):
        before = max(0.0, functional.cosine_similarity(features[i - 1 : i], features[i : i + 1]).item())
        first = max(0.0, functional.cosine_similarity(features[:1], features[i : i + 1]).item())
        total += (before + first) / 2
    return total / (len(features) - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("transformers")
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def panel(folder: Path) -> Panel:
    return load_panel(folder)


@pytest.mark.parametrize("count", [2, 8, 9, 16, 21])
def test_consistency_is_vbenchs_loop_and_that_of_clips_of_two_seconds(count):
    video, encoder = frames(count), plain_encoder()
    whole, within, across = consistency(video, 4, encoder)
    features = encoder(torch.from_numpy(video))
    assert whole == pytest.approx(consistency_in_a_loop(features), abs=1e-6)
    clips = [features[start : start + 8] for start in range(0, count - 7, 8)] + ([features[-8:]] if count % 8 else [])
    if count <= 8:
        assert within is None and across is None
        return
    assert within == pytest.approx(np.mean([consistency_in_a_loop(clip) for clip in clips]), abs=1e-6)
    firsts = torch.stack([clip[0] for clip in clips])
    assert across == pytest.approx(consistency_in_a_loop(firsts), abs=1e-6)


def test_a_still_video_is_consistent_and_another_scene_lowers_it():
    still = np.repeat(frames(1), 12, axis=0)
    cut = np.concatenate([still[:6], 255 - still[:6]])
    found = [consistency(video, 16)[0] for video in (still, cut)]
    assert found[0] == pytest.approx(1.0, abs=1e-6) and found[1] < 0.97
    assert consistency(frames(1), 16)[0] is None


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


@pytest.mark.parametrize("count", [32, 33, 64, 75, 96])
def test_the_dynamic_degree_of_a_long_video_is_also_the_mean_over_clips_of_two_seconds(count):
    """16 frames a second: clips of 32 frames, of which 16 are sampled; the pairs between clips belong to none."""
    sampled = len(range(0, count, 2))
    lengths = list(np.random.default_rng(count).choice([2.99, 3.01], sampled - 1, p=[0.75, 0.25]))
    found = measured(
        "flow", FlowMeasurement(flow_of(lengths), MeasuredVideo(16)), frames(count, size=(128, 128)), chunk=7
    )
    firsts = list(range(0, sampled - 15, 16)) + ([sampled - 16] if sampled % 16 else [])
    clips = [degree_in_a_loop(lengths[first : first + 15], 128, 16) for first in firsts]
    assert found["dynamic_degree_within"] == (None if count == 32 else pytest.approx(np.mean(clips)))
    assert found["dynamic_degree"] == degree_in_a_loop(lengths, 128, sampled)


def test_a_long_video_that_moves_in_one_clip_of_four_says_so_and_what_is_held_does_not_grow():
    lengths = ([3.01] * 15 + [0.0] * 49) * 9
    measurement = FlowMeasurement(flow_of(lengths), MeasuredVideo(16))
    assert measured("flow", measurement, np.zeros((64, 128, 128, 3), np.uint8))["dynamic_degree_within"] == 0.5
    assert measured("flow", measurement, np.zeros((64, 128, 128, 3), np.uint8))["dynamic_degree_within"] == 0.25
    assert len(measurement._last) == 15
    assert measured("flow", measurement, np.zeros((512, 128, 128, 3), np.uint8))["dynamic_degree_within"] == 0.25
    assert len(measurement._last) == 15


def test_the_largest_flow_is_the_mean_of_five_per_cent_of_the_pixels():
    flow = torch.randn(1, 2, 24, 40, generator=torch.manual_seed(0))
    lengths = np.sort(np.sqrt(np.square(flow[0].numpy()).sum(axis=0)).ravel())[::-1]
    top, mean = magnitudes(flow)
    assert top == pytest.approx(lengths[: int(24 * 40 * 0.05)].mean(), abs=1e-6)
    assert mean == pytest.approx(lengths.mean(), abs=1e-6)


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
    assert found_metrics(tmp_path) == ["flow"]
    flow = files.Models(tmp_path).flow
    image = torch.from_numpy(frames(1, size=(128, 128))).permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = raft(image / 255 * 2 - 1, image / 255 * 2 - 1, num_flow_updates=20)[-1]
        assert torch.allclose(flow(image, image), expected, atol=1e-4)


def numbers_of(panel: Panel, video: np.ndarray, prompts=()) -> dict[str, float | None]:
    measurement = panel.begin(MeasuredVideo(4, prompts))
    measurement.add(video)
    return measurement.numbers()


def prepared(video: np.ndarray, side: int, mode: str, statistics) -> torch.Tensor:
    """As VBench's transforms do it: resize, then 0 to 1, then by channel."""
    pixels = torch.from_numpy(video).permute(0, 3, 1, 2).float()
    size = (side, int(side * WIDTH / HEIGHT))
    pixels = functional.interpolate(pixels, size=size, mode=mode, align_corners=False).div(255)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in statistics)
    return (pixels - mean) / deviation


@pytest.mark.slow
def test_subject_consistency_is_that_of_dinos_class_token(folder, panel):
    from transformers import ViTModel

    video = frames(11)
    model = ViTModel.from_pretrained(folder / "dino-vitb16", local_files_only=True).eval()
    with torch.no_grad():
        pixels = prepared(video, 32, "bilinear", IMAGENET)
        features = model(pixels, interpolate_pos_encoding=True).last_hidden_state[:, 0]
    found = numbers_of(panel, video)["subject_consistency"]
    assert found == pytest.approx(consistency_in_a_loop(features), abs=1e-6)


def clip_features(folder: Path, name: str, video: np.ndarray) -> torch.Tensor:
    from transformers import CLIPVisionModelWithProjection

    model = CLIPVisionModelWithProjection.from_pretrained(folder / name, local_files_only=True).eval()
    pixels = prepared(video, 32, "bicubic", CLIP)
    left = round((pixels.shape[-1] - 32) / 2)
    with torch.no_grad():
        return functional.normalize(model(pixels[..., left : left + 32]).image_embeds, dim=-1)


@pytest.mark.slow
def test_background_aesthetics_and_text_are_those_of_clip(folder, panel):
    from transformers import CLIPTextModelWithProjection, CLIPTokenizer

    video, prompts = frames(11), [(0.0, "a red ball"), (1.5, "an owl"), (60.0, "never shown")]
    found = numbers_of(panel, video, prompts)
    base = clip_features(folder, "clip-vit-base-patch32", video)
    assert found["background_consistency"] == pytest.approx(consistency_in_a_loop(base), abs=1e-6)

    head = torch.load(folder / "sa_0_4_vit_l_14_linear.pth", weights_only=True)
    large = clip_features(folder, "clip-vit-large-patch14", video)
    expected = (large @ head["weight"].T + head["bias"]).squeeze(1).div(10).mean().item()
    assert found["aesthetic_quality"] == pytest.approx(expected, abs=1e-6)

    place = folder / "clip-vit-base-patch32"
    tokens = CLIPTokenizer.from_pretrained(place)([text for _, text in prompts], padding=True, return_tensors="pt")
    model = CLIPTextModelWithProjection.from_pretrained(place, local_files_only=True).eval()
    with torch.no_grad():
        texts = functional.normalize(model(**tokens).text_embeds, dim=-1)
    by_frame = [100 * float(base[i] @ texts[0 if i < 6 else 1]) for i in range(11)]
    assert found["text_score_1"] == pytest.approx(np.mean(by_frame[:6]), abs=1e-4)
    assert found["text_score_2"] == pytest.approx(np.mean(by_frame[6:]), abs=1e-4)
    assert found["text_score"] == pytest.approx(np.mean(by_frame), abs=1e-4)
    assert found["text_score_3"] is None
    long = numbers_of(panel, frames(2), [(0.0, "owl " * 200)])
    assert long["text_score"] is not None and "text_score_1" not in long, "a long prompt is cut"
    assert numbers_of(panel, frames(2))["text_score"] is None


@pytest.mark.slow
def test_a_report_has_the_metrics_of_the_video_and_of_its_first_5_seconds(panel):
    video = frames(30)
    report = report_frames([video], 4, [(0.0, "a red ball"), (4.0, "an owl")], panel=panel)
    alone = numbers_of(panel, video[:20])
    assert report.first["subject_consistency"] == pytest.approx(alone["subject_consistency"], abs=1e-6)
    assert report.whole["subject_consistency"] != pytest.approx(alone["subject_consistency"], abs=1e-6)
    text = report.text()
    for name in ("subject consistency, across these clips", "text score, prompt 2", "aesthetic quality"):
        assert name in text
    assert "text score, prompt 3" not in text
    assert "not measured: flow: raft_large_C_T_V1-22a6c225.pth is not in" in text
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert stored["whole"]["background_consistency"] is not None and len(stored["left_out"]) == 2
    assert not set(COLUMNS) & set(report_frames([video], 4).whole)


@pytest.mark.slow
def test_the_command_measures_what_the_folder_has(folder, tmp_path, capsys):
    with VideoWriter(tmp_path / "v.mp4", WIDTH, HEIGHT, 16, crf=10, preset="ultrafast") as writer:
        writer.write(torch.from_numpy(frames(9)))
    arguments = ["report", str(tmp_path / "v.mp4"), "--metric-models", str(folder), "--metric-device", "cpu", "--json"]
    assert main(arguments) == 0
    whole = json.loads(capsys.readouterr().out)["whole"]
    expected = report_video(tmp_path / "v.mp4", panel=load_panel(folder)).whole
    assert whole["subject_consistency"] == pytest.approx(expected["subject_consistency"], abs=1e-6)
    assert "dynamic_degree" not in whole
    assert main([*arguments, "--metrics", "flow"]) == 2
    assert "flow: raft_large_C_T_V1-22a6c225.pth is not in" in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_file_is_named_with_its_source(folder, tmp_path):
    with pytest.raises(HeadForcingError, match=r"no metric has its files in .*dino-vitb16/config.json is not in .*hug"):
        load_panel(tmp_path)
    with pytest.raises(HeadForcingError, match=r"^text: clip-vit-base-patch32/config.json is not in"):
        load_panel(tmp_path, ["text"])
    assert found_metrics(folder) == ["subject", "background", "text", "aesthetic"] and found_metrics(tmp_path) == []
    assert len(load_panel(folder).left_out) == 2 and load_panel(folder, ["subject"]).left_out == ()


@pytest.mark.slow
def test_damaged_and_wrong_files_are_named(folder, tmp_path):
    pytest.importorskip("transformers")
    place = tmp_path / "dino-vitb16"
    shutil.copytree(folder / "dino-vitb16", place)
    weights = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(HeadForcingError, match="dino-vitb16 cannot be read"):
        load_panel(tmp_path, ["subject"])
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    (place / "model.safetensors").write_bytes(weights)
    with pytest.raises(HeadForcingError, match=r"dino-vitb16 lacks .* by its config.json"):
        load_panel(tmp_path, ["subject"])
    torch.save({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, tmp_path / "head.pth")
    with pytest.raises(HeadForcingError, match="takes 5 features, and the CLIP model has 24"):
        load_panel(folder, ["aesthetic"], aesthetic_head=tmp_path / "head.pth")
    torch.save([1, 2], tmp_path / "bad.pth")
    for head, why in (("bad.pth", "holds no weights"), ("none.pth", "none.pth was not found")):
        with pytest.raises(HeadForcingError, match=why):
            load_panel(folder, ["aesthetic"], aesthetic_head=tmp_path / head)


@pytest.mark.slow
def test_one_damaged_file_takes_only_its_own_metric_away(folder, tmp_path):
    place = tmp_path / "models"
    shutil.copytree(folder, place)
    (place / "dino-vitb16" / "model.safetensors").write_bytes(b"broken")
    panel = load_panel(place)
    assert [metric.name for metric in panel.metrics] == ["background", "text", "aesthetic"]
    assert [line.split(":")[0] for line in panel.left_out] == ["flow", "motion_drift", "subject"]
    assert "dino-vitb16 cannot be read" in panel.left_out[2]
    shutil.rmtree(place / "clip-vit-base-patch32")
    shutil.rmtree(place / "clip-vit-large-patch14")
    with pytest.raises(HeadForcingError, match="no metric can be measured .* subject: dino-vitb16 cannot be read"):
        load_panel(place)


@pytest.mark.slow
def test_a_metric_is_stamped_with_its_files(folder, tmp_path):
    moved = tmp_path / "head.pth"
    moved.write_bytes((folder / "sa_0_4_vit_l_14_linear.pth").read_bytes())
    names = ["subject", "aesthetic"]
    before = stamps(folder, names, moved)
    assert before == stamps(folder, names) and len(set(before.values())) == 2
    moved.write_bytes(moved.read_bytes()[:-1] + b"?")
    after = stamps(folder, names, moved)
    assert after["subject"] == before["subject"] and after["aesthetic"] != before["aesthetic"]


@pytest.mark.slow
def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HeadForcingError, match=r'need the package transformers.*pip install -e "\.\[metrics\]"'):
        load_panel(folder, ["subject"])


def test_two_metrics_with_one_encoder_run_it_once_for_a_batch():
    runs = []
    encoder = ImageEncoder(lambda x: runs.append(len(x)) or x, lambda x: x.float().reshape(len(x), -1)[:, :96], "cpu")
    measurement = PanelMeasurement(
        {METRICS[name]: ConsistencyMeasurement(encoder, MeasuredVideo(4)) for name in ("subject", "background")}
    )
    measurement.add(frames(20))
    measurement.numbers()
    assert runs == [8, 8, 4]


def test_a_measurement_holds_no_more_for_a_longer_video():
    def held(count: int) -> int:
        measurement = ConsistencyMeasurement(plain_encoder(), MeasuredVideo(2))
        for frame in frames(count):
            measurement.add(torch.from_numpy(frame[None]))
        return sum(isinstance(value, torch.Tensor) for value in measurement._last) + len(vars(measurement))

    assert held(9) == held(90)


@pytest.mark.slow
def test_nothing_is_asked_of_the_network(folder, monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("a metric wanted the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    numbers_of(load_panel(folder), frames(2), [(0.0, "a red ball")])


@pytest.mark.parametrize(("arguments", "message"), [
    (["--metrics", "subject"], "--metrics needs --metric-models FOLDER"),
    (["--aesthetic-head", "h.pth"], "--aesthetic-head needs --metric-models FOLDER"),
    (["--metric-models", "nowhere"], "--metric-models must name a folder"),
])  # fmt: skip
def test_arguments_that_do_not_go_together_are_refused(arguments, message, capsys):
    assert main(["report", "v.mp4", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_frames_before_the_first_prompt_have_no_text_score():
    class Clip:
        images = plain_encoder()

        @staticmethod
        def texts(texts):
            return functional.normalize(torch.ones(len(texts), 96), dim=-1)

    found = measured("text", TextMeasurement(Clip(), MeasuredVideo(4, [(1.0, "late")])), frames(4))
    assert found == {"text_score": None}
