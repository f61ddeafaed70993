"""Stories in other forms on the command line: printed, rendered, and named in one line."""

import json

import pytest
from headforcing.cli.cli import main

BALL = "a red ball bouncing in the teal plain room"
CROSS = "a blue cross in the navy plain room"
SUBTITLES = (
    f"1\n00:00:00,000 --> 00:00:01,000\n{BALL}\n\n2\n00:00:01,000 --> 00:00:02,000\n{CROSS}\n"
)
WRITTEN = f"[0:00-0:01] {BALL}\n[0:01-0:02] {CROSS}"
SENTENCE = "is read as 2 prompts from subtitles; 0:00 to 0:02."


def test_a_story_in_another_form_is_printed_in_the_written_one(tmp_path, capsys):
    file = tmp_path / "ball.srt"
    file.write_text(SUBTITLES, "utf-8")
    assert main(["story", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{WRITTEN}\n" and said.err.endswith(f"ball.srt {SENTENCE}\n")
    file.write_text(said.out, "utf-8")
    assert main(["story", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out.rstrip("\n") == WRITTEN and said.err == ""
    assert main(["story", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["form"], found["prompts"]) == ("written", [BALL, CROSS])
    file.write_text(SUBTITLES + "\nScene 2: x", "utf-8")
    assert main(["story", str(file)]) == 2
    assert "line 9: 'Scene 2: x' belongs to no subtitle" in capsys.readouterr().err


@pytest.mark.slow
def test_a_render_of_another_form_says_so_and_has_the_blocks_of_its_translation(tmp_path, capsys):
    names = []
    for name, text in (("ball.srt", SUBTITLES), ("ball.txt", WRITTEN)):
        file = tmp_path / name
        file.write_text(text, "utf-8")
        command = [
            "demo",
            "--prompts",
            f"@{file}",
            "--scale",
            "1",
            "--sigmas",
            "1",
            "--device",
            "cpu",
        ]
        assert (
            main([*command, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
        )
        assert (SENTENCE in capsys.readouterr().err) == (name == "ball.srt")
        names.append(sorted(path.name for path in (tmp_path / "runs").iterdir()))
    assert names[0] == names[1], "the second render found the first one's run"
    job = {"demo": True, "scale": 1, "sigmas": "1", "device": "cpu", "prompts": SUBTITLES}
    (tmp_path / "jobs.jsonl").write_text(json.dumps(job), "utf-8")
    jobs = ["batch", str(tmp_path / "jobs.jsonl"), "--out", str(tmp_path / "batch")]
    assert main(jobs) == 0
    assert f"the text {SENTENCE}" in capsys.readouterr().err
