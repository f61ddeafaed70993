"""The figures of others' measurements on the published weights, computed and told."""

from pathlib import Path

from headforcing.research import real_heads
from headforcing.research.__main__ import main

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_follows_from_the_published_numbers(tmp_path, capsys):
    assert main(["real-heads", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "real_heads.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    found = real_heads.numbers()
    assert all(f"{name}: {value}" in printed for name, value in found.items())
    assert found == {
        "heads": 360,
        "most_middle": 36,
        "of_them_anchors_by_quota": 27,
        "of_them_memory_by_function": 36,
        "memory_or_not_as_forcing_kv": 324,
        "own_block_above_0.85": 71,
        "memory_heads_better_with_old_and_recent": 149,
        "error_by_quota": "34.8",
        "error_by_function": "34.6",
        "error_by_forcing_kv": "33.3",
        "error_all_old_and_recent": "31.6",
        "by_quota": "55 local, 82 anchor, 223 memory",
        "by_function": "72 local, 90 anchor, 198 memory",
        "by_function_with_the_earlier_floor": "148 local, 14 anchor, 198 memory",
    }
    page = (ROOT / "docs" / "evidence.md").read_text("utf-8")
    told = page.partition("## On the published weights, as measured by others")[2]
    words = ["calls 27 anchors", "324 of 360", "71 heads", "148 of the 360", "14 anchors"]
    words += ["149 of its 198", "34.6", "34.8", "33.3", "31.6"]
    assert all(each in " ".join(told.split()) for each in words)
