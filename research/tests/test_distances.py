"""The command `distances`: the stored table, the page on it, and a measurement that goes on."""

import json
from pathlib import Path
from statistics import mean

import torch
from headforcing.research import distances
from headforcing.research.__main__ import main

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_stored_table_and_says_what_it_shows():
    evidence = ROOT / "research" / "evidence"
    data = json.loads((evidence / "distances.json").read_text("utf-8"))
    table = distances.table(data["ways"])
    assert (evidence / "distances.md").read_text("utf-8") == table + "\n"
    text = (ROOT / "docs" / "head_profiles.md").read_text("utf-8")
    assert table in text
    assert (data["first"], data["stories"], data["heads"]) == (105_000, 64, 48)
    assert set(data["ways"]) == set(distances.WAYS)
    # what is chosen is not less steady than any other way, by the default rule
    chosen = data["ways"]["21 frames, four prompts"]["auto"]
    for way in data["ways"].values():
        assert way["auto"]["halves"] <= chosen["halves"]
        assert mean(way["auto"]["alone"]) <= mean(chosen["alone"])
    far = "30 s, absolute positions"
    near = [pair for pair in data["alike"] if far not in pair["ways"]]
    with_far = [pair for pair in data["alike"] if far in pair["ways"]]
    assert {pair["auto"] for pair in near} == {46, 48}
    assert {pair["auto"] for pair in with_far} == {38, 40}
    assert {pair["quota"] for pair in with_far} == {34}
    page = " ".join(text.split())
    assert "on 46 to 48 heads, and with 30 s of absolute positions on 38 to 40 (quota: 34)" in page


def test_a_short_comparison_is_measured_and_found_again(monkeypatch, tmp_path, capsys):
    ways = {
        "four blocks": distances.Way(4),
        "three blocks": distances.Way(3),
        "two prompts": distances.Way(3, 2),
        "twice": distances.Way(3, repeats=2),
        "contiguous": distances.Way(4, options=distances.CONTIGUOUS),
    }
    monkeypatch.setattr(distances, "WAYS", ways)
    command = ["distances", "--videos", "2", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: way["blocks"] for name, way in found["ways"].items()} == {
        "four blocks": 4,
        "three blocks": 3,
        "two prompts": 6,
        "twice": 6,
        "contiguous": 4,
    }
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.safe*")}
    # a shorter video is the beginning of a longer one
    assert len(files) == 4
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == found
    for name, stamp in files.items():
        assert (tmp_path / "out" / name).stat().st_mtime_ns == stamp


def test_a_shorter_video_is_the_beginning_of_a_longer_one(monkeypatch, tmp_path):
    short = distances.Way(3)
    alone = distances.video_shares(tmp_path, 1, short).mean()
    monkeypatch.setattr(distances, "WAYS", {"long": distances.Way(4), "short": short})
    assert torch.equal(distances.measured(tmp_path, short, 1)[0], alone)
