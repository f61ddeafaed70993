"""`check-claim` on a tiny model in the real layouts: all steps, going on, rows left out, missing
metrics, bad input.
"""

from __future__ import annotations

import functools
import json
import pickle
from itertools import chain

import pytest
from headforcing.cli import profiles
from headforcing.cli.source import Source
from headforcing.headforcing_core.distributed.workers import Workers
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from headforcing.headforcing_core.head_profiles.shares import (
    HeadShares,
    ProfileSetup,
)
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.weights.umt5 import load_embeddings, save_embeddings
from headforcing.research import videos as claim_videos
from headforcing.research.__main__ import main
from headforcing.research.claims import check_claim
from headforcing.research.claims import returns as claim_returns
from headforcing.research.claims import stories as claim_stories
from headforcing.research.claims.paper_numbers import RETURN
from headforcing.research.claims.stories import RESERVED_PROMPTS
from metric_models import tiny_models
from tiny_files import real_files

STORY = ["a fox sits", "the fox runs"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    returning = map(
        claim_stories.with_recall,
        claim_stories.return_stories(RESERVED_PROMPTS[:3]),
    )
    texts = [
        *PROFILING_PROMPTS[:1],
        *STORY,
        *chain(*(read_any(story).texts for story in returning)),
    ]
    return real_files(tmp_path_factory.mktemp("tiny"), texts)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A small budget of the profile, and stories of two texts."""
    monkeypatch.setattr(check_claim, "PROFILED", (1, 2.25))
    monkeypatch.setattr(claim_stories, "STORY_TEXTS", len(STORY))


@pytest.fixture
def three_way(tmp_path):
    """A head profile with the paper's three roles, so that none is measured."""
    HeadProfile("three-way", 4, 4, (("local", "anchor", "memory", "memory"),) * 4).save(
        tmp_path / "three.json"
    )
    return tmp_path / "three.json"


def run(options, *more):
    words = map(str, chain(*options.items()))
    return main(["check-claim", *words, *map(str, more)])


def verdict_of(folder):
    return json.loads((folder / "verdict.json").read_text("utf-8"))


def stamps(paths):
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.slow
def test_the_command_goes_from_weights_to_a_verdict_and_goes_on_where_it_was_stopped(
    files, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("transformers")
    out = tmp_path / "check"
    options = {**files, "--out": tmp_path / "check", "--rows": "A,random,D"}
    (tmp_path / "stories.jsonl").write_text(
        2 * (json.dumps({"prompts": STORY}) + "\n"), encoding="utf-8"
    )
    options["--stories"] = f"@{tmp_path / 'stories.jsonl'}"

    assert run(options, "--estimate") == 0
    told = capsys.readouterr().err
    assert (
        "12 videos of 0.9 s to make, 0 finished ones to score, and 2.25 s of video for the head "
        "profile" in told
    )
    assert (
        "memory   about" in told
        and not (out / "profile.json").exists()
        and not list(out.rglob("*.mp4"))
    )

    made = []
    real = claim_videos.render_compared

    def stopped(job):
        made.append(job.args.seed)
        if len(made) == 4:
            raise KeyboardInterrupt
        return real(job)

    monkeypatch.setattr(claim_videos, "render_compared", stopped)
    assert run(options) == 130
    assert "3 of 12 videos are finished, the same command goes on" in capsys.readouterr().err
    profile = (out / "profile.json").read_bytes()
    before = stamps(out.rglob("*.mp4"))

    assert run(options) == 0
    assert len(made) == 4 + 9 and stamps(before) == before, "finished videos are not made again"
    assert (out / "profile.json").read_bytes() == profile
    assert not list((out / "runs").rglob("*.safetensors")), (
        "finished blocks go when a video is scored"
    )
    found = verdict_of(out)
    lines = {(line["row"], line["column"]): line for line in found["lines"]}
    assert {row for row, _ in lines} == {"A", "random"} and lines["A", "text"][
        "verdict"
    ] == "not measured"
    assert "give --metric-models FOLDER with that of `text`" in lines["A", "text"]["remark"]
    flicker = lines["A", "flicker"]
    assert flicker["verdict"] == "undecided" and "2 videos are fewer than 32" in flicker["remark"]
    ours = found["rows"]["D"]["one_prompt"]
    theirs = found["rows"]["A"]["one_prompt"]
    by_hand = (
        sum(100 * (a["flicker"] - b["flicker"]) for a, b in zip(ours, theirs, strict=True)) / 2
    )
    assert (
        flicker["difference"]["mean"] == pytest.approx(by_hand)
        and flicker["difference"]["count"] == 2
    )

    # later models score the same videos
    options["--metric-models"] = tiny_models(tmp_path / "models")
    assert run(options) == 0
    assert "0 videos of 0.9 s to make, 12 finished ones to score" in capsys.readouterr().err
    # and what VBench has measured of them fills its columns
    measured = [
        {"video_path": path.name, "video_results": 0.5}
        for path in (out / "videos/one_prompt").glob("*.mp4")
    ]
    (out / "videos/one_prompt/vbench").mkdir()
    results = out / "videos/one_prompt/vbench/x_eval_results.json"
    results.write_text(json.dumps({"motion_smoothness": [0.5, measured]}), encoding="utf-8")
    monkeypatch.setattr(claim_videos, "score_video", None)  # nothing is measured twice
    assert run(options, "--vbench") == 0
    assert "uvx --python 3.10 vbench" in capsys.readouterr().out and len(made) == 13
    lines = {(line["row"], line["column"]): line for line in verdict_of(out)["lines"]}
    assert (
        lines["A", "text"]["difference"]["count"] == 2
        and lines["A", "text"]["metric"] == "text_score"
    )
    assert lines["A", "smoothness"]["difference"]["mean"] == 0.0
    assert "raft_large_C_T_V1-22a6c225.pth was not found" in lines["A", "dynamic"]["remark"]
    page = (out / "verdict.md").read_text("utf-8")
    assert (
        "## Head Forcing less (A) Baseline" in page
        and "+1.75 (Table 4)" in page
        and "**Agrees**" in page
    )


@pytest.mark.slow
def test_scenes_that_return_are_asked_of_the_paper_the_preset_a_window_and_echo_forcing(
    files, three_way, tmp_path, monkeypatch
):
    """Nine plus three videos, features of which are measured once."""
    pytest.importorskip("transformers")
    out = tmp_path / "check"
    options = {
        **files,
        "--out": out,
        "--rows": "A,scenes,echo",
        "--profile": three_way,
        "--videos": 3,
        "--seconds": 3,
    }
    options |= {
        "--size": "32x32",
        "--metric-models": tiny_models(tmp_path / "models"),
    }
    assert run(options, "--metrics", "subject") == 0
    made = stamps((out / "videos" / RETURN).glob("*.mp4"))
    methods = {path.name.split("-seed")[0] for path in made}
    assert methods == {
        "head_forcing",
        "head_forcing_scenes",
        "self_forcing_window_21",
        "echo_forcing",
    }
    assert len(made) == 12 and len(list((out / "videos" / "one_prompt").glob("*.mp4"))) == 6
    texts = {
        path: json.loads(path.with_suffix(".json").read_text("utf-8"))["made_from"]["prompts"]
        for path in made
    }
    assert all(
        ("[recall 2]" in text) == path.name.startswith("echo") for path, text in texts.items()
    )

    found = verdict_of(out)
    lines = {line["row"]: line for line in found["lines"] if line["column"] == "return"}
    assert set(lines) == {"A", "scenes", "echo"} and all(
        line["verdict"] == "undecided" for line in lines.values()
    )
    ours = found["rows"]["D"][RETURN]
    theirs = found["rows"]["scenes"][RETURN]
    assert all(video["return_similarity"] > 0.5 for video in ours), "features are unit vectors"
    by_hand = (
        sum(
            100 * (a["return_above"] - b["return_above"]) for a, b in zip(ours, theirs, strict=True)
        )
        / 3
    )
    assert lines["scenes"]["difference"]["mean"] == pytest.approx(by_hand)
    page = (out / "verdict.md").read_text("utf-8")
    assert "## Scenes that return" in page and "| Echo-Forcing, with a recall |" in page

    # the same command takes features as they are stored, and measures them again where they are not
    with monkeypatch.context() as patch:
        patch.setattr(claim_videos, "render_compared", failing)
        patch.setattr(claim_returns, "measured_visits", failing)
        assert run(options, "--metrics", "subject") == 0
    assert verdict_of(out)["lines"] == found["lines"] and stamps(made) == made
    next((out / "videos" / RETURN).glob("*.visits.json")).write_text("[]", encoding="utf-8")
    assert "return_happened" not in ours[0], "CLIP says it"
    assert "| frame just left and return frame |" in page
    assert run(options, "--metrics", "subject", "text") == 0
    ours = verdict_of(out)["rows"]["D"][RETURN]
    assert {video["return_happened"] for video in ours} <= {0.0, 1.0}
    for video in ours:
        happened = video["return_happened"] == 1.0
        assert (video.get("return_above_happened") == video["return_above"]) == happened
        assert -1 <= video["return_pair"] <= 1 and video["mean_change"] > 0


def failing(*job):
    raise HeadForcingError("out of memory")


def refusing(monkeypatch, *labels):
    """Let the rows of these policies be too large for the card."""
    real = Source.check_needs

    def check_needs(source, plan, video, **how):
        if source.request.options.method_name in labels:
            raise HeadForcingError("not enough memory: 76.4 GB are needed, 24.0 GB are free")
        return real(source, plan, video, **how)

    monkeypatch.setattr(Source, "check_needs", check_needs)


def test_rows_that_do_not_fit_are_left_out_with_a_sentence(files, tmp_path, capsys, monkeypatch):
    given = tmp_path / "two.json"
    out = tmp_path / "check"
    HeadProfile("two-way", 4, 4, (("local", "local", "memory", "memory"),) * 4).save(given)
    options = {
        **files,
        "--out": out,
        "--rows": "A,uniform,D",
        "--profile": given,
        "--seconds": 0.5,
    }
    with monkeypatch.context() as patch:
        refusing(patch, "self_forcing_window_21")
        assert run(options) == 0
    assert "left out: A: not enough memory: 76.4 GB are needed" in capsys.readouterr().err
    found = verdict_of(out)
    assert list(found["left_out"]) == ["A"] and {line["row"] for line in found["lines"]} == {
        "uniform"
    }
    assert not (out / "profile.json").exists(), "a profile that is given is not measured"
    page = (out / "verdict.md").read_text("utf-8")
    for told in (
        "- Left out, A: not enough memory",
        "does not have the paper's three roles",
        "these have 0.5 s",
    ):
        assert told in page

    options["--rows"] = "uniform"
    with monkeypatch.context() as patch:  # what is made already needs no memory
        refusing(patch, "self_forcing_window_21", "uniform_memory", "head_forcing")
        assert run(options) == 0
    # no note
    next((out / "videos").rglob("uniform*.json")).write_text('{"numbers": []}', encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(claim_videos, "render_compared", failing)
        assert run(options) == 2
    assert (
        "out of memory (3 of 4 videos are finished, the same command goes on)"
        in capsys.readouterr().err
    )
    assert run(options | {"--size": "64x64"}) == 2
    assert "was made with other width: choose another --out" in capsys.readouterr().err
    refusing(monkeypatch, "head_forcing")
    assert run(options | {"--out": tmp_path / "other"}) == 2
    assert (
        "Head Forcing does not fit, and all rows are compared with it: not enough memory"
        in capsys.readouterr().err
    )


def test_a_row_of_the_same_budget_is_made_with_its_own_cache(files, three_way, tmp_path):
    out = tmp_path / "check"
    rows = {"--rows": "local+memory=", "--profile": three_way, "--seconds": 0.5}
    assert run({**files, "--out": out, **rows}) == 0
    made = sorted((out / "videos" / "one_prompt").glob("equal_local-*.json"))
    about = [json.loads(path.read_text("utf-8"))["made_from"] for path in made]
    assert len(about) == 2 and all("EqualMemory(" in each["row"] for each in about)
    assert {line["table"] for line in verdict_of(out)["lines"]} == {"Table 5"}


REFUSED = {
    "--rows are names such as A,D,random": {"--rows": "A,E"},
    "must name a row besides D": {"--rows": "D"},
    "--videos must be from 2": {"--videos": 1},
    "stories that return take 3 or more --videos with different --prompts": {"--rows": "scenes"},
    "there are prompts for 32": {"--videos": 33},
    "--shuffles must be from 1": {"--shuffles": 0},
    "leave --profile out, and they are measured": {"--profile": "auto"},
    "30": {"--profile": "self_forcing"},
    "either --text-encoder or --embeddings": {"--text-encoder": "t5.safetensors"},
    "--metrics needs --metric-models FOLDER": {"--metrics": "flow"},
    "the head profile is measured on the prompt": {"--prompts": f"{PROFILING_PROMPTS[3]}\na fox"},
    "--stories must have 2 texts in each line": {"--stories": "just text\nand more"},
}


def test_embeddings_that_lack_a_text_are_refused_before_anything_is_measured(
    files, three_way, tmp_path, capsys
):
    """Also the words by which Echo-Forcing tells scenes apart; the estimate says so, too."""
    lacking = files["--embeddings"].with_name("lacking.safetensors")
    there = load_embeddings(files["--embeddings"])
    recalled = claim_stories.with_recall(claim_stories.return_stories(RESERVED_PROMPTS[:3])[0])
    words = read_any(recalled).texts[-1]
    assert words not in recalled
    save_embeddings(lacking, {text: rows for text, rows in there.items() if text != words})
    options = {**files, "--embeddings": lacking, "--rows": "echo", "--videos": 3, "--seconds": 3}
    for more in (("--estimate",), ()):
        assert run({**options, "--out": tmp_path / "out", "--profile": three_way}, *more) == 2
        said = capsys.readouterr().err
        assert "lacks the embeddings of 1 of" in said and repr(words[:60]) in said
    texts = (tmp_path / "out" / "texts.txt").read_text("utf-8").splitlines()
    assert words in texts and RESERVED_PROMPTS[0] in texts
    measuring = {**options, "--out": tmp_path / "measured", "--rows": "A"}
    lines = [text for text in there if text != PROFILING_PROMPTS[0]]
    save_embeddings(lacking, {text: there[text] for text in lines})
    assert run(measuring, "--estimate") == 2
    assert repr(PROFILING_PROMPTS[0][:60]) in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.mp4"))


def test_what_cannot_be_checked_is_refused_in_one_sentence(files, tmp_path, capsys):
    for message, change in REFUSED.items():
        assert run({**files, "--out": tmp_path / "check", "--rows": "A,D", **change}) == 2, message
        assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.mp4"))
    (tmp_path / "profile.json").write_text("{}", encoding="utf-8")
    sigmas = (1.0, 0.9375, 0.8333, 0.625)
    HeadShares(
        ProfileSetup(
            "others",
            4,
            num_heads=4,
            prompts=("a fox",),
            blocks=3,
            sigmas=sigmas,
            frames_per_block=3,
            width=96,
            height=64,
        )
    ).save(tmp_path / "profile.safetensors")
    assert run({**files, "--out": tmp_path, "--rows": "A"}, "--estimate") == 2
    assert "was measured with another model: choose another --out" in capsys.readouterr().err


class Elsewhere(Workers):
    """A farm whose workers get copies of their jobs."""

    parallel = True

    def share(self, value):
        return functools.partial(pickle.loads, pickle.dumps(value))

    def run(self, function, jobs):
        return super().run(
            function,
            {name: pickle.loads(pickle.dumps(job)) for name, job in jobs.items()},
        )


@pytest.mark.slow
def test_a_farm_makes_the_same_videos(files, tmp_path, monkeypatch):
    options = {
        **files,
        "--rows": "A,D",
        "--seconds": 0.5,
        "--out": tmp_path / "here",
    }
    assert run(options) == 0
    for module in (check_claim, profiles):
        monkeypatch.setattr(module, "workers_of", lambda args: Elsewhere())
    assert run(options | {"--out": tmp_path / "farm", "--farm": "local"}) == 0
    here = verdict_of(tmp_path / "here")
    farm = verdict_of(tmp_path / "farm")
    assert all(here[key] == farm[key] for key in ("rows", "lines")), "measured by jobs, too"
    assert here["profile"]["counts"] == farm["profile"]["counts"]
