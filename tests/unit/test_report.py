"""The drift report of video files: what is read from them, what is said, what is drawn, what is refused."""

import io
import itertools
import json
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from headforcing.headforcing_core.commands import cli
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.report.drift import NOTE, DriftReport, report_video
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
    lines = measured.text().splitlines()
    for row in itertools.chain(*GROUPS.values()):
        (line,) = [line for line in lines if line.startswith(f"  {row.name} ")]
        values = measured.whole[row.key], measured.first[row.key]
        assert line[52:].split()[:2] == ["-" if value is None else row.form(value) for value in values]
    assert any("5.06 s  80 % after 0.00 s" in line and "a yellow ring" in line for line in lines)
    assert max(map(len, lines)) < 200 and NOTE in measured.text()
    found = json.loads(json.dumps(measured.to_dict(), allow_nan=False))
    assert found["note"] == NOTE and found["whole"]["flicker"] == measured.whole["flicker"]
    assert {len(values) for values in found["series"].values()} == {15} and len(found["switches"]) == 2
    assert found["prompts"][1] == {"seconds": 81 / 16, "text": "a yellow ring"}


def test_given_prompts_win_over_the_files_and_a_part_of_a_file_keeps_its_prompts_and_seams(story: Path):
    given = [(3.1, "two"), (0, "one"), (99, "never")]
    found = report_video(story, given, frames_per_block=1, duration_seconds=5.5)
    assert found.prompts == [(0.0, "one"), (49 / 16, "two")] and found.frames_per_block == 1
    assert (found.first_seconds, len(found.switches)) == (5.0, 1)
    seen: list[tuple[int, int]] = []
    file = io.BytesIO(story.read_bytes())
    part = report_video(file, start_seconds=4.0, duration_seconds=7.0, on_progress=lambda *so_far: seen.append(so_far))
    assert part.prompts == [(0.0, "a red ball"), (17 / 16, "a yellow ring"), (101 / 16, "a cyan star")]
    assert part.video_frames == 112 and seen == [(i, 112) for i in range(1, 113)]
    late = report_video(story, start_seconds=13.0)
    assert late.video_frames == 32 and late.prompts == [(0.0, "a cyan star")]
    with pytest.raises(ZeroDivisionError):
        report_video(story, on_progress=lambda done, expected: 1 // (5 - done))


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
    def read(made: dict, fps: float = 16) -> VideoTags:
        return read_tags({"prompt": json.dumps(made)}, fps)

    assert read(graph(method="no_episodic_memory")) == VideoTags(
        "no_episodic_memory", 3, 3, tuple(text for _, text in TIMES), tuple(TIMES)
    )
    framewise = read(graph(model_family="causal_forcing_framewise"))
    assert framewise.frames_per_block == 1 and framewise.prompts[1] == (81 / 16, "a yellow ring")
    assert read(graph(), 32).prompts[1][0] == 81 / 32
    linked = graph()
    linked["1"]["inputs"]["prompts"] = ["8", 0]
    starts = (graph(**{name: ["7", 0]}) for name in ("start_frames", "start_image", "start_video"))
    assert [read(unclear).prompts for unclear in (graph() | {"3": graph()["1"]}, linked, *starts)] == [()] * 5
    for odd in ("{", "[]", "3", '{"1": 5, "2": {"class_type": "HeadForcingSampler"}}'):
        assert read_tags({"prompt": odd}, 16) == VideoTags()
        assert read_tags({"head_forcing": odd}, 16).prompts == ()
    bad = {"prompts": ["a", "b"], "starts_seconds": [0, "x"], "seed": True, "method": 4}
    assert read_tags({"head_forcing": json.dumps(bad)}, 16) == VideoTags(texts=("a", "b"))


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


def test_the_command_reads_prompts_from_a_file_and_prints_text_or_one_json_object(tmp_path: Path, capsys):
    pytest.importorskip("matplotlib")
    short = str(write(tmp_path / "short.mp4", 40))
    (tmp_path / "prompts.txt").write_text("0:00 one\n0:01 two")
    command = ["report", short, "--frames-per-block", "1", "--prompts", f"@{tmp_path / 'prompts.txt'}"]
    assert cli.main([*command, "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert out.err == "" and found["frames_per_block"] == 1
    assert found["prompts"] == [{"seconds": 0.0, "text": "one"}, {"seconds": 17 / 16, "text": "two"}]
    for arguments, complaint in (
        (["--plot", "picture.jpg"], "must end in .png"), (["--prompts", "@missing.txt"], "missing.txt was not found"),
        (["--metrics", "subject"], "--metrics needs --metric-models FOLDER"),
        (["--aesthetic-head", "h.pth"], "--aesthetic-head needs --metric-models FOLDER"),
        (["--metric-models", "nowhere"], "--metric-models must name a folder"),
    ):  # fmt: skip
        assert cli.main(["report", short, *arguments]) == 2 and complaint in capsys.readouterr().err
    picture = tmp_path / "made" / "drift.png"
    assert cli.main([*command, "--plot", str(picture), "--theme", "dark"]) == 0
    out = capsys.readouterr()
    assert NOTE in out.out and out.out.rstrip().endswith(f"plot     {picture}") and "40" in out.err
    assert picture.stat().st_size > 10_000
