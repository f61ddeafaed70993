"""Random stories in the forms in which people and programs write them, with prompts, layouts and
mistakes that have misled a reader; the same number gives the same story.
"""

import json
from collections.abc import Callable, Sequence
from random import Random

WORDS = (
    *(
        "a fox",
        "a red fox trots",
        "the wolf",
        "in the snow",
        "狐",
        "Café",
        "it's dusk",
        "film grain",
    ),
    *("16:9 frame", "at 10:15", "5 cats", "(close-up)", "[close-up]", "10s later", "2m tall"),
    *(
        "a clock shows 0:05",
        "Scene 2",
        "scene by scene",
        "80s disco",
        "1920s car",
        "6:00 pm",
        "50%",
    ),
    *("- a dash", '"quoted"', "@hero", "{red}", "3-5 birds", "f1 car: red", "shot on film", "x=3"),
    *("I", "at 5 s", "**bold**", "a (red:1.2) fox", "to 5 cats", "pm", "1. one", "`code`", "a | b"),
)
PLAIN = ("a fox", "a red fox trots", "the wolf", "in the snow", "狐", "it's dusk", "film grain")
TAGS = (
    "[cut] ",
    "[recache] ",
    "[seed 7] ",
    "[flush, cut] ",
    "[dissolve 1.5s] ",
    "**[cut]** ",
    "【cut】",
)
ENDS = ("\n", "\n", "\n", "\n\n", "\r\n", "\u2028", "\n\n\n")
BULLETS = ("", "", "", "", "- ", "* ", "• ", "1. ", "### ", "1) ", "> ")
CHARACTERS = "0159:.-,[](){}|*# \n\t\"'s→狐：\u00a0\u200b%=<>aS"

Prompt = tuple[float, float, str]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}:{int(rest):02}"


def _long_clock(seconds: float) -> str:
    return f"00:0{_clock(seconds)}" if seconds < 600 else f"00:{_clock(seconds)}"


_LINES: tuple[Callable[[int, float, float, str], str], ...] = (
    lambda n, a, b, w: f"{_clock(a)} {w}",
    lambda n, a, b, w: f"{_clock(a)} {w}",
    lambda n, a, b, w: f"{_clock(a)} {w}",
    lambda n, a, b, w: f"{_clock(a)}: {w}",
    lambda n, a, b, w: f"{_clock(a)} - {w}",
    lambda n, a, b, w: f"{_clock(a)}-{_clock(b)} {w}",
    lambda n, a, b, w: f"[{_clock(a)}] {w}",
    lambda n, a, b, w: f"[{_clock(a)}]: {w}",
    lambda n, a, b, w: f"[{_clock(a)}-{_clock(b)}] {w}",
    lambda n, a, b, w: f"[{_clock(a)} - {_clock(b)}]: {w}",
    lambda n, a, b, w: f"[{a}-{b}s] {w}",
    lambda n, a, b, w: f"[{a}-{b}] {w}",
    lambda n, a, b, w: f"({_clock(a)}–{_clock(b)}) {w}",
    lambda n, a, b, w: f"**{_clock(a)}** {w}",
    lambda n, a, b, w: f"**{_clock(a)}-{_clock(b)}:** {w}",
    lambda n, a, b, w: f"{a}s: {w}",
    lambda n, a, b, w: f"{a}s {w}",
    lambda n, a, b, w: f"{a}-{b}s: {w}",
    lambda n, a, b, w: f"{a} sec: {w}",
    lambda n, a, b, w: f"{a}秒：{w}",
    lambda n, a, b, w: f"0{_clock(a)} {w}",
    lambda n, a, b, w: f"0:0{_clock(a)} {w}",
    lambda n, a, b, w: f"【{_clock(a)}】{w}",
    lambda n, a, b, w: f"{_clock(a)} | {w}",
    lambda n, a, b, w: f"{_clock(a)},{w}",
    lambda n, a, b, w: f"[{a}s: {w}]",
    lambda n, a, b, w: f"Scene {n}: {w}",
    lambda n, a, b, w: f"Scene {n}\n{w}",
    lambda n, a, b, w: f"[Scene {n}] {w}",
    lambda n, a, b, w: f"**Scene {n}:** {w}",
    lambda n, a, b, w: f"Szene {n}: {w}",
    lambda n, a, b, w: f"场景{n}：{w}",
    lambda n, a, b, w: f"第{n}幕：{w}",
    lambda n, a, b, w: f"장면 {n}: {w}",
    lambda n, a, b, w: f"Scene {n} ({_clock(a)}-{_clock(b)}): {w}",
    lambda n, a, b, w: f"Scene {n} [{_clock(a)}-{_clock(b)}] {w}",
    lambda n, a, b, w: f"Scene {n} [{_clock(a)}]: {w}",
    lambda n, a, b, w: f"Scene {n}: The place ({_clock(a)}-{_clock(b)})\n{w}",
    lambda n, a, b, w: f"Shot {n} ({_clock(a)}-{_clock(b)}): {w}",
    lambda n, a, b, w: f"镜头{n}（{a}-{b}秒）：{w}",
    lambda n, a, b, w: f"{n}\n{_long_clock(a)},000 --> {_long_clock(b)},000\n{w}\n",
    lambda n, a, b, w: f"{_long_clock(a)}.000 --> {_long_clock(b)}.000\n{w}\n",
    lambda n, a, b, w: f'"{int(16 * a)}": {json.dumps(w, ensure_ascii=False)},',
    lambda n, a, b, w: w,
)


