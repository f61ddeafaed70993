"""The command `profiling`: short measurements beside the bundled profile, and the page on them."""

import json
from pathlib import Path

from headforcing.research import profiling
from headforcing.research.__main__ import main

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_stored_table_and_says_what_it_shows():
    evidence = ROOT / "research" / "evidence"
    data = json.loads((evidence / "profiling.json").read_text("utf-8"))
    table = (evidence / "profiling.md").read_text("utf-8")
    assert table == profiling.table(data["same"]) + "\n"
    page = " ".join((ROOT / "docs" / "head_profiles.md").read_text("utf-8").split())
    assert tuple(data["seconds"]) == profiling.SECONDS and data["heads"] == 48
    bundled = data["same"]["as bundled"]["4"]
    ten, thirty = (bundled[profiling.SECONDS.index(seconds)] for seconds in (10.0, 30.0))
    assert thirty == 48 and "*quick* names all 48" in page
    few = data["same"]["two steps"]["1"]
    assert (
        few[-1] >= 45
        and f"names {few[-1]} of 48 heads" in page
        and f"of 10 s it names {ten}" in page
    )
    small = data["same"]["two steps, 3/4 of the area"]["1"][-1]
    assert f"At three quarters of the area one video names {small}." in page


def test_a_short_measurement_is_compared_and_found_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(profiling, "SECONDS", (2.25, 3.0))
    monkeypatch.setattr(profiling, "WAYS", {"as bundled": {}, "window": {"window_frames": 8}})
    command = ["profiling", "--videos", "2", "--out", str(tmp_path / "out")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for same in found["same"].values():
        assert set(same) == {"1", "2"} and all(len(by_seconds) == 2 for by_seconds in same.values())
        assert all(12 < count <= 48 for by_seconds in same.values() for count in by_seconds)
    shares = tmp_path / "out" / "as_bundled.safetensors"
    stamp = shares.stat().st_mtime_ns
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found and shares.stat().st_mtime_ns == stamp
    text = (tmp_path / "out" / "profiling.md").read_text("utf-8")
    assert text == profiling.table(found["same"]) + "\n"
    assert (tmp_path / "out" / "profiling.png").stat().st_size > 5_000
