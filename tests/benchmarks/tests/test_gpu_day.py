"""The script for a day with a GPU, without one: every measurement runs on a tiny model, and what
fails is kept.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.model import attention
from headforcing.tests.benchmarks import command, decoder, first, goals, in_comfyui
from headforcing.tests.benchmarks.apart import apart
from headforcing.tests.benchmarks.rows import BY_NAME, HEAD_FORCING
from own_process import run

SCRIPT = Path(command.__file__).with_name("gpu_day.sh")
DRY = command.PRESETS["dry"]
GPU = {"environment": {"clock": "CUDA events"}}
NOT_ON_A_BARE_MACHINE = [
    "av",
    "PIL",
    "diffusers",
    "einops",
    "transformers",
    "matplotlib",
    "tqdm",
    "importlib_metadata",
    "huggingface_hub",
]


@pytest.mark.slow
def test_it_needs_torch_triton_numpy_and_safetensors_alone():
    """Importing everything, and a row; in a process of its own, where the other packages cannot be
    imported.
    """
    program = f"""
import sys
sys.modules.update(dict.fromkeys({NOT_ON_A_BARE_MACHINE}))
from headforcing.tests.benchmarks.command import PRESETS, SECONDS, tasks
for part in SECONDS:
    assert tasks(part, PRESETS["dry"], True)
