"""Stories as people paste them: other programs' schedules, invisible characters, ratios, clocks,
braces, comments.
"""

import re
from functools import partial

import pytest
from headforcing.cli.texts import read_text
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.rollout.schedule import LONGLIVE2
from headforcing.headforcing_core.timeline.characters import fold
from headforcing.headforcing_core.timeline.clock import BlockClock, format_time
from headforcing.headforcing_core.timeline.editor import PlacedPrompt, answer, write_timeline
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.timeline.prompt import TimelineError
from hypothesis import given
from hypothesis import strategies as st


def starts(text: str) -> list[tuple[float, str]]:
    """The time in seconds and the words of every prompt."""
    timeline = read_any(text)
    return [
        (start, prompt.text)
        for start, prompt in zip(timeline.requested, timeline.segments, strict=True)
    ]


ONE_PROMPT = (
    *(
        "9:16 vertical video, a girl dances in the rain",
        "16:10 film still of a harbour",
        "16:9 film still",
    ),
    *("(9:16) vertical video", "1:85 widescreen still"),
    *("2:39 scope", "12:00 noon in Marrakesh", "7:30 train leaves"),
    *(
        "07:30 train leaves",
        "6:00 pm in Paris",
        "6:00 p.m. in Paris",
        "5s later the fox sleeps",
        "(5s) later",
    ),
    *(
        "5 seconds later the fox sleeps",
        "1m30s later",
        "80s disco",
        "5秒後、狐が眠る",
        "- 5s later",
        "**9:16** video",
    ),
    *(
        "a clock shows 10:15",
        "a 16:9 frame",
        "[close-up] a fox",
        "He says: 5s left",
        "a clock, 0:05 left",
    ),
    *(
        "see http://example.com/a now",
        "a fox and/or a wolf",
        "Shot 1: a fox",
        "a {fox} runs",
        "# fox",
        "a } b { c",
    ),
    *(
        "5 cats run",
        "at 5 s the cat",
        "5 s of rain",
        "5-10 seconds of rain",
        "0-100m sprint",
        "2m tall man",
        "35 mm film",
        "16:9 wide",
        "in 1920 a man",
        "221B Baker Street",
        "12 Main Street",
        "1. a fox",
        "Part one of a journey",
        "Step 1: a cook",
        "7:30, a train leaves",
        "1 min walk",
        "Time: dusk",
        "a--b",
    ),
)


@pytest.mark.parametrize("text", ONE_PROMPT)
def test_a_text_that_merely_contains_a_time_is_one_prompt_and_can_be_written(text):
    assert starts(text) == [(0.0, text)]
    written = write_timeline([PlacedPrompt(text, 0)], BlockClock())
    assert starts(written) == [(0.0, text)]


