"""Latents, embeddings and query statistics of the real models, which lie beside the repository."""

from itertools import pairwise

import pytest
import torch
from headforcing.headforcing_core.cache.scenes import scene_features
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.rope import axis_dims
from headforcing.headforcing_core.render.sinks import read_latents
from headforcing.headforcing_core.report.latents import CLIP, USUAL, RunMeter
from headforcing.headforcing_core.rollout.loop import split_start_latents
from headforcing.headforcing_core.rollout.rows import BlockRow, Script
from headforcing.headforcing_core.runs.folder import RunFolder
from headforcing.headforcing_core.timeline.switch import Blend, Switch
from headforcing.headforcing_core.weights.umt5 import (
    MAX_TOKENS,
    load_embeddings,
    save_embeddings,
)
from safetensors.torch import save_file
from torch.nn import functional as F

HEAD_DIM = 128
STATISTICS = ("calibration_stats_81f.pt", "normal_q_stats_120f_peak49.pt")


@pytest.fixture
def real(real_file):
    """A function that reads one of the files."""
    return lambda name: torch.load(real_file(name), weights_only=True, map_location="cpu")


@pytest.fixture
def embeddings(real):
    return real("umt5_embeddings.pt")


@pytest.fixture
def latents(real):
    """`[16 frames, 16 channels, 40, 64]` in bfloat16, normalised as for the model."""
    return real("test_latents_wan.pth")[0].transpose(0, 1).contiguous()


def test_stored_embeddings_keep_their_type_and_every_bit(embeddings, tmp_path):
    save_embeddings(tmp_path / "two.safetensors", embeddings)
    loaded = load_embeddings(tmp_path / "two.safetensors")
    assert list(loaded) == list(embeddings)
    for prompt, rows in embeddings.items():
        assert loaded[prompt].dtype == torch.bfloat16
        assert torch.equal(loaded[prompt].view(torch.int16), rows.view(torch.int16))


def test_no_row_of_a_real_embedding_is_taken_for_padding(embeddings):
    for rows in embeddings.values():
        assert torch.isfinite(rows).all()
        assert rows.any(dim=-1).all()


def test_a_blend_of_real_embeddings_begins_and_ends_at_them(embeddings):
    short, long = sorted(embeddings, key=lambda prompt: len(embeddings[prompt]))
    added = len(embeddings[long]) - len(embeddings[short])
    begun = Blend(short, long, weight=0.0).interpolate(embeddings)
    assert torch.equal(begun[:-added], embeddings[short])
    assert not begun[-added:].any()
    assert torch.equal(Blend(short, long, weight=1.0).interpolate(embeddings), embeddings[long])


def test_the_vectors_by_which_real_prompts_are_compared_do_not_depend_on_padding(embeddings):
    """Two prompts that say different things are 0.54 alike, by the one pair that is here: no limit
    on this number can tell a scene, so a return by words is not decided by it.
    """
    texts = list(embeddings)
    rows = [BlockRow(texts[0]), BlockRow(texts[1], switch=Switch())]
    padded = {}
    for text in texts:
        padded[text] = F.pad(embeddings[text], (0, 0, 0, MAX_TOKENS - len(embeddings[text])))
    features = scene_features(Script(rows, embeddings))
    for own, same in zip(features, scene_features(Script(rows, padded)), strict=True):
        torch.testing.assert_close(own, same, atol=1e-6, rtol=0)
    assert float(features[0] @ features[1]) == pytest.approx(0.540, abs=2e-3)


def test_rows_of_real_embeddings_have_a_length_of_about_two(embeddings):
    for rows in embeddings.values():
        assert 1.7 < float(rows.float().norm(dim=-1).min())
        assert float(rows.float().norm(dim=-1).max()) < 2.3


@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_one_damaged_number_in_a_real_embedding_is_found(embeddings, tmp_path, damage):
    path = tmp_path / "two.safetensors"
    last = list(embeddings)[-1]
    embeddings[last][-1, -1] = damage
    save_embeddings(path, embeddings)
    with pytest.raises(HeadForcingError, match="prompt_1 must be .* of finite numbers"):
        load_embeddings(path)


