"""The commands `table`, `figure` and `paper`: every table and figure of the paper, at the smallest
size on an untrained model, and what lies in the evidence.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.roles import RolePolicy
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.research import profiling
from headforcing.research.__main__ import main
from headforcing.research.claims.claims import PAPERS_ROWS
from headforcing.research.claims.paper_numbers import COLUMNS, REPORTED
from headforcing.research.paper import (
    ablations,
    attention,
    command,
    demo,
    figures,
    fixed_tables,
    sweeps,
    tables,
)
from headforcing.research.paper.ablations import (
    EqualMemory,
    NoveltyOf,
    PrunedHeads,
    SeeingCache,
    with_first_frame,
    with_other_frame,
)
from headforcing.research.paper.demo import Demo
from headforcing.research.paper.figures import FIGURES
from headforcing.research.paper.fixed_tables import FIXED_TABLES
from headforcing.research.paper.paper_tables import TABLES
from headforcing.research.rooms.judge import STORIES
from headforcing.research.rooms.measurements import embedded_judge
from headforcing.research.rooms.pairs import pair_numbers
from headforcing.research.rooms.scenes import render
from headforcing.research.rows import MethodRow
from PIL import Image
from tiny_files import NAVY, SAND, TEAL, tiny_judge

STORED = Path(__file__).parents[1] / "evidence" / "paper"
LAST = {
    "Head Forcing",
    "(D) Ours",
    "Ours",
    "w/ re-encoding",
    "Key cosine",
    "Pruning in Local Heads",
}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """An untrained model with two heads in two layers, and stories of four blocks."""
    judge = tiny_judge(tmp_path)
    monkeypatch.setattr(demo, "embedded_judge", lambda: judge)

    def away(number):
        return TEAL, SAND, NAVY, TEAL

    for story in ("away_15", "twelve_blocks"):
        monkeypatch.setitem(demo.DEMO_STORIES, story, away)
    for story in ("one_prompt", "five_minutes"):
        monkeypatch.setitem(demo.DEMO_STORIES, story, lambda number: (TEAL,) * 4)
    monkeypatch.setattr(figures, "LATE", range(2, 4))
    monkeypatch.setattr(figures, "LENGTHS", (1.0, 3.0))
    monkeypatch.setattr(figures, "MAPS", 2)
    monkeypatch.setattr(attention, "BLOCK", 3)
    monkeypatch.setattr(fixed_tables, "STEPS", (3, 4))
    monkeypatch.setattr(fixed_tables, "PROMPTS", 2)
    return judge


def test_one_command_makes_every_table_and_figure_and_finds_them_again(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["paper", "--demo", "--videos", "1", "--out", str(out), "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["tables"]) == [*TABLES, *FIXED_TABLES]
    assert list(found["figures"]) == list(FIGURES)
    for number in found["tables"]:
        assert (out / f"table_{number}.md").read_text("utf-8").startswith(f"# Table {number}")
    for number, each in FIGURES.items():
        text = (out / f"figure_{number}.md").read_text("utf-8")
        assert each.needs in text
        picture = out / f"figure_{number}.png"
        assert picture.exists() == (each.draw is not None)
        if each.draw is not None:
            assert Image.open(picture).width == 900 and picture.stat().st_size > 2_000
    assert (out / "README.md").read_text("utf-8") == command.page()
    journal = (out / "measured.jsonl").read_text("utf-8")
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*.png")}
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == found
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.png")} == stamps
    assert (out / "measured.jsonl").read_text("utf-8") == journal, "nothing is measured twice"


@pytest.mark.parametrize("number", TABLES)
def test_every_row_has_a_number_in_every_column_of_the_paper(number):
    table = TABLES[number]
    for row in table.rows:
        values = [float(value) for value in row.paper.split()]
        assert len(values) in (0, len(table.columns)), row.label
        assert (row.entry is None) == bool(row.missing), row.label
    assert table.rows[-1].label in LAST
    keys = [row.entry.key for row in table.rows if row.entry is not None]
    assert len(set(keys)) == len(keys)


def test_the_tables_have_the_figures_that_check_claim_compares_with():
    seen = 0
    for each in REPORTED:
        table = TABLES[each.table.removeprefix("Table ")]
        column = COLUMNS[each.column].heading
        if column not in table.columns:
            continue
        place = table.columns.index(column)
        found = {float(row.paper.split()[place]) for row in table.rows if row.paper}
        assert {each.value, each.ours} <= found, each
        seen += 1
    assert seen > 45


def test_the_numbers_are_those_of_the_papers_source(shared_dir):
    if shared_dir is None:
        pytest.skip("the paper's source is not beside the checkout")
    text = (shared_dir / "head_forcing_paper.tex").read_text("utf-8").replace("5.760", "5,760")
    for table in TABLES.values():
        for row in table.rows:
            for value in row.paper.split():
                assert value in text, (table.title, row.label, value)
    for _, frames, slots, share in fixed_tables.BUDGETS.values():
        assert frames in text and f"{slots:,}" in text and share.replace("%", "\\%") in text


def test_rows_of_one_budget_have_the_frame_slots_of_head_forcing(tiny):
    """On the model of the paper too, where 3,096 slots cannot be divided by 288 heads."""
    roles = [["local"] * 12] * 6 + [["anchor"] * 12] * 7 + [["anchor"] * 6 + ["memory"] * 6]
    roles += [["memory"] * 12] * 16
    config = fixed_tables.WanConfig()
    assert HeadForcing().shape(config, roles, 60, 104, 3, 240).frame_slots == 3096
    for kept in ("", "local", "anchor"):
        shape = EqualMemory(kept=kept).shape(config, roles, 60, 104, 3, 240)
        assert shape.frame_slots == 3096, kept
        sizes = {method.episodic_frames for method in shape.policies}
        assert sizes - {0} == {3, 4} if kept == "local" else sizes


def test_as_many_other_heads_are_pruned_as_there_are_local_ones_and_others_for_each_seed(tiny):
    model = Demo()
    looks = (TEAL,) * 3

    def pruned(which, number):
        entry = MethodRow("pruned", "pruned", given=PrunedHeads(pruned=which))
        roles = model.plan(entry, looks, number).shape.roles
        places = range(4)
        return {place for place in places if roles[place // 2][place % 2] == "local"}

    profile = model.judge.profile
    local = {place for place in range(4) if profile.roles[place // 2][place % 2] == "local"}
    assert pruned("local", 1) == local and len(local) == 1
    others = [pruned("others", number) for number in range(9)]
    assert all(len(found) == len(local) and not found & local for found in others)
    assert len(set(map(frozenset, others))) > 1


def test_the_first_place_of_a_context_can_have_another_frame_or_none(tiny):
    model = Demo()
    looks = (TEAL,) * 10
    kept = {}
    policies = {"all": with_first_frame(), "other": with_other_frame(5)}
    policies["none"] = with_first_frame("local", "anchor", "memory")
    for name, method in policies.items():
        held = []
        plan = model.plan(MethodRow(name, name, given=method), looks, 1)
        model.video(plan, looks, 1, held.append)
        (group,) = held[0].groups
        kept[name] = [sources[0] for sources in group.sources]
    assert kept["all"][:2] == [0, 13] and kept["none"][:2] == [12, 13]
    assert kept["other"][:2] == [5, 13] and {len(frames) for frames in kept.values()} == {18}


def test_novelty_is_the_cosine_of_what_frames_show(tiny):
    """The decisions of a memory, by latents that were noted."""
    model = Demo()
    looks = (TEAL, SAND, NAVY, TEAL) * 4
    method = NoveltyOf(compared="latents")
    held = []
    plan = model.plan(MethodRow("novelty", "novelty", given=method), looks, 1)
    events = []

    def watch(cache):
        held.append(cache)
        real = cache.memory.consider

        def consider(*arguments):
            events.append(real(*arguments))
            return events[-1]

        cache.memory.consider = consider

    made = model.video(plan, looks, 1, watch)
    latents = torch.nn.functional.normalize(made.latents.flatten(1), dim=1)
    first, second = events[:2]
    assert first.admitted and first.delta == -1.0
    assert second.delta == pytest.approx(float(latents[first.frame] @ latents[second.frame]))
    pictures = ablations.SeenMemory(2, method.episodic, None, "pictures")
    for place in (first.frame, second.frame):
        pictures.note(place, made.latents[place])
    one = pictures.features[first.frame]
    other = pictures.features[second.frame]
    assert one.shape == (64 * 64 * 3,) and float(one @ one) == pytest.approx(1.0)
    assert float(one @ other) != pytest.approx(second.delta, abs=1e-4)
    assert isinstance(held[0], SeeingCache)


def test_attention_is_shown_of_one_step_of_the_chosen_blocks_and_sums_to_one(tiny):
    model = Demo()
    seen = []

    def watch(cache: HeadCache) -> None:
        def note(layer, group, weights):
            seen.append((cache.block, layer, tuple(weights.shape)))
            assert torch.allclose(weights.sum(-1), torch.ones(()))

        cache.meter = attention.StepMeter(cache, [1, 3], 2, note)

    looks = (TEAL,) * 4
    model.video(model.plan(MethodRow("plain", "self_forcing"), looks, 1), looks, 1, watch)
    assert [(block, layer) for block, layer, _ in seen] == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert [shape for *_, shape in seen] == [(2, 48, 96)] * 2 + [(2, 48, 192)] * 2


def test_a_pair_is_like_where_the_room_comes_back_and_a_return_that_never_happened_has_no_score():
    """On rendered videos, one of which shows the first room all the time."""
    autoencoder = embedded_judge().autoencoder
    looks = STORIES["twelve_blocks"](3)
    back = pair_numbers(render(looks, 3).video_frames, looks, autoencoder)
    assert back["returned"] == 1.0 and back["layout_returned"] == pytest.approx(1.0, abs=0.1)
    assert back["pair"] > back["pair_just_left"] + 0.2
    stays = render((looks[0],) * len(looks), 3).video_frames
    never = pair_numbers(stays, looks, autoencoder)
    assert never["returned"] == 0.0 and never["layout_returned"] is None
    assert never["pair"] > 0.7, "which a frozen video has without any memory"


def test_core_stability_is_that_of_the_papers_steps():
    setup = argparse_setup()
    shares = profiling.HeadShares(setup)
    torch.manual_seed(1)
    shares.sums += torch.rand(shares.sums.shape)
    shares.counts += 1
    found = fixed_tables.core_stability(shares, (3, 12, 21, 30))
    mean = shares.sums[0]
    runs = [fixed_tables.classify(mean[block, 2].tolist()) for block in (0, 9, 18, 27)]
    assert found["blocks"] == fixed_tables.stability(runs)
    runs = [fixed_tables.classify(mean[9, step].tolist()) for step in range(4)]
    assert found["steps"] == fixed_tables.stability(runs)
    assert set(found) == {"blocks", "steps", "prompts"}


def argparse_setup():
    """A setup of two prompts with as many blocks as 30 s have."""
    sigmas = (1.0, 0.9, 0.8, 0.6)
    return profiling.ProfileSetup(
        "model",
        3,
        num_heads=4,
        prompts=("one", "two"),
        blocks=40,
        sigmas=sigmas,
        frames_per_block=3,
        width=64,
        height=64,
    )


def test_the_numbers_of_check_claim_stand_beside_the_papers_in_its_layout(tmp_path, capsys):
    videos = [{"flicker": 0.9, "text_score": 20.0 + i, "text_score_2": 30.0} for i in range(3)]
    for video in videos:
        video["vbench_imaging_quality"] = 0.7
        video["vbench_long_motion_smoothness"] = 0.98
    rows = {"A": {"one_prompt": videos}, "D": {"one_prompt": videos, "six_prompts": videos}}
    (tmp_path / "verdict.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    command = ["table", "4", "--check", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    text = capsys.readouterr().out
    (ours,) = re.findall(r"^\| \(D\) Ours \|.*$", text, re.MULTILINE)
    assert "69.27 / 70.00 (3) VBench |" in ours, "plain VBench is marked"
    assert "98.69 / 98.00 (3) |" in ours and "24.95 / 21.00 (18.52 to 23.48; 3) own |" in ours
    assert "(B) + HW | 37.22 / - |" in text and "The embedded model" not in text
    assert main(["table", "3", *command[2:]]) == 0
    assert "25.36 / 30.00 (3) own" in capsys.readouterr().out
    (tmp_path / "verdict.json").write_text("[]", encoding="utf-8")
    assert main(command) == 2
    assert "is no verdict of check-claim" in capsys.readouterr().err
    assert PAPERS_ROWS["A"].key == "self_forcing_window_21"


def test_a_value_that_a_method_refuses_is_named_in_the_figure(tiny, tmp_path, monkeypatch):
    def refused(value):
        many = RolePolicy(recent_frames=None, episodic_frames=5)
        return HeadForcing(memory=many) if value else HeadForcing()

    sweep = sweeps.Sweep("x", 0.0, (0.0, 1.0), "The paper: nothing.", method=refused)
    monkeypatch.setitem(sweeps.SWEEPS, "x", sweep)
    made = sweeps.swept("x", tmp_path, 1, True)
    assert list(made.refused) == [1.0] and "set recent_frames" in made.refused[1.0]
    assert len(made.found[0]) == 1 and not made.found[1]
    assert "| 1 | - | - | - | - |" in made.table("x")
    assert "Not made: 1." in sweeps.sweep_panel("x", made).subtitle


def test_the_stored_tables_are_what_the_command_writes():
    for number, table in TABLES.items():
        data = json.loads((STORED / f"table_{number}.json").read_text("utf-8"))
        known = {
            tables.row_key(table.story, row.entry): data["rows"][row.label]["videos"]
            for row in table.rows
            if row.entry is not None
        }
        text, _ = tables.text_of(table, known)
        assert (STORED / f"table_{number}.md").read_text("utf-8") == text + "\n"
        if table.here:
            assert {"pictures of the room just left", "moves as told"} <= set(table.here.values())


def test_the_evidence_has_every_table_and_figure_and_their_page():
    assert (STORED / "README.md").read_text("utf-8") == command.page()
    for number in FIXED_TABLES:
        assert (STORED / f"table_{number}.md").read_text("utf-8").startswith(f"# Table {number}")
    for number, each in FIGURES.items():
        text = (STORED / f"figure_{number}.md").read_text("utf-8")
        assert text.startswith(f"# Figure {number}: {each.title}") and each.needs in text
        picture = STORED / f"figure_{number}.png"
        assert picture.exists() == (each.draw is not None)
        assert not picture.exists() or picture.stat().st_size < 300_000


def test_figures_of_parameters_follow_from_the_stored_stories():
    for number, names in {"6": ("tau_local", "B_epi"), "S9": ("tau_novel",)}.items():
        data = json.loads((STORED / f"figure_{number}.json").read_text("utf-8"))["numbers"]
        text = (STORED / f"figure_{number}.md").read_text("utf-8")
        for name in names:
            assert tuple(data[name]["values"]) == sweeps.SWEEPS[name].values
            made = sweeps.Swept(data[name]["found"], {})
            assert made.table(name) in text
