"""`evaluate`: which questions there are, their videos on a tiny model, what VBench is given, and bad input."""

from __future__ import annotations

import json

import pytest
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.commands.source import Source
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.render.comparison import Entry
from headforcing.headforcing_core.report.learned.registry import METRICS
from headforcing.research import evaluate, videos
from headforcing.research.__main__ import main
from headforcing.research.paper_tables import PAPER_TABLES
from headforcing.research.questions import COLUMNS, QUESTIONS, UNJUDGED, window
from metric_models import tiny_models
from tiny_files import real_files


def test_every_question_compares_head_forcing_with_plain_windows_and_other_rows():
    for name, question in QUESTIONS.items():
        entries = [row for row in question.rows if isinstance(row, Entry)]
        assert entries[-1] is question.rows[-1] and entries[-1].policy == preset("head_forcing"), name
        assert entries[-1].roles == "profile" and entries[-1].rope is None
        assert len({(row.policy, row.roles) for row in entries}) == len(entries), name
        assert {window(9).policy, window(9, sink=3).policy} < {row.policy for row in entries}, name
        assert question.story in ("one_prompt", "six_prompts")
    ablations = [name for name, table in PAPER_TABLES.items() if not table.optional]
    assert [name for name in QUESTIONS if name in PAPER_TABLES] == ablations
    rows = {(row.label, row) for question in QUESTIONS.values() for row in question.rows}
    assert len(rows) == len({label for label, _ in rows}), "a label names one row of all questions"


def test_a_window_counts_its_sink_and_the_current_block():
    plain, sunk = window(9).policy.memory, window(9, sink=3).policy.memory
    assert (plain.sink_frames, plain.recent_frames) == (0, 6)
    assert (sunk.sink_frames, sunk.recent_frames) == (3, 3)
    assert window(9).policy.rope == "contiguous"


