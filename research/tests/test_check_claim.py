"""`check-claim` on a tiny model in the real layouts: all steps, going on, rows left out, missing metrics, bad input."""

from __future__ import annotations

import argparse
import json
import pickle

import pytest
import torch
from headforcing.headforcing_core.commands import profiles
from headforcing.headforcing_core.commands.arguments import read_text
from headforcing.headforcing_core.commands.source import Source
from headforcing.headforcing_core.distributed.farm import Farm
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.head_profiles.profile_setup import ProfileSetup
from headforcing.headforcing_core.head_profiles.profiler import BUDGETS
from headforcing.headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from headforcing.research import videos as claim_videos
from headforcing.research.__main__ import main
from headforcing.research.claims import check_claim
from headforcing.research.claims import cost as claim_cost
from headforcing.research.prompts import RESERVED_PROMPTS
from metric_models import tiny_models
from tiny_checkpoints import wan_vae

STORY = ["a fox sits", "the fox runs"]


@pytest.fixture(scope="module")
def files(tmp_path_factory, repo_root):
    """The options of a tiny model, whose prompts have embeddings."""
    folder = tmp_path_factory.mktemp("tiny")
    texts = [*RESERVED_PROMPTS[:2], *PROFILING_PROMPTS[:1], *STORY]
    save_embeddings(folder / "texts.safetensors", {text: torch.randn(12, 48) for text in texts})
    return {
        "--weights": repo_root / "tests" / "golden" / "self_forcing_tiny_d32" / "model.safetensors",
        "--num-heads": 4,
        "--vae": wan_vae(folder / "wan_2.1_vae.safetensors"),
        "--embeddings": folder / "texts.safetensors",
        "--videos": 2,
        "--seconds": 0.9,
        "--size": "96x64",
        "--dtype": "fp32",
        "--device": "cpu",
    }


@pytest.fixture
def quick(monkeypatch):
    """Small budgets of the profile and the calibration."""
    monkeypatch.setitem(BUDGETS, "full", (1, 2.25))
    monkeypatch.setattr(check_claim, "STORY_TEXTS", len(STORY))
    monkeypatch.setattr(claim_cost, "CALIBRATION_SECONDS", 0.75)


def run(options, *more):
    words = [str(part) for pair in options.items() for part in pair]
    return main(["check-claim", *words, *map(str, more)])