def _words(random: Random) -> str:
    pool = WORDS if random.random() < 0.5 else PLAIN
    words = " ".join(random.choice(pool) for _ in range(random.randint(1, 3)))
    if random.random() < 0.12:
        words = random.choice(TAGS) + words
    return words


def _prompts(random: Random) -> list[Prompt]:
    prompts = []
    start = 0 if random.random() < 0.9 else random.choice([5, 65, 600])
    for _ in range(random.randint(1, 5)):
        length = random.choice([5, 5, 10, 10, 2.5, 20, 1, 90])
        if length == int(length):
            length = int(length)
        prompts.append((start, start + length, _words(random)))
        start += length
    return prompts


def _in_lines(random: Random, prompts: Sequence[Prompt]) -> str:
    line = random.choice(_LINES)
    bullet = random.choice(BULLETS)
    end = random.choice(ENDS)
    lines = []
    for number, (start, until, words) in enumerate(prompts, 1):
        if random.random() < 0.03:
            line = random.choice(_LINES)
        lines.append(bullet + line(number, start, until, words))
        if random.random() < 0.1:
            lines.append(_words(random))
    return end.join(lines)


def _in_bars(random: Random, prompts: Sequence[Prompt]) -> str:
    bar = random.choice([" | ", "|", "\n|\n", "｜"])
    return bar.join(words for _, _, words in prompts)


def _in_json(random: Random, prompts: Sequence[Prompt]) -> str:
    texts = [words for _, _, words in prompts]
    frames = {str(int(16 * start)): words for start, _, words in prompts}
    switches = [int(4 * start) for start, _, _ in prompts[1:]]
    forms = [
        texts,
        {"prompts": texts},
        frames,
        {"prompts": texts, "switch_frame_indices": switches},
    ]
    return json.dumps(random.choice(forms), ensure_ascii=False, indent=random.choice([None, 1]))


def _in_one_line(random: Random, prompts: Sequence[Prompt]) -> str:
    between = random.choice([", ", "; ", " "])
    return between.join(f"[{start}-{until}s] {words}" for start, until, words in prompts)


_FORMS = (*[_in_lines] * 8, _in_bars, _in_json, _in_one_line)


def random_story(number: int) -> str:
    """The story of a number."""
    random = Random(number)
    text = random.choice(_FORMS)(random, _prompts(random))
    if random.random() < 0.15:
        text = f"[shared] {_words(random)}\n{text}"
    for chance, begin, end in (
        (0.03, "WEBVTT\n\n", ""),
        (0.03, "```\n", "\n```"),
        (0.03, "My story\n", ""),
        (0.03, "\ufeff", ""),
        (0.03, "", "\n---\nThe end"),
        (0.02, "# ", ""),
    ):
        if random.random() < chance:
            text = begin + text + end
    while random.random() < 0.2:
        at = random.randrange(len(text) + 1)
        kept = at + random.randint(0, 1)
        text = text[:at] + random.choice([*CHARACTERS, "", ""]) + text[kept:]
    return text
