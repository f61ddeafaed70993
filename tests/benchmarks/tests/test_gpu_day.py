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
from headforcing.tests.benchmarks import command, day, decoder, end_to_end, environment, goals, paper_caches
from headforcing.tests.benchmarks import fp8 as benchmark_fp8
from headforcing.tests.benchmarks.apart import Budget, run_apart
from headforcing.tests.benchmarks.measure import Measurement
from headforcing.tests.benchmarks.rows import BY_NAME, HEAD_FORCING, ROWS
from own_process import run

BENCHMARKS = Path(day.__file__).parent
NOT_ON_A_BARE_MACHINE = [
    "av", "PIL", "diffusers", "einops", "transformers", "matplotlib", "tqdm", "importlib_metadata", "huggingface_hub",
]  # fmt: skip


@pytest.mark.slow
def test_it_needs_torch_triton_numpy_and_safetensors_alone():
    """Importing everything, and a row; in a process of its own, where the other packages cannot be imported."""
    program = f"""
import sys
sys.modules.update(dict.fromkeys({NOT_ON_A_BARE_MACHINE}))
sys.path.insert(0, {str(BENCHMARKS.parent)!r})
from headforcing.tests.benchmarks import day, scaling
from headforcing.tests.benchmarks.measure import measure
from headforcing.tests.benchmarks.rows import BY_NAME
from dataclasses import replace
found = measure(replace(day.DRY, vae_dim=0), BY_NAME["B1"])
assert found.blocks, found.reason
for part in day.SECONDS:
    if part not in day.ROWS:
        assert day.tasks(part, day.DRY, True)
"""
    run("-c", program)


TASKS = [(part, name) for part in day.SECONDS if part not in day.ROWS for name in day.tasks(part, day.DRY, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "name"), TASKS, ids=[f"{part}: {name}" for part, name in TASKS])
def test_every_measurement_runs_on_a_cpu(part, name):
    found = day.tasks(part, day.DRY, True)[name](day.DRY)
    json.dumps(found)
    if name == "kernels":
        for kernel in found.values():  # there is no GPU to compile for, or no triton
            assert kernel["right"] or "Traceback" in kernel["traceback"]
    elif name != "waits":
        assert "not_available" not in found


def test_linear_layers_in_fp8_are_the_engine_s_and_round_their_tokens_in_every_call(monkeypatch):
    rounded, quantise = [], model_fp8.quantise
    monkeypatch.setattr(model_fp8, "quantise", lambda x: [rounded.append(x.shape), quantise(x)][1])
    found = benchmark_fp8.products(replace(day.DRY, dtype=torch.bfloat16))
    for layer in found:
        speeds = {"tflops", "fp8_tflops", "fp8_product_tflops", "fp8_fast_product_tflops"}
        assert set(layer) == speeds | {"shape", "relative_error"}
        rows, inner, _ = layer["shape"]
        assert 0 < layer["relative_error"] < 0.1 and rounded.count((rows, inner)) > benchmark_fp8.REPETITIONS
    assert len(found) == 3


@pytest.mark.slow
def test_a_part_writes_its_results_and_prints_its_goals(tmp_path: Path, capsys):
    """Through processes of its own, as on a GPU."""
    assert day.main(["rest", "--dry", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "rest.json").read_text())
    assert set(results["tasks"]) == {"length", "fp8"} and results["tasks"]["length"][1]["what"] == "block 40"
    assert "dry run" in capsys.readouterr().out.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["rest.json"]


