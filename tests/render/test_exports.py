"""The story of a stored video in other programs' files, read again by the project's reader and by
OpenTimelineIO.
"""

import pytest
from headforcing.cli.cli import main
from headforcing.headforcing_core.runs.exports import ExportedStory, Scene, exported
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


def test_another_end_is_refused_and_hours_are_counted(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "story.mov")]) == 2
    assert "ends in .srt, .vtt, .csv, .otio, .xml, .edl, got '.mov'" in capsys.readouterr().err
    scene = Scene("a", first=16 * 3661, frames=8, switch="reset", seed=None)
    story = ExportedStory("long", 16.0, [scene])
    assert "01:01:01,000 --> 01:01:01,500" in exported(story, ".srt")
