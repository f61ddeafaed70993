"""The script for a day with a GPU, without one: every measurement runs on a tiny model, and what fails is kept."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.model import attention
from headforcing.headforcing_core.model import fp8 as model_fp8
from headforcing.headforcing_core.render.render import Render
from headforcing.headforcing_core.runs.folder import RunFolder
from headforcing.tests.benchmarks import apart, command, decoder, end_to_end, environment, goals, paper_caches
from headforcing.tests.benchmarks import fp8 as benchmark_fp8
from headforcing.tests.benchmarks.rows import BY_NAME, HEAD_FORCING, ROWS
from own_process import run

DRY = command.PRESETS["dry"]
PARTS = ("check", "profile", "video", "rest")  # beside rows
GPU = {"environment": {"clock": "CUDA events"}}
NOT_ON_A_BARE_MACHINE = [
    "av", "PIL", "diffusers", "einops", "transformers", "matplotlib", "tqdm", "importlib_metadata", "huggingface_hub",
]  # fmt: skip


@pytest.mark.slow
def test_it_needs_torch_triton_numpy_and_safetensors_alone():
    """Importing everything, and a row; in a process of its own, where the other packages cannot be imported."""
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


TASKS = [(part, name) for part in PARTS for name in command.tasks(part, DRY, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "name"), TASKS, ids=[f"{part}: {name}" for part, name in TASKS])
def test_every_measurement_runs_on_a_cpu(part, name):
    found = command.tasks(part, DRY, True)[name](DRY)
    json.dumps(found)
    if name == "kernels":
        for kernel in found.values():  # there is no GPU to compile for, or no triton
            assert kernel["right"] or "Traceback" in kernel["traceback"]
    elif name != "waits":
        assert "not_available" not in found


def test_linear_layers_in_fp8_are_the_engine_s_and_round_their_tokens_in_every_call(monkeypatch):
    rounded, quantise = [], model_fp8.quantise
    monkeypatch.setattr(model_fp8, "quantise", lambda x: [rounded.append(x.shape), quantise(x)][1])
    found = benchmark_fp8.products(replace(DRY, dtype=torch.bfloat16))
    for layer in found:
        speeds = {"tflops", "fp8_tflops", "fp8_product_tflops", "fp8_fast_product_tflops"}
        assert set(layer) == speeds | {"shape", "relative_error"}
        rows, inner, _ = layer["shape"]
        assert 0 < layer["relative_error"] < 0.1 and rounded.count((rows, inner)) > benchmark_fp8.REPETITIONS
    assert len(found) == 3


@pytest.mark.slow
def test_a_part_writes_its_results_and_prints_its_goals(tmp_path: Path, capsys):
    """Through processes of its own, as on a GPU."""
    words = ["--preset", "dry", "--apart", "--out", str(tmp_path)]
    assert command.main(["more", "--rows", "B1", *words]) == 0  # any row
    rows = json.loads((tmp_path / "more.json").read_text())
    assert rows["ratios"]["block"] == {"B1": 1.0} and rows["vae"].startswith("the engine's decoder")
    assert command.main(["rest", *words[:2], "--out", str(tmp_path)]) == 0
    rest = json.loads((tmp_path / "rest.json").read_text())
    assert set(rest["tasks"]) == {"length", "fp8"} and rest["tasks"]["length"][1]["what"] == "block 40"
    assert "dry run" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"rest.json", "more.json", "more.md"}


def test_a_measurement_whose_process_dies_or_for_which_there_is_no_time_says_so(tmp_path: Path, monkeypatch):
    """That of the device leaves its facts; this process takes none of the device's memory."""
    known, asked = command.facts("rows", DRY), []

    def run(arguments, seconds, file):
        asked.append(arguments[-3])
        if asked[-1] == "V1":
            return "its process ended with -6: illegal access", "a long\ntrace"
        torch.save(known if asked[-1] == command.FACTS else {"not_available": "other"}, file)
        return "", ""

    monkeypatch.setattr(apart, "run_apart", run)
    monkeypatch.setattr(command, "matmul_flops", pytest.fail)
    words = ["rows", "--preset", "dry", "--rows", "V1,B1", "--out", str(tmp_path), "--apart"]
    command.main(words)
    results = json.loads((tmp_path / "rows.json").read_text())
    dead, read = results["rows"]
    assert "illegal access" in dead["not_available"] and dead["traceback"] == "a long\ntrace"
    assert read["not_available"] == "other", "as its process left it"
    assert asked == [command.FACTS, "V1", "B1"] and results["vae"] == known["vae"]
    assert "illegal access" in (tmp_path / "rows.md").read_text()
    assert "the 0 s for all were over" in apart.Apart([], 0.0).measure("B1")["not_available"]
    assert command._failed(GPU | {"tasks": {"length": dead}})


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise ValueError('x\\ny')", "ended with 1"),
        ("import os; os.abort()", "-6"),
        ("while True: pass", "stopped after"),
        ("pass", "left nothing"),
    ],
)
def test_a_process_that_fails_dies_or_hangs_is_a_reason(tmp_path: Path, monkeypatch, program, reason):
    monkeypatch.setattr(apart, "SCRIPT", tmp_path / "script.py")
    file = tmp_path / "found"
    apart.SCRIPT.write_text(f"print('began', flush=True)\n{program}\n")
    why, said = apart.run_apart([], 2.0, file)
    assert reason in why and "\n" not in why and "began" in said
    apart.SCRIPT.write_text(f"open({str(file)!r}, 'w')")
    assert apart.run_apart([], 30.0, file) == ("", "")


