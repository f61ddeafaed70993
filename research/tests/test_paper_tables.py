"""The paper's tables as commands: which rows they have, and that they are rendered and measured."""

import json
from pathlib import Path

import pytest
from headforcing.headforcing_core.cache.policy import CachePolicy, RolePolicy, preset
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.research.__main__ import main
from headforcing.research.paper_tables import PAPER_TABLES, budgets

BALL = "a red ball bouncing in the teal plain room"


def render(name: str, out: Path, *more: str) -> dict:
    command = ["tables", name, "--demo", "--prompts", BALL, "--seconds", "1", "--scale", "2", "--device", "cpu"]
    assert main([*command, "--out", str(out), "--json", *more]) == 0
    return json.loads((out / f"{name}.json").read_text("utf-8"))


def test_every_ablation_differs_from_head_forcing_in_what_its_table_is_about():
    ours = preset("head_forcing")
    baseline, allocated, remembering, last = (entry.policy for entry in PAPER_TABLES["components"].rows)
    assert isinstance(allocated, CachePolicy) and isinstance(remembering, CachePolicy)
    assert [policy.rope for policy in (baseline, allocated, remembering, last)] == ["absolute"] * 3 + ["contiguous"]
    assert not baseline.needs_profile and allocated.needs_profile and last == ours
    assert allocated.memory == RolePolicy(recent_frames=8) and remembering.memory.episodic_frames == 5
    assert allocated.memory.capacity(3, 99) == remembering.memory.capacity(3, 99) == 11
    for name, about in (("admission", "admission"), ("compression", None), ("rope", None)):
        *others, last = PAPER_TABLES[name].rows
        assert last.policy == ours and last.roles == "profile"
        for entry in others:
            assert entry.policy != ours and entry.policy.memory == ours.memory
            assert (entry.policy.rope != ours.rope) == (name == "rope")
            assert not about or getattr(entry.policy.episodic, about) != getattr(ours.episodic, about)
    roles = [entry.roles for entry in PAPER_TABLES["roles"].rows]
    assert roles == ["shuffled", "profile", "anchor_to_memory", "local_to_memory", "profile"]


@pytest.mark.parametrize("name", ["components", "roles"])
def test_a_table_is_rendered_and_measured(name: str, tmp_path: Path):
    found = render(name, tmp_path)
    labels = [entry.label for entry in PAPER_TABLES[name].rows]
    assert [row["entry"]["label"] for row in found["rows"]] == labels
    assert len({row["video"] for row in found["rows"]}) == len(labels)
    assert all(Path(row["video"]).is_file() and row["seconds_per_block"] > 0 for row in found["rows"])
    text = (tmp_path / f"{name}.md").read_text("utf-8")
    assert text.startswith(PAPER_TABLES[name].caption)
    shown = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    assert shown == ["method", "---", *labels]
    assert "no VBench scores" in text and "toy model" in text and Path(found["grid"]).is_file()


def test_the_table_of_methods_has_the_papers_rows_then_newer_ones_and_leaves_out_what_cannot_be(tmp_path: Path):
    """In one second Deep Forcing and CausVid have nothing to compress or to restart, and others no whole window."""
    table = PAPER_TABLES["methods"]
    assert [entry.method for entry in table.rows if entry.method == "head_forcing"]
    newer = {"rolling_sink", "memrope", "reward_forcing", "echo_forcing", "pyramid_forcing"}
    assert {entry.method for entry in table.rows[7:]} == newer and "no order of quality" in table.note
    found = render("methods", tmp_path)
    made, left_out = [row["entry"]["label"] for row in found["rows"]], found["left_out"]
    assert sorted([*made, *left_out]) == sorted(entry.label for entry in table.rows)
    assert made == [entry.label for entry in table.rows if entry.label in made], "rows keep their order"
    text = (tmp_path / "methods.md").read_text("utf-8")
    assert all(f"left out: {label}: {reason}" in text for label, reason in left_out.items()) and left_out


def test_several_seeds_are_averaged_and_bad_ones_refused(tmp_path: Path, capsys):
    found = render("rope", tmp_path, "--seeds", "2", "--seed", "5")
    assert [row["seed"] for row in found["rows"]] == [5, 6, 5, 6]
    text = (tmp_path / "rope.md").read_text("utf-8")
    line = next(line for line in text.splitlines() if line.startswith("| w/o"))
    mean = sum(row["drift"]["flicker"] for row in found["rows"][:2]) / 2
    assert line.split(" | ")[5] == f"{mean:.4f}" and "Means over 2 seeds, 5 to 6." in text
    assert found["rows"][0]["drift"] != found["rows"][1]["drift"]
    for more, told in (
        ([], "the table 'roles' is rendered: give --demo, or --weights"),
        (["--demo", "--seeds", "0"], "--seeds must be from 1 to 1000, got 0"),
    ):
        assert main(["tables", "roles", "--out", str(tmp_path), *more]) == 2
        assert told in capsys.readouterr().err


def test_budgets_are_those_of_the_caches_and_say_where_the_paper_has_others(tmp_path: Path, repo_root: Path, capsys):
    assert main(["tables", "budget", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    slots, paper = ({row.label: getattr(row, name) for row in budgets()} for name in ("frame_slots", "paper"))
    assert slots["Head Forcing"] == 72 * 4 + 90 * 7 + 198 * 11 == 3096
    assert (slots["Self Forcing"], slots["LongLive"]) == (360 * 21, 360 * 12)
    windows = {name: method_policy(name) for name in ("infinity_rope", "deep_forcing")}
    assert slots["Infinity-RoPE"] == 360 * windows["infinity_rope"].window_frames and paper["Infinity-RoPE"] == 360 * 8
    assert slots["Deep Forcing"] > paper["Deep Forcing"] == 360 * windows["deep_forcing"].budget_frames
    for line in (
        "| Head Forcing | 8.6 | 3,096 | 100.0% | 3,096 |",
        "| Self Forcing | 21 | 7,560 | 244.2% | 7,560 |",
        "| Deep Forcing | 23 | 8,280 | 267.4% | 5,760 |",
        "| Infinity-RoPE | 6 | 2,160 | 69.8% | 2,880 |",
        "| Reward Forcing | 9 | 3,240 | 104.7% | not in it |",
    ):
        assert line in shown
    page = (repo_root / "research" / "README.md").read_text("utf-8")
    for row in budgets():
        stated = "not in it" if row.paper is None else f"{row.paper:,}"
        assert f"| `{row.method}` | {row.frame_slots:,} | {stated} |" in page
        differs = row.paper is not None and row.frame_slots != row.paper
        assert (f"{row.label}: the paper counts {stated}" in shown) == differs
    assert json.loads((tmp_path / "budget.json").read_text("utf-8"))["rows"][4]["frame_slots"] == 3096
