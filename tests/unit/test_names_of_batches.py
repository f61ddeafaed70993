"""Names of videos in a file of `headforcing batch`."""

import json

import pytest
from headforcing.headforcing_core.commands.batch_jobs import read_jobs
from headforcing.headforcing_core.errors import HeadForcingError


def jobs(folder, name):
    file = folder / "j.jsonl"
    line = {"name": name, "demo": True, "prompts": "a red ball", "seconds": 1}
    file.write_text(json.dumps(line), encoding="utf-8")
    return read_jobs(file, folder / "out")


@pytest.mark.parametrize("name", ["u\u0308", "狐", "\u0e2b\u0e21\u0e35", "a b.c-d_e", "console"])
def test_a_name_has_letters_of_any_script(tmp_path, name):
    assert list(jobs(tmp_path, name)) == [name]


@pytest.mark.parametrize("name", ["con", "NUL", "com1", "aux.txt", "狐" * 80, "../x", "a/b"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(HeadForcingError, match="name"):
        jobs(tmp_path, name)
