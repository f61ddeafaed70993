"""`evaluate`: its videos on a tiny model, what VBench is given, and bad input."""

from __future__ import annotations

import json

import pytest
from headforcing.headforcing_core.commands.source import Source
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.report.learned.registry import METRICS
from headforcing.research import evaluate, videos
from headforcing.research.__main__ import main
from headforcing.research.questions import COMPONENTS, QUESTIONS, UNJUDGED
from metric_models import tiny_models
from tiny_files import real_files


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
    assert "left out: (A) Baseline: not enough memory" in components["note"]
    found = json.loads((tmp_path / "out" / "rope.json").read_text("utf-8"))
    assert [row["label"] for row in found["rows"]] == [row.label for row in QUESTIONS["rope"].rows]
    modelled = {column.key for name in ("subject", "background", "aesthetic") for column in METRICS[name].columns}
    for columns in (row["videos"] for row in found["rows"]):
        assert {*UNJUDGED, "text_score"} <= set(columns) <= {*UNJUDGED, *modelled, "text_score"}
        assert all(value > 0 for value in columns["motion"])
        for key in ("subject_consistency", "background_consistency", "text_score", "aesthetic_quality"):
            assert None not in columns[key], key
    files = sorted((tmp_path / "out").glob("videos/*/*.mp4"))
    laid_out = sorted((tmp_path / "for vbench" / "videos").glob("*/*.mp4"))
    assert {path.name.rpartition("-")[0] for path in laid_out} == {"a fox-0", "an owl-1"}
    assert len(laid_out) == len(files) == 10
    assert {path.stat().st_ino for path in laid_out} == {path.stat().st_ino for path in files}

    # the same command goes on, and takes up what VBench has measured
    measured = {"motion_smoothness": [0.5, [{"video_path": str(path), "video_results": 0.5} for path in laid_out]]}
    (tmp_path / "for vbench" / "results").mkdir()
    (tmp_path / "for vbench" / "results" / "x_eval_results.json").write_text(json.dumps(measured), encoding="utf-8")
    assert main(["evaluate", "rope", "--json", *words]) == 0
    assert len(made) == 10
    again = json.loads((tmp_path / "out" / "rope.json").read_text("utf-8"))
    assert [row["videos"].pop("vbench_motion_smoothness") for row in again["rows"]] == [[0.5, 0.5]] * 4
    assert [row["videos"] for row in again["rows"]] == [row["videos"] for row in found["rows"]]


def test_a_table_needs_its_last_row_and_another_one():
    *others, last = [row.label for row in COMPONENTS]
    videos.check_left([*others, last], dict.fromkeys(others[1:], "no room"))
    for left_out in ([last], others):
        with pytest.raises(HeadForcingError, match="no room$"):
            videos.check_left([*others, last], dict.fromkeys(left_out, "no room"))


REFUSED = {
    "--videos must be from 1": "roles --weights w.pt --videos 0",
    "--shuffles must be from 0": "roles --weights w.pt --shuffles -1",
    "in two commands": "length switches --weights w.pt --vae v",
    "--prompts must name a file with a line": "switches --weights w.pt --vae v",
    "there are prompts for 32": "length --weights w.pt --vae v --videos 33",
    "--prompts must have two or more texts in each line": "switches --weights w.pt --prompts text --videos 1",
}


def test_what_cannot_be_asked_is_refused_in_one_sentence(tmp_path, capsys):
    for message, arguments in REFUSED.items():
        assert main(["evaluate", *arguments.split(), "--out", str(tmp_path)]) == 2, message
        assert message in capsys.readouterr().err
    line = json.dumps({"prompts": ["a", "b", "c", "d", "e", "f"]})
    assert evaluate.story_texts(f"{line}\n\n{line}", "six_prompts", 2) == [line, line]
