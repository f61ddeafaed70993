"""Run folders that somebody else has written: every file has the hash of its content in its name,
and the JSON in it says what no render says.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headforcing.cli import cli
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.hashing import file_hash
from headforcing.headforcing_core.rollout.loop import MemoryEvent
from headforcing.headforcing_core.runs.files import FORMAT_VERSION, kind_of
from headforcing.headforcing_core.runs.folder import RunFolder
from headforcing.headforcing_core.runs.notes import MOST_BYTES
from headforcing.headforcing_core.runs.stored import find_stored, survey
from headforcing.headforcing_core.runs.takes import read_label, take_bytes, thumbnail, write_label
from headforcing.headforcing_core.video.restarts import FrameCodec
from malformed import changed, hostile, run
from safetensors import safe_open
from safetensors.torch import load_file, save_file

KEYS = ["1" * 32, "2" * 32]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run folder of a video of two prompts and two blocks."""
    about = {
        "prompts": ["a red ball", "a blue cross"],
        "starts_seconds": [0.0, 0.75],
        "switches": ["reset", "reset"],
        "seeds": [None, 7],
        "video_frames": 21,
        "fps": 16,
        "frames_per_block": 3,
        "start_frames": 0,
        "size": "64x64",
        "seed": 0,
        "novelty_threshold": 0.95,
        "workflow": "one",
    }
    event = MemoryEvent(1, 3, 0.5, True, merged=[[0], [1, 2]])
    with RunFolder(tmp_path / "runs", "a" * 32, about) as run_folder:
        run_folder.save_video(KEYS, about)
        for index, key in enumerate(KEYS):
            latents = torch.randn(3, 16, 8, 8)
            previous = KEYS[index - 1] if index else None
            run_folder.save_block(index, key, latents, event if index else None, previous=previous)
        note = {"seconds": 0.5, "events": 1, "recalls": [], "occupied": [3, None]}
        run_folder.save_note("seconds", KEYS[-1], note)
        write_label(run_folder.folder, KEYS[-1], title="mine")
        return run_folder.folder


def file_of(folder: Path, kind: str) -> Path:
    return max(path for path in folder.iterdir() if kind_of(path) == kind)


def named_anew(path: Path) -> Path:
    """Put the hash of the content into a file's name, as whoever wrote it can."""
    stem = path.stem.rpartition("-")[0]
    return path.rename(path.with_name(f"{stem}-{file_hash(path)}{path.suffix}"))


def fields_of(path: Path) -> dict[str, Any]:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["head_forcing"])


def rewrite(path: Path, fields: Any) -> None:
    text = json.dumps(fields)
    if path.suffix == ".json":
        path.write_text(text)
    else:
        save_file(load_file(path), path, {"head_forcing": text})
    named_anew(path)


def looked_at(folder: Path) -> None:
    """Everything that lists, reports and exports ask of a folder of runs."""
    videos, problems = survey(folder.parent)
    assert all(text.isprintable() for text in problems)
    for video in videos:
        label = read_label(folder, video.keys[-1])
        assert isinstance(label.title + label.file, str)
        assert video.date and video.length and video.finished_seconds <= video.seconds
        take_bytes(video, videos)
        thumbnail(video, 1, lambda latents: bytes(latents.shape))
    for command in ("list", "takes", "show"):
        code, err = run("runs", command, str(folder.parent))
        assert code in (0, 2) and err.count("\n") == (code == 2), err
    for name in ("story.srt", "story.edl", "story.otio"):
        code, err = run("export", str(folder), str(folder.parent.parent / name))
        assert code in (0, 2) and err.count("\n") == (code == 2), err


def test_the_folder_as_it_was_written_is_read_whole(folder: Path) -> None:
    video = find_stored(folder)
    assert video.take.number == 1 and len(list(video.read())) == 2
    assert read_label(folder, KEYS[-1]).title == "mine"
    looked_at(folder)


def test_prompts_of_others_forge_no_lines_of_a_list(folder: Path, capsys) -> None:
    path = file_of(folder, "video")
    fields = changed(fields_of(path), ("about", "prompts"), ["\x1b[2J\n\u202efox", "b"])
    rewrite(path, changed(fields, ("about", "size"), "\x1b[3m"))
    for command in ("list", "takes", "show"):
        assert cli.main(["runs", command, str(folder.parent)]) == 0
        told = capsys.readouterr().out
        assert not {"\x1b", "\u202e"} & {*told} and "\nfox" not in told


