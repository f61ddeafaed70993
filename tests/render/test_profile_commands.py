"""The commands that measure, merge, compare and draw head profiles, on the embedded toy model.

Files of shares are compared byte by byte, tensor by tensor: shards, an interruption or the order of
merging leave no trace in them.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from headforcing.cli import profiles
from headforcing.cli.cli import main
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.distributed.workers import Workers
from headforcing.headforcing_core.head_profiles.profile import classify, load_profile
from headforcing.headforcing_core.head_profiles.rules import remark_on_rule, with_rule
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint
from PIL import Image
from safetensors.torch import load_file

DEMO = ("--demo", "--preset", "quick", "--device", "cpu", "--rule", "quota")


@pytest.fixture
def run(capsys):
    """Run a command that must succeed and return its JSON."""

    def command(*arguments) -> dict:
        code = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return json.loads(captured.out)

    return command


@pytest.fixture(scope="module", autouse=True)
def short():
    """Four prompts of 2.2 s, four blocks, instead of 10 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(profiles.BUDGETS, "quick", (4, 2.2))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A short measurement in one go: the shares' file, with the profile beside it."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(["profile", str(folder / "whole.json"), *DEMO, "--json"]) == 0
    return folder / "whole.safetensors"


def assert_same_shares(a: Path, b: Path) -> None:
    mine = load_file(a)
    other = load_file(b)
    assert set(mine) == set(other) == {"sums", "counts", "returns"}
    for name, tensor in mine.items():
        assert torch.equal(tensor, other[name]), name
    assert HeadShares.load(a).setup == HeadShares.load(b).setup
    profiles = [load_profile(path.with_suffix(".json")) for path in (a, b)]
    assert profiles[0].shares == profiles[1].shares


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_profile_measures_the_demo_model_and_as_jobs_of_a_farm_the_same(
    run, whole, tmp_path, monkeypatch
):
    farm = type("AtTheSameTime", (Workers,), {"parallel": True})()
    out = tmp_path / "new folder" / "farmed.json"
    monkeypatch.setattr(profiles, "workers_of", lambda args: farm)
    found = run("profile", out, *DEMO)
    assert_same_shares(out.with_suffix(".safetensors"), whole)
    assert (
        found["counts"] == {"local": 10, "anchor": 12, "memory": 26}
        and found["missing_prompts"] == []
    )
    assert set(found["stability"]) == {"blocks", "steps", "prompts"}
    assert found["published_stability"]["blocks"]["local"] == 0.922
    assert (found["profile"], found["measured"]) == (str(out), str(out.with_suffix(".safetensors")))
    profile = load_profile(whole.with_suffix(".json"))
    assert (profile.name, profile.families) == (
        "whole",
        ("toy_world",),
    ) and profile.counts() == found["counts"]
    about = {"prompts": 4, "blocks": 4, "steps": 4, "size": "64x64", "rope": "absolute", "seed": 0}
    about["fingerprint"] = inspect_checkpoint(assets.model_path()).fingerprint
    assert about.items() <= profile.measured.items()
    assert HeadShares.load(whole).setup.prompts == word_hash.sample_prompts(4)


def test_return_stories_are_added_to_a_measurement_and_name_the_head_that_retrieves(
    run, whole, tmp_path
):
    parts = []
    for shard in (1, 2):
        part = tmp_path / f"part{shard}.json"
        shutil.copy(whole, part.with_suffix(".safetensors"))
        found = run("profile", part, *DEMO, "--returns", "--shard", f"{shard}/2")
        assert found["missing_prompts"] == [], "only the stories were measured"
        parts.append(part.with_suffix(".safetensors"))
    first = HeadShares.load(parts[0]).returns
    second = HeadShares.load(parts[1]).returns
    assert first[[0, 2]].any() and not first[[1, 3]].any() and second[[1, 3]].any()
    blank = HeadShares.load(parts[1])
    blank.sums, blank.counts = torch.zeros_like(blank.sums), torch.zeros_like(blank.counts)
    blank.save(parts[1])  # that of another machine, whose prompts are others
    run("profiles", "merge", *parts, "--out", tmp_path / "auto.json")
    merged = run("profiles", "merge", *parts, "--out", tmp_path / "all.json", "--rule", "quota")
    assert merged["retrieving"][0] == [4, 3] and merged["counts"] == {
        "local": 10,
        "anchor": 12,
        "memory": 26,
    }
    profile = load_profile(tmp_path / "all.json")
    auto = load_profile(tmp_path / "auto.json")
    assert auto.roles == with_rule(profile, "auto").roles != profile.roles
    assert (
        torch.tensor(profile.returns, dtype=torch.float64)
        .sub((first + second).mean(dim=0))
        .abs()
        .max()
        < 1e-9
    )
    assert profile.measured["return_stories"] == 4 and profile.returns[4][3] > 0.5
    (remark,) = remark_on_rule(profile)
    assert "layer 4, head 3 (called anchor; " in remark and "earlier visit" in remark
    assert not any(
        "layer 4, head 3" in line for line in remark_on_rule(with_rule(profile, "function"))
    )