FOX_AND_WOLF = (
    *(
        "0:00\u00a0fox\n0:05\u00a0wolf",
        "0:00 fox\n0:05\u00a0wolf",
        "0:00\u3000fox\n\u20090:05\u202fwolf",
    ),
    *("\u200b0:00 fox\n\u200e0:05 wolf",),
    *(  # ranges with one unit, other units
        "0-5s: fox\n5-10s: wolf",
        "**0–5s:** fox\n**5–10s:** wolf",
        "- 0-5s: fox\n- 5-10s: wolf",
        "0 to 5 seconds: fox\n5 to 10 seconds: wolf",
        "0-5秒：fox\n5-10秒：wolf",
        "0:00-0:05 fox\n5-10s: wolf",
        "0 s: fox\n5 s: wolf",
        "0秒から5秒まで：fox\n5秒から10秒：wolf",
        "0초부터 5초까지: fox\n5초~10초: wolf",
        "0:00 fox\n5 seconds: wolf",
        "[shared] \n0-5s: fox\n5-10s: wolf",
    ),
    *(  # rows of a table of values
        "0:00,fox\n0:05,wolf",
        "0s, fox\n5s, wolf",
    ),
    *(  # layout
        "0:00 | fox\n0:05 | wolf",
        "0:00 -> fox\n0:05 => wolf",
        "0:00 → fox\n0:05 • wolf",
        "---\n0:00 fox\n\n* * *\n0:05 wolf\n———",
        "[shared] \n---\n0:00 fox\n0:05 wolf",
    ),
    *(  # the time in a scene's line
        "Scene 1: fox (0:00-0:05)\nScene 2: wolf (0:05-0:10)",
        "Scene 1: **[seed 1]** fox (0:00-0:05)\nScene 2: wolf (0:05-0:10)",
        "**Scene 1: fox (0:00–0:05)**\n**Scene 2: wolf (0:05–0:10)**",
        "**Scene 1: (0-5s):** fox\n**Scene 2 (5-10s)** - wolf",
        "### Scene 1: fox *(0:00-0:05)*\n### Scene 2: wolf *(0:05-0:10)*",
        "Scene 1: fox - 0:00-0:05\nScene 2: wolf, 0:05-0:10",
        "Scene 1 | 0:00-0:05 | fox\nScene 2 | 0:05-0:10 | wolf",
        "[Scene 1] (0:00-0:05) fox\n[Scene 2] 0:05-0:10: wolf",
        "Scene 1: fox [0:00-0:05]\nScene 2: wolf [0:05-0:10]",
        "Shot 1: fox (0:00-0:05)\nShot 2: wolf (0:05-0:10)",
        "Scene 1 (0:00-0:05): fox\nScene 2 (5-10 s): wolf",
        "0:00 fox\nScene 2 (0:05-0:10): wolf",
        "Beat 1 (0:00-0:05): fox\nPrompt 2 (0:05-0:10): wolf",
        "镜头1（0-5秒）：fox\n镜头2（5-10秒）：wolf",
    ),
    *("\ufeff0:00\u2060 fox\n\ufeff0:\u200b05 wolf", "\u202a0:00\u202c fox\n0:05 wolf"),
    *(
        "0:00 fox\u20280:05 wolf",
        "0:00 fox\u20290:05 wolf",
        "0:00 fox\x0b0:05 wolf",
        "0:00 fox\x850:05 wolf",
    ),
    *(
        "0:00 fox\r0:05 wolf",
        "0:00 fox\r\n0:05 wolf",
        "0:00\tfox\n0:05\twolf",
        "0:00 f\u200box\n0:05 wo\xadlf",
    ),
    *("[0:00]\u00a0fox\n[0:05]wolf", "[0\u00a0-\u00a05s] fox\n[5s] wolf"),
    *("[0-5s] fox, [5-10s] wolf", "0s fox\n5s wolf"),
    *("[0s: fox] [5s: wolf]", "[0s-5s: fox] [5s-10s: wolf]"),
    *("[0s: fox]\n\n[5s: wolf]", "[0:00: fox], [0:05: wolf]"),
    *(
        "[0-5s: fox] [5-10s: wolf]",
        "［０秒：fox］ ［５秒：wolf］",
        "[shared] \n[0s: fox] [5s: wolf]",
    ),
    *("(0:00-0:05) fox\n(0:05-0:10) wolf", "(0:00) fox\n(0:05) wolf", "(0-5s): fox\n(5-10s): wolf"),
    *("0:00~0:05 fox\n0:05~0:10 wolf",),
    *("0:00 to 0:05: fox\n0:05 to 0:10: wolf", "0:00 → 0:05 fox\n0:05 → 0:10 wolf"),
    *("0:00 --> 0:05 fox\n0:05 --> 0:10 wolf",),
    *(
        "0 sec: fox\n5 sec: wolf",
        "0 seconds - fox\n5 seconds - wolf",
        "0秒：fox\n5秒：wolf",
        "0초: fox\n5초: wolf",
    ),
    *(
        "0分0秒 fox\n0分5秒 wolf",
        "0：00 fox\n0：05 wolf",
        "０：００　fox\n０：０５　wolf",
        "【0:00】fox\n【0:05】wolf",
    ),
    *("【0：00】fox【0：05】wolf", "（0：00～0：05）fox\n（0：05～0：10）wolf"),
    *("- 0:00 fox\n- 0:05 wolf", "• 0:00 fox\n• 0:05 wolf"),
    *(
        "**0:00** fox\n**0:05** wolf",
        "**0:00:** fox\n**0:05:** wolf",
        "**0:00 fox**\n**0:05 wolf**",
    ),
    *(
        "- **0:00**: fox\n- **0:05**: wolf",
        "* `0:00` fox\n* `0:05` wolf",
        "### 0:00 fox\n### 0:05 wolf",
    ),
    *("1) 0:00 fox\n2) 0:05 wolf", "1. [0:00] fox\n2. [0:05] wolf"),
    *("```\n0:00 fox\n0:05 wolf\n```", "~~~text\n0:00 fox\n0:05 wolf\n~~~"),
    *(
        "Shot 1 (0:00-0:05): fox\nShot 2 (0:05-0:10): wolf",
        "Shot 1: 0:00-0:05 fox\nShot 2: 0:05-0:10 wolf",
    ),
    *("Shot 1 [0:00]: fox\nShot 2 [0:05]: wolf", "Scene 1 (0:00): fox\nScene 2 (0:05): wolf"),
    *('"0": "fox",\n"80": "wolf"', '"0" : "fox", "80" : "wolf",'),
    *('{"0": "fox", "80": "wolf"}', "“0”: “fox”,\n“80”: “wolf”"),
    "1\n00:00:00,000 --> 00:00:05,000\nfox\n\n2\n00:00:05,000 --> 00:00:10,000\nwolf\n",
    "\ufeff1\r\n00:00:00,000 --> 00:00:05,000\r\n<i>fox</i>\r\n2\r\n00:00:05,000 --> "
    "00:00:10,000\r\nwolf",
    "1\n00:00:00,000 --> 00:00:05,000\n{\\an8}fox\n\n2\n00:00:05,000 --> 00:00:10,000\n"
    "<i>{\\pos(1,2)}wolf&nbsp;</i>\n",
    "WEBVTT - a title\n\nNOTE of its author\n\n00:00.000 --> 00:05.000 align:start "
    "line:0\nfox\n\nNOTE\nmore\n\ncue two\n00:00:05.000 --> 00:00:10.000\n<v Bob>wolf</v>",
)