@pytest.mark.slow
def test_real_weights_are_asked_what_can_be_measured_without_the_truth(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    HeadProfile("tiny", 4, 4, (("local", "anchor", "memory", "memory"),) * 4).save(tmp_path / "tiny.json")
    (tmp_path / "prompts.txt").write_text("a fox\nan owl\n", encoding="utf-8")
    options = real_files(tmp_path, ["a fox", "an owl"]) | {
        "--profile": tmp_path / "tiny.json",
        "--prompts": f"@{tmp_path / 'prompts.txt'}",
        "--out": tmp_path / "out",
        "--metric-models": tiny_models(tmp_path / "models"),
        "--metric-device": "cpu",
        "--vbench": tmp_path / "for vbench",
    }
    made, render, check = [], videos.render_compared, Source.check_needs

    def render_compared(job):
        made.append((job.entry.key, job.seed))
        return render(job)

    def check_needs(source, *given, **how):
        if source.options.method == "self_forcing_window_21":
            raise HeadForcingError("not enough memory: 76.4 GB are needed")
        return check(source, *given, **how)

    monkeypatch.setattr(videos, "render_compared", render_compared)
    monkeypatch.setattr(Source, "check_needs", check_needs)
    words = [str(part) for pair in options.items() for part in pair]
    assert main(["evaluate", "rope", "components", "--json", *words]) == 0
    assert len(made) == len(set(made)) == 10, "what two questions ask about is made once"
    components = json.loads((tmp_path / "out" / "components.json").read_text("utf-8"))
    assert [row["label"] for row in components["rows"]][2:] == ["(B) + HW", "(C) + HM", "(D) Ours"]
    assert "left out: (A) Baseline: not enough memory" in components["note"] and components["primary"] == ""
    found = json.loads((tmp_path / "out" / "rope.json").read_text("utf-8"))
    assert [row["label"] for row in found["rows"]] == [row.label for row in QUESTIONS["rope"].rows]
    assert [row["label"] for row in found["rows"]][2:] == [entry.label for entry in PAPER_TABLES["rope"].rows]
    modelled = {column.key for name in ("subject", "background", "aesthetic") for column in METRICS[name].columns}
    expected = {*UNJUDGED, *modelled, "text_score"}
    numbers = [video for row in found["rows"] for video in row["videos"]]
    assert all(set(video) == expected and video["motion"] > 0 for video in numbers)
    for key in ("subject_consistency", "background_consistency", "text_score", "aesthetic_quality"):
        assert all(video[key] is not None for video in numbers), key
    files = sorted((tmp_path / "out").glob("videos/*/*.mp4"))
    laid_out = sorted((tmp_path / "for vbench" / "videos").glob("*/*.mp4"))
    assert {path.name.rpartition("-")[0] for path in laid_out} == {"a fox-0", "an owl-1"}
    assert len(laid_out) == len(files) == 10
    assert {path.stat().st_ino for path in laid_out} == {path.stat().st_ino for path in files}

    # VBench's numbers are read for both questions
    found = {"motion_smoothness": [0.5, [{"video_path": str(path), "video_results": 0.5} for path in laid_out]]}
    (tmp_path / "for vbench" / "results").mkdir()
    (tmp_path / "for vbench" / "results" / "x_eval_results.json").write_text(json.dumps(found), encoding="utf-8")
    assert main(["read-vbench", str(tmp_path / "for vbench")]) == 0
    for name, row in (("rope", "w/ RoPE re-enc. (Ours)"), ("components", "(D) Ours")):
        assert f"| {row} | 0.5000" in (tmp_path / "for vbench" / f"{name}-vbench.md").read_text("utf-8")
    assert "not laid out: (A) Baseline" in (tmp_path / "for vbench" / "components-vbench.md").read_text("utf-8")

    assert main(["evaluate", "rope", "--json", *words]) == 0
    assert len(made) == 10, "the same command goes on"


def test_an_endpoint_is_only_where_it_answers():
    asked = ("length", "components", "switches")
    suited = {name: evaluate.suit(name, QUESTIONS[name], {}, ("text_score",)) for name in asked}
    assert suited["components"].note == QUESTIONS["components"].note
    assert [question.primary for question in suited.values()] == ["", "", "text_score"]
    assert {question.columns for question in suited.values()} == {(*UNJUDGED, "text_score")}
    assert set(UNJUDGED) < set(COLUMNS)
    assert evaluate.suit("switches", QUESTIONS["switches"], {}, ()).primary == ""


def test_a_question_needs_head_forcing_and_another_row():
    labels = [row.label for row in QUESTIONS["rope"].rows]
    with pytest.raises(HeadForcingError, match="^no room$"):
        evaluate.suit("rope", QUESTIONS["rope"], {labels[-1]: "no room"}, ())
    with pytest.raises(HeadForcingError, match="no row of 'rope' besides .*fits; .*no room"):
        evaluate.suit("rope", QUESTIONS["rope"], dict.fromkeys(labels[:-1], "no room"), ())


REFUSED = {
    "evaluate is for --weights: the embedded model is measured by `rooms`": "roles --demo",
    "--videos must be from 1": "roles --weights w.pt --videos 0",
    "--shuffles must be from 0": "roles --weights w.pt --shuffles -1",
    "in two commands": "length switches --weights w.pt --vae v",
    "--prompts must name a file with a line": "switches --weights w.pt --vae v",
    "there are prompts for 32": "length --weights w.pt --vae v --videos 33",
}


def test_what_cannot_be_asked_is_refused_in_one_sentence(tmp_path, capsys):
    for message, arguments in REFUSED.items():
        assert main(["evaluate", *arguments.split(), "--out", str(tmp_path)]) == 2, message
        assert message in capsys.readouterr().err


def test_six_prompts_are_read_from_lines_of_json():
    line = json.dumps({"prompts": ["a", "b", "c", "d", "e", "f"]})
    assert evaluate.story_texts(f"{line}\n\n{line}", "six_prompts", 2) == [line, line]
    with pytest.raises(HeadForcingError, match="--prompts must have two or more texts in each line"):
        evaluate.story_texts("just text", "six_prompts", 1)
