"""The command `profiling`: short measurements beside the bundled profile, and the page on them."""

import json
from pathlib import Path
from statistics import mean

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
    ten = profiling.SECONDS.index(10.0)
    # the size before a render is between these two, and each video of either names enough
    for way in ("two steps", "two steps, 3/4 of the area"):
        assert min(data["same"][way]["auto"]["alone"][-1]) >= 42
        assert max(data["same"][way]["auto"]["alone"][-1]) <= 46
    assert "names 42 to 46 of 48 heads" in page
    quarter = data["same"]["two steps, 1/4 of the area"]["auto"]["alone"][-1]
    assert [min(quarter), max(quarter)] == [37, 41] and "at a quarter 37 to 41" in page
    quota = [
        data["same"][way]["quota"]["alone"] for way in ("two steps", "two steps, 3/4 of the area")
    ]
    last = [*quota[0][-1], *quota[1][-1]]
    assert [min(last), max(last)] == [40, 46] and "By quota it names 40 to 46" in page
    assert {round(mean(alone[ten])) for alone in quota} <= {31, 32} and "of 10 s about 32" in page
    assert data["same"]["as bundled"]["auto"]["together"][-1] == 46


def test_a_short_measurement_is_compared_and_found_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(profiling, "SECONDS", (2.25, 3.0))
    monkeypatch.setattr(profiling, "WAYS", {"as bundled": {}, "window": {"window_frames": 8}})
    command = ["profiling", "--videos", "2", "--out", str(tmp_path / "out")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for by_rule in found["same"].values():
        assert set(by_rule) == {"auto", "quota"}
        for counts in by_rule.values():
            assert len(counts["alone"]) == len(counts["together"]) == 2
            for alone in counts["alone"]:
                assert len(alone) == 2 and all(12 < count <= 48 for count in alone)
    shares = tmp_path / "out" / "as_bundled.safetensors"
    stamp = shares.stat().st_mtime_ns
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found and shares.stat().st_mtime_ns == stamp
    text = (tmp_path / "out" / "profiling.md").read_text("utf-8")
    assert text == profiling.table(found["same"]) + "\n"
    assert (tmp_path / "out" / "profiling.png").stat().st_size > 5_000
