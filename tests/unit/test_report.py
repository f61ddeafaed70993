"""Reports: of a video file what is read, said and refused; of a render how latents wander and
memory decides.
"""

import io
import json
from pathlib import Path

import pytest
import torch
from headforcing.cli import cli
from headforcing.headforcing_core.cache.memory import MemoryEvent
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderRequest, file_tags, story_begins
from headforcing.headforcing_core.report.drift import NOTE, DriftReport, report_video
from headforcing.headforcing_core.report.latents import RunMeter
from headforcing.headforcing_core.report.metrics import METRICS
from headforcing.headforcing_core.report.video_tags import VideoTags, read_tags
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from recorded_clips import scene

# of a scene
WIDTH = 96
HEIGHT = 64
# 57 + 2 blocks, 153 + 1
TIMES = [(0.0, "a red ball"), (81 / 16, "a yellow ring"), (165 / 16, "a cyan star")]


def write(path: Path, count: int, metadata: dict[str, str] | None = None) -> Path:
    with VideoWriter(
        VideoSettings(path, fps=16, crf=10, tags=metadata or {}, preset="ultrafast"), WIDTH, HEIGHT
    ) as writer:
        for i in range(count):
            writer.write(torch.from_numpy(scene(i))[None])
    return path


def tag(**values) -> dict[str, str]:
    return {"head_forcing": json.dumps({"seed": 7, "method": "fifo_eviction", **values})}


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Path:
    """15 s under three prompts, whose times the file says."""
    texts = [text for _, text in TIMES]
    starts = [start for start, _ in TIMES]
    folder = tmp_path_factory.mktemp("story")
    return write(
        folder / "story.mp4", 240, tag(prompts=texts, starts_seconds=starts, frames_per_block=3)
    )


@pytest.fixture(scope="module")
def measured(story: Path) -> DriftReport:
    return report_video(story)


def test_a_file_tells_about_itself_and_the_text_has_every_number_beside_that_of_the_first_5_seconds(
    measured,
):
    assert (measured.video_frames, measured.fps, measured.size, measured.seconds) == (
        240,
        16.0,
        (WIDTH, HEIGHT),
        15.0,
    )
    assert (measured.tags.method, measured.tags.seed, measured.frames_per_block) == (
        "fifo_eviction",
        7,
        3,
    )
    assert measured.prompts == TIMES
    assert [(found.video_frame, found.seconds_to_80) for found in measured.switches] == [
        (81, 0.0),
        (165, 0.0),
    ]
    lines = measured.text().splitlines()
    for row in METRICS:
        (line,) = [line for line in lines if line.startswith(f"{row.name} ")]
        values = measured.whole[row.key], measured.first[row.key]
        assert line[46:].split() == [
            "-" if value is None else row.form.format(value) for value in values
        ]
    assert any("5.06 s  80 % after 0.00 s" in line and "a yellow ring" in line for line in lines)
    assert max(map(len, lines)) < 200 and NOTE in measured.text()
    found = json.loads(json.dumps(measured.to_dict(), allow_nan=False))
    assert found["note"] == NOTE and found["whole"]["flicker"] == measured.whole["flicker"]
    assert {len(values) for values in found["series"].values()} == {15} and len(
        found["switches"]
    ) == 2
    assert found["prompts"][1] == {"seconds": 81 / 16, "text": "a yellow ring"}