def test_a_shard_with_own_prompts_seed_and_positions_is_told_in_text_and_not_mixed_with_another_setup(
    tmp_path, capsys
):
    (tmp_path / "prompts.txt").write_text(
        "\na red ball in the room\n\n  a pink star  \n", encoding="utf-8"
    )
    out = tmp_path / "mine.json"
    command = [
        "profile",
        str(out),
        *DEMO,
        "--prompts",
        f"@{tmp_path / 'prompts.txt'}",
        "--rope",
        "contiguous",
    ]
    assert main([*command, "--shard", "1/2", "--seed", "7"]) == 0
    text = capsys.readouterr().out
    parts = (
        "10 local, 12 anchor, 26 memory",
        "stable over blocks (paper, its model): local ",
        "(0.92), anchor ",
        "stable over steps",
        "1 of 2 prompts",
    )
    assert all(part in text for part in parts)
    assert f"profile  {out}" in text and f"shares   {out.with_suffix('.safetensors')}" in text
    setup = HeadShares.load(out.with_suffix(".safetensors")).setup
    assert setup.prompts == ("a red ball in the room", "a pink star") and (
        setup.seed,
        setup.rope,
    ) == (7, "contiguous")
    before = out.with_suffix(".safetensors").read_bytes()
    assert main([*command, "--seed", "1"]) == 2
    assert "mine.safetensors was measured with other settings" in capsys.readouterr().err
    assert out.with_suffix(".safetensors").read_bytes() == before


def test_any_checkpoint_is_measured_with_precomputed_embeddings(run, tmp_path, tiny):
    options = (
        "--num-heads 4 --size 96x64 --preset quick --device cpu --dtype fp32 --model-family "
        "longlive"
    ).split()
    options += [
        "--weights",
        tiny / "model.safetensors",
        "--embeddings",
        tiny / "prompts.safetensors",
    ]
    run("profile", tmp_path / "t.json", *options, "--prompts", "an apple")
    profile = load_profile(tmp_path / "t.json")
    assert profile.counts() == {"local": 3, "anchor": 4, "memory": 9}
    assert profile.families == ("longlive",) and profile.measured["size"] == "96x64"


@pytest.mark.parametrize(("after", "missing"), [(35, [1, 2, 3]), (40, [2, 3])])
def test_an_interrupted_measurement_goes_on_where_it_stopped(
    run, tmp_path, monkeypatch, capsys, whole, after, missing
):
    """Control-C in the second prompt, or in its very last step: each tells 20 times where it is."""
    measure = profiles.profile_heads
    steps = []
    out = tmp_path / "x.json"

    def interrupted(*args, on_step, **options):
        def step(block, number, latents):
            steps.append(block)
            if len(steps) == after:
                at_hand = HeadShares.load(out.with_suffix(".safetensors"))
                # finished prompts outlive a power cut, too
                assert len(at_hand.missing_prompts()) == 3
                raise KeyboardInterrupt
            on_step(block, number, latents)

        measure(*args, on_step=step, **options)

    monkeypatch.setattr(profiles, "profile_heads", interrupted)
    assert main(["profile", str(out), *DEMO, "--json"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"
    assert names(tmp_path) == ["x.safetensors"]  # no profile of a part unasked
    kept = HeadShares.load(out.with_suffix(".safetensors"))
    assert kept.missing_prompts() == missing
    assert bool(kept.counts[1].any())  # of the prompt that was cut short, too, what was seen
    after = 10**9
    for left in (missing, []):
        steps.clear()
        run("profile", out, *DEMO)
        most = len(left) * 4 * (4 + 1)  # each block's beginning is told, too
        cut_short = 1 in left  # whose finished blocks are only written to the cache again
        assert most - 12 <= len(steps) < most if cut_short else len(steps) == most
    assert_same_shares(out.with_suffix(".safetensors"), whole)


def test_show_compare_and_plot_tell_of_profiles(run, whole, tmp_path):
    mine = whole.with_suffix(".json")
    shown = run("profiles", "show", "consensus_self_forcing")
    assert len(shown["disputed"]) == 74 and shown["disputed"][0] == [0, 0]
    assert shown["provenance"]["agreement"]["agree"] == 286 and shown["counts"]["memory"] == 162
    same = run("profiles", "compare", mine, mine)
    other = run("profiles", "compare", mine, "toy_world")
    assert (same["same"], same["heads"], same["agreement"]) == (48, 48, 1.0)
    assert 22 <= other["same"] <= 48, "near the profile that ships"
    assert sum(map(sum, other["confusion"])) == 48 and isinstance(other["remarks"], list)
    out = tmp_path / "new folder" / "plain.png"
    assert run("profiles", "plot", mine, out, "--theme", "light") == {"picture": str(out)}
    with Image.open(out) as picture:
        assert picture.width == 900


def test_roles_measured_by_one_demo_are_used_by_the_next_by_their_rule_and_stay_as_they_were(
    run, tmp_path
):
    folder = tmp_path / "found"
    runs = tmp_path / "runs"
    demo = (
        *(
            "demo --profile auto --measure-seconds 900 --scale 1 --device cpu --update-interval 1 "
            "--novelty-threshold 2"
        ).split(),
        "--found-profiles",
        folder,
        "--runs",
        runs,
    )
    first = run(*demo, "--seconds", 2, "--rule", "function", "--out", tmp_path / "1")
    (kept,) = folder.iterdir()
    assert kept.stem == inspect_checkpoint(assets.model_path()).fingerprint
    found = load_profile(kept)
    stored = kept.read_bytes()
    assert found.provenance["rule"] == "function" and found.counts()["memory"] == 26
    assert found.roles[4][3] == "memory" and classify(found.shares)[4][3] == "anchor"
    again = run(*demo, "--seconds", 2, "--rule", "function", "--out", tmp_path / "1")
    assert (first["reused_blocks"], again["reused_blocks"]) == (0, 3)
    by_quota = run(*demo, "--seconds", 2, "--rule", "quota", "--out", tmp_path / "2")
    assert kept.read_bytes() == stored, "measured once"
    assert by_quota["reused_blocks"] == 0, "other roles, so another video"
