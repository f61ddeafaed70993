"""Videos for VBench's own program: the layout that its mode custom_input reads, and its results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.hashing import file_hash
from headforcing.research import vbench
from headforcing.research.questions import COLUMNS

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


def lay_out(folder: Path) -> dict[str, list[str]]:
    """Two rows of the same three videos."""
    videos = []
    for number, prompt in enumerate(PROMPTS):
        videos.append((folder / f"made-{number}.mp4", prompt))
        if not videos[-1][0].exists():
            videos[-1][0].write_bytes(b"video %d" % number)
    return vbench.lay_out(folder / "to measure", {"head_forcing": videos, "no_rope-absolute": videos})


def measure(folder: Path) -> None:
    """Run the printed line with a stand-in for uvx."""
    stand_in = folder.parent / "bin"
    stand_in.mkdir()
    (folder.parent / "vbench.py").write_text(PROGRAM, encoding="utf-8")
    (stand_in / "uvx").write_text(f'#!/bin/sh\nshift 4\nexec {sys.executable} {folder.parent}/vbench.py "$@"\n')
    (stand_in / "uvx").chmod(0o755)
    environment = {**os.environ, "PATH": f"{stand_in}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", f"set -e; {vbench.command(folder)}"], check=True, env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="the line is for a POSIX shell")
def test_the_printed_line_measures_the_videos_of_every_row(tmp_path: Path):
    names, folder = lay_out(tmp_path), tmp_path / "to measure"
    row = folder / "videos" / "head_forcing"
    prompts = json.loads((row / "prompts.json").read_text("utf-8"))
    assert list(prompts) == names["head_forcing"] and tuple(prompts.values()) == PROMPTS
    assert list(prompts)[1] == f"an owl_on a wall-1-{file_hash(tmp_path / 'made-1.mp4')[:8]}.mp4"
    assert all(len(name) < 100 and (row / name).samefile(tmp_path / f"made-{i}.mp4") for i, name in enumerate(prompts))
    assert vbench.read_results(folder) == {}
    measure(folder)
    found = vbench.read_results(folder)
    assert set(found) == {(row, name) for row in names for name in names[row]}
    ordered = [found["head_forcing", name] for name in sorted(names["head_forcing"])]
    keys = ("subject_consistency", "dynamic_degree", "imaging_quality")
    told = [[video.get(f"vbench_{key}") for key in keys] for video in ordered]
    assert told == [pytest.approx(row) for row in ([0.9, 0, 0.6], [0.91, 1, 0.61], [0.92, 1, 0.62])]
    assert set(vbench.COLUMNS) <= set(COLUMNS)


def test_results_of_other_videos_are_not_taken_for_these_which_are_copied_where_there_are_no_links(
    tmp_path: Path, monkeypatch
):
    names, folder = lay_out(tmp_path)["head_forcing"], tmp_path / "to measure"
    (tmp_path / "made-1.mp4").unlink()  # a link to it stays where it was laid out
    (tmp_path / "made-1.mp4").write_bytes(b"another seed")

    def no_links(*args):
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    again = lay_out(tmp_path)["head_forcing"]
    assert [a == b for a, b in zip(names, again, strict=True)] == [True, False, True]
    assert {path.name for path in (folder / "videos" / "head_forcing").glob("*.mp4")} == set(again)
    assert (folder / "videos" / "head_forcing" / again[1]).read_bytes() == b"another seed"


@pytest.mark.parametrize("content", ['{"dynamic_degree": [1, [{"video_path": 3}]]}', "[]", "no JSON"])
def test_what_is_not_vbenchs_is_refused(tmp_path: Path, content: str):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x_eval_results.json").write_text(content)
    with pytest.raises(HeadForcingError, match="is not what VBench writes"):
        vbench.read_results(tmp_path)