def test_goals_are_read_from_results_of_a_gpu_and_compared_with_the_row_of_ours_that_does_the_same_work():
    """Neither fused kernels nor a graph of ours count against the paper's plain implementations."""

    def told(part, found, clock="CUDA events"):
        return [line.partition(":")[0] for line in goals.lines(part, found | {"environment": {"clock": clock}})]

    def rows(**ms):
        return {"rows": [{"row": row, "ms_per_block": {"block": {"median": time}}} for row, time in ms.items()]}

    found = rows(V4=300.0, V1=400.0, W21=290.0, B2=250.0, B3=200.0, B4=100.0)
    assert told("rows", found) == ["120 reached", "1.45 reached", "1.2 reached", "1.6 MISSED"]
    assert told("rows", found, "wall time") == ["dry run 120", "dry run 1.45", "dry run 1.2", "dry run 1.6"]
    assert told("rows", rows(V1=400.0, B2=250.0)) == ["48 reached", "not measured", "not measured", "1.6 MISSED"]
    layers = {"attention: sdpa": {"times_rounding": 1.5}, "attention: x": {"not_available": ""}}
    assert told("check", {"tasks": layers}) == ["1.5 reached"]
    video = {"steady_fps": 40.0, "peak_bytes": 105, "estimated_bytes": 100}
    tasks = {"sampled and decoded": video, "sampled, decoded and encoded": {"not_available": "no av"}}
    tasks["sampled in fp8, decoded by a tiny VAE"] = video | {"steady_fps": 60.0}
    assert told("video", {"tasks": tasks}) == ["40 reached", "60 reached", "1.05 reached"]
    assert told("rest", {"tasks": {"length": [{"fastest_ms": 200.0}, {"fastest_ms": 220.0}]}}) == ["1.1 MISSED"]
    assert set(goals.GOALS) == {"rows", "check", "video", "rest"}


def test_every_row_is_in_one_part_of_the_day():
    parts = {part: command.ROWS_OF[part] for part in ("rows", "more")}
    assert sorted(sum(parts.values(), [])) == sorted(row.name for row in ROWS)
    # with 30 s a row the process of the device included
    assert all(30 * (len(rows) + 1) <= command.SECONDS[part] for part, rows in parts.items())


