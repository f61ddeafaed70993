"""Lines of a file or text end at newlines only; U+2028 and the like, which prompts hold, are characters of a line."""

import json
import re
from pathlib import Path

import pytest
from headforcing.headforcing_core.commands.batch_jobs import read_jobs
from headforcing.headforcing_core.timeline.grammar import split_lines, split_prompts
from headforcing.headforcing_core.timeline.timeline import parse_timeline

ROOT = Path(__file__).resolve().parents[2]
NOT_NEWLINES = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
TEXTS = [f"a cat{other}a dog" for other in NOT_NEWLINES]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_prompts_of_a_profile_are_one_a_line(newline: str) -> None:
    assert list(split_prompts(newline.join(TEXTS) + newline)) == TEXTS


def test_a_batch_takes_a_line_with_any_character_in_its_prompt(tmp_path: Path) -> None:
    # control characters below a blank cannot stand in JSON as they are
    texts = [text for text in TEXTS if text[5] > "\x1f"]
    lines = [json.dumps({"demo": True, "prompts": text}, ensure_ascii=False) for text in texts]
    file = tmp_path / "jobs.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    assert [args.prompts for args in read_jobs(file, tmp_path).values()] == texts and len(texts) == 3


def test_a_timeline_has_a_prompt_for_each_line() -> None:
    text = "\r\n".join(f"0:{10 * i:02} {text}" for i, text in enumerate(TEXTS[:3]))
    assert len(parse_timeline(text, 30.0).segments) == 3
    assert split_lines("\ufeffa\rb\r\nc\n") == ["a", "b", "c", ""]


def test_nothing_else_is_split_at_other_characters() -> None:
    """The first line of a message is all that `splitlines` is for."""
    for folder in ("headforcing_core", "nodes", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            found = re.findall(r"\.splitlines\(.*", path.read_text(encoding="utf-8"))
            assert all(line.startswith((".splitlines()[0]", ".splitlines()[1]")) for line in found), path