def test_a_report_on_real_latents_has_the_scale_that_it_prints(latents):
    meter = RunMeter()
    for block in split_start_latents(latents[:15], 3):
        meter.add(block)
    report = meter.report()
    told = report.text(wan21=True)
    assert float(report.deviation[-1]) == pytest.approx(0.97, abs=5e-3)
    assert "standard deviation of all latents in the last block 0.97, usual" in told
    lowest, least, most, change = CLIP
    assert f"{float(report.cosine.min()):.2f}" == lowest
    assert f"{float(report.std_ratio[-1].min()):.2f}" == least
    assert f"{float(report.std_ratio[-1].max()):.2f}" == most
    assert f"{float(report.mean_drift[-1].abs().max()):.1f}" == change
    frames = latents.float().std(dim=(1, 2, 3))
    assert float(frames.min()) == pytest.approx(USUAL[0], abs=5e-3)


def test_statistics_of_real_latents_are_those_of_the_tensor(latents):
    assert float(latents.float().mean()) == pytest.approx(0.028, abs=5e-4)
    assert float(latents.float().std()) == pytest.approx(0.942, abs=5e-4)
    meter = RunMeter()
    blocks = split_start_latents(latents[:15], 3)
    for block in blocks:
        meter.add(block)
    report = meter.report()
    assert report.blocks == 5
    for number, block in enumerate(blocks):
        channels = block.double().transpose(0, 1).flatten(1)
        torch.testing.assert_close(
            report.mean[number].double(), channels.mean(1), atol=1e-5, rtol=0
        )
        spread = channels.std(1, correction=0)
        torch.testing.assert_close(report.std[number].double(), spread, atol=1e-5, rtol=0)


def test_a_latents_file_in_bfloat16_is_read_with_every_bit(latents, tmp_path):
    path = tmp_path / "latents.safetensors"
    save_file({"latents": latents}, path)
    about, found = read_latents(path, plan_size=(512, 320))
    assert about["video_frames"] == 61
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.view(torch.int16), latents.view(torch.int16))


def test_a_run_folder_gives_start_and_blocks_back_without_a_changed_number(latents, tmp_path):
    start, *blocks = split_start_latents(latents[:15], 3)
    keys = [f"{number}" * 32 for number in range(1, len(blocks) + 1)]
    setup = "0" * 32
    with RunFolder(tmp_path, setup, {}) as folder:
        folder.save_start(start)
        before = None
        for number, block in enumerate(blocks):
            folder.save_block(number, keys[number], block.float(), event=None, previous=before)
            before = keys[number]
    with RunFolder(tmp_path, setup, {}) as folder:
        assert torch.equal(folder.load_start(), start.float())
        found = [stored.latents for stored in folder.read_blocks(keys)]
    assert torch.equal(torch.cat(found), torch.cat(blocks).float())


@pytest.mark.parametrize("name", STATISTICS)
def test_our_rotary_pairs_lie_where_longlives_queries_have_theirs(real, name):
    """The two largest leaps of the statistics along the pairs are at the borders of our axes.

    The length of a pair's mean divided by its mean length says how steady its direction is: much
    for the fast pairs that begin an axis, less for the slow ones that end it. The axes of height
    and width have equally many pairs, so this does not tell one from the other.
    """
    found = real(name)
    steady = torch.hypot(found["q_mean_real"], found["q_mean_imag"]) / found["q_abs_mean"]
    by_pair = steady.mean(dim=(0, 1)).tolist()
    leaps = [after - before for before, after in pairwise(by_pair)]
    first_pairs = sorted(range(1, len(by_pair)), key=lambda pair: leaps[pair - 1])[-2:]
    temporal, height, width = axis_dims(HEAD_DIM)
    assert 2 * len(by_pair) == temporal + height + width
    assert [2 * pair for pair in sorted(first_pairs)] == [temporal, temporal + height]