@pytest.mark.parametrize("text", FOX_AND_WOLF)
def test_the_schedules_of_other_tools_and_pasted_text_have_one_meaning(text):
    assert starts(text) == [(0.0, "fox"), (5.0, "wolf")]


OTHER_READINGS = {
    **{
        f"{first}a\n{second}b": [(0.0, "a"), (10.0, "b")]
        for first, second in (
            ("Szene 1: ", "Szene 2: "),
            ("Scène 1 : ", "Scène 2 : "),
            ("Escena 1: ", "Escena 2: "),
            ("Cena 1: ", "Cena 2: "),
            ("Сцена 1: ", "Сцена 2: "),
            ("Scene 1a: ", "Scene 1b: "),
            ("Scene_1: ", "Scene_2: "),
            ("__Scene 1__\n", "__Scene 2__\n"),
            ("##Scene 1\n", "##Scene 2\n"),
        )
    },
    "0–5 segundos: a\n5–10 segundos: b": [(0.0, "a"), (5.0, "b")],
    "0-5 сек: a\n5-10 сек: b": [(0.0, "a"), (5.0, "b")],
    "Clip 2: 5s-10s\na cat": [(5.0, "a cat")],
    "0s a\n30s b\n1m00s c\n1m30s d": [(0.0, "a"), (30.0, "b"), (60.0, "c"), (90.0, "d")],
    "0 min: a\n1 min: b\n1 min 30 s: c\n2 minutes and 5 seconds: d": [
        (0.0, "a"),
        (60.0, "b"),
        (90.0, "c"),
        (125.0, "d"),
    ],
    "0:00-0:30: a\n0:30-1m: b\n1m30s c": [(0.0, "a"), (30.0, "b"), (90.0, "c")],
    "0:00,a, b\n0:10, 5 cats": [(0.0, "a, b"), (10.0, "5 cats")],
    "**Scene 1: The Forest (0:00-0:10)**\nA cat walks\n**Scene 2: The Lake (0:10–0:15)**\nit": [
        (0.0, "The Forest A cat walks"),
        (10.0, "The Lake it"),
    ],
    "0:00 a man\n3 people walk\n50mm lens, 1:1\n1920s car\n12 Main Street\n6:00 pm": [
        (0.0, "a man 3 people walk 50mm lens, 1:1 1920s car 12 Main Street 6:00 pm")
    ],
    "Scene 1: a man\n1920s car\n16:9 wide\n12:00 noon\nTime: dusk\n1. x\n2. y": [
        (0.0, "a man 1920s car 16:9 wide 12:00 noon Time: dusk 1. x 2. y")
    ],
    "Scene 1: The tree is\n30m tall\nA phone shows 0:45\n**Shot 1:** wide": [
        (0.0, "The tree is 30m tall A phone shows 0:45 **Shot 1:** wide")
    ],
    "Scene 1: [0] a\nScene 2: [15] b": [(0.0, "a"), (15.0, "b")],
    "Scene 1 [0:00-0:05]: watch at 0:03\nScene 2 [0:05-0:10]: b": [
        (0.0, "watch at 0:03"),
        (5.0, "b"),
    ],
    "0:00 Scene 1: a\n0:10 Scene 2: b": [(0.0, "Scene 1: a"), (10.0, "Scene 2: b")],
    "第一场雪落下，山村": [(0.0, "第一场雪落下，山村")],
    "場景一片宁静，湖": [(0.0, "場景一片宁静，湖")],
    "シーン1では猫が歩く": [(0.0, "シーン1では猫が歩く")],
    "장면 1에서 고양이": [(0.0, "장면 1에서 고양이")],
    "Scene I remember from childhood, a barn": [(0.0, "Scene I remember from childhood, a barn")],
    "[shared] 狐狸\n第一场雪\n0:00 a": [(0.0, "狐狸 第一场雪, a")],
    r"\{a b | c": [(0.0, "{a b"), (10.0, "c")],
    "\u200eScene 1: a\n\u200e**Scene 2** b": [(0.0, "a"), (10.0, "b")],
    "---\na cat\n5 cats run\n---": [(0.0, "a cat 5 cats run")],
    "5-10 people\n3-4 dogs, 10,000 birds": [(0.0, "5-10 people 3-4 dogs, 10,000 birds")],
    "80s: neon": [(0.0, "80s: neon")],
    **{
        text: [(0.0, "fox"), (10.0, "wolf")]
        for text in (
            "Scene 1\nfox\nScene 2\nwolf",
            "## Scene 1\nfox\n## Scene 2\nwolf",
            "**Scene 1**\nfox\n**Scene 2**\nwolf",
            "[Scene 1]\nfox\n[Scene 2] wolf",
            "Scene One: fox\nScene Two: wolf",
            "SCENE I - fox\nSCENE II - wolf",
            "**Scene 1** fox\n**Scene 2** wolf",
            "Scene 1. fox\nScene #2: wolf",
            "Scene 1 | fox\nScene 2 | wolf",
            "Scene 1: fox\n———\nScene 2: wolf\n***",
            "场景1：fox\n场景2：wolf",
            "場景一：fox\n第二幕：wolf",
            "シーン１：fox\nシーン２\nwolf",
            "장면 1: fox\n장면 2: wolf",
        )
    },
    "1\n00:00:00,000 --> 00:00:05,000\nfox &amp; wolf &lt;3 Q&A &amp;lt; {a}&#10;b": [
        (0.0, "fox & wolf <3 Q&A &lt; {a} b")
    ],
    "1\n00:00:00,000 --> 00:00:05,000\nshop?a=1&copy=2 &amp &copy; &#65 &#65;": [
        (0.0, "shop?a=1&copy=2 &amp © &#65 A")
    ],
    "[1s: waves] [3s: jumps]": [(1.0, "waves"), (3.0, "jumps")],
    "[0s: walks [close-up]] [2s: sits]": [(0.0, "walks [close-up]"), (2.0, "sits")],
    '"0": "spring",\n"24": "summer"': [(0.0, "spring"), (1.5, "summer")],
    "Scene 1：狐\nScene 2：狼": [(0.0, "狐"), (10.0, "狼")],
    "狐｜狼": [(0.0, "狐"), (10.0, "狼")],
    "0：00 Ｆｏｘ：狐（赤）": [(0.0, "Ｆｏｘ：狐（赤）")],
    "0:00 fox\n0:05 👩\u200d🚀 می\u200cخواهم": [(0.0, "fox"), (5.0, "👩\u200d🚀 می\u200cخواهم")],
    "9:16 vertical | 16:9 wide": [(0.0, "9:16 vertical"), (10.0, "16:9 wide")],
    "a clock shows 10:15 | it shows 10:20": [
        (0.0, "a clock shows 10:15"),
        (10.0, "it shows 10:20"),
    ],
    "0:05 fox\n0:10 wolf": [(5.0, "fox"), (10.0, "wolf")],
    "[1:00-1:05] fox": [(60.0, "fox")],
    "0:00 a clock shows 10:15 now": [(0.0, "a clock shows 10:15 now")],
    "[0:00] a timer shows 0:05 and beeps": [(0.0, "a timer shows 0:05 and beeps")],
    r"a \{b|c\} d | e": [(0.0, "a {b|c} d"), (10.0, "e")],
    "a {b} | c {d}": [(0.0, "a {b}"), (10.0, "c {d}")],
    '```json\n{"prompts": ["fox", "wolf"]}\n```': [(0.0, "fox"), (10.0, "wolf")],
}


