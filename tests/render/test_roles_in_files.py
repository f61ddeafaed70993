"""Head roles that travel with what they made: in a video's metadata and in the run folder, a letter
a head.
"""

import json

import av
import pytest
from headforcing.cli.cli import main
from headforcing.cli.values import find_profile
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.line import (
    answers,
    profile_of_note,
    roles_line,
    roles_note,
)
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, load_profile
from headforcing.headforcing_core.plan.video_roles import profile_from
from headforcing.headforcing_core.render import measured_roles
from toy_renders import save_toy

SMALL = HeadProfile("small", 2, 3, (("local", "anchor", "memory"), ("memory", "memory", "anchor")))


def test_roles_are_one_letter_a_head_and_are_read_again():
    note = roles_note(SMALL, "ab12", AutoProfile())
    assert note == {"roles": "lam mma", "weights": "ab12", "asked": ["auto", 0.25, 0.2]}
    read = profile_of_note(json.loads(json.dumps(note)), "x.mp4")
    assert read.roles == SMALL.roles and read.provenance == {"source": "the metadata of x.mp4"}
    assert roles_line(read.roles) == "lam mma" and read.name == "x.mp4"


def test_a_note_answers_for_its_weights_and_how_its_roles_were_asked_for():
    note = roles_note(SMALL, "ab12", AutoProfile())
    assert answers(note, "ab12", AutoProfile(measure_seconds=5))
    assert not answers(note, "cd34", AutoProfile()) and not answers(note, "", AutoProfile())
    assert not answers(note, "ab12", AutoProfile(rule="quota"))
    assert not answers(note, "ab12", AutoProfile(local_fraction=0.1))
    assert not answers(roles_note(SMALL, "", AutoProfile()), "", AutoProfile())
    assert not answers(roles_note(SMALL, "ab12", SMALL), "ab12", AutoProfile()), "of a chosen file"
    for other in (None, "lam mma", [1], 5):
        assert not answers(other, "ab12", AutoProfile())


HOSTILE = (
    None,
    5,
    [],
    {},
    "",
    " ",
    "lam mm",
    "lam  mma",
    "lam mmx",
    "lam\nmma",
    "LAM MMA",
    "l" * 200_000,
    {"roles": None},
    {"roles": ["lam"]},
    {"roles": "\x1b[2Jlam"},
    {"roles": "lаm"},  # a Cyrillic letter
)


@pytest.mark.parametrize("note", HOSTILE, ids=range(len(HOSTILE)))
def test_anything_else_gets_one_sentence(note):
    with pytest.raises(HeadForcingError) as error:
        profile_of_note(note, "evil\n\x1b[2J.mp4")
    told = str(error.value)
    assert "its head roles must be a letter l, a or m for each head" in told
    assert told.isprintable() and len(told) < 400


def write_video(path, **tags):
    with av.open(str(path), "w", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata.update(tags)
        stream = container.add_stream("mpeg4", rate=16)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for packet in [*stream.encode(av.VideoFrame(32, 32, "yuv420p")), *stream.encode(None)]:
            container.mux(packet)


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({}, "x.mp4 has no head roles in its metadata"),
        ({"head_forcing": "{"}, "x.mp4 has no head roles in its metadata"),
        ({"head_forcing": '{"heads": null}'}, "x.mp4 has no head roles in its metadata"),
        ({"head_forcing": '{"heads": {"roles": "lxm"}}'}, "x.mp4: its head roles must be a letter"),
    ],
)
def test_a_video_of_others_gets_one_sentence(tmp_path, tags, said):
    write_video(tmp_path / "x.mp4", **tags)
    with pytest.raises(HeadForcingError, match=said):
        profile_from(tmp_path / "x.mp4")


def test_a_file_that_is_no_video_gets_one_sentence(tmp_path):
    (tmp_path / "x.mp4").write_bytes(b"no video")
    for path in (tmp_path / "x.mp4", tmp_path / "absent.mp4"):
        with pytest.raises(HeadForcingError, match=path.name):
            profile_from(path)


def test_a_video_made_with_measured_roles_gives_them_to_another_machine(
    tmp_path, monkeypatch, capsys
):
    """`--profile auto` on one, `--profile VIDEO` on the other, which has no file of found roles:
    the same blocks, by their keys.
    """
    monkeypatch.setattr(measured_roles, "VIDEOS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = save_toy(tmp_path, 2)
    monkeypatch.setattr(assets, "model_path", lambda: model)

    def demo(name, *profile):
        folder = tmp_path / name
        files = (
            "--runs",
            folder / "runs",
            "--out",
            folder / "out",
            "--found-profiles",
            folder / "found",
        )
        command = ("demo", "--seconds", "1.5", "--profile", *profile, *files)
        assert main([str(word) for word in command]) == 0
        (run,) = (folder / "runs").iterdir()
        (video,) = (folder / "out").glob("*.mp4")
        return run, video, capsys.readouterr().out

    run, video, told = demo("first", "auto", "--measure-seconds", "600")
    assert "measured which head is what" in told
    (found,) = (tmp_path / "first" / "found").iterdir()
    kept = load_profile(found)
    (about,) = run.glob("run*.json")
    note = json.loads(about.read_text("utf-8"))["about"]["heads"]
    assert note["roles"] == roles_line(kept.roles) and note["weights"] == found.stem

    again, copy, told = demo("second", video)
    assert again.name == run.name, "the key of all that blocks depend on"
    assert "measured which head" not in told and f"(profile '{video.name}')" in told
    assert not (tmp_path / "second" / "found").exists()
    assert find_profile(str(copy)).roles == profile_from(copy).roles == kept.roles
