"""A plain render takes a short way: few files, seldom left and entered again, none of a feature unasked for."""

import json

import pytest
from own_process import run

MOST = {"before": (48, 316), "block": (14, 334)}  # files, and how often one is entered
NOTHING_OF = (
    "cache/guards", "cache/options", "cache/scenes", "commands/batch", "commands/farms",
    "commands/rank", "commands/several", "distributed/", "head_profiles/auto",
    "head_profiles/profiler", "recorded/", "render/comparison", "render/family", "render/live_story",
    "render/remedies", "render/start", "report/learned/", "runs/", "timeline/references", "video/background",
    "video/wan_", "weights/identity",
)  # fmt: skip


@pytest.fixture(scope="module")
def way(repo_root, tmp_path_factory) -> dict[str, list[str]]:
    """The files that `demo` enters, see `traced_render`."""
    program = repo_root / "tests" / "helpers" / "traced_render.py"
    options = ["--seconds", "4", "--scale", "1", "--device", "cpu", "--out", tmp_path_factory.mktemp("demo")]
    return json.loads(run(program, "demo", "--json", *options, OMP_NUM_THREADS="1").splitlines()[-1])


@pytest.mark.parametrize("part", MOST)
def test_the_way_to_the_first_block_and_through_a_block_is_short(way, part):
    files, entered = len(set(way[part])), len(way[part])
    most_files, most_entered = MOST[part]
    assert 10 < files <= most_files and entered <= most_entered, (files, entered)


def test_a_plain_render_enters_nothing_that_nobody_has_asked_for(way):
    assert len(way["all"]) > 50 and {"rollout/loop.py", "cache/head_group.py", "video/writer.py"} <= set(way["all"])
    assert not [file for file in way["all"] if file.startswith(NOTHING_OF)]
