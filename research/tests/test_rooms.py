"""The command `rooms`: it goes on where it stopped, divides the work, and refuses what was not measured alike."""

from __future__ import annotations

import json
import random

import pytest
from headforcing.headforcing_core.demo import assets
from headforcing.research.__main__ import main
from headforcing.research.answers import packed
from headforcing.research.rooms import measure as rooms
from headforcing.research.rooms.tables import ROOMS_TABLES
from headforcing.research.rooms.verdicts import GATE_BASE, GATE_STUDENT
from headforcing.research.training import gate as rooms_gate
from stored_answers import read_answer, unpacked
from tiny_files import SAND, TEAL, profile_of, remembers


def call(trained, out, *more):
    given = ["--profile", str(trained / "profile.json"), "--json", "--tables", "h3", "--shuffles", "2"]
    return main(["rooms", str(trained), "--out", str(out), *given, *more])


@pytest.fixture
def counted(monkeypatch):
    """Measurements that cost nothing, and how many there were."""
    made = []

    def measured(judge, job):
        made.append(job.key)
        layout = random.Random(job.key).uniform(0.1, 0.3) + 0.6 * (not job.row.label.startswith("memory heads"))
        return {"layout": layout, "identity": None if job.number % 2 else 1.0, "place_error": 2.0}

    monkeypatch.setattr(rooms, "measured", measured)
    return made


def test_the_command_goes_on_where_it_stopped_and_divides_the_work(trained, tmp_path, counted, capsys):
    assert call(trained, tmp_path, "--videos", "3", "--shard", "1/2", "--deciding") == 0
    first = len(counted)
    assert first in (6, 12)  # four rows decide, two are the truth, and one or two videos are in the first half
    journal = next(tmp_path.glob("measured-*.jsonl"))
    journal.write_text(journal.read_text() + '{"video": "cut o')
    assert call(trained, tmp_path, "--videos", "3", "--deciding") == 0
    assert len(counted) == 18 and len(set(counted)) == 18 and first < 18
    assert call(trained, tmp_path, "--videos", "3") == 0
    stored = json.loads((tmp_path / "h3.json").read_text())
    rows = {row["label"]: row for row in stored["rows"]}
    assert len(counted) == 3 * 15 and all(len(row["videos"]["layout"]) == 3 for row in rows.values())
    assert [len(part["layout"]) for part in rows["Head Forcing, shuffled roles"]["shuffles"]] == [3, 3]
    again = read_answer(ROOMS_TABLES["h3"].with_shuffles(2).question, unpacked(stored))
    assert again.table() in (tmp_path / "h3.md").read_text()
    assert packed({**again.to_dict(), "weights": stored["weights"]}) == stored, "means of shuffles are not rounded"
    assert rows["Head Forcing"]["videos"]["identity"] == [1.0, None, 1.0]
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert [verdict["name"] for verdict in verdicts] == ["H0", "H1", "H2", "H3", "H4", "H5"]
    assert verdicts[3]["outcome"] == "undecided" and verdicts[1]["outcome"] == "not measured"
    page = (tmp_path / "verdicts.md").read_text()
    assert "gaps of 1 to 3 frames: +0.850" in page and "| memory heads | +0.000" in page
    assert call(trained, tmp_path, "--videos", "3", "--tables", "recall") == 0
    assert json.loads((tmp_path / "verdicts.json").read_text())["verdicts"] == verdicts, "of all that was measured"
    profile_of(trained / "student-20.safetensors", 0.5).save(tmp_path / "other.json")
    assert call(trained, tmp_path, "--videos", "3", "--profile", str(tmp_path / "other.json")) == 2
    assert "another model, autoencoder or head profile, or by other code" in capsys.readouterr().err


def test_what_decides_is_measured_first_and_other_shuffles_last():
    tables = {name: table.with_shuffles(2) for name, table in ROOMS_TABLES.items()}
    order = list(rooms.jobs(tables, [0, 1], deciding=False))

    def turn(job: rooms.VideoJob) -> int:
        if job.row.label in tables[job.table].deciding:
            return 0
        return 1 if "rendered" in job.row.label else 3 if "shuffled" in job.row.label else 2

    turns = [turn(job) for job in order]
    assert turns == sorted(turns) and set(turns) == {0, 1, 2, 3} and len({job.key for job in order}) == len(order)
    assert list(rooms.jobs(tables, [0, 1], deciding=True)) == order[: turns.index(2)]