@pytest.mark.parametrize("text", OTHER_READINGS)
def test_words_keep_their_letters_and_times_their_places(text):
    assert starts(text) == OTHER_READINGS[text]


LIKE = "begins like a time, a scene, a tag or a comment and would be words of a prompt; write it as"
FIRST = (
    "does not begin with a time that can be read; write 0:00 a cat walks or Scene 1 (0:00-0:05): a"
)
NO_STORIES = {  # a text, and what is said of it
    **{
        text: f"line 2: {text.partition(chr(10))[2]!r} {LIKE}"
        for text in (
            "0:00 a\n0: 10 b",
            "0:00 a\n0:\u200e10 b",
            "0:00 a\n0:10 pm b",
            "0:00 a\n30s b",
            "0:00 a\n5 seconds later b",
            "0:00 a\n5-10 min. b",
            "0:00 a\n- 1 m: b",
            "0:00 a\n0.10 b",
            "0:00 a\n<0:10> b",
            "0:00 a\n00:00:05:12 b",
            "0:00 a\n0:10,5 b",
            "0:00,a\n0:10,5 cats",
            '0:00,a\n0:10,"b"',
            "0:00 a harbour\n16:9 film still",
            "0:00 a\nScene 2: b",
            "0:00 a\nShot 2: b",
            "0:00 a\nShot 2 (5-10 f): b",
            "0:00 a\n// note",
            "0:00 a\n# note",
            "0:00 a\n[cut] b",
            "Scene 1: a\nScene 2 (5-10 f): b",
            "Scene 1: a\nScene 2 (5s): b",
            "Scene 1: a\n- Scene 2 b",
            "Scene 1: a\n0:05 b",
            "Scene 1: a\n5s: b",
            "Scene 1: a\n(5s) b",
            "Scene 1: a\n[10] b",
            "Scene 1: a\n[10-15] b",
            "Scene 1: a\n1:00",
            "Scene 1: a\n0:05-0:10",
            "Scene 1: a\nTime: 0:00-0:10",
            "Scene 1: a\n**Duration:** 5 s",
            "Scene 1: a\n# note",
            "Scene 1: a\n[cut]",
            "Shot 1 (0:00): a\nShot 2: b",
            "Scene 1: a\nScene 2; b",
            "Scene 1: a\n5s b",
            "Scene 1: a\nDauer: 5 s",
            "Scene 1: a\n持续时间：5秒",
            "0:00 a\n场景2《河》：b",
        )
    },
    **{
        text: f"line {line}: {shown!r} stands inside a prompt; write each prompt on a line of its"
        for text, line, shown in (
            ("0:00 a\nat 0:10 b", 2, "0:10"),
            ("0:00\t0:10\ta\n0:10\t0:20\tb", 1, "0:10"),
            ("0-5s: a 5-10s: b", 1, "5-10s:"),
            ("0:00 a fox 0:05 a wolf", 1, "0:05"),
            ("0:00 a fox, 0:05 a wolf", 1, "0:05"),
            ("(0:00) a fox (0:05) a wolf", 1, "(0:05)"),
            ("(0:00-0:05) a fox (0:05-0:10) a wolf", 1, "(0:05-0:10)"),
            ("0:00 a fox (0:05-0:10)", 1, "(0:05-0:10)"),
            ("0:00 a Scene 2: b", 1, "Scene 2:"),
            ("Scene 1: a Scene 2: b", 1, "Scene 2:"),
            ("Scene 1: a (5 s)\nb", 1, "(5 s)"),
            ("Scene 1: a\nb (5 s)", 2, "(5 s)"),
            ("Scene 1: a (duration: 5s)\nb", 1, "(duration: 5s)"),
            ("Scene 1: a - 5s\nb", 1, "- 5s"),
            ("Scene 1: a (0:00-0:05) b (0:05-0:10)", 1, "(0:00-0:05)"),
            ("Scene 1: a (wide, 0:00-0:05)", 1, "0:00-0:05)"),
            ("Scene 1: 0:05 a", 1, "0:05"),
            ("0:00 a **0:10** b", 1, "0:10"),
            ("Scene 1: a (0-5)\nScene 2: b (5-10)", 1, "(0-5)"),
            ("Scene 1: a {0:00-0:05}\nScene 2: b", 1, "{0:00-0:05}"),
            ("Scene 1: a @0:00\nScene 2: b", 1, "@0:00"),
            ("Scene 1: a (5 sec.)\nScene 2: b", 1, "(5 sec.)"),
            ("Scene 1: a – 5s.\nScene 2: b", 1, "– 5s."),
            ("【场景1】猫【场景2】狗", 1, "场景2】"),
            ("Scene 1 [0:00-0:05]: a. Scene 2: b", 1, "Scene 2:"),
            ("Shot 1 [0:00-0:05] a. Shot 2 (0:05-0:10) b", 1, "(0:05-0:10)"),
        )
    },
    **{
        "\n".join(lines): f"line 1: {lines[0]!r} {FIRST}"
        for lines in (
            ("0:00text",),
            ("0: 00 text",),
            ("0:00;text",),
            ('"0:00","a"',),
            ('0:00,"a"',),
            ("0:00,0:05,a",),
            ("00:00:00:00 a",),
            ("00:00:00,000 --> 00:00:05,000 a",),
            ("Shot 1 (5s): a",),
            ("Scene 1 (5s): a", "Scene 2 (6s): b"),
            ("Scene 1: **0:00** a", "Scene 2: **0:15** b"),
            ("Scene 1 *0-15s* a", "Scene 2 *15-20s* b"),
            ("Scene 1 `0s` a", "Scene 2 `15s` b"),
            ("Scene 1 **(00:01:00)** a", "Scene 2 **(00:02:00)** b"),
            ("场景1《森林》：猫", "场景2《河》：狗"),
            ("Scene 1; a", "Scene 2; b"),
            ("0-5 Sek.: a", "5-10 Sek.: b"),
            ("0'05\" a", "0'10\" b"),
            ("0h00m05s a", "0h00m10s b"),
            ("[Scene 1: a]", "[Scene 2: b]"),
            ("Scene 1 a", "Scene 2 b"),
            ("10s a", "20s b"),
            ("0: 00 a", "0: 10 b"),
            ("0:00;a", "0:10;b"),
            ("0,a", "5,b"),
            ("0-5: a", "5-10: b"),
            ("(0-5) a", "(5-10) b"),
            ("Second 0: a", "Second 10: b"),
            ("From 0:00 to 0:05: a", "From 0:05 to 0:10: b"),
            ("T=0s: a", "T=10s: b"),
            ("First 5 seconds: a", "Next 5 seconds: b"),
            ("**The Forest (0:00-0:05)**", "a", "**The Lake (0:05-0:10)**", "b"),
            ("a fox (0-5s)", "a wolf (5-10s)"),
            ("<b>0:00</b> a", "<b>0:10</b> b"),
        )
    },
    "a fox\n时长：5秒": f"line 2: '时长：5秒' {FIRST}",
    "a\n---\nb": "line 2: '---' stands between words; remove it, or write 0:00 a cat walks",
    "| t | p |\n|---|---|\n| 0:00 | a |": "line 2: '|---|---|' stands between words; remove it",
    "My story\n0:00 a\n0:05 b": "line 1: 'My story' stands before the first time",
    "My story\n0:05 b": "line 1: 'My story' stands before the first time",
    "\n// note\n0:00 a\n0:05 b": "line 2: '// note' stands before the first time",
    "# note\n0:00 a": "line 1: '# note' stands before the first time",
    "A title\nScene 1: a\nScene 2: b": "line 1: 'A title' stands before the first time",
    "A title\nScene 1: a": "line 1: 'A title' stands before the first time",
    'A title\n"0": "a",\n"24": "b"': f"""line 2: '"0": "a",' {FIRST}""",
    "A title\n(0:00) a\n(0:05) b": "line 1: 'A title' stands before the first time",
    "[0-5s] a\n5 seconds later it sits, [6-10s] b": (
        "line 2: '5 seconds later it sits' begins like a time"
    ),
    "a man [1s: waves] [3s: jumps]": "[1s: stands inside a prompt; begin the text with the first",
    "a cat [00:00:05:00] jumps": "0:00:05:0 stands inside a prompt",
    "Scene 1: [00:00:00,000 - 00:00:05,000] a\nScene 2: b": "0:00:00,0 stands inside a prompt",
    "Scene 1 [5s]: a\nScene 2 [8s]: b": "line 1: 'Scene 1 [5s]' can be a start or a length",
    "a cat\nNegative prompt: blurry": "'Negative prompt: blurry' is a comment or a negative prompt",
    "a cat\nPrompt négatif : flou": "'Prompt négatif : flou' is a comment or a negative prompt",
    "场景1：猫\n负面提示词：模糊": "line 1: '负面提示词：模糊' is a comment or a negative prompt",
    "0:00 a\n0:03 [disolve 1.5 s] b": "line 2: [disolve 1.5 s] is not a tag",
    "0:00 a cat --neg blurry": "line 1: '--neg blurry' is a comment or a negative prompt",
    "0:00 a // note\n0:05 b": "line 1: '// note' is a comment",
    "a fox // note": "'// note' is a comment",
    "a fox /* red */ runs | b": "line 1: '/* red */ runs' is a comment",
    '"0": "a", "0": "b"': "a name is there twice",
    '{"0": "a", "0": "b"}': "a name is there twice",
    '"0": "a", "1": ' + "[" * 100_000: "not valid JSON (maximum recursion depth exceeded",
    "9:16 vertical video\n0:05 b": "line 1: '9:16' is no first time; begin with 0:00",
    "7:30 train leaves\n8:00 it arrives": "as in 0:00 7:30 train leaves",
    "[9:16] vertical video": "line 1: '[9:16]' is no first time",
    **dict.fromkeys(
        (
            "a {red|blue} fox",
            "a {red｜blue} fox",
            "0:00 a {red|blue} fox",
            "a {2$$a|b|c} d",
            "{a|{b|c}} d",
            "{{a}|{b}} d",
            "a { b | c",
            '["a {b|c}"]',
            "[fox|wolf] in snow",
            "0:00 a [fox|wolf]\n0:05 snow",
        ),
        "{red|blue} or [red|blue] chooses a word in other programs, not here: write one",
    ),
    **{
        text: f"{change!r} changes words during a picture in other programs, not here"
        for change in ("[a fox:a wolf:0.5]", "[:a wolf:12]", "[a fox::.25]")
        for text in (change, f"a photo of {change}", f"0:00 a photo of {change}\n0:05 snow")
    },
    '"0": "a"\n"24": "b"': """not valid JSON (Expecting ',' delimiter: line 2 column""",
    '"0": "a", "24": 5': "a JSON timeline is",
    '{"prompts": ["a"], "switch_frame_indices": [3]}': "one fewer than the prompts",
    '{"0": "a" "24": "b"}': "not valid JSON",
}


