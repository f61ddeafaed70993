"""Names of videos in a file of `headforcing batch`."""

import json

import pytest
from headforcing.cli.batch_jobs import read_jobs
from headforcing.headforcing_core.errors import HeadForcingError
from malformed import bounded


def jobs(folder, name):
    file = folder / "j.jsonl"
    line = {"name": name, "demo": True, "prompts": "a red ball", "seconds": 1}
    file.write_text(json.dumps(line), encoding="utf-8")
    return read_jobs(file, folder / "out")


@pytest.mark.parametrize("name", ["u\u0308", "狐", "\u0e2b\u0e21\u0e35", "a b.c-d_e", "console"])
def test_a_name_has_letters_of_any_script(tmp_path, name):
    assert list(jobs(tmp_path, name)) == [name]


@pytest.mark.parametrize(
    "name",
    ["con", "NUL", "com1", "LPT\u00b9", "aux.txt", "conout$", "x.", "x ", "狐" * 80, "../x", "a/b"],
)
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(HeadForcingError, match="name"):
        jobs(tmp_path, name)


def test_one_name_in_two_encodings_is_given_twice(tmp_path):
    file = tmp_path / "j.jsonl"
    lines = [{"name": name, "demo": True, "prompts": "a"} for name in ("\u00fc", "u\u0308")]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with pytest.raises(HeadForcingError, match="two videos named"):
        read_jobs(file, tmp_path / "out")


@pytest.mark.parametrize("seeds", [True, False])
def test_a_list_of_too_many_videos_is_refused_at_once(tmp_path, seeds):
    file = tmp_path / "j.jsonl"
    line = {"demo": True, "prompts": "a red ball", "seconds": 1}
    lines = [line | {"seeds": list(range(200_000))}] if seeds else [line] * 20_000
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with bounded(), pytest.raises(HeadForcingError, match="more than 10,000 videos"):
        read_jobs(file, tmp_path / "out")
