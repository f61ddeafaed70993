"""The benchmark command on a model so small that it takes seconds; its numbers mean something, its
speeds do not.
"""

import functools
import importlib.util
import json
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.rollout.loop import RolloutInputs, rollout
from headforcing.kernels.language import interpreting
from headforcing.tests.benchmarks import command, paper_caches, rehearsal, report, scaling
from headforcing.tests.benchmarks.case import Case, block_flops, warm_up_blocks
from headforcing.tests.benchmarks.measure import cache_steps, measure
from headforcing.tests.benchmarks.paper_caches import (
    CacheKernels,
    FusedAssembly,
    NaiveLoop,
    PackedHeads,
)
from headforcing.tests.benchmarks.rows import BY_NAME, HEAD_FORCING, with_memory
from own_process import run_tests

TOLERANCE = 1e-5  # of latents, float32: the same sums in another order
TINY = Case(
    64,
    32,
    layers=2,
    dim=256,
    dtype=torch.float32,
    device=torch.device("cpu"),
    timed_blocks=3,
    vae_dim=0,
)
BUSY = with_memory(3, 3, 2.0, 1)  # full after a few blocks, then merging after every block
KERNELS = "triton" if interpreting() else "reference"
PAPER = {
    "V1": NaiveLoop,
    "V2": PackedHeads,
    "V3": partial(CacheKernels, kernels=KERNELS),
    "V4": partial(FusedAssembly, kernels=KERNELS),
}


def made_by(
    build, blocks: int = 9, method=BUSY, roles=TINY.roles
) -> tuple[torch.Tensor, list[tuple]]:
    """Latents of a video, and what was decided about frames for episodic memory."""
    cache = build(replace(TINY.shape(method, blocks), roles=roles), torch.float32)
    made = list(rollout(TINY.model(), cache, RolloutInputs(TINY.script(blocks), TINY.noise())))
    events = [block.event for block in made if block.event]
    decided = [(event.frame, event.admitted, event.merged) for event in events]
    return torch.stack([block.latents for block in made]), decided


of_the_engine = functools.cache(lambda: made_by(HeadCache))


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_implementations_make_the_engine_s_video(name):
    latents, decided = made_by(PAPER[name])
    expected, decided_there = of_the_engine()
    torch.testing.assert_close(latents, expected, atol=TOLERANCE, rtol=0)
    assert decided == decided_there and sum(merged is not None for _, _, merged in decided) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_they_make_it_with_any_roles_memory_and_length(seed):
    """Layers without heads of some role, memories that never fill, that merge at once or that there
    are none of.
    """
    chosen = random.Random(seed)
    roles = [chosen.choices(["local", "anchor", "memory"], k=2) for _ in range(TINY.layers)]
    novelty = chosen.choice([2.0, 0.9])
    method = with_memory(
        chosen.randrange(2, 6), 3 * chosen.randrange(1, 3), novelty, chosen.randrange(1, 4)
    )
    blocks = chosen.randrange(7, 11)
    expected, decided_there = made_by(HeadCache, blocks, method, roles)
    for name, build in PAPER.items():
        latents, decided = made_by(build, blocks, method, roles)
        assert decided == decided_there, (name, roles, method)
        torch.testing.assert_close(latents, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(interpreting(), reason="this is the process that it starts")
def test_the_paper_s_implementations_make_it_with_their_kernels_too(tmp_path: Path):
    """In Triton's interpreter, in a process of its own, since Triton decides at import whether it
    interprets.
    """
    run_tests(
        Path(__file__),
        "-k",
        "engine_s_video and not (V1 or V2)",
        TRITON_INTERPRET="1",
        TRITON_CACHE_DIR=str(tmp_path),
    )


def test_the_papers_complete_system_builds_no_table_again_in_a_full_cache(monkeypatch):
    """What packing needs differs from block to block only while contexts grow."""
    built = [0]
    upload = paper_caches.upload
    monkeypatch.setattr(
        paper_caches, "upload", lambda *given: built.append(built.pop() + 1) or upload(*given)
    )
    cache = FusedAssembly(TINY.shape(HEAD_FORCING, 24), torch.float32, kernels="reference")
    made = rollout(TINY.model(), cache, RolloutInputs(TINY.script(24), TINY.noise()))
    counts = [built[0] for _ in made]
    assert counts[0] > 0 and counts[-4:] == 4 * built


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, str]:
    """The command, as a user calls it: its results and its page."""
    folder = tmp_path_factory.mktemp("benchmark")
    size = ["--size", "64x32", "--layers", "2", "--dim", "256", "--blocks", "3", "--vae-dim", "8"]
    assert (
        command.main(
            ["--preset", "cpu", "--repeat", "1", "--processor-time", "--out", str(folder), *size]
        )
        == 0
    )
    return json.loads((folder / "results.json").read_text()), (folder / "results.md").read_text()