@pytest.mark.parametrize("text", NO_STORIES)
def test_what_is_no_story_is_refused_with_the_words_and_a_way_out(text):
    with pytest.raises(TimelineError, match=re.escape(NO_STORIES[text])) as error:
        read_any(text)
    assert len(str(error.value)) < 250 and "\n" not in str(error.value)


def test_frames_of_a_schedule_are_those_of_the_model():
    timeline = read_any('"0": "a",\n"48": "b"', clock=LONGLIVE2.clock)
    assert timeline.requested == (0.0, 2.0)


def test_the_editor_reads_a_pasted_text_and_leaves_it_as_it_is():
    text = "【0：00】狐\u00a0\n【0：05】 [flush] \\{a|b\\}"
    read = answer({"text": text})
    assert read["text"] == text and [segment["text"] for segment in read["segments"]] == [
        "狐",
        "\\{a|b\\}",
    ]
    written = answer({"segments": read["segments"]})["text"]
    assert written == "0:00 狐\n0:05 [flush] \\{a|b\\}"
    assert read_any(written).segments == read_any(text).segments


def subtitles(prompts: list[tuple[int, int, str]], point: str) -> str:
    """Subtitles with a cue for each prompt: SubRip's have a comma for a point."""
    cues = [
        f"{number}\n00:0{format_time(start)} --> 00:0{format_time(end)}\n{words}"
        for number, (start, end, words) in enumerate(prompts, 1)
    ]
    return re.sub(r"(\d\d)\.(\d\d\d)", rf"\1{point}\2", "\n\n".join(cues))


