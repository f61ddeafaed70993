"""The drift report of video files: what is read from them, what is said, what is drawn, what is refused."""

import io
import json
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from headforcing.headforcing_core.commands import cli
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.report.drift import NOTE, DriftReport, report_frames, report_video
from headforcing.headforcing_core.report.metrics import GROUPS
from headforcing.headforcing_core.report.video_tags import VideoTags, read_tags
from headforcing.headforcing_core.video.writer import VideoWriter
from metric_models import scene

WIDTH, HEIGHT = 96, 64  # of a scene
STORY = "0:00 a red ball\n0:05 a yellow ring\n0:10 a cyan star"
TIMES = [(0.0, "a red ball"), (81 / 16, "a yellow ring"), (165 / 16, "a cyan star")]  # 57 + 2 blocks, 153 + 1


def write(path: Path, count: int, metadata: dict[str, str] | None = None, fps: float = 16) -> Path:
    with VideoWriter(path, WIDTH, HEIGHT, fps, crf=10, metadata=metadata, preset="ultrafast") as writer:
        for i in range(count):
            writer.write(torch.from_numpy(scene(i))[None])
    return path


def tag(**values) -> dict[str, str]:
    return {"head_forcing": json.dumps({"seed": 7, "method": "fifo_eviction", **values})}


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Path:
    """15 s under three prompts, whose times the file says."""
    texts, starts = [text for _, text in TIMES], [start for start, _ in TIMES]
    folder = tmp_path_factory.mktemp("story")
    return write(folder / "story.mp4", 240, tag(prompts=texts, starts_seconds=starts, frames_per_block=3))


@pytest.fixture(scope="module")
def measured(story: Path) -> DriftReport:
    return report_video(story)


def test_a_file_tells_about_itself_and_the_text_has_every_number_beside_that_of_the_first_5_seconds(measured):
    assert (measured.video_frames, measured.fps, measured.size, measured.seconds) == (240, 16.0, (WIDTH, HEIGHT), 15.0)
    assert (measured.tags.method, measured.tags.seed, measured.frames_per_block) == ("fifo_eviction", 7, 3)
    assert measured.prompts == TIMES
    assert [(found.video_frame, found.seconds_to_80) for found in measured.switches] == [(81, 0.0), (165, 0.0)]
    text = measured.text()
    assert NOTE in text and "not VBench scores" in NOTE and "first 5 s" in text and "story.mp4: 15.00 s" in text
    lines = text.splitlines()
    for rows in GROUPS.values():
        for row in rows:
            (line,) = [line for line in lines if line.startswith(f"  {row.name} ")]
            whole, first, _ = line[52:].split()
            values = measured.whole[row.key], measured.first[row.key]
            assert [whole, first] == ["-" if value is None else row.form(value) for value in values]
    assert any("5.06 s  80 % after 0.00 s" in line and "a yellow ring" in line for line in lines)
    assert max(map(len, lines)) < 200
    found = json.loads(json.dumps(measured.to_dict(), allow_nan=False))
    assert found["note"] == NOTE and found["whole"]["flicker"] == measured.whole["flicker"]
    assert {len(values) for values in found["series"].values()} == {15} and len(found["switches"]) == 2
    assert found["prompts"][1] == {"seconds": 81 / 16, "text": "a yellow ring"}


def test_given_prompts_win_over_the_files_and_a_part_of_a_file_keeps_its_prompts_and_seams(story: Path):
    found = report_video(story, [(7.1, "two"), (0, "one"), (99, "never")], frames_per_block=1)
    assert found.prompts == [(0.0, "one"), (113 / 16, "two")] and found.frames_per_block == 1
    assert (found.first_seconds, len(found.switches)) == (5.0, 1)
    part = report_video(story, start_seconds=4.0, duration_seconds=8.0)
    assert part.video_frames == 128
    assert part.prompts == [(0.0, "a red ball"), (17 / 16, "a yellow ring"), (101 / 16, "a cyan star")]
    late = report_video(story, start_seconds=6.0)
    assert late.video_frames == 144 and late.prompts[0] == (0.0, "a yellow ring")


def test_prompts_without_times_are_mentioned(tmp_path: Path):
    found = report_video(write(tmp_path / "old.mp4", 20, tag(prompts=["a", "b"])))
    assert found.prompts == [] and "2 prompts without start times" in found.text()
    assert found.whole == found.first and found.first_seconds == 20 / 16
    assert read_tags(tag(prompts=["a"]), 16).prompts == ((0.0, "a"),)


def graph(**sampler) -> dict:
    timeline = {"prompts": STORY, "seconds": 15.0, "clip": ["9", 1]}
    return {
        "1": {"class_type": "HeadForcingPromptTimeline", "inputs": timeline},
        "2": {"class_type": "HeadForcingSampler", "inputs": {"seed": 3, "positive": ["1", 0], **sampler}},
    }


