"""Videos for VBench's own program: the folder that its mode custom_input reads, and its results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.research import vbench

# what VBench writes for a folder, with its scales: shares as true and false, imaging quality of a
# video in per cent
PROGRAM = """
import json, sys
from pathlib import Path
given = dict(zip(sys.argv[1:], sys.argv[2:]))
folder = Path(given["--videos_path"])
(dimension,) = sys.argv[sys.argv.index("--dimension") + 1:]  # VBench's own takes one
assert " " not in str(folder) + given["--output_path"], "VBench does not quote its paths"
prompts = json.loads(Path(given["--prompt_file"]).read_text("utf-8"))
videos = sorted(path for path in folder.iterdir() if path.suffix == ".mp4")
assert set(prompts) == {path.name for path in videos} and given["--mode"] == "custom_input"
scores = {"subject_consistency": lambda i: 0.9 + i / 100, "dynamic_degree": lambda i: i > 0}
scores["imaging_quality"] = lambda i: 60.0 + i
found = {
    name: [0.5, [{"video_path": str(path), "video_results": score(i)} for i, path in enumerate(videos)]]
    for name, score in scores.items() if name == dimension
}
out = Path(given["--output_path"])
out.mkdir(parents=True, exist_ok=True)
(out / f"results_{dimension}_eval_results.json").write_text(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the line is for a POSIX shell")
def test_the_printed_line_measures_the_videos_of_a_folder_and_numbers_of_earlier_ones_do_not_count(
    tmp_path: Path,
):
    folder = tmp_path / "to measure"
    stand_in = tmp_path / "bin"
    prompts = {f"method-seed{seed}.mp4": f"a fox, number {seed}" for seed in range(3)}
    for made in (folder, stand_in):
        made.mkdir()
    for name in prompts:
        (folder / name).write_bytes(b"video")
    assert vbench.read_results(folder) == {}
    (tmp_path / "vbench.py").write_text(PROGRAM, encoding="utf-8")
    (stand_in / "uvx").write_text(
        f'#!/bin/sh\nshift 4\nexec {sys.executable} {tmp_path}/vbench.py "$@"\n'
    )
    (stand_in / "uvx").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{stand_in}{os.pathsep}{os.environ['PATH']}",
    }
    subprocess.run(
        ["sh", "-c", f"set -e; {vbench.command(folder, prompts)}"],
        check=True,
        env=environment,
    )
    keys = [f"vbench_{key}" for key in ("subject_consistency", "dynamic_degree", "imaging_quality")]
    expected = ([0.9, 0, 0.6], [0.91, 1, 0.61], [0.92, 1, 0.62])
    for name, row in zip(prompts, expected, strict=True):
        results = vbench.read_results(folder)[name]
        assert [results[key] for key in keys] == pytest.approx(row)
    later = (folder / "vbench" / "results_imaging_quality_eval_results.json").stat().st_mtime + 60
    os.utime(folder / "method-seed1.mp4", (later, later))  # made anew
    assert list(vbench.read_results(folder)) == [
        "method-seed0.mp4",
        "method-seed2.mp4",
    ]


# What VBench-Long writes: clips, then the mean over those of a video; of a consistency videos alone
LONG_PROGRAM = """
import json, sys
from pathlib import Path
arguments = sys.argv[1:]
assert arguments.pop(0) == "vbench_long/VBench/vbench2_beta_long/eval_long.py"
given = dict(zip(arguments, arguments[1:]))
assert given["--mode"] == "long_custom_input" and "--dev_flag" in arguments
videos = sorted(Path(given["--videos_path"]).glob("*.mp4"))
(dimension,) = arguments[arguments.index("--dimension") + 1:]
means = [{"video_path": f"{path}", "video_results": 10.0 + i} for i, path in enumerate(videos)]
clips = [{"video_path": f"{path.parent}/split_clip/{path.stem}/{path.stem}_000.mp4",
          "video_results": True} for path in videos]
found = {"imaging_quality": [0.1, clips, means], "subject_consistency": [0.1, means]}
out = Path(given["--output_path"]) / f"results_{dimension}_eval_results.json"
out.write_text(json.dumps({name: each for name, each in found.items() if name == dimension}))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the line is for a POSIX shell")
def test_vbench_long_cuts_links_of_the_videos_by_itself_and_its_numbers_stand_beside_vbenchs(
    tmp_path: Path,
):
    folder = tmp_path / "to measure"
    stand_in = tmp_path / "bin"
    for made in (folder, stand_in):
        made.mkdir()
    for seed in range(2):
        (folder / f"method-seed{seed}.mp4").write_bytes(b"video")
    (tmp_path / "long.py").write_text(LONG_PROGRAM, encoding="utf-8")
    for name, script in {
        "uvx": f'while [ "$1" != python ]; do shift; done; exec {sys.executable} '
        f'{tmp_path}/long.py "$@"',
        "git": 'for folder in "$@"; do :; done; mkdir -p "$folder"',
    }.items():
        path = stand_in / name
        made = script.replace('long.py "$@"', 'long.py "${@:2}"')
        path.write_text(f"#!/bin/bash\n{made}\n", encoding="utf-8")
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{stand_in}{os.pathsep}{os.environ['PATH']}"}
    line = vbench.long_command(folder)
    for _ in range(2):  # links of a first run are in the way of nothing
        subprocess.run(["sh", "-c", f"set -e; {line}"], check=True, env=environment)
    found = vbench.read_results(folder)
    assert found["method-seed1.mp4"] == {
        "vbench_long_imaging_quality": pytest.approx(0.11),
        "vbench_long_subject_consistency": 11.0,
    }
    (folder / "vbench").mkdir()
    plain = {"imaging_quality": [0.5, [{"video_path": "method-seed1.mp4", "video_results": 70.0}]]}
    (folder / "vbench" / "a_eval_results.json").write_text(json.dumps(plain), encoding="utf-8")
    both = vbench.read_results(folder)["method-seed1.mp4"]
    assert both["vbench_imaging_quality"] == 0.7 and both["vbench_long_imaging_quality"] == 0.11
    assert sorted(path.name for path in folder.glob("*")) == [
        "method-seed0.mp4",
        "method-seed1.mp4",
        "vbench",
        "vbench_long",
    ]


@pytest.mark.parametrize(
    "content", ['{"dynamic_degree": [1, [{"video_path": 3}]]}', "[]", "no JSON"]
)
def test_what_is_not_vbenchs_is_refused(tmp_path: Path, content: str):
    (tmp_path / "vbench").mkdir()
    (tmp_path / "vbench" / "x_eval_results.json").write_text(content)
    with pytest.raises(HeadForcingError, match="is not what VBench writes"):
        vbench.read_results(tmp_path)