LINES = {  # a form, and the line of a prompt in it, with its start and end in seconds
    "times": "0:{0:02} {2}",
    "bullets": "- 0:{0:02} {2}",
    "bold": "**0:{0:02}**: {2}",
    "numbers": "1) 0:{0:02} - {2}",
    "ranges": "[0:{0:02}-0:{1:02}] {2}",
    "parentheses": "(0:{0:02}~0:{1:02}) {2}",
    "arrows": "0:{0:02} --> 0:{1:02}: {2}",
    "seconds": "{0}s: {2}",
    "words": "{0} sec: {2}",
    "inside": "[{0}s-{1}s: {2}]",
    "shots": "Shot 1 (0:{0:02}-0:{1:02}): {2}",
    "full width": "【0：{0:02}】{2}",
    "Chinese": "{0}秒：{2}",
}


def lines_of(line: str, prompts) -> str:
    return "\n".join(line.format(*prompt) for prompt in prompts)


FORMS = {name: partial(lines_of, line) for name, line in LINES.items()}
FORMS |= {
    "srt": lambda prompts: subtitles(prompts, ","),
    "vtt": lambda prompts: f"WEBVTT\n\n{subtitles(prompts, '.')}",
    "frames": lambda prompts: ",\n".join(
        f'"{16 * start}": "{words}"' for start, _, words in prompts
    ),
    "spaces": lambda prompts: "\u2028".join(
        f"\u200b0:{start:02}\u00a0{words}" for start, _, words in prompts
    ),
}
words = (
    st.text("abc 狐é,.👩😀٠'", min_size=1, max_size=12)
    .map(fold)
    .filter(lambda text: text[:1].isalpha())
)


