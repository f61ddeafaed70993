"""Lines of a file or text end at newlines only; U+2028 and the like, which prompts hold, are characters of a line."""

import json
from pathlib import Path

from headforcing.headforcing_core.commands.batch_jobs import read_jobs
from headforcing.headforcing_core.timeline.grammar import split_lines, split_prompts
from headforcing.headforcing_core.timeline.timeline import parse_timeline

TEXTS = [f"a cat{other}a dog" for other in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"]


def test_prompts_of_a_profile_a_timeline_and_a_batch_are_one_a_line(tmp_path: Path) -> None:
    for newline in ("\n", "\r\n", "\r"):
        assert list(split_prompts(newline.join(TEXTS) + newline)) == TEXTS
    text = "\r\n".join(f"0:{10 * i:02} {text}" for i, text in enumerate(TEXTS[:3]))
    assert len(parse_timeline(text, 30.0).segments) == 3
    assert split_lines("\ufeffa\rb\r\nc\n") == ["a", "b", "c", ""]
    file, texts = tmp_path / "jobs.jsonl", TEXTS[:3]  # control characters below a blank cannot stand in JSON
    lines = [json.dumps({"demo": True, "prompts": text}, ensure_ascii=False) for text in texts]
    file.write_text("\n".join(lines), encoding="utf-8")
    assert [args.prompts for args in read_jobs(file, tmp_path).values()] == texts
