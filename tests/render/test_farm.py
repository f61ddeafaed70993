"""Videos made at the same time have the bits of those made one after the other, whatever happens to workers."""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from headforcing.headforcing_core.commands import batch, profiles
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.files import claimed

ray = pytest.importorskip("ray", reason="the farm's tests need Ray: pip install ray")
pytestmark = pytest.mark.slow

STORIES = (
    "a red ball bouncing on a teal floor",
    "0:00 a yellow star gliding on a navy checkerboard\n0:01 a cyan ring circling on a maroon stripes",
    "0:00 a pink square bouncing on a olive floor\n0:01 [recache] a green triangle gliding on a black checkerboard",
)
SHORT = {"demo": True, "scale": 1, "device": "cpu", "seconds": 2, "latents": True}
LONG = {**SHORT, "seconds": 12, "prompts": STORIES[1], "seed": 9}


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    """Ray is started once for all tests here: `--farm local` uses one that the process has started."""
    os.environ["RAY_worker_niceness"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> dict:
    """The hashes of the long video's files, made in one go."""
    return rows(run(tmp_path_factory.mktemp("straight"), [{**LONG, "name": "long"}]))["long"]["files"]


def run(folder: Path, lines: list, *more: str, code: int = 0) -> dict:
    (folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    command = ["batch", str(folder / "jobs.jsonl"), "--out", str(folder / "out"), "--json", *more]
    output = folder / "said.json"
    with open(output, "w", encoding="utf-8") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert main(command) == code
    return json.loads(output.read_text("utf-8") or "{}")


def rows(found: dict) -> dict:
    return {video["name"]: video for video in found["videos"]}


def blocks(folder: Path, name: str) -> int:
    return len(list((folder / "out" / "runs" / name).glob("*/block-*.safetensors")))


def once(condition, then) -> threading.Thread:
    """Do something as soon as a condition holds, beside the test."""

    def wait():
        while not condition():
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def worker_of(task: str) -> int:
    """The process that runs a task of this name, which Ray writes into its title."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().rstrip(b"\0").decode() == f"ray::{task}":
                return int(entry.parent.name)
        except OSError:
            continue
    raise AssertionError(f"no process runs {task}")


def test_six_videos_at_the_same_time_have_the_hashes_of_one_after_the_other(tmp_path):
    lines = [{**SHORT, "name": f"story{i}", "prompts": story, "seeds": [1, 2]} for i, story in enumerate(STORIES)]
    folders = tmp_path / "turn", tmp_path / "farm"
    for folder in folders:
        folder.mkdir()
    in_turn, farmed = run(folders[0], lines), run(folders[1], lines, "--farm", "local")
    assert farmed["farm"].startswith("Ray, local: 2 at a time") and in_turn["farm"] == "one after the other"
    files = [{name: row["files"] for name, row in rows(found).items()} for found in (in_turn, farmed)]
    assert files[0] == files[1] and len(files[0]) == 6
    assert len({hash for row in files[0].values() for hash in row.values()}) == 12
    assert {row["state"] for row in farmed["videos"]} == {"done"}
    again = run(folders[1], lines, "--farm", "local")
    assert {row["state"] for row in again["videos"]} == {"finished before"} and again["seconds"]["all"] < 6


@pytest.mark.skipif(not Path("/proc/self/cmdline").is_file(), reason="finds the worker in /proc")
def test_a_worker_that_is_killed_is_replaced_and_its_video_goes_on_with_the_same_bits(tmp_path, straight):
    """`kill -9` after a random number of blocks."""
    after = random.randint(2, 10)
    killed = []

    def kill():
        killed.append(worker_of("long"))
        os.kill(killed[0], signal.SIGKILL)

    killer = once(lambda: blocks(tmp_path, "long") >= after, kill)
    made = rows(run(tmp_path, [{**LONG, "name": "long"}], "--farm", "local"))["long"]
    killer.join()
    assert killed and made["reused_blocks"] >= after, after
    assert made["files"] == straight


def test_an_interrupt_stops_the_workers_and_the_same_command_goes_on(tmp_path, straight):
    once(lambda: blocks(tmp_path, "long") >= 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    run(tmp_path, [{**LONG, "name": "long"}], "--farm", "local", code=130)
    with claimed(tmp_path / "out" / "long.mp4"):  # nobody writes it any more
        stored = blocks(tmp_path, "long")
        time.sleep(0.5)
        assert blocks(tmp_path, "long") == stored < 17
    made = rows(run(tmp_path, [{**LONG, "name": "long"}]))["long"]
    assert made["reused_blocks"] == stored >= 2 and made["files"] == straight


def test_a_video_that_fails_on_the_farm_says_why_and_is_not_tried_again(tmp_path, monkeypatch):
    lines = [{**SHORT, "name": "wrong", "seconds": 1}, {**SHORT, "name": "right", "seconds": 1, "seed": 4}]
    monkeypatch.setattr(batch, "PATIENCE_SECONDS", 0.0)
    with claimed(tmp_path / "out" / "wrong.mp4"):
        found = rows(run(tmp_path, lines, "--farm", "local", code=1))
    assert found["right"]["state"] == "done" and found["wrong"]["state"] == "failed"
    assert "another process is writing" in found["wrong"]["why"]


def same(folder: Path, *command: str, file: str) -> list:
    """What a command writes into a file without a farm and with one."""
    found = []
    for farm in ([], ["--farm", "local"]):
        out = folder / f"out{len(farm)}"
        assert main([*(part.format(out=out) for part in command), *farm, "--json"]) == 0
        found.append(json.loads((out / file).read_text("utf-8")))
    return found


def test_comparisons_have_the_same_table_on_a_farm(tmp_path, capsys):
    options = ["--demo", "--seconds", "1", "--scale", "1", "--device", "cpu", "--runs", str(tmp_path / "runs")]
    methods = ["--methods", "head_forcing", "self_forcing_window_21"]
    found = same(tmp_path, "compare", *options, *methods, "--out", "{out}", file="comparison.json")
    for table in found:
        for row in table["rows"]:
            assert row.pop("seconds_per_block") > 0 and Path(row.pop("video")).is_file()
    assert found[0]["rows"] == found[1]["rows"] and len(found[0]["rows"]) == 2


def test_questions_have_the_same_answer_on_a_farm(tmp_path, capsys):
    found = same(tmp_path, "evaluate", "horizon", "--demo", "--videos", "1", "--out", "{out}", file="horizon.json")
    assert found[0].pop("minutes") > 0 and found[1].pop("minutes") > 0
    assert found[0] == found[1]


def test_profiles_measured_on_a_farm_are_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(profiles.BUDGETS, "quick", (2, 3.0))
    options = ["profile", "{out}/p.json", "--demo", "--preset", "quick", "--device", "cpu"]
    found = same(tmp_path, *options, file="p.json")
    assert found[0]["roles"] == found[1]["roles"]
    hashes = [(tmp_path / out / "p.safetensors").read_bytes() for out in ("out0", "out2")]
    assert hashes[0] == hashes[1]
