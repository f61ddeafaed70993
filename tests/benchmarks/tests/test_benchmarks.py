"""The benchmark command on a model so small that it takes seconds; its numbers mean something, its speeds do not."""

import importlib.util
import json
import random
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy, Roles, preset
from headforcing.headforcing_core.model.wan import PromptKV, WanConfig
from headforcing.headforcing_core.rollout.loop import rollout
from headforcing.kernels.language import interpreting
from headforcing.tests.benchmarks import command, rehearsal, report, scaling
from headforcing.tests.benchmarks.case import HEAD_DIM, Case, block_flops, random_model, warm_up_blocks
from headforcing.tests.benchmarks.measure import cache_steps, measure, timed_blocks
from headforcing.tests.benchmarks.paper_caches import CacheKernels, FusedAssembly, NaiveLoop, PackedHeads
from headforcing.tests.benchmarks.rows import BY_NAME, HEAD_FORCING, ROWS
from headforcing.tests.benchmarks.stopwatch import Stopwatch
from own_process import run_tests
from torch import Tensor

TOLERANCE = 1e-5  # of latents, float32: the same sums in another order
TINY = Case(64, 32, layers=2, dim=256, dtype=torch.float32, device=torch.device("cpu"), timed_blocks=3, vae_dim=0)
BUSY = preset("head_forcing").with_memory(3, 3, 2.0, 1)  # full after a few blocks, then merging after every block
KERNELS = "triton" if interpreting() else "reference"
PAPER = {
    "V1": NaiveLoop,
    "V2": PackedHeads,
    "V3": partial(CacheKernels, kernels=KERNELS),
    "V4": partial(FusedAssembly, kernels=KERNELS),
}


def roll_out(
    build, blocks: int = 9, policy: CachePolicy = BUSY, roles: Roles | None = None
) -> tuple[list[Tensor], list]:
    shape = TINY.shape(policy, blocks)
    cache = build(replace(shape, roles=roles or shape.roles), torch.float32)
    model = random_model(TINY.config, TINY.dtype, TINY.device, TINY.seed)
    made = list(rollout(model, cache, TINY.script(blocks), TINY.noise()))
    return [block.latents for block in made], [block.event for block in made]


@pytest.fixture(scope="module")
def of_the_engine() -> tuple[list[Tensor], list]:
    return roll_out(HeadCache)


def decisions(events: list) -> list[tuple]:
    return [(event.frame, event.admitted, event.merged) for event in events if event]


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_implementations_make_the_engine_s_video(name, of_the_engine):
    latents, events = roll_out(PAPER[name])
    for found, expected in zip(latents, of_the_engine[0], strict=True):
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert decisions(events) == decisions(of_the_engine[1])
    assert sum(merged is not None for _, _, merged in decisions(events)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_they_make_it_with_any_roles_memory_and_length(seed):
    """Layers without heads of some role, memories that never fill, that merge at once or that there are none of."""
    chosen = random.Random(seed)
    roles = [chosen.choices(["local", "anchor", "memory"], k=2) for _ in range(TINY.layers)]
    novelty = chosen.choice([2.0, 0.9])
    policy = BUSY.with_memory(chosen.randrange(2, 6), 3 * chosen.randrange(1, 3), novelty, chosen.randrange(1, 4))
    blocks = chosen.randrange(7, 11)
    latents, events = roll_out(HeadCache, blocks, policy, roles)
    for name, build in PAPER.items():
        found, decided = roll_out(build, blocks, policy, roles)
        assert decisions(decided) == decisions(events), (name, roles, policy)
        for one, other in zip(found, latents, strict=True):
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(interpreting(), reason="this is the process that it starts")
def test_the_paper_s_implementations_make_it_with_their_kernels_too(tmp_path: Path):
    """In Triton's interpreter, in a process of its own, since Triton decides at import whether it interprets."""
    run_tests(
        Path(__file__), "-k", "engine_s_video and not (V1 or V2)", TRITON_INTERPRET="1", TRITON_CACHE_DIR=str(tmp_path)
    )


def test_the_video_depends_on_what_is_remembered(of_the_engine):
    """So the test above would notice a wrong context."""
    latents, _ = roll_out(HeadCache, policy=preset("no_episodic_memory"))
    assert (latents[-1] - of_the_engine[0][-1]).abs().max() > 100 * TOLERANCE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, str]:
    """The command, as a user calls it: its results and its page."""
    folder = tmp_path_factory.mktemp("benchmark")
    size = ["--size", "64x32", "--layers", "2", "--dim", "256", "--blocks", "3", "--vae-dim", "0"]
    command.main(["--preset", "cpu", "--repeat", "1", "--out", str(folder), *size])
    return json.loads((folder / "results.json").read_text()), (folder / "results.md").read_text()