def test_a_row_whose_process_dies_or_for_which_there_is_no_time_says_so(tmp_path: Path, monkeypatch):
    """That of the device leaves its facts; this process takes none of the device's memory."""
    case = replace(day.DRY, vae_dim=0)
    known = command.facts(case)

    def run(script, arguments, seconds, file):
        where = Path(arguments[arguments.index("--out") + 1])
        if "V1" in arguments:
            return "its process ended with -6: illegal access", "a long\ntrace"
        where.mkdir(parents=True, exist_ok=True)
        if command.FACTS in arguments:
            (where / "facts.json").write_text(json.dumps(known))
        else:
            Measurement("B1", "ours", "another reason", latents=[torch.ones(2)], peak_bytes=7).save(file)
        return "", ""

    for name, function in {"run_apart": run, "matmul_flops": pytest.fail, "random_decoder": pytest.fail}.items():
        monkeypatch.setattr(command, name, function)
    apart = command.Apart(["--preset", "cpu"], tmp_path / "rows", Budget(100.0))
    results = command.run_rows(case, [BY_NAME["V1"], BY_NAME["B1"]], 1, tmp_path, apart)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    dead, read = results["rows"]
    assert "illegal access" in dead["not_available"] and dead["traceback"] == "a long\ntrace"
    assert read["not_available"] == "another reason", "as its process left it"
    monkeypatch.setattr(command, "run_apart", lambda *_: pytest.fail("nothing may be begun"))
    assert "the 0 s for all rows were over" in command.Apart([], tmp_path, Budget(0.0)).measure(ROWS[0], False).reason


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
    monkeypatch.setattr("headforcing.tests.benchmarks.apart.HERE", tmp_path)
    (tmp_path / "script.py").write_text(f"print('began', flush=True)\n{program}\n")
    file = tmp_path / "found"
    why, said = run_apart("script.py", [], 2.0, file)
    assert reason in why and "\n" not in why and "began" in said
    (tmp_path / "script.py").write_text(f"open({str(file)!r}, 'w')")
    assert run_apart("script.py", [], 30.0, file) == ("", "")


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
    named = [name for part in day.ROWS.values() for name in part.split(",")]
    assert sorted(named) == sorted(row.name for row in ROWS)
    # with 30 s a row the process of the device included
    assert all(30 * (1 + part.count(",") + 1) <= day.SECONDS[name] for name, part in day.ROWS.items())


def test_the_decoder_beside_float32_and_with_enlarged_images_is_the_same_one(monkeypatch):
    case = replace(day.DRY, width=64, height=64)
    latents = torch.randn(2, 16, 8, 8)
    expected = decoder.random_decoder(case)[0].decode(latents)
    with decoder.enlarged_images():
        torch.testing.assert_close(decoder.random_decoder(case)[0].decode(latents), expected)
    assert decoder.exactness(replace(case, dtype=torch.bfloat16))["right"]
    monkeypatch.setattr(decoder.OwnDecoder, "decode", lambda self, x: torch.rand(3))  # another one each time
    wrong = decoder.exactness(case)
    gpu = {"environment": {"clock": "CUDA events"}}
    assert not wrong["right"] and day._failed(gpu | {"tasks": {"vae beside float32": wrong}})


def test_a_video_is_made_by_the_engine_s_own_job_and_stored_where_it_is_asked_for(monkeypatch):
    """Which checks and counts every block: what that costs is a part of the time."""
    stored, save = [], RunFolder.save_block
    monkeypatch.setattr(RunFolder, "save_block", lambda *given: stored.append(given[1]) or save(*given))
    checked, check = [], Render.check_finite
    monkeypatch.setattr(Render, "check_finite", lambda self, block: checked.append(block.index) or check(self, block))
    for keeps in (False, True):
        end_to_end.video(replace(day.DRY, vae_dim=0), 2.0, encoded=False, stored=keeps)
    assert stored == [0, 1, 2] and checked == 2 * [0, 1, 2]


def test_the_environment_has_what_a_gpu_is_set_to(monkeypatch):
    said = SimpleNamespace(stdout="580.1, 700.00 W, 1980 MHz, 1980 MHz, 3201 MHz, 31, P0\n")
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: said)
    state = environment.gpu_state(torch.device("cuda:0"))
    assert (state["driver_version"], state["power.limit"], state["pstate"]) == ("580.1", "700.00 W", "P0")
    assert environment.gpu_state(torch.device("cpu")) == {}


def test_the_papers_complete_system_builds_no_table_again_in_a_full_cache(monkeypatch):
    """Nor copies head by head: what it needs for that differs from block to block only while contexts grow."""
    case, blocks = replace(day.DRY, dim=256, layers=2), 24
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
    case = replace(day.DRY, device=torch.device("cuda"))
    try:
        for name in ("B2", "V2"):
            assert BY_NAME[name].reason(case) == ""
            told = BY_NAME[name].backend(case, case.shape(HEAD_FORCING, 40))
            assert told.startswith("torch_varlen (timed: 0.8 ms")
    finally:
        attention.fastest_backend.cache_clear()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_is_sound_and_runs_every_part():
    script = BENCHMARKS / "gpu_day.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert f"set -- {' '.join(day.SECONDS)}\n" in script.read_text(encoding="utf-8")
    assert all(seconds < 480 for seconds in day.SECONDS.values())
