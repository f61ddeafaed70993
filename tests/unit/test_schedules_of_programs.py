"""Schedules of other programs are refused, and not one prompt in silence; prose stays a prompt."""

import json
import lzma
from pathlib import Path

import pytest
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.timeline.prompt import TimelineError

STORIES = Path(__file__).parent / "stories" / "memflow_stories.jsonl.xz"
REFUSED = [
    "0.0 5.0 a fox\n5.0 10.0 a wolf",
    "0\ta fox\n5\ta wolf",
    "5\ta fox\n10\ta wolf",
    "a fox\t0\na wolf\t5",
    "0 a fox\n5 a wolf",
    "{0}{120}a fox\n{120}{240}a wolf",
    "{0}{120}a fox",
    '<tt><body><div><p begin="0s" end="5s">a fox</p></div></body></tt>',
    '<?xml version="1.0"?>\n<tt>\n<p>a fox</p>\n</tt>',
    '<transcript><text start="0" dur="5">a fox</text></transcript>',
    "<scene>a fox</scene><scene>a wolf</scene>",
    "- time: 0\n  prompt: a fox\n- time: 5\n  prompt: a wolf",
    "- prompt: a fox\n  start: 0\n- prompt: a wolf\n  start: 5",
    "prompts:\n  - a fox\n  - a wolf",
    'prompts = ["a fox", "a wolf"]',
    "{'0': 'a fox', '80': 'a wolf'}",
    "['a fox', 'a wolf']",
    "['it\\'s \"a fox\"', 'a wolf']",
    "[(0, 'a fox'), (5, 'a wolf')]",
    "[{'time': 0, 'prompt': 'a fox'}]",
    '[{time: 0, prompt: "a fox"}]',
    '{0: "a fox", 80: "a wolf"}',
    '{prompts: ["a fox", "a wolf"]}',
    "{'a': None}",
    "[None, 'a fox']",
    "f0: a fox\nf80: a wolf",
    "t=0: a fox\nt=5: a wolf",
    "0f: a fox\n80f: a wolf",
    "0ms: a fox\n5000ms: a wolf",
    "0 = a fox\n5 = a wolf",
    "0 -> a fox\n5 -> a wolf",
]
REFUSED += ["@0 a fox\n@5 a wolf", "Step 1 a fox\nStep 2 a wolf"]
ONE_PROMPT = [
    "a fox\ta wolf",
    "50% grey sky",
    "f1 car: red",
    "{a fox}",
    "He's 'the fox'",
    "3 dogs run\n2 cats sit",
    "50% grey sky\n30% fog",
    "[[a fox]]",
    "'90s neon, a fox",
    "a fox <3 a wolf",
    "Subject: a fox\nCamera: slow",
    "a fox in the snow.\nIt stops at a lake.",
    "[(a fox:1.2), snow]",
    "Close-up: a fox",
    "Close-up: a fox\nBackground: a lake",
    "Prompt: a fox in the snow\nSteps: 20",
    "One: a film about a fox",
    "One fox runs\nTwo wolves follow",
    "First, a fox runs\nThen a wolf follows",
    "# One fox",
    "# fox\nin the snow",
    "**A fox** runs\n**A wolf** follows",
    "*A fox runs*\nin the snow",
    "(wide shot) a fox (close-up) its eyes",
    "a) is a letter, b is none",
    "A fox, 35 mm, f/1.8 (2024) film",
    "I see a fox\nI see a wolf",
    "25% of the picture is sky, 75% sand",
    "a tug-of-war - a fox against a wolf",
    "Level 2: a fox in a game",
    "a fox\n\na wolf",
    "a fox of the 1. and the 2. regiment",
    "A fox says: one, two, three",
    '"a fox" runs\n"a wolf" follows',
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_schedule_of_another_program_is_refused(text):
    with pytest.raises(TimelineError):
        read_any(text)


@pytest.mark.parametrize("text", ONE_PROMPT)
def test_prose_stays_one_prompt(text):
    assert len(read_any(text).segments) == 1


def test_published_prompts_stay_one_prompt_on_one_line_and_on_many():
    rows = lzma.decompress(STORIES.read_bytes()).decode().splitlines()
    prompts = [prompt for row in rows for prompt in json.loads(row)["prompts"]]
    assert len(prompts) == 600
    for prompt in prompts:
        for text in (prompt, prompt.replace(". ", ".\n"), prompt.replace(", ", ",\n\n")):
            (read,) = read_any(text).segments
            assert read.text == prompt
