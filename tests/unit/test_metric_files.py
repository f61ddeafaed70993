"""Metrics with models of their own, read from tiny files in the published layouts; reports and the command line."""

import json
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.report.drift import report_frames
from headforcing.headforcing_core.report.learned.base import MeasuredVideo, Panel
from headforcing.headforcing_core.report.learned.models import CLIP, IMAGENET
from headforcing.headforcing_core.report.learned.registry import COLUMNS, found_metrics, load_panel
from headforcing.headforcing_core.video.writer import VideoWriter
from metric_models import HEIGHT, WIDTH, consistency_in_a_loop, frames, tiny_models
from torch.nn import functional


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("transformers")
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def panel(folder: Path) -> Panel:
    return load_panel(folder)


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


def clip_features(folder: Path, name: str, video: np.ndarray) -> torch.Tensor:
    from transformers import CLIPVisionModelWithProjection

    model = CLIPVisionModelWithProjection.from_pretrained(folder / name, local_files_only=True).eval()
    pixels = prepared(video, 32, "bicubic", CLIP)
    left = round((pixels.shape[-1] - 32) / 2)
    with torch.no_grad():
        return functional.normalize(model(pixels[..., left : left + 32]).image_embeds, dim=-1)


@pytest.mark.slow
def test_consistency_aesthetics_and_text_are_those_of_dinos_class_token_and_of_clip(folder, panel):
    from transformers import CLIPTextModelWithProjection, CLIPTokenizer, ViTModel

    video, prompts = frames(11), [(0.0, "a red ball"), (1.5, "an owl"), (60.0, "never shown")]
    found = numbers_of(panel, video, prompts)
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
    tokens = CLIPTokenizer.from_pretrained(place)([text for _, text in prompts], padding=True, return_tensors="pt")
    model = CLIPTextModelWithProjection.from_pretrained(place, local_files_only=True).eval()
    with torch.no_grad():
        texts = functional.normalize(model(**tokens).text_embeds, dim=-1)
    by_frame = [100 * float(base[i] @ texts[0 if i < 6 else 1]) for i in range(11)]
    assert found["text_score_1"] == pytest.approx(np.mean(by_frame[:6]), abs=1e-4)
    assert found["text_score_2"] == pytest.approx(np.mean(by_frame[6:]), abs=1e-4)
    assert found["text_score"] == pytest.approx(np.mean(by_frame), abs=1e-4)
    assert found["text_score_3"] is None
    assert numbers_of(panel, frames(2), [(0.0, "owl " * 200)])["text_score"] is not None, "a long prompt is cut"
    for prompts in ((), [(1.0, "late")]):
        assert numbers_of(panel, frames(4), prompts)["text_score"] is None, "no prompt, or none yet"


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
    assert "not measured: flow: " in text and "raft_large_C_T_V1-22a6c225.pth was not found" in text
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert stored["whole"]["background_consistency"] is not None and len(stored["left_out"]) == 2
    assert not set(COLUMNS) & set(report_frames([video], 4).whole)


@pytest.mark.slow
def test_the_command_measures_what_the_folder_has_and_asks_nothing_of_the_network(
    folder, tmp_path, capsys, monkeypatch
):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric wanted the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with VideoWriter(tmp_path / "v.mp4", WIDTH, HEIGHT, 16, crf=10, preset="ultrafast") as writer:
        writer.write(torch.from_numpy(frames(9)))
    arguments = ["report", str(tmp_path / "v.mp4"), "--metric-models", str(folder), "--metric-device", "cpu", "--json"]
    assert main(arguments) == 0
    whole = json.loads(capsys.readouterr().out)["whole"]
    assert whole["subject_consistency"] > 0 and "dynamic_degree" not in whole
    assert main([*arguments, "--metrics", "flow"]) == 2
    assert "raft_large_C_T_V1-22a6c225.pth was not found" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HeadForcingError, match=r'need the package transformers.*pip install -e "\.\[metrics\]"'):
        load_panel(folder, ["subject"])


def add_layer(place: Path) -> None:
    config = place / "dino-vitb16" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))


DINO, HEAD = "dino-vitb16/model.safetensors", "sa_0_4_vit_l_14_linear.pth"
DAMAGE = {  # what is done to a folder of models, the metric that misses a file, and what is said of it
    "missing": (lambda at: (at / DINO).unlink(), "subject",
                f"{DINO} was not found: take .* from https://huggingface.co/facebook"),
    "cut": (lambda at: (at / DINO).write_bytes((at / DINO).read_bytes()[:5000]), "subject", "dino-vitb16 cannot be re"),
    "of another model": (add_layer, "subject", "dino-vitb16 lacks .* by its config.json"),
    "of other width": (lambda at: torch.save({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, at / HEAD),
                       "aesthetic", "is not a linear head for 24 features"),
    "no weights": (lambda at: torch.save([1, 2], at / HEAD), "aesthetic", "holds no weights"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_or_missing_file_is_named_and_takes_only_its_own_metric_away(folder, tmp_path, name):
    place, (spoil, metric, why) = tmp_path / "models", DAMAGE[name]
    shutil.copytree(folder, place)
    spoil(place)
    with pytest.raises(HeadForcingError, match=f"^{metric}: .*{why}"):
        load_panel(place, [metric])
    panel = load_panel(place)
    assert [row.name for row in panel.metrics] == [row for row in found_metrics(folder) if row != metric]
    assert {line.split(":")[0] for line in panel.left_out} == {metric, "flow", "motion_drift"}


@pytest.mark.slow
def test_an_aesthetic_head_may_lie_elsewhere_and_a_folder_without_models_is_refused(folder, tmp_path):
    with pytest.raises(HeadForcingError, match=r"no metric can be measured .*; subject: "):
        load_panel(tmp_path)
    moved = shutil.copy(folder / HEAD, tmp_path / "head.pth")
    assert len(load_panel(folder, ["aesthetic"], aesthetic_head=moved).metrics) == 1
    with pytest.raises(HeadForcingError, match="none.pth was not found"):
        load_panel(folder, ["aesthetic"], aesthetic_head=tmp_path / "none.pth")