def test_given_prompts_win_over_the_files_and_a_part_of_a_file_keeps_its_prompts_and_seams(
    story: Path,
):
    given = [(3.1, "two"), (0, "one"), (99, "never")]
    found = report_video(story, given, frames_per_block=1, duration_seconds=5.5)
    assert found.prompts == [(0.0, "one"), (49 / 16, "two")] and found.frames_per_block == 1
    assert (found.first_seconds, len(found.switches)) == (5.0, 1)
    seen: list[tuple[int, int]] = []
    file = io.BytesIO(story.read_bytes())
    part = report_video(
        file,
        start_seconds=4.0,
        duration_seconds=7.0,
        on_progress=lambda *so_far: seen.append(so_far),
    )
    assert part.prompts == [
        (0.0, "a red ball"),
        (17 / 16, "a yellow ring"),
        (101 / 16, "a cyan star"),
    ]
    assert part.video_frames == 112 and seen == [(i, 112) for i in range(1, 113)]
    late = report_video(story, start_seconds=13.0)
    assert late.video_frames == 32 and late.prompts == [(0.0, "a cyan star")]
    with pytest.raises(ZeroDivisionError):
        report_video(story, on_progress=lambda done, expected: 1 // (5 - done))


def test_a_tag_is_read_as_far_as_it_is_understood_and_a_file_without_one_is_said_to_be_one_scene(
    tmp_path: Path,
):
    for odd in ("{", "[]", "3", '{"1": 5}'):
        assert read_tags({"head_forcing": odd}) == VideoTags()
    bad = {"prompts": ["a", "b"], "starts_seconds": [0, "x"], "seed": True, "method": 4}
    assert read_tags({"head_forcing": json.dumps(bad)}) == VideoTags()
    one = {"prompts": ["a"], "starts_seconds": 7, "frames_per_block": 1}
    assert read_tags({"head_forcing": json.dumps(one)}).prompts == ((0.0, "a"),)
    text = report_video(write(tmp_path / "plain.mp4", 20)).text()
    assert "blocks of 3 latent frames" in text and "measured as one scene" in text


def test_a_file_that_cannot_be_measured_is_refused_in_one_sentence(tmp_path: Path):
    (tmp_path / "text.mp4").write_text("no video")
    write(tmp_path / "one.mp4", 1), write(tmp_path / "some.mp4", 10)
    for name, options, why in (
        ("text.mp4", {}, "text.mp4 cannot be read as a video"),
        ("one.mp4", {}, "one.mp4 has 1 video frames: .* 2 on"),
        ("some.mp4", {"start_seconds": 60.0}, "has 0"),
        ("some.mp4", {"frames_per_block": -1}, "frames_per_block must"),
    ):
        with pytest.raises(HeadForcingError, match=why):
            report_video(tmp_path / name, **options)


@pytest.mark.parametrize("command", ["report v.mp4", "compare --demo"])
@pytest.mark.parametrize(
    "flag", ["--metric-models m", "--metrics flow", "--aesthetic-head h", "--metric-device cpu"]
)
def test_metrics_with_models_are_not_flags_of_the_product(command: str, flag: str, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command.split(), *flag.split()])
    assert stopped.value.code == 2 and "unrecognized arguments: --" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_reads_prompts_from_a_file_and_prints_text_or_one_json_object(
    story: Path, tmp_path: Path, capsys
):
    pytest.importorskip("matplotlib")
    short = str(write(tmp_path / "short.mp4", 40))
    (tmp_path / "prompts.txt").write_text("0:00 one\n0:01 two")
    command = [
        "report",
        short,
        "--frames-per-block",
        "1",
        "--prompts",
        f"@{tmp_path / 'prompts.txt'}",
    ]
    assert cli.main([*command, "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert out.err == "" and found["frames_per_block"] == 1
    assert found["prompts"] == [
        {"seconds": 0.0, "text": "one"},
        {"seconds": 17 / 16, "text": "two"},
    ]
    for text, starts in (("one | two", [0.0, 1.31]), ("0:00 one\n0:40 two", [0.0])):
        assert cli.main(["report", short, "--prompts", text, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["prompts"]
        assert [round(prompt["seconds"], 2) for prompt in told][: len(starts)] == starts
    for arguments, complaint in (
        (["--plot", "picture.jpg"], "must end in .png"),
        (["--prompts", "@missing.txt"], "missing.txt was not found"),
    ):
        assert cli.main(["report", short, *arguments]) == 2 and complaint in capsys.readouterr().err
    picture = tmp_path / "made" / "drift.png"
    assert (
        cli.main(["report", str(story), *command[2:], "--plot", str(picture), "--theme", "dark"])
        == 0
    )
    out = capsys.readouterr()
    assert NOTE in out.out and out.out.rstrip().endswith(f"plot     {picture}") and "240" in out.err
    assert picture.stat().st_size > 10_000


def metered(blocks):
    meter = RunMeter()
    for block in blocks:
        meter.add(block)
    return meter


def wandering():
    """Channel 5 moves by half a unit a block, channel 9 spreads; the others stay as they are."""
    first = torch.randn(3, 16, 6, 10, generator=torch.Generator().manual_seed(0))
    for step in range(4):
        block = first.clone()
        block[:, 5] += 0.5 * step
        block[:, 9] *= 1 + step
        yield block


def event(block: int, delta: float, admitted: bool, merged=None, dropped=None) -> MemoryEvent:
    return MemoryEvent(block, 3 * block - 3, delta, admitted, merged, dropped)


EVENTS = [
    event(1, -1.0, True),
    event(4, 0.6, True),
    event(7, 0.98, False),
    event(10, 0.5, True, [[0], [9]]),
]


def test_a_channel_that_wanders_and_one_that_spreads_are_found_and_how_like_the_first_frame_the_last_is():
    blocks = list(wandering())
    found = metered(blocks).report()
    std = blocks[0][:, 5].std(correction=0)
    assert torch.allclose(found.mean_drift[:, 5], torch.arange(4) * 0.5 / std)
    assert torch.allclose(found.std_ratio[:, 9], torch.arange(1.0, 5.0))
    assert torch.allclose(found.mean_drift[:, :5], torch.zeros(4, 5), atol=1e-6)
    plain = found.to_dict()
    assert plain["blocks"] == 4 and len(plain["mean"][0]) == 16
    told = found.text()
    assert "channels in the last block 1.00 to 4.00 of the first block's" in told
    assert any(told.endswith(f"in channel {channel}") for channel in (5, 9))
    assert "clip" not in told
    for last, said in ((blocks[1], "usual"), (2 * blocks[1], "outside the usual 0.6 to 1.4")):
        spread = f"in the last block {float(last.std(correction=0)):.2f}, {said}\n"
        assert spread in metered([blocks[0], last]).report().text(wan21=True)
    frame = torch.zeros(1, 2, 2, 2)
    frame[0, 0] = 1
    found = metered([frame, frame.flip(1), -frame]).report()
    assert found.cosine.tolist() == pytest.approx([1, 0, -1])
    assert "1.00 in the first block, -1.00 in the last, lowest -1.00 in block 2" in found.text()


def test_a_report_tells_and_holds_what_memory_did():
    found = metered(wandering()).report(EVENTS)
    told = found.text().splitlines()
    assert "after block 4: admitted frame 9 (similarity 0.600)" in told
    assert "1 of 4 candidates were not novel enough (similarity 0.980 to 0.980)" in told
    assert found.to_dict()["memory_events"] == [each.to_dict() for each in EVENTS]


@pytest.mark.slow
def test_every_render_reports_itself_and_a_kept_one_does_so_later(tmp_path, capsys):
    def result_of(*words: str):
        assert cli.main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    runs = str(tmp_path / "runs")
    picture = tmp_path / "run.png"
    same = ("cosine_to_first_frame", "memory_events")
    demo = ["demo", "--seconds", "6", "--scale", "1", "--out", str(tmp_path), "--runs", runs]
    demo += ["--found-profiles", str(tmp_path / "found")]
    made = result_of(*demo)["run"]
    again = result_of(*demo)["run"]
    assert made["blocks"] == 9 == len(made["occupied_frame_slots"])
    assert made["occupied_frame_slots"][0] <= made["occupied_frame_slots"][-1] <= 205
    stored = result_of("runs", "show", runs, "--plot", str(picture))
    assert all(made[name] == again[name] == stored[name] for name in same)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert cli.main(["runs", "show", runs, stored["name"]]) == 0
    assert "9 of 9 blocks\nlatents  similarity to the first frame" in capsys.readouterr().out
    assert (
        cli.main(["runs", "show", runs, "a/b"]) == 2
        and "holds no video 'a/b'" in capsys.readouterr().err
    )


def test_a_story_begins_after_the_start_frames_of_a_file_at_whatever_rate_it_plays():
    about = {"starts_seconds": [81 / 16, 8.0], "fps": 16.0}
    assert story_begins(about) == 81 / 16
    assert story_begins(about, 24.0) == pytest.approx(81 / 24)
    assert story_begins({}) == story_begins({}, 24.0) == 0


def test_what_is_noted_is_plain_json_that_the_tag_of_a_file_tells_with_times_of_that_file():
    timeline = parse_timeline("0:00 a red ball\n0:05 [flush] a pink star", 10.0)
    request = RenderRequest(WanConfig(), RenderOptions(seed=7), timeline, latent_format="Wan21")
    about = request.job().about
    assert json.loads(json.dumps(about)) == about
    assert about["starts_seconds"] == [0, 81 / 16] and about["switches"] == ["reset", "flush"]
    for fps in (None, 8.0):
        found = read_tags(file_tags(about, fps))
        assert (found.method, found.seed, found.frames_per_block) == ("head_forcing", 7, 3)
        assert found.prompts == ((0.0, "a red ball"), (81 / (fps or 16), "a pink star"))
