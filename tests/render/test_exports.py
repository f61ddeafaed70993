"""The story of a stored video in other programs' files, read again by the project's reader and by
OpenTimelineIO.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from headforcing.cli.cli import main
from headforcing.headforcing_core.runs.exported_story import ExportedStory, Marker, Scene
from headforcing.headforcing_core.runs.exports import exported
from headforcing.headforcing_core.timeline.paste.paste import paste

BALL = "a red ball bouncing in the teal plain room"
CROSS = 'a blue "cross" & <3, in the navy plain room'
PROMPTS = [BALL, CROSS]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with a video of two prompts, 9 and 24 video frames."""
    folder = tmp_path_factory.mktemp("runs")
    story = f"0:00 {BALL}\n0:00.562 [recache, seed 7] {CROSS}"
    command = ["demo", "--prompts", story, "--seconds", "2", "--scale", "1", "--sigmas", "1"]
    out = str(folder.parent / "out")
    assert main([*command, "--device", "cpu", "--runs", str(folder), "--out", out]) == 0
    (found,) = [path for path in folder.iterdir() if path.is_dir()]
    return found


@pytest.mark.parametrize("end", ["srt", "vtt", "csv"])
def test_an_exported_text_is_read_again_as_the_same_story(run, tmp_path, end):
    out = tmp_path / f"story.{end}"
    assert main(["export", str(run), str(out)]) == 0
    read = paste(out.read_text("utf-8")).story.prompts
    assert [prompt.text for prompt in read] == PROMPTS
    assert [(prompt.start, prompt.end) for prompt in read] == [(0.0, 0.562), (0.562, 2.0)]


@pytest.mark.parametrize("end", ["otio", "xml", "edl"])
def test_an_exported_timeline_is_opened_by_opentimelineio(run, tmp_path, end):
    otio = pytest.importorskip("opentimelineio", reason="OpenTimelineIO is not installed")
    video = tmp_path / "a video.mp4"
    video.write_bytes(b"")
    sound = tmp_path / "song.flac"
    sound.write_bytes(b"")
    out = tmp_path / f"story.{end}"
    command = ["export", str(run), str(out), "--video", str(video), "--audio", str(sound)]
    assert main(command) == 0
    timeline = otio.adapters.read_from_file(str(out))
    (pictures,) = timeline.video_tracks()
    clips = [clip for clip in pictures if isinstance(clip, otio.schema.Clip)]
    assert [clip.name for clip in clips] == PROMPTS
    lengths = [clip.source_range.duration.to_seconds() for clip in clips]
    assert lengths == pytest.approx([9 / 16, 23 / 16], abs=1 / 24)
    if end == "edl":
        return
    assert all(clip.media_reference.target_url.endswith("a%20video.mp4") for clip in clips)
    markers = [clip.markers[0].name for clip in clips if clip.markers]
    assert markers == ["prompt 1", "prompt 2"]
    (heard,) = timeline.audio_tracks()
    assert heard[0].media_reference.target_url.endswith("song.flac")
    if end == "otio":
        assert dict(clips[1].markers[0].metadata["headforcing"]) == {
            "prompt": 2,
            "switch": "recache",
            "seed": "7",
        }


@pytest.mark.parametrize("end", ["otio", "xml"])
def test_takes_are_tracks_below_the_one_that_is_shown(run, tmp_path, end):
    otio = pytest.importorskip("opentimelineio", reason="OpenTimelineIO is not installed")
    files = [str(tmp_path / f"{name}.mp4") for name in ("shown", "other", "third")]
    for file in files:
        Path(file).write_bytes(b"")
    out = tmp_path / f"story.{end}"
    assert main(["export", *[str(run)] * 3, str(out), "--video", *files]) == 0
    tracks = otio.adapters.read_from_file(str(out)).video_tracks()
    urls = [[Path(clip.media_reference.target_url).stem for clip in track] for track in tracks]
    assert urls == [["other", "other"], ["third", "third"], ["shown", "shown"]]
    assert [[clip.name for clip in track] for track in tracks] == [PROMPTS] * 3


def test_takes_that_a_file_cannot_hold_are_refused(run, tmp_path, capsys):
    for end in ("edl", "srt"):
        assert main(["export", str(run), str(run), str(tmp_path / f"story.{end}")]) == 2
        assert f"ends in .{end} holds one take; export several to one that ends in .otio or" in (
            capsys.readouterr().err
        )
    video = str(tmp_path / "a.mp4")
    Path(video).write_bytes(b"")
    out = str(tmp_path / "story.otio")
    assert main(["export", str(run), str(run), out, "--video", video]) == 2
    assert "expected 2, found 1" in capsys.readouterr().err


@pytest.mark.parametrize("end", [".otio", ".xml", ".edl"])
def test_markers_of_a_story_are_opened_at_their_times(end):
    otio = pytest.importorskip("opentimelineio", reason="OpenTimelineIO is not installed")
    scene = Scene("a", first=0, frames=9, switch="reset", seed=None)
    scenes = [scene, replace(scene, text="b", first=9, frames=23)]
    markers = [Marker("A <kiss> & more", 0.25), Marker("", 1.0), Marker("behind the end", 2.0)]
    story = ExportedStory("a story", 16.0, scenes, markers=markers)
    adapters = {".otio": "otio_json", ".xml": "fcp_xml", ".edl": "cmx_3600"}
    timeline = otio.adapters.read_from_string(exported(story, end), adapters[end])
    if end == ".edl":  # its markers lie on clips, in capital letters
        (track,) = timeline.video_tracks()
        found = [[marker.name for marker in clip.markers] for clip in track]
        assert found == [["PROMPT 1", "A <KISS> & MORE"], ["PROMPT 2", ""]]
        found = [clip.markers[1].marked_range.start_time.to_seconds() for clip in track]
        assert found == pytest.approx([0.25, 1.0], abs=1 / 24)
        return
    found = timeline.tracks.markers
    assert [marker.name for marker in found] == ["A <kiss> & more", ""]
    times = [marker.marked_range.start_time.to_seconds() for marker in found]
    assert times == pytest.approx([0.25, 1.0], abs=1 / 24)


def test_another_end_is_refused_and_hours_are_counted(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "story.mov")]) == 2
    assert "ends in .srt, .vtt, .csv, .otio, .xml, .edl, got '.mov'" in capsys.readouterr().err
    scene = Scene("a", first=16 * 3661, frames=8, switch="reset", seed=None)
    story = ExportedStory("long", 16.0, [scene])
    assert "01:01:01,000 --> 01:01:01,500" in exported(story, ".srt")