@given(
    st.lists(st.tuples(words, st.integers(1, 9)), min_size=1, max_size=5),
    st.sampled_from(sorted(FORMS)),
)
def test_a_written_story_reads_as_the_same_in_every_form(story, form):
    clock = BlockClock()
    times = [0]
    for _, length in story:
        times.append(times[-1] + length)
    placed = [
        PlacedPrompt(text, clock.block_at(time) if time else 0, asked=time)
        for (text, _), time in zip(story, times, strict=False)
    ]
    written = read_any(write_timeline(placed, clock), times[-1])
    prompts = [
        (start, end, text) for (text, _), start, end in zip(story, times, times[1:], strict=False)
    ]
    read = read_any(FORMS[form](prompts), times[-1])
    assert read.segments == written.segments and read.requested == written.requested


def test_words_that_begin_with_a_picture_s_name_are_a_prompt_and_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in ("@hero a red ball", "@Hero, a red ball", "@hero", "@hero " + "a red ball " * 99):
        assert read_text(words, ["hall", "hero"]) == words
    for words in ("@hero a red ball", "@hero.txt", "@wolf"):
        with pytest.raises(HeadForcingError, match="was not found"):
            read_text(words, [] if words == "@hero a red ball" else ["hero"])
    with pytest.raises(
        HeadForcingError, match="a prompt that begins with @ is written 0:00 @hero a red ball"
    ):
        read_text("@hero a red ball")
    (tmp_path / "hero").write_text("0:00 a fox", encoding="utf-8")
    assert read_text("@hero", ["hero"]) == "0:00 a fox"


@pytest.mark.parametrize("name", ["story.srt", "story.txt"])
def test_a_file_of_subtitles_is_a_story(tmp_path, name):
    text = (
        "\ufeff1\r\n00:00:00,000 --> 00:00:05,000\r\nfox\r\n\r\n2\r\n00:00:05,000 --> "
        "00:00:10,000\r\nwolf\r\n"
    )
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert starts(read_text(f"@{tmp_path / name}")) == [(0.0, "fox"), (5.0, "wolf")]