def test_every_row_has_a_number_or_a_reason(run):
    results, page = run
    assert [row["row"] for row in results["rows"]] == [row.name for row in ROWS]
    for row in results["rows"]:
        assert f"| {row['row']} | {row['title']} | " in page
        if row.get("not_available"):
            continue
        ms = {stage: times["median"] for stage, times in row["ms_per_block"].items()}
        assert 0 < ms["cache"] < ms["block"] and 0 < ms["denoise"] < ms["block"]
        assert row["timed_blocks"] == 3 and len(row["warm_up_ms"]) >= 10
    rows = {row["row"]: row for row in results["rows"]}
    missing = {name for name, row in rows.items() if "not_available" in row}
    assert missing == {"V3", "V4", "B2", "B3", "B4", "B5", "B6", "G", "C", "F8"}  # of a CPU
    # beside keys and values, each counted once, only tables and a few pooled keys are held
    assert 1 <= rows["B1"]["cache_bytes"] / rows["B1"]["cache_formula_bytes"] < 1.3


def test_the_row_of_fp8_linears_is_measured_and_makes_other_latents():
    """On a CPU the row has no number; its emulation runs the same lines."""
    assert "8-bit" in measure(TINY, BY_NAME["F8"])["not_available"]
    small = replace(TINY, layers=1, dim=384, timed_blocks=1)  # its FFN is a multiple of 16
    emulated = replace(BY_NAME["B1"], name="F8", fp8=True)
    exact, inexact = (list(timed_blocks(small, row, 1)) for row in (BY_NAME["B1"], emulated))
    apart = (inexact[0][1] - exact[0][1]).norm() / exact[0][1].norm()
    assert 1e-4 < apart < 0.3


def test_rows_of_the_same_policy_make_the_same_latents_and_ratios_come_first(run):
    results, page = run
    compared = {row["row"]: row for row in results["rows"] if row.get("difference_after_10_blocks") is not None}
    assert set(compared) == {"V1", "V2", "B1"}
    assert all(row["difference_after_10_blocks"] <= TOLERANCE for row in compared.values())
    assert results["ratios"]["compared_with"] == "B1"
    fastest = {name: row["ms_per_block"]["block"]["fastest"] for name, row in compared.items()}
    assert results["ratios"]["block"]["V1"] == pytest.approx(fastest["V1"] / fastest["B1"])
    assert re.findall(r"^## (.*)", page, re.MULTILINE)[0].startswith("Times as long as B1")


def test_operations_of_the_real_model():
    """Per block of the 1.3B model at 832x480: 58.5 TFLOP in linear layers, 57.8 in self-attention, 2.2 in the other."""
    case = Case(device=torch.device("cpu"))
    shape = case.shape(HEAD_FORCING, 40)
    assert shape.frame_slots == 3096 and case.config == WanConfig()
    last_layer = 0.6e12  # what the clean pass leaves out
    assert block_flops(case.config, shape) == pytest.approx(118.5e12 - last_layer, rel=0.005)
    assert warm_up_blocks(HEAD_FORCING) == 17 and warm_up_blocks(preset("self_forcing_window_21")) == 10


def test_a_row_that_fails_says_why():
    def broken(*given, **options):
        raise RuntimeError("no kernel image\nand a long list")

    found = measure(TINY, replace(ROWS[0], cache=broken))
    assert found["not_available"] == "RuntimeError: no kernel image" and "in broken" in found["traceback"]
    needy = measure(TINY, replace(BY_NAME["B1"], needs=BY_NAME["V3"].needs))
    assert needy["not_available"] == "a CPU runs no Triton kernels"


def test_of_two_repetitions_the_best_of_each_number_counts():
    slow, fast = (
        {
            "ms_per_block": {"block": {"fastest": ms}},
            "cache_handling_ms": {"total": 3 - ms},
            "cache_and_attention_ms": 5,
        }
        for ms in (2.0, 1.0)
    )
    assert report.better(slow, fast) == report.better(fast, slow) == fast | {"cache_handling_ms": {"total": 1.0}}
    assert report.better(none := {"not_available": "why"}, fast) is none