@pytest.mark.slow
def test_the_command_goes_from_weights_to_a_verdict_and_goes_on_where_it_was_stopped(
    files, quick, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("transformers")
    out, options = tmp_path / "check", {**files, "--out": tmp_path / "check", "--rows": "A,random,D"}
    (tmp_path / "stories.jsonl").write_text(2 * (json.dumps({"prompts": STORY}) + "\n"), encoding="utf-8")
    options["--stories"] = f"@{tmp_path / 'stories.jsonl'}"

    assert run(options, "--estimate") == 0
    told = capsys.readouterr().err
    assert "estimate, from 0.8 s of video" in told and "12 of 0.9 s to make" in told and "memory   about" in told
    assert "profile  2.25 s of video" in told
    assert not (out / "profile.json").exists() and not list(out.rglob("*.mp4"))

    made, real = [], claim_videos.render_compared

    def stopped(job):
        made.append(job.seed)
        if len(made) == 4:
            raise KeyboardInterrupt
        return real(job)

    monkeypatch.setattr(claim_videos, "render_compared", stopped)
    assert run(options) == 130
    assert "3 of 12 videos are finished, the same command goes on" in capsys.readouterr().err
    profile = (out / "profile.json").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.mp4")}

    assert run(options) == 0
    assert len(made) == 4 + 9, "finished videos are not made again"
    assert (out / "profile.json").read_bytes() == profile
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    assert not list((out / "runs").rglob("*.safetensors")), "finished blocks go when a video is scored"
    found = json.loads((out / "verdict.json").read_text("utf-8"))
    assert {line["row"] for line in found["lines"]} == {"A", "random"}
    text = next(line for line in found["lines"] if line["row"] == "A" and line["column"] == "text")
    assert text["verdict"] == "not measured" and "give --metric-models FOLDER with that of `text`" in text["remark"]
    flicker = next(line for line in found["lines"] if line["column"] == "flicker")
    assert flicker["verdict"] == "undecided" and "2 videos are fewer than 32" in flicker["remark"]
    assert flicker["difference"]["count"] == 2
    ours, theirs = (found["rows"][row]["one_prompt"] for row in ("D", "A"))
    by_hand = sum(100 * (a["flicker"] - b["flicker"]) for a, b in zip(ours, theirs, strict=True)) / 2
    assert flicker["difference"]["mean"] == pytest.approx(by_hand)

    # models that come later score the same videos, and what VBench measured of them fills its columns
    options |= {"--metric-models": tiny_models(tmp_path / "models"), "--vbench": tmp_path / "vbench"}
    monkeypatch.setattr(check_claim, "calibrate", None)  # which would load the model
    assert run(options) == 0 and len(made) == 13
    assert "scores   12 finished videos, nothing else is to be done" in capsys.readouterr().err
    names = sorted(path for path in (tmp_path / "vbench" / "videos").glob("*/*.mp4"))
    assert len(names) == 6
    measured = [{"video_path": str(path), "video_results": 0.5} for path in names]
    (tmp_path / "vbench" / "results").mkdir()
    (tmp_path / "vbench" / "results" / "x_eval_results.json").write_text(
        json.dumps({"motion_smoothness": [0.5, measured]}), encoding="utf-8"
    )
    monkeypatch.setattr(claim_videos, "report_video", None)  # nothing is measured twice
    assert run(options) == 0
    assert "all videos are made and scored" in capsys.readouterr().err
    lines = {(line["row"], line["column"]): line for line in json.loads((out / "verdict.json").read_text())["lines"]}
    assert lines["A", "text"]["difference"]["count"] == 2 and lines["A", "text"]["metric"] == "text_score"
    assert lines["A", "smoothness"]["difference"]["mean"] == 0.0
    assert "not measured: flow: raft_large_C_T_V1-22a6c225.pth is not in" in lines["A", "dynamic"]["remark"]
    page = (out / "verdict.md").read_text("utf-8")
    assert "## Head Forcing less (A) Baseline" in page and "+9.45 (Table 4)" in page and "**Agrees**" in page


def refusing(monkeypatch, *labels):
    """Let the rows of these policies be too large for the card."""
    real = Source.check_needs

    def check_needs(source, plan, video, **how):
        if source.options.method in labels:
            raise HeadForcingError("not enough memory: 76.4 GB are needed, 24.0 GB are free")
        return real(source, plan, video, **how)

    monkeypatch.setattr(Source, "check_needs", check_needs)


def failing(job):
    raise HeadForcingError("out of memory")


def test_rows_that_do_not_fit_are_left_out_with_a_sentence(files, quick, tmp_path, capsys, monkeypatch):
    given = tmp_path / "two.json"
    HeadProfile("two-way", 4, 4, (("local", "local", "memory", "memory"),) * 4).save(given)
    options = {**files, "--out": tmp_path / "check", "--rows": "A,uniform,D", "--profile": given, "--seconds": 0.5}
    with monkeypatch.context() as patch:
        refusing(patch, "self_forcing_window_21")
        assert run(options) == 0
    told = "left out: A: not enough memory: 76.4 GB are needed"
    assert told in capsys.readouterr().err
    found = json.loads((tmp_path / "check" / "verdict.json").read_text("utf-8"))
    assert list(found["left_out"]) == ["A"] and {line["row"] for line in found["lines"]} == {"uniform"}
    assert not (tmp_path / "check" / "profile.json").exists(), "a profile that is given is not measured"
    page = (tmp_path / "check" / "verdict.md").read_text("utf-8")
    assert "- Left out, A: not enough memory" in page and "does not have the paper's three roles" in page
    assert "these have 0.5 s" in page

    with monkeypatch.context() as patch:  # what is made already needs no memory
        refusing(patch, "self_forcing_window_21", "uniform_memory", "head_forcing")
        assert run(options | {"--rows": "uniform"}) == 0
    # a damaged note or video is no note
    note = next((tmp_path / "check" / "videos").rglob("uniform*.json"))
    note.write_text('{"numbers": []}', encoding="utf-8")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(claim_videos, "render_compared", failing)
        assert run(options | {"--rows": "uniform"}) == 2
    told = capsys.readouterr().err
    assert (
        "1 of 0.5 s to make" in told and "out of memory (3 of 4 videos are finished, the same command goes on)" in told
    )
    assert run(options | {"--rows": "uniform"}) == 0
    for labels, message in (
        (["head_forcing"], "Head Forcing does not fit, and all rows are compared with it: not enough memory"),
        (["self_forcing_window_21", "uniform_memory"], "no row besides Head Forcing fits; A: not enough memory"),
    ):
        with monkeypatch.context() as patch:
            refusing(patch, *labels)
            assert run(options | {"--out": tmp_path / "other"}) == 2
        assert message in capsys.readouterr().err
    assert run(options | {"--size": "64x64"}) == 2
    assert "was made with other width: choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--rows": "A,E"}, "--rows are names such as A,D,random"),
        ({"--rows": "D"}, "must name a row besides D"),
        ({"--videos": 1}, "--videos must be from 2"),
        ({"--videos": 33}, "there are prompts for 32"),
        ({"--shuffles": 0}, "--shuffles must be from 1"),
        ({"--profile": "auto"}, "leave --profile out, and they are measured"),
        ({"--profile": "self_forcing"}, "30"),
        ({"--vae": "nothing.safetensors"}, "nothing.safetensors was not found"),
        ({"--text-encoder": "t5.safetensors"}, "either --text-encoder or --embeddings"),
        ({"--metric-models": "nowhere"}, "--metric-models must name a folder"),
        ({"--metrics": "flow"}, "--metrics needs --metric-models FOLDER"),
        ({"--prompts": f"{PROFILING_PROMPTS[3]}\na fox"}, "the head profile is measured on the prompt"),
        ({"--stories": "just text\nand more"}, "--stories must have 6 texts in each line"),
        ({"--seconds": 1e9}, "seconds must be above 0"),
        ({"--farm": "everywhere"}, "--farm must be local"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_sentence(change, message, files, tmp_path, capsys):
    options = {**files, "--out": tmp_path / "check", **change}
    assert run(options) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.mp4"))


def test_another_model_does_not_go_on_with_a_measured_profile(files, tmp_path, capsys):
    (tmp_path / "profile.json").write_text("{}", encoding="utf-8")
    sigmas = (1.0, 0.9375, 0.8333, 0.625)
    HeadShares(ProfileSetup("others", 4, 4, ("a fox",), 3, sigmas, 3, 96, 64)).save(tmp_path / "profile.safetensors")
    assert run({**files, "--out": tmp_path}, "--estimate") == 2
    assert "was measured with another model: choose another --out" in capsys.readouterr().err


class Elsewhere(Farm):
    """A farm whose workers get copies of their jobs."""

    parallel = True

    def run(self, function, jobs):
        return super().run(function, {name: pickle.loads(pickle.dumps(job)) for name, job in jobs.items()})


@pytest.mark.slow
def test_a_farm_makes_the_same_videos(files, quick, tmp_path, capsys, monkeypatch):
    options = {**files, "--rows": "A,D", "--seconds": 0.5, "--out": tmp_path / "here"}
    assert run(options) == 0
    for module in (check_claim, claim_cost, profiles):
        monkeypatch.setattr(module, "farm_of", lambda args: Elsewhere())
    options |= {"--out": tmp_path / "farm", "--farm": "local"}
    assert run(options) == 0
    assert "divided by the workers" in capsys.readouterr().err
    here, farm = (json.loads((tmp_path / name / "verdict.json").read_text("utf-8")) for name in ("here", "farm"))
    assert here["rows"] == farm["rows"] and here["lines"] == farm["lines"]
    assert here["profile"]["counts"] == farm["profile"]["counts"]
    assert not list((tmp_path / "farm" / "runs").rglob("*.safetensors"))


def test_an_estimate_names_the_device_that_makes_the_videos(monkeypatch):
    def name(device=None):
        return {None: "the first", "cuda": "the first", "cuda:1": "the second"}[device]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", name)
    devices = ("auto", "cuda", "cuda:1", "cpu", "mps")
    named = [claim_cost.device_name(argparse.Namespace(device=device)) for device in devices]
    assert named == ["the first", "the first", "the second", "processor", "mps"]


def stories(*lines):
    args = argparse.Namespace(prompts=None, videos=2, stories="\n".join(map(json.dumps, lines)))
    return check_claim.texts_of(args)["six_prompts"]


def test_stories_have_six_texts_that_no_head_profile_is_measured_on():
    good = {"prompts": [f"a fox, part {part}" for part in range(6)]}
    assert stories(good, good, good) == [json.dumps(good)] * 2
    for bad, message in (
        ({"prompts": good["prompts"][:5]}, "--stories must have 6 texts in each line.*line 2"),
        ({"prompts": [*good["prompts"][:5], 6]}, "--stories must have 6 texts in each line.*line 2"),
        ({"prompts": [*good["prompts"][:5], PROFILING_PROMPTS[0]]}, "measured on 'A red fox.*line 2 of --stories"),
    ):
        with pytest.raises(HeadForcingError, match=message):
            stories(good, bad)
    with pytest.raises(HeadForcingError, match="--stories must have a line for each of 2 videos"):
        stories(good)


def test_scores_of_model_files_that_were_replaced_do_not_count(monkeypatch):
    def note(stamp):
        return {"metrics": {"flow": stamp}, "numbers": {"mean_flow": 1.0, "flicker": 0.1}}

    notes = {"before": note("old"), "after": note("new")}
    videos = [argparse.Namespace(name=name) for name in notes]
    with monkeypatch.context() as patch:
        patch.setattr(claim_videos, "known_note", lambda each: notes[each.name])
        assert [each.name for each in claim_videos.Scores(videos, {"flow": "new"}).todo] == ["before"]
        known = claim_videos.Scores(videos, {}).known
        assert known == {"before": {"flicker": 0.1}, "after": {"flicker": 0.1}}, "two kinds of flow are not mixed"
        notes["before"] = note("new")
        assert claim_videos.Scores(videos, {}).known["before"]["mean_flow"] == 1.0


def test_a_line_of_a_file_of_prompts_names_no_other_file(tmp_path):
    (tmp_path / "prompts.txt").write_text(f"@{tmp_path / 'secret.txt'}\n\na fox\n", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    args = argparse.Namespace(prompts=f"@{tmp_path / 'prompts.txt'}", videos=2, stories=None)
    first, second = check_claim.texts_of(args)["one_prompt"]
    assert read_text(first).strip() == f"@{tmp_path / 'secret.txt'}" and second == "a fox"