found = tasks("rows", PRESETS["dry"])["B1"](PRESETS["dry"])
assert "fps" in found, found
"""
    run("-c", program)


TASKS: list[tuple[str, str]] = []
for _part in ("sanitizer", "first", "check", "profile", "video", "rest"):
    TASKS += [(_part, name) for name in command.tasks(_part, DRY, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "name"), TASKS, ids=[f"{part}: {name}" for part, name in TASKS])
def test_every_measurement_runs_on_a_cpu(part, name):
    found = command.tasks(part, DRY, True)[name](DRY)
    json.dumps(found)
    if part == "first":
        calls = [found] if name == "same bits" else found.values()
        assert all(call["right"] for call in calls), found
    elif name.startswith("kernels"):
        for kernel in found.values():  # there is no GPU to compile for, or no triton
            assert kernel["right"] or "Traceback" in kernel["traceback"]
    elif name == "fp8":
        assert len(found) == 3 and all(0 < layer["relative_error"] < 0.1 for layer in found)
    elif name != "waits":
        assert "not_available" not in found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_has_every_part_and_writes_the_results_of_one_with_its_goals(tmp_path: Path):
    """Through processes of its own, as on a GPU."""
    (parts,) = re.findall(r"set -- (.+)", SCRIPT.read_text("utf-8"))
    assert {*parts.split()} == command.SECONDS.keys() - {"results", "scaling"}
    assert all(command.SECONDS[part] < 480 for part in parts.split())
    (halves,) = re.findall(
        r"In half an hour fit: ([^;]+); then: ([^;]+); then: (.+)\.", SCRIPT.read_text("utf-8")
    )
    assert " ".join(halves).split() == [*parts.split(), "comfy"]
    for half in halves:
        # and tests, and transfers
        assert sum(command.SECONDS.get(part, 480) for part in half.split()) <= 1500
    environment = {**os.environ, "PYTHON": sys.executable}
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", SCRIPT, "--dry", tmp_path], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "dry run" in done.stdout, done.stdout + done.stderr
    assert time.monotonic() - begun < 300
    assert {path.stem for path in tmp_path.glob("*.json")} == {*parts.split()}
    rest = json.loads((tmp_path / "rest.json").read_text())
    assert (
        set(rest["tasks"]) == {"length", "fp8"} and rest["tasks"]["length"][1]["what"] == "block 40"
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_call_that_packs_its_files_leaves_one_file_also_if_it_is_cut(tmp_path: Path):
    environment = {**os.environ, "PYTHON": sys.executable}
    whole = tmp_path / "back" / "2.tgz"
    words = ["bash", SCRIPT, "--dry", "--into", whole, tmp_path / "2", "call_2"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in whole.parent.iterdir()] == ["2.tgz"]
    with tarfile.open(whole) as packed:
        names = {Path(name).name for name in packed.getnames()}
    assert {"profile.json", "rows.json", "video.json", "more.json", "log.txt"} <= names
    cut = tmp_path / "cut.tgz"
    words = ["bash", SCRIPT, "--dry", "--into", cut, tmp_path / "3", "call_2"]
    running = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, process_group=0)
    while not (tmp_path / "3" / "profile.json").exists():
        assert running.poll() is None
        time.sleep(0.1)
    time.sleep(11)  # it is packed every ten seconds
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    with tarfile.open(cut) as packed:
        assert any(name.endswith("profile.json") for name in packed.getnames())


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_repository_without_four_folders_can_be_sent_beside_pyav():
    """64 MiB; the wheel of PyAV 19 has 35.0 MB."""
    head = SCRIPT.read_text("utf-8")
    assert "leave out docs/images and\n# tests/golden/peers, livetalk and longlive2" in head
    root = SCRIPT.parents[2]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    names = listed.stdout.split("\0")[:-1]
    if not names:
        pytest.skip("not a clone of the repository")
    golden = (f"tests/golden/{name}/" for name in ("peers", "livetalk", "longlive2"))
    left_out = ("docs/images/", *golden)
    sent = sum((root / name).stat().st_size for name in names if not name.startswith(left_out))
    assert sent + 35_000_000 < 64 << 20, f"{sent / 1e6:.1f} MB"


def test_what_never_ran_on_a_gpu_runs_first_and_what_a_call_said_is_kept(tmp_path: Path):
    calls = list(first._calls(replace(DRY, device=torch.device("cuda")), tmp_path))
    never = ["video", "--park-features", "--live-decoder", "measured roles", "--compile"]
    assert calls[:5] == never
    told = first._called([sys.executable, "-c", "print('measured in 14 s')"], 60)
    assert told["right"] and told["said"] == "measured in 14 s"
    lost = [sys.executable, "-c", "print('video lost: no space'); exit(1)"]
    told = first._called(lost, 60)
    assert (told["right"], told["exit_status"]) == (False, 1) and "video lost" in told["said"]


def test_the_first_call_has_the_time_that_its_programs_took_on_an_h100(tmp_path: Path):
    """And measures its same bits before, for which a minute was enough."""
    calls = first._calls(replace(DRY, device=torch.device("cuda")), tmp_path)
    stored = json.loads((SCRIPT.parent / "gpu" / "h100_1_first.json").read_text("utf-8"))
    seconds = [
        call["seconds"] for call in stored["tasks"]["programs"].values() if "seconds" in call
    ]
    assert len(calls) * sum(seconds) / len(seconds) < first.ALL_PROGRAMS
    (limit,) = re.findall(r"limit=(\d+) together", SCRIPT.read_text("utf-8"))
    assert 60 + first.ALL_PROGRAMS < int(limit) < 360


def test_the_second_call_ends_within_six_minutes_whatever_its_parts_take():
    script = SCRIPT.read_text("utf-8")
    (more,) = re.findall(r"timeout \$\(\(seconds \+ (\d+)\)\)", script)
    limits = [int(seconds) + int(more) for seconds in re.findall(r"^ +short (\d+) ", script, re.M)]
    assert len(limits) == 4 and sum(limits) < 350


def test_a_folder_that_is_no_comfyui_is_named(capsys):
    assert in_comfyui.main("") == 1 and in_comfyui.main("/no/such", "--cpu") == 1
    assert "/no/such is not a folder of ComfyUI" in capsys.readouterr().out


def test_a_measurement_whose_process_dies_says_so_and_the_others_count(tmp_path: Path, monkeypatch):
    """This process takes none of the device's memory: the device's facts are measured apart,
    too.
    """
    asked = []

    def in_a_process(seconds, work, name, *given):
        asked.append(name)
        return (
            {"not_available": "its process ended with -6"} if name == "V1" else work(name, *given)
        )

    monkeypatch.setattr(command, "apart", in_a_process)
    words = ["more", "--preset", "dry", "--rows", "V1,B1", "--out", str(tmp_path), "--apart"]
    assert command.main(words) == 0
    results = json.loads((tmp_path / "more.json").read_text())
    dead, measured = results["rows"]
    assert (
        asked == ["", "V1", "B1"]
        and measured["fps"] > 0
        and results["vae"].startswith("the engine's decoder")
    )
    assert dead["not_available"] in (tmp_path / "more.md").read_text()
    assert command._failed(GPU | {"tasks": {"length": dead}})


def test_what_a_process_returns_and_why_it_returns_nothing():
    assert apart(60, divmod, 7, 3) == (2, 1)
    failed = apart(60, int, "x\ny")
    assert (
        failed["not_available"].startswith("its process ended with ValueError: ")
        and "Traceback" in failed["traceback"]
    )
    assert "ended with -6" in apart(60, os.abort)["not_available"]
    assert "stopped after 2 s" in apart(2, time.sleep, 60)["not_available"]
    assert "the time for all was over" in apart(0, divmod, 7, 3)["not_available"]


def test_goals_are_read_from_results_of_a_gpu_and_compared_with_the_row_of_ours_that_does_the_same_work():
    """Neither fused kernels nor a graph of ours count against the paper's plain implementations."""

    def sentences(part, found, clock="CUDA events"):
        return [
            line.partition(":")[0]
            for line in goals.lines(part, found | {"environment": {"clock": clock}})
        ]

    def rows(**ms):
        return {
            "rows": [
                {"row": row, "block_ms": time, "fps": 12000 / time} for row, time in ms.items()
            ]
        }

    found = rows(V4=300.0, V1=400.0, W21=290.0, B2=250.0, B3=200.0, B4=100.0)
    assert sentences("rows", found) == ["120 reached", "1.45 reached", "1.2 reached", "1.6 MISSED"]
    assert sentences("rows", found, "wall time") == [
        "dry run 120",
        "dry run 1.45",
        "dry run 1.2",
        "dry run 1.6",
    ]
    assert sentences("rows", rows(V1=400.0, B2=250.0)) == [
        "48 reached",
        "not measured",
        "not measured",
        "1.6 MISSED",
    ]
    layers = {"attention: sdpa": {"times_rounding": 1.5}, "attention: x": {"not_available": ""}}
    assert sentences("check", {"tasks": layers}) == ["1.5 reached"]
    video = {"steady_fps": 40.0, "peak_bytes": 105, "estimated_bytes": 100}
    tasks = {
        "sampled and decoded": video,
        "sampled, decoded and encoded": {"not_available": "no av"},
    }
    tasks["sampled in fp8, decoded by a tiny VAE"] = video | {"steady_fps": 60.0}
    assert sentences("video", {"tasks": tasks}) == [
        "40 reached",
        "not measured",
        "60 reached",
        "1.05 reached",
    ]
    assert sentences("first", {"tasks": {"same bits": {"right": False}}}) == ["0 MISSED"]
    assert sentences(
        "rest", {"tasks": {"length": [{"fastest_ms": 200.0}, {"fastest_ms": 220.0}]}}
    ) == ["1.1 MISSED"]