def test_the_table_of_recalls_decides_nothing(trained, tmp_path, counted):
    given = "--tables", "recall", "--videos", "3"
    assert call(trained, tmp_path, *given, "--deciding") == 0 and len(counted) == 3 * 2, "the truth"
    assert call(trained, tmp_path, *given) == 0 and len(counted) == len(set(counted)) == 3 * 13
    table = (tmp_path / "recall.md").read_text()
    assert all(f"| {row.label} |" in table for row in ROOMS_TABLES["recall"].question.rows)
    assert "ours, not the paper's" in table and "**" not in table
    found = json.loads((tmp_path / "verdicts.json").read_text())
    assert {verdict["outcome"] for verdict in found["verdicts"][1:]} == {"not measured"}
    assert [line.split(",")[0] for line in found["secondary"]] == ["- H0"]


def test_below_the_gate_or_with_other_files_no_table_is_made(trained, tmp_path, capsys):
    assert (rooms_gate.BASE_LEAST, rooms_gate.STUDENT_LEAST) == (GATE_BASE, GATE_STUDENT)
    for path in trained.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for changed in ("student-20", "base", "autoencoder"):
        file = tmp_path / f"{changed}.safetensors"
        file.write_bytes(file.read_bytes() + b" ")
        assert call(tmp_path, tmp_path / "out") == 2
        assert "as they are now; give the training's command again" in capsys.readouterr().err
        file.write_bytes((trained / file.name).read_bytes())
    remembers(tmp_path, "student-20", 0.39)
    assert call(tmp_path, tmp_path / "out") == 2
    assert "student 0.390 of at least 0.4" in capsys.readouterr().err
    (tmp_path / "chosen.json").write_text('{"chosen": null}')
    assert call(tmp_path, tmp_path / "out") == 2
    assert "no student in" in capsys.readouterr().err
    (tmp_path / "chosen.json").unlink()
    assert call(tmp_path, tmp_path / "out") == 2


def test_measurements_by_other_code_are_refused(trained, tmp_path, counted, monkeypatch, capsys):
    assert call(trained, tmp_path, "--videos", "1") == 0
    monkeypatch.setattr(rooms, "MEASURED_BY", (rooms_gate, *rooms.MEASURED_BY[1:]))
    assert call(trained, tmp_path, "--videos", "1") == 2
    assert "judge" in capsys.readouterr().err


@pytest.mark.slow
def test_a_table_of_real_videos(trained, tmp_path, monkeypatch):
    """An untrained model, one short story: every row of H2 is measured, and nothing is decided."""
    monkeypatch.setitem(rooms.STORIES, "away_15", lambda number: (TEAL, SAND, TEAL))
    assert call(trained, tmp_path, "--tables", "h2_h5", "--videos", "1", "--shuffles", "1") == 0
    table = (tmp_path / "h2_h5.md").read_text()
    assert all(f"| {row.label} |" in table for row in ROOMS_TABLES["h2_h5"].question.rows)
    assert "| – | – | – | – |" not in table and "sure" not in table


def test_the_head_profile_of_a_training_has_to_be_its_own(trained, tmp_path, capsys):
    profile_of(assets.model_path()).save(tmp_path / "other.json")
    for more in ([], ["--profile", str(tmp_path / "other.json")]):
        assert main(["rooms", str(trained), "--out", str(tmp_path), *more]) == 2
        assert "headforcing profile profile.json --demo --demo-weights" in capsys.readouterr().err


def test_without_a_folder_the_embedded_model_is_measured_and_its_gate_is_not(tmp_path, counted):
    given = ["--tables", "h3", "--videos", "1", "--shuffles", "1", "--json"]
    assert main(["rooms", "--out", str(tmp_path), *given]) == 0
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert len(counted) == 14 and [verdict["name"] for verdict in verdicts] == ["H1", "H2", "H3", "H4", "H5"]