def test_the_decoder_beside_float32_and_with_enlarged_images_is_the_same_one(monkeypatch):
    case = replace(DRY, width=64, height=64)
    latents = torch.randn(2, 16, 8, 8)
    expected = decoder.random_decoder(case).decode(latents)
    with decoder.enlarged_images():
        torch.testing.assert_close(decoder.random_decoder(case).decode(latents), expected)
    assert decoder.exactness(replace(case, dtype=torch.bfloat16))["right"]
    monkeypatch.setattr(decoder.WanVideoDecoder, "decode", lambda self, x: torch.rand(3))  # another one each time
    wrong = decoder.exactness(case)
    assert not wrong["right"] and command._failed(GPU | {"tasks": {"vae beside float32": wrong}})


def test_a_video_is_made_by_the_engine_s_own_job_and_stored_where_it_is_asked_for(monkeypatch):
    """Which checks and counts every block: what that costs is a part of the time."""
    stored, save = [], RunFolder.save_block
    monkeypatch.setattr(RunFolder, "save_block", lambda *given: stored.append(given[1]) or save(*given))
    checked, check = [], Render.check_finite
    monkeypatch.setattr(Render, "check_finite", lambda self, block: checked.append(block.index) or check(self, block))
    for keeps in (False, True):
        end_to_end.video(replace(DRY, vae_dim=0), 2.0, encoded=False, stored=keeps)
    assert stored == [0, 1, 2] and checked == 2 * [0, 1, 2]


def test_the_environment_has_what_a_gpu_is_set_to(monkeypatch):
    said = SimpleNamespace(stdout="580.1, 700.00 W, 1980 MHz, 1980 MHz, 3201 MHz, 31, P0\n")
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: said)
    state = environment.gpu_state(torch.device("cuda:0"))
    assert (state["driver_version"], state["power.limit"], state["pstate"]) == ("580.1", "700.00 W", "P0")
    assert environment.gpu_state(torch.device("cpu")) == {}


def test_the_papers_complete_system_builds_no_table_again_in_a_full_cache(monkeypatch):
    """Nor copies head by head: what it needs for that differs from block to block only while contexts grow."""
    case, blocks = replace(DRY, dim=256, layers=2), 24
    cache = paper_caches.FusedAssembly(case.shape(HEAD_FORCING, blocks), torch.float32, kernels="reference")
    built, upload = [], paper_caches.upload
    monkeypatch.setattr(paper_caches, "upload", lambda table, device: [built.append(1), upload(table, device)][1])
    k = torch.randn(3 * cache.s, 2, 128)
    per_block = []
    for _ in range(blocks):
        built.clear()
        cache.begin_block()
        for layer in range(2):
            cache.write(layer, k, k)
            cache.attend(layer, k)
        cache.block += 1
        cache._arrange(cache.slots.history(cache.block))
        per_block.append(len(built))
    assert per_block[0] > 0 and per_block[-3:] == [0, 0, 0]


def test_packed_rows_take_the_fastest_kernel_of_one_call_also_where_dense_calls_are_faster(monkeypatch):
    """The one that comes first by name prepares itself anew in every call, and would lose all of these rows."""
    times = {"sdpa": 0.5, "torch_varlen": 0.8, "cudnn_varlen": 42.0}
    timed = lambda names, *_: {name: ms for name, ms in times.items() if name in names}  # noqa: E731
    monkeypatch.setattr(attention.attention_timing, "fastest", timed)
    backend = attention.LayerAttention
    monkeypatch.setattr(attention, "load_attention", lambda name, *_: backend(lambda q, k, v, spans: q, name))
    attention.fastest_backend.cache_clear()
    case = replace(DRY, device=torch.device("cuda"))
    try:
        for name in ("B2", "V2"):
            assert BY_NAME[name].reason(case) == ""
            told = BY_NAME[name].backend(case, case.shape(HEAD_FORCING, 40))
            assert told.startswith("torch_varlen (timed: 0.8 ms")
    finally:
        attention.fastest_backend.cache_clear()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_is_sound_and_runs_every_part():
    script = apart.SCRIPT.with_name("gpu_day.sh")
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    parts = "check rows more profile video rest"
    assert f"set -- {parts}\n" in script.read_text(encoding="utf-8")
    assert all(command.SECONDS[part] < 480 for part in parts.split())