def test_every_row_has_a_number_or_a_reason(run):
    results, page = run
    rows = {row["row"]: row for row in results["rows"]}
    assert list(rows) == list(BY_NAME) and results["environment"]["clock"] == "processor time"
    assert all(f"| {name} | {row['title']} | " in page for name, row in rows.items())
    missing = {name for name, row in rows.items() if "not_available" in row}
    assert missing == {"V3", "V4", "B2", "B3", "B5", "B6", "G", "C", "F8"}  # of a CPU
    for name in rows.keys() - missing:
        row = rows[name]
        assert 0 < row["cache_ms"] < row["block_ms"] and 0 < row["denoise_ms"] < row["block_ms"]
        assert row["timed_blocks"] == 3 and len(row["warm_up_ms"]) >= 10
        with_vae = 1000 * 12 / (row["block_ms"] + row["vae_ms"]) if name == "B1" else None
        assert row["fps_with_vae"] == pytest.approx(with_vae), "one row decodes"
    # beside keys and values, each counted once, only tables and a few pooled keys are held
    assert 1 <= rows["B1"]["cache_bytes"] / rows["B1"]["cache_by_formula_bytes"] < 1.3


def test_rows_of_the_same_policy_make_the_same_latents_and_ratios_come_first(run):
    results, page = run
    compared = {
        row["row"]: row
        for row in results["rows"]
        if row.get("difference_after_10_blocks") is not None
    }
    assert set(compared) == {"V1", "V2", "B1"}
    assert all(row["difference_after_10_blocks"] <= TOLERANCE for row in compared.values())
    assert (
        compared["V1"]["times_block"] == compared["V1"]["fastest_ms"] / compared["B1"]["fastest_ms"]
    )
    assert re.findall(r"^## (.*)", page, re.MULTILINE)[0].startswith("Times as long as B1")


def test_operations_of_the_real_model():
    """Per block of the 1.3B model at 832x480: 58.5 TFLOP in linear layers, 57.8 in self-attention,
    2.2 in the other.
    """
    case = Case(device=torch.device("cpu"))
    shape = case.shape(HEAD_FORCING, 40)
    assert shape.frame_slots == 3096 and case.config == WanConfig()
    last_layer = 0.6e12  # what the clean pass leaves out
    assert block_flops(case.config, shape) == pytest.approx(118.5e12 - last_layer, rel=0.005)
    assert (
        warm_up_blocks(HEAD_FORCING) == 17
        and warm_up_blocks(PRESETS["self_forcing_window_21"]) == 10
    )


def test_a_row_that_fails_says_why():
    def broken(*given, **options):
        raise RuntimeError("no kernel image\nand a long list")

    found = measure(TINY, replace(BY_NAME["V1"], cache=broken))
    assert (
        found["not_available"] == "RuntimeError: no kernel image"
        and "in broken" in found["traceback"]
    )


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


FOLDER = Path(__file__).parents[1]


def recorded(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def test_the_committed_pages_are_those_of_the_committed_numbers():
    for name in ("cpu/results", "cpu/two_threads/results", "cpu/scaling"):
        assert (FOLDER / f"{name}.md").read_text("utf-8") == report.page(recorded(name))
    assert report.table(rehearsal.COLUMNS, recorded("rehearsal")["stages"]) in (
        FOLDER / "rehearsal.md"
    ).read_text("utf-8")


@pytest.mark.alone
def test_the_persistent_cache_takes_less_than_half_the_time_of_packing():
    """Per block, with everything a cache does but attention: storing keys and values and the
    update, too.
    """
    torch.set_num_threads(1)
    # 96 tokens a frame, as many heads a layer as the real model has; rows take turns, and the
    # fastest block counts
    case = Case(192, 128, layers=2, dtype=torch.float32, device=torch.device("cpu"), vae_dim=0)
    taken: dict[str, list[float]] = {"V2": [], "B1": []}
    with torch.no_grad():
        for _ in range(12):
            for name, times in taken.items():
                times.append(cache_steps(case, BY_NAME[name], hollow=True)["alone_ms"])
            if min(taken["V2"]) >= 2.3 * min(taken["B1"]):
                return
    pytest.fail(f"{taken}")
