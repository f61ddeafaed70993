"""A plain render takes a short way, through nothing that nobody has asked for, and no more memory
if it is long.
"""

import json
from pathlib import Path

import pytest
from own_process import run
from toy_renders import save_toy

MOST = {"before": (50, 318), "block": (14, 345)}  # files, and how often one is entered
NOTHING_OF = (
    "methods/options",
    "cache/scenes",
    "cli/batch",
    "cli/workers",
    "cli/rank",
    "cli/several",
    "distributed/",
    "head_profiles/profiler",
    "render/comparison",
    "plan/family",
    "render/live_story",
    "plan/remedies",
    "plan/start",
    "runs/",
    "timeline/references",
    "video/background",
    "video/wan_",
    "weights/identity",
)


@pytest.fixture(scope="module")
def way(repo_root, tmp_path_factory) -> dict[str, list[str]]:
    """The files that `demo` enters, see `traced_render`."""
    program = repo_root / "tests" / "helpers" / "traced_render.py"
    options = [
        "--seconds",
        "4",
        "--scale",
        "1",
        "--device",
        "cpu",
        "--out",
        tmp_path_factory.mktemp("demo"),
    ]
    return json.loads(
        run(program, "demo", "--json", *options, OMP_NUM_THREADS="1").splitlines()[-1]
    )


@pytest.mark.parametrize("part", MOST)
def test_the_way_to_the_first_block_and_through_a_block_is_short(way, part):
    files = len(set(way[part]))
    entered = len(way[part])
    most_files, most_entered = MOST[part]
    assert 10 < files <= most_files and entered <= most_entered, (files, entered)


def test_a_plain_render_enters_nothing_that_nobody_has_asked_for(way):
    assert len(way["all"]) > 50 and {
        "rollout/loop.py",
        "cache/head_group.py",
        "video/writer.py",
    } <= set(way["all"])
    assert not [file for file in way["all"] if file.startswith(NOTHING_OF)]


RUN = """
import sys
from pathlib import Path
from headforcing.cli.cli import main
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.render.sinks import ProgressBar
from peak_memory import peak_bytes
assets.model_path, peaks = lambda: Path(sys.argv[1]), []
ProgressBar.add = lambda self, block: peaks.append(peak_bytes())
print(main(sys.argv[2:]), *peaks, peak_bytes())
"""


def demo(folder: Path, seconds: int) -> tuple[dict, list[float]]:
    """The report of a render with a run folder, one layer and one step, and the peak of its process
    in kB by block.
    """
    folder.mkdir()
    model = save_toy(folder, 1)
    arguments = [
        "demo",
        "--json",
        "--out",
        folder,
        "--seconds",
        seconds,
        "--runs",
        folder / "runs",
        "--scale",
        1,
    ]
    arguments += ["--sigmas", 1, "--profile", folder / "toy.json"]
    # glibc gives a thread its own pool of memory when another holds the lock: megabytes, more on a
    # busy machine
    report, last = run("-c", RUN, model, *arguments, MALLOC_ARENA_MAX="1").splitlines()
    code, *peaks = last.split()
    assert code == "0"
    return json.loads(report), [int(peak) / 1024 for peak in peaks]


@pytest.mark.thorough
@pytest.mark.slow
def test_five_minutes_take_no_more_memory_than_thirty_seconds(tmp_path: Path):
    """The rule is 5 %, and 1 kB for every picture once everything is in place.

    The latter is measured inside one process: where two put their first allocations differs by
    megabytes.
    """
    short, short_peaks = demo(tmp_path / "30", 30)
    long, long_peaks = demo(tmp_path / "300", 300)
    assert (short["video_frames"], long["video_frames"]) == (480, 4800)
    assert long["cache_bytes"] == short["cache_bytes"]
    assert long_peaks[-1] < 1.05 * short_peaks[-1]
    assert len(long_peaks) > 400, "one for each block"
    early = long_peaks[int(0.3 * len(long_peaks))]
    late = long_peaks[int(0.9 * len(long_peaks))]
    assert late - early < 4800
