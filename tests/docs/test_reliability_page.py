"""The page on reliability says what the tests count."""

import re

from promises import COUNTED


def test_the_table_holds_the_counts_that_a_complete_run_must_reach(repo_root):
    page = (repo_root / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", page, flags=re.MULTILINE))
    assert {label: int(count) for label, count in rows.items()} == COUNTED