def test_decoding_is_a_stage_of_its_own():
    case = replace(TINY, width=32, height=32, layers=1, dim=128, vae_dim=8)
    found = measure(case, BY_NAME["W8"])
    block, decoding = (found["ms_per_block"][stage]["median"] for stage in ("block", "vae"))
    assert found["fps_with_vae"] == pytest.approx(1000 * 12 / (block + decoding))


def test_processor_time_leaves_out_what_others_do_and_is_for_one_thread(monkeypatch, capsys):
    monkeypatch.setattr(Stopwatch, "clock", time.process_time)
    watch = Stopwatch(torch.device("cpu"))
    with watch.stage("waiting"):
        time.sleep(0.2)
    assert watch.lap()["waiting"] < 100
    with pytest.raises(SystemExit):
        command.main(["--preset", "cpu", "--processor-time", "--threads", "2"])
    assert "one thread" in capsys.readouterr().err


def test_scaling_writes_every_table(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(command.scaling, "lengths", partial(scaling.lengths, marks=(20, 40)))
    command.main(["--scaling", "--preset", "dry", "--vae-dim", "0", "--out", str(tmp_path)])
    tables = json.loads((tmp_path / "scaling.json").read_text())["tasks"]
    early, late = tables["Length"]
    assert early["cache_bytes"] == late["cache_bytes"]  # memory does not grow with the video
    small, large = tables["Resolution"]
    assert large["cache_bytes"] / small["cache_bytes"] == pytest.approx(2.25, rel=0.1)
    slots = [line["frame_slots"] for line in tables["Episodic memory"]]
    assert len(slots) == 4 and slots == sorted(slots)
    page = (tmp_path / "scaling.md").read_text()
    assert all(f"## {table}" in page for table in tables) and "| block 40 |" in page


MEASURED = Path(__file__).parents[1] / "cpu"


@pytest.mark.parametrize("name", ["results", "two_threads/results", "scaling"])
def test_the_committed_pages_are_those_of_the_committed_numbers(name):
    page = (MEASURED / f"{name}.md").read_text("utf-8")
    assert page == report.page(json.loads((MEASURED / f"{name}.json").read_text()))


def test_the_text_says_what_was_measured():
    """Every figure of the paragraph on the CPU, as rounded from the JSON."""
    results = json.loads((MEASURED / "results.json").read_text())
    ratios = results["ratios"]
    text = " ".join((MEASURED.parent / "README.md").read_text("utf-8").split())
    alone, with_attention = ratios["cache_handling"], ratios["cache_and_attention"]
    assert f"the cache alone took V1 {alone['V1']:.1f} times and V2 {alone['V2']:.1f} times as long as B1" in text
    assert (
        f"Self-attention with its cache took V1 {with_attention['V1']:.2f} times and a window of 21 frames "
        f"{with_attention['W21']:.2f} times as long" in text
    )
    threads = json.loads((MEASURED / "two_threads" / "results.json").read_text())["ratios"]["cache_and_attention"]
    assert f"V1 took {threads['V1']:.2f} times and V2 {threads['V2']:.2f} times as long" in text
    (row,) = (row for row in results["rows"] if row["row"] == "V1")
    share = row["cache_and_attention_ms"] / row["ms_per_block"]["block"]["fastest"]
    assert 1 - share == pytest.approx(0.9, abs=0.04)  # nine tenths


def test_the_table_of_the_rehearsal_is_the_recorded_one():
    stages = json.loads((MEASURED.parent / "rehearsal.json").read_text("utf-8"))["stages"]
    assert report.table(rehearsal.COLUMNS, stages) in (MEASURED.parent / "README.md").read_text("utf-8")


# 96 tokens a frame, as many heads a layer as the real model has; rows take turns, and the fastest block of each counts
ALL_HEADS = Case(192, 128, layers=2, dim=1536, dtype=torch.float32, device=torch.device("cpu"), vae_dim=0)


@pytest.mark.alone
def test_the_persistent_cache_takes_less_than_half_the_time_of_packing():
    """Per block, with everything a cache does but attention: storing keys and values and the update, too."""
    torch.set_num_threads(1)
    key = torch.randn(1, ALL_HEADS.config.num_heads, 8, HEAD_DIM)
    prompt = PromptKV([(key, key)] * ALL_HEADS.layers, 8)
    taken: dict[str, list[float]] = {"V2": [], "B1": []}
    with torch.no_grad():
        for _ in range(12):
            for name, times in taken.items():
                times.append(cache_steps(ALL_HEADS, BY_NAME[name], prompt, hollow=True)["total"])
            if min(taken["V2"]) >= 2.3 * min(taken["B1"]):
                return
    pytest.fail(f"{taken}")
