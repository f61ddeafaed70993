"""METHOD.md names files and code that exist."""

import re
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "headforcing_core"
PAGE = (ENGINE / "METHOD.md").read_text(encoding="utf-8")


def test_every_file_on_the_page_exists():
    files = re.findall(r"`([\w/]+\.py)`", PAGE)
    assert len(files) >= 6
    assert not [file for file in files if not (ENGINE / file).is_file()]


def test_every_name_in_the_glossary_is_in_the_code():
    rows = [line.split("|")[2] for line in PAGE.split("## Glossary")[1].splitlines() if line.startswith("| ")][2:]
    names = {name for row in rows for code in re.findall(r"`([^`]+)`", row) for name in re.findall(r"[A-Za-z_]+", code)}
    source = "\n".join(path.read_text(encoding="utf-8") for path in ENGINE.rglob("*.py"))
    assert len(names) > 25
    assert not [name for name in names if not re.search(rf"\b{name}\b", source)]
