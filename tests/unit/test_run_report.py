"""What a render tells about itself: latents that wander are seen, memory's decisions are followed."""

import json

import pytest
import torch
from headforcing.headforcing_core.cache.memory import MemoryEvent
from headforcing.headforcing_core.commands import cli
from headforcing.headforcing_core.model.attention import attention_function, explicit, sdpa
from headforcing.headforcing_core.model.attention_backends import GroupedAttention
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.job import about_video, file_tags
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.render import attention_name
from headforcing.headforcing_core.report.latents import RunMeter, novelty_trace
from headforcing.headforcing_core.report.video_tags import read_tags
from headforcing.headforcing_core.timeline.timeline import parse_timeline


def metered(blocks):
    meter = RunMeter()
    for block in blocks:
        meter.add(block)
    return meter


def wandering(blocks=4):
    """Channel 5 moves by half a unit a block, channel 9 spreads; the others stay as they are."""
    first = torch.randn(3, 16, 6, 10, generator=torch.Generator().manual_seed(0))
    for step in range(blocks):
        block = first.clone()
        block[:, 5] += 0.5 * step
        block[:, 9] *= 1 + step
        yield block


def event(block: int, delta: float, admitted: bool, merged=None, dropped=None) -> MemoryEvent:
    return MemoryEvent(block, 3 * block - 3, delta, admitted, merged, dropped)


EVENTS = [event(1, -1.0, True), event(4, 0.6, True), event(7, 0.98, False), event(10, 0.5, True, [[0], [9]])]


def test_a_channel_that_wanders_and_one_that_spreads_are_found_and_how_like_the_first_frame_the_last_is():
    blocks = list(wandering())
    found = metered(blocks).report()
    std = blocks[0][:, 5].std(correction=0)
    assert torch.allclose(found.mean_drift[:, 5], torch.arange(4) * 0.5 / std)
    assert torch.allclose(found.std_ratio[:, 9], torch.arange(1.0, 5.0))
    assert torch.allclose(found.mean_drift[:, :5], torch.zeros(4, 5), atol=1e-6)
    plain = found.to_dict()
    assert plain["channel"] in (5, 9) and plain["blocks"] == 4 and len(plain["mean"][0]) == 16
    assert "channels in the last block 1.00 to 4.00 of the first block's" in found.text()
    frame = torch.zeros(1, 2, 2, 2)
    frame[0, 0] = 1
    found = metered([frame, frame.flip(1), -frame]).report()
    assert found.cosine.tolist() == pytest.approx([1, 0, -1])
    assert "1.00 in the first block, -1.00 in the last, lowest -1.00 in block 2" in found.text()


def test_the_novelty_trace_follows_what_memory_did():
    found = novelty_trace(EVENTS)
    assert found["after_block"] == [1, 4, 7, 10] and found["frame"] == [0, 9, 18, 27]
    assert found["similarity"] == [None, 0.6, 0.98, 0.5] and found["mean_similarity"] == pytest.approx(2.08 / 3)
    assert found["admissions"] == 3 and found["entries"] == [1, 2, 2, 2]
    assert novelty_trace([event(1, -1.0, True), event(4, 0.5, True, dropped=[0])])["entries"] == [1, 1]
    assert novelty_trace([])["mean_similarity"] is None
    flushed = [event(1, -1.0, True), event(4, 0.5, True), event(7, -1.0, True), event(10, 0.5, True)]
    assert novelty_trace(flushed)["entries"] == [1, 2, 1, 2], "a flush empties memory"
    text = metered(wandering()).report(EVENTS).text()
    assert "3 of 4 candidates admitted, highest similarity to an entry 0.50 to 0.98, 2 entries at end" in text


@pytest.mark.slow
def test_every_render_reports_itself_and_a_kept_one_does_so_later(tmp_path, capsys):
    def told(*words: str):
        assert cli.main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    runs, picture, same = str(tmp_path / "runs"), tmp_path / "run.png", ("cosine_to_first_frame", "novelty")
    demo = ["demo", "--seconds", "6", "--scale", "1", "--out", str(tmp_path), "--runs", runs]
    made, again = (told(*demo, "--found-profiles", str(tmp_path / "found"))["run"] for _ in range(2))
    assert made["blocks"] == 9 == len(made["occupied_frame_slots"])
    assert made["occupied_frame_slots"][0] <= made["occupied_frame_slots"][-1] <= 205
    shown = told("runs", "show", runs, "--plot", str(picture))
    assert all(made[name] == again[name] == shown[name] for name in same) and picture.read_bytes()[:4] == b"\x89PNG"
    assert cli.main(["runs", "show", runs, shown["name"]]) == 0
    assert "9 of 9 blocks\nlatents  similarity to the first frame" in capsys.readouterr().out
    assert cli.main(["runs", "show", runs, "a/b"]) == 2
    assert "holds no video 'a/b'" in capsys.readouterr().err


def test_blocks_may_lie_on_another_device_than_the_first():
    meter, moved = metered(wandering()), []

    class Elsewhere(torch.Tensor):
        def cpu(self):
            moved.append("cpu")
            return super().cpu()

    meter.add(torch.zeros(3, 16, 6, 10).as_subclass(Elsewhere))
    assert moved == ["cpu"], "what it keeps of the first block is on the CPU"


@pytest.fixture
def about():
    timeline = parse_timeline("0:00 a red ball\n0:05 [flush] a pink star", 10.0)
    plan = RenderOptions().plan(WanConfig(), timeline)
    return about_video(plan, "head_forcing", 7, "Wan21")


@pytest.mark.parametrize("fps", [None, 8.0])
def test_what_is_noted_is_plain_json_that_the_tag_of_a_file_tells_with_times_of_that_file(about, fps):
    assert json.loads(json.dumps(about)) == about
    assert about["starts_seconds"] == [0, 81 / 16] and about["switches"] == ["reset", "flush"]
    found = read_tags(file_tags(about, fps), fps or 16.0)
    assert (found.method, found.seed, found.frames_per_block) == ("head_forcing", 7, 3)
    assert found.prompts == ((0.0, "a red ball"), (81 / (fps or 16), "a pink star"))


def test_a_backend_has_its_own_name_or_that_of_the_choice():
    assert attention_name(explicit, "explicit") == "explicit"
    assert attention_name(attention_function("auto", "cpu", torch.float32, 32), "auto") == "sdpa"
    named = GroupedAttention(sdpa, "the host's")
    assert attention_name(named, "auto") == "the host's"