def test_the_workflow_in_a_file_tells_prompts_and_blocks_and_one_that_is_not_clear_is_not_guessed_at():
    tags = read_tags({"prompt": json.dumps(graph(method="no_episodic_memory"))}, 16)
    assert tags == VideoTags("no_episodic_memory", 3, 3, tuple(text for _, text in TIMES), tuple(TIMES))
    framewise = read_tags({"prompt": json.dumps(graph(model_family="causal_forcing_framewise"))}, 16)
    assert framewise.frames_per_block == 1 and framewise.prompts[1] == (81 / 16, "a yellow ring")
    assert read_tags({"prompt": json.dumps(graph())}, 32).prompts[1][0] == 81 / 32
    two = graph() | {"3": graph()["1"]}
    linked = graph()
    linked["1"]["inputs"]["prompts"] = ["8", 0]
    for unclear in (
        two,
        linked,
        *(graph(**{name: ["7", 0]}) for name in ("start_frames", "start_image", "start_video")),
    ):
        assert read_tags({"prompt": json.dumps(unclear)}, 16).prompts == ()
    for odd in ("{", "[]", "3", '{"1": 5, "2": {"class_type": "HeadForcingSampler"}}'):
        assert read_tags({"prompt": odd}, 16) == VideoTags()
        assert read_tags({"head_forcing": odd}, 16).prompts == ()
    bad = {"prompts": ["a", "b"], "starts_seconds": [0, "x"], "seed": True, "method": 4}
    assert read_tags({"head_forcing": json.dumps(bad)}, 16) == VideoTags(texts=("a", "b"))


def test_progress_is_told_and_may_stop_the_reading(story: Path, measured: DriftReport):
    seen: list[tuple[int, int]] = []
    in_memory = report_video(io.BytesIO(story.read_bytes()), on_progress=lambda *so_far: seen.append(so_far))
    assert in_memory.whole == measured.whole
    assert seen == [(i, 240) for i in range(1, 241)]
    with pytest.raises(ZeroDivisionError):
        report_video(story, on_progress=lambda done, expected: 1 // (5 - done))


def test_a_file_that_cannot_be_measured_is_refused_in_one_sentence(tmp_path: Path):
    (tmp_path / "text.mp4").write_text("no video")
    with av.open(str(tmp_path / "sound.m4a"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    write(tmp_path / "one.mp4", 1), write(tmp_path / "some.mp4", 10)
    for name, options, why in (
        ("nothing.mp4", {}, "nothing.mp4 was not found"), (".", {}, "is a folder"),
        ("text.mp4", {}, "text.mp4 cannot be read as a video"), ("sound.m4a", {}, "sound.m4a has no video track"),
        ("one.mp4", {}, "one.mp4 has 1 video frames: .* from 2 on"), ("some.mp4", {"start_seconds": 60.0}, "has 0"),
        ("some.mp4", {"frames_per_block": -1}, "frames_per_block must be"),
    ):  # fmt: skip
        with pytest.raises(HeadForcingError, match=why):
            report_video(tmp_path / name, **options)
    with pytest.raises(HeadForcingError, match="0.5 frames per second"):
        report_frames([], fps=0.5)


def test_the_command_reads_prompts_from_a_file_and_prints_text_or_one_json_object(story: Path, tmp_path: Path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "prompts.txt").write_text("0:00 one\n0:07 two")
    command = ["report", str(story), "--frames-per-block", "1", "--prompts", f"@{tmp_path / 'prompts.txt'}"]
    assert cli.main([*command, "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert out.err == "" and found["frames_per_block"] == 1
    assert found["prompts"] == [{"seconds": 0.0, "text": "one"}, {"seconds": 113 / 16, "text": "two"}]
    for arguments, complaint in (
        ([str(tmp_path / "nothing.mp4")], "was not found"),
        ([str(story), "--plot", "picture.jpg"], "must end in .png"),
        ([str(story), "--prompts", "@missing.txt"], "missing.txt was not found"),
        ([str(story), "--metrics", "subject"], "--metrics needs --metric-models FOLDER"),
        ([str(story), "--aesthetic-head", "h.pth"], "--aesthetic-head needs --metric-models FOLDER"),
        ([str(story), "--metric-models", "nowhere"], "--metric-models must name a folder"),
    ):
        assert cli.main(["report", *arguments]) == 2 and complaint in capsys.readouterr().err
    picture = tmp_path / "made" / "drift.png"
    assert cli.main([*command, "--plot", str(picture), "--theme", "dark"]) == 0
    out = capsys.readouterr()
    assert NOTE in out.out and out.out.rstrip().endswith(f"plot     {picture}") and "240" in out.err
    assert picture.stat().st_size > 10_000