@pytest.mark.parametrize("kind", ["run", "video", "seconds", "label", "block"])
def test_whatever_the_json_of_a_file_says_is_one_sentence_or_left_out(
    folder: Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    path = file_of(folder, kind)
    good = fields_of(path)
    tries = hostile(good, random.Random(3), 40)
    kept = folder.parent.parent / "kept"
    shutil.copytree(folder, kept)
    for fields in tries:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        rewrite(folder / path.name, fields)
        looked_at(folder)
    record_property("malformed files and texts tried", len(tries))


WRONG = [
    ("video", ("about", "fps"), 0),
    ("video", ("about", "fps"), 1e-320),
    ("video", ("about", "video_frames"), 10**400),
    ("video", ("about", "starts_seconds"), [0.0, float("nan")]),
    ("video", ("about", "starts_seconds"), [0.0]),
    ("video", ("about", "prompts"), [None, "b"]),
    ("video", ("about", "prompts"), []),
    ("video", ("about", "frames_per_block"), 0),
    ("video", ("about", "size"), 64),
    ("video", ("begun",), 1e300),
    ("video", ("take",), "first"),
    ("video", ("keys",), []),
    ("video", ("keys",), [5]),
    ("run", ("setup",), None),
]


@pytest.mark.parametrize(("kind", "place", "value"), WRONG)
def test_what_lists_compute_with_is_refused_when_it_is_no_such_number(
    folder: Path, kind: str, place: tuple[str, ...], value: Any
) -> None:
    path = file_of(folder, kind)
    rewrite(path, changed(fields_of(path), place, value))
    _, problems = survey(folder.parent)
    assert len(problems) == 1 and "is not a file of a run" in problems[0]


@pytest.mark.parametrize("frames", [3, ["x"], [None], [float("inf")], [-1], "x"])
def test_rollouts_that_begin_with_no_frame_are_not_decoded(frames: Any) -> None:
    codec = FrameCodec(lambda: None, torch.nn.Identity())  # type: ignore
    with pytest.raises(HeadForcingError, match="do not say with which latent frames"):
        codec.decoder({"restart_frames": frames})


EVENTS: list[Any] = [5, {}, {"after_block": 1, "frame": "x", "delta": 0.1, "admitted": True}]


@pytest.mark.parametrize("event", EVENTS)
def test_a_block_with_another_event_is_not_read(folder: Path, event: Any) -> None:
    path = file_of(folder, "block")
    rewrite(path, {**fields_of(path), "event": event})
    video = find_stored(folder)
    assert len(list(video.read())) == 1 and "is not a file of a run" in video.reader.problems[0]


@pytest.mark.parametrize(
    "tensors",
    [
        {"other": torch.zeros(3, 16, 8, 8)},
        {"latents": torch.zeros(3, 16)},
        {"latents": torch.zeros(3, 16, 8, 8, dtype=torch.int64)},
        {"latents": torch.full((3, 16, 8, 8), float("nan"))},
        {"latents": torch.zeros(0, 16, 8, 8)},
        {"latents": torch.zeros(3, 48, 8, 8)},
        {"latents": torch.zeros(3, 16, 8, 9)},
    ],
)
def test_a_block_with_other_tensors_is_not_read(folder: Path, tensors: Any) -> None:
    path = file_of(folder, "block")
    fields = fields_of(path)
    save_file(tensors, path, {"head_forcing": json.dumps(fields)})
    named_anew(path)
    video = find_stored(folder)
    assert video.latents().shape == (3, 16, 8, 8)
    (problem,) = video.reader.problems
    assert "holds no latents" in problem or "does not continue the block before it" in problem


def test_a_note_of_many_megabytes_or_brackets_is_not_read(folder: Path) -> None:
    for text in (" " * MOST_BYTES + "{}", "[" * 200_000, f'{{"format_version": {"9" * 5000}}}'):
        path = file_of(folder, "video")
        path.write_text(text)
        named_anew(path)
        videos, problems = survey(folder.parent)
        assert videos == [] and "is not a file of a run" in problems[0]
    with pytest.raises(HeadForcingError, match="is neither a run folder nor a video"):
        find_stored(folder)


def test_a_note_of_a_later_version_says_so_whatever_else_it_holds(folder: Path) -> None:
    rewrite(file_of(folder, "video"), {"format_version": FORMAT_VERSION + 1})
    _, problems = survey(folder.parent)
    assert "update the pack" in problems[0]
