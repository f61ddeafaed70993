"""Videos for VBench's own program: the layout that its mode custom_input reads, and its results in tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.hashing import file_hash
from headforcing.research import vbench
from headforcing.research.__main__ import main
from headforcing.research.questions import COLUMNS, QUESTIONS

PROMPTS = ("a fox: what does it say? " + "very " * 40, "an owl/on a wall", "a fox: what does it say? " + "very " * 40)
# what VBench writes for a folder, with its scales: shares as true and false, imaging quality of a video in per cent
PROGRAM = """
import json, sys
from pathlib import Path
given = dict(zip(sys.argv[1:], sys.argv[2:]))
row = Path(given["--videos_path"])
(dimension,) = sys.argv[sys.argv.index("--dimension") + 1:]  # VBench's own takes one
assert " " not in str(row) + given["--output_path"], "VBench does not quote its paths"
prompts = json.loads(Path(given["--prompt_file"]).read_text("utf-8"))
videos = sorted(path for path in row.iterdir() if path.suffix == ".mp4")
assert set(prompts) == {path.name for path in videos} and given["--mode"] == "custom_input"
scores = {"subject_consistency": lambda i: 0.9 + i / 100, "dynamic_degree": lambda i: i > 0}
scores["imaging_quality"] = lambda i: 60.0 + i
found = {
    name: [0.5, [{"video_path": str(path), "video_results": score(i)} for i, path in enumerate(videos)]]
    for name, score in scores.items() if name == dimension
}
out = Path(given["--output_path"])
out.mkdir(parents=True, exist_ok=True)
(out / f"results_{row.name}_{dimension}_eval_results.json").write_text(json.dumps(found))
"""


def rows(name: str) -> list[str]:
    return [row.key for row in QUESTIONS[name].rows]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    videos = []
    for number, prompt in enumerate(PROMPTS):
        videos.append((tmp_path / f"made-{number}.mp4", prompt))
        videos[-1][0].write_bytes(b"video %d" % number)
    vbench.export(tmp_path / "to measure", ["rope"], 0, {row: videos for row in rows("rope")})
    return tmp_path / "to measure"


def measure(folder: Path) -> None:
    """Run the printed line with a stand-in for uvx."""
    stand_in = folder.parent / "bin"
    stand_in.mkdir()
    (folder.parent / "vbench.py").write_text(PROGRAM, encoding="utf-8")
    (stand_in / "uvx").write_text(f'#!/bin/sh\nshift 4\nexec {sys.executable} {folder.parent}/vbench.py "$@"\n')
    (stand_in / "uvx").chmod(0o755)
    environment = {**os.environ, "PATH": f"{stand_in}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", f"set -e; {vbench.command(folder)}"], check=True, env=environment)


def test_videos_are_linked_by_row_with_their_prompts(exported: Path):
    row = exported / "videos" / rows("rope")[0]
    prompts = json.loads((row / "prompts.json").read_text("utf-8"))
    assert tuple(prompts.values()) == PROMPTS and all((row / name).is_file() for name in prompts)
    digits = file_hash(exported.parent / "made-1.mp4")[:8]
    assert list(prompts)[1] == f"an owl_on a wall-1-{digits}.mp4" and all(len(name) < 100 for name in prompts)
    for number, name in enumerate(prompts):
        assert (row / name).samefile(exported.parent / f"made-{number}.mp4")


def test_an_export_may_be_repeated_and_copies_where_there_are_no_links(exported: Path, monkeypatch):
    def no_links(*args):
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    source = exported.parent / "made-0.mp4"
    source.write_bytes(b"made anew")
    vbench.export(exported, ["rope"], 0, {row: [(source, "a fox")] for row in rows("rope")})
    (copied,) = (exported / "videos" / rows("rope")[0]).glob("*.mp4")
    assert copied.name.startswith("a fox-0-") and copied.read_bytes() == b"made anew" and not copied.samefile(source)


@pytest.mark.skipif(sys.platform == "win32", reason="the line is for a POSIX shell")
def test_the_printed_line_measures_every_row_and_its_results_become_a_table(exported: Path, capsys):
    measure(exported)
    assert main(["read-vbench", str(exported), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rope"]
    assert [len(row["videos"]) for row in found["rows"]] == [3] * len(rows("rope"))
    means = found["rows"][-1]["means"]
    assert means["vbench_subject_consistency"]["mean"] == pytest.approx(0.91)
    assert means["vbench_imaging_quality"]["mean"] == pytest.approx(0.61)
    assert means["vbench_dynamic_degree"]["mean"] == pytest.approx(2 / 3)
    assert means["vbench_motion_smoothness"] is None and found["primary"] == ""
    table = (exported / "rope-vbench.md").read_text("utf-8")
    assert "| subject (VBench) |" in table and "smoothness" not in table and "Means of 3 videos" in table


def test_results_of_other_videos_are_not_taken_for_these(exported: Path):
    row = rows("rope")[0]

    def known() -> list[str]:
        measured = vbench.read_results(exported)
        return [name for name in vbench.read_export(exported).files[row] if (row, name) in measured]

    names = vbench.read_export(exported).files[row]
    found = [{"video_path": f"videos/{row}/{name}", "video_results": 0.5} for name in names]
    (exported / "results").mkdir()
    (exported / "results" / "x_eval_results.json").write_text(json.dumps({"motion_smoothness": [0.5, found]}))
    assert known() == names
    (exported.parent / "made-1.mp4").unlink()  # a link to it stays where it was laid out
    (exported.parent / "made-1.mp4").write_bytes(b"another seed")
    videos = [(exported.parent / f"made-{number}.mp4", prompt) for number, prompt in enumerate(PROMPTS)]
    vbench.export(exported, ["rope"], 0, {row: videos})
    assert known() == [names[0], names[2]]
    assert len(list((exported / "videos" / row).glob("*.mp4"))) == 3


def test_what_was_not_measured_or_is_not_vbenchs_is_refused(exported: Path, capsys):
    assert main(["read-vbench", str(exported)]) == 2
    assert "has measured nothing in" in (said := capsys.readouterr().err) and "uvx --python 3.10 vbench" in said
    assert main(["read-vbench", str(exported.parent)]) == 2
    assert "export.json was not found" in capsys.readouterr().err
    (exported / "results").mkdir()
    (exported / "results" / "x_eval_results.json").write_text('{"dynamic_degree": [1, [{"video_path": 3}]]}')
    with pytest.raises(HeadForcingError, match="is not what VBench writes"):
        vbench.read_results(exported)
    (exported / "export.json").write_text('{"files": 3}')
    with pytest.raises(HeadForcingError, match="was not written by `evaluate --vbench`"):
        vbench.read_export(exported)
    assert set(vbench.COLUMNS) <= set(COLUMNS)