def test_every_row_is_in_one_part_of_the_day():
    parts = {part: command.ROWS_OF[part] for part in ("rows", "more")}
    assert sorted(sum(parts.values(), [])) == sorted(BY_NAME)
    # with 30 s a row the process of the device included
    assert all(30 * (len(rows) + 1) <= command.SECONDS[part] for part, rows in parts.items())


def test_the_decoder_beside_float32_and_with_enlarged_images_is_the_same_one(monkeypatch):
    case = replace(DRY, width=64, height=64)
    latents = torch.randn(2, 16, 8, 8)
    expected = decoder.random_decoder(case).decode(latents)
    with decoder.enlarged_images():
        torch.testing.assert_close(decoder.random_decoder(case).decode(latents), expected)
    assert decoder.exactness(replace(case, dtype=torch.bfloat16))["right"]
    # another one each time
    monkeypatch.setattr(decoder.WanVideoDecoder, "decode", lambda self, x: torch.rand(3))
    wrong = decoder.exactness(case)
    assert not wrong["right"] and command._failed(GPU | {"tasks": {"vae beside float32": wrong}})


def test_packed_rows_take_the_fastest_kernel_of_one_call_also_where_dense_calls_are_faster(
    monkeypatch,
):
    """The first in the order could be the slowest."""
    times = {"sdpa": 0.5, "torch_varlen": 0.8, "flash_attn": 42.0}

    def timed(names, *_, **facts):
        return {name: ms for name, ms in times.items() if name in names}

    monkeypatch.setattr(attention.attention_timing, "fastest", timed)
    backend = attention.LayerAttention
    monkeypatch.setattr(
        attention, "load_attention", lambda name, *_: backend(lambda q, k, v, spans: q, name)
    )
    attention.fastest_backend.cache_clear()
    case = replace(DRY, device=torch.device("cuda"))
    try:
        for name in ("B2", "V2"):
            assert BY_NAME[name].reason(case) == ""
            told = BY_NAME[name].backend(case, case.shape(HEAD_FORCING, 40))
            assert told.startswith("torch_varlen (timed: 0.8 ms")
    finally:
        attention.fastest_backend.cache_clear()
