"""Answers as language models write them to the text of docs/writing_a_story.md are read as the stories they are."""

from pathlib import Path

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.timeline.paste.paste import read_any

FOX = "A red fox trots through the snowy forest. Its breath is white."
LAKE = "The red fox stops at the frozen lake. The ice cracks."
DEN = "The red fox sleeps in the den under the oak. Snow falls outside."
SHARED = "A red fox with a white tail, soft morning light"
BEGINS = (0.0, 10.5, 20.25)  # seconds of the blocks nearest to 0, 10 and 20
ANSWERS = {
    "as asked": f"[shared] {SHARED}\n0:00 {FOX}\n0:10 {LAKE}\n0:20 {DEN}",
    "a code fence": f"```\n[shared] {SHARED}\n0:00 {FOX}\n0:10 {LAKE}\n0:20 {DEN}\n```",
    "a fence with a language": f"```text\n[shared] {SHARED}\n0:00 {FOX}\n0:10 {LAKE}\n0:20 {DEN}\n```",
    "empty lines between": f"[shared] {SHARED}\n\n0:00 {FOX}\n\n0:10 {LAKE}\n\n0:20 {DEN}\n",
    "bullets": f"- 0:00 {FOX}\n- 0:10 {LAKE}\n- 0:20 {DEN}",
    "bold times": f"**0:00** {FOX}\n**0:10** {LAKE}\n**0:20** {DEN}",
    "bold times and colons": f"**0:00:** {FOX}\n**0:10:** {LAKE}\n**0:20:** {DEN}",
    "numbered": f"1. 0:00 {FOX}\n2. 0:10 {LAKE}\n3. 0:20 {DEN}",
    "ranges in brackets": f"[0:00-0:10] {FOX}\n[0:10-0:20] {LAKE}\n[0:20-0:30] {DEN}",
    "ranges with dashes of typesetters": f"0:00–0:10 {FOX}\n0:10–0:20 {LAKE}\n0:20–0:30 {DEN}",
    "ranges and colons": f"0:00 - 0:10: {FOX}\n0:10 - 0:20: {LAKE}\n0:20 - 0:30: {DEN}",
    "a colon after each time": f"0:00: {FOX}\n0:10: {LAKE}\n0:20: {DEN}",
    "a dash after each time": f"0:00 – {FOX}\n0:10 – {LAKE}\n0:20 – {DEN}",
    "two digits": f"00:00 {FOX}\n00:10 {LAKE}\n00:20 {DEN}",
    "scenes with times": f"Scene 1 (0:00-0:10): {FOX}\nScene 2 (0:10-0:20): {LAKE}\n"
    f"Scene 3 (0:20-0:30): {DEN}",
    "shots with times": f"Shot 1 [0:00-0:10] {FOX}\nShot 2 [0:10-0:20] {LAKE}\nShot 3 [0:20-0:30] {DEN}",
    "seconds": f"[0s-10s] {FOX}\n[10s-20s] {LAKE}\n[20s-30s] {DEN}",
    "seconds with one unit": f"0-10s: {FOX}\n10-20s: {LAKE}\n20-30s: {DEN}",
    "seconds in bold": f"**0–10s:** {FOX}\n\n**10–20s:** {LAKE}\n\n**20–30s:** {DEN}",
    "rows with commas": f"0:00,{FOX}\n0:10,{LAKE}\n0:20,{DEN}",
    "bars": f"0:00 | {FOX}\n0:10 | {LAKE}\n0:20 | {DEN}",
    "rules": f"0:00 {FOX}\n\n---\n\n0:10 {LAKE}\n\n---\n\n0:20 {DEN}",
    "headings of scenes": f"## Scene 1\n{FOX}\n\n## Scene 2\n{LAKE}\n\n## Scene 3\n{DEN}",
    "scenes in brackets": f"[Scene 1]\n{FOX}\n\n[Scene 2]\n{LAKE}\n\n[Scene 3]\n{DEN}",
    "Chinese scenes": f"场景1：{FOX}\n场景2：{LAKE}\n场景3：{DEN}",
    "Japanese scenes": f"シーン1：{FOX}\nシーン2：{LAKE}\nシーン3：{DEN}",
    "Korean scenes": f"장면 1: {FOX}\n장면 2: {LAKE}\n장면 3: {DEN}",
    "times behind scenes": f"**Scene 1: (0:00-0:10)**\n{FOX}\n**Scene 2: (0:10–0:20)**\n{LAKE}\n"
    f"**Scene 3: (0:20-0:30)**\n{DEN}",
    "beats": f"Beat 1 (0:00-0:10): {FOX}\nBeat 2 (0:10-0:20): {LAKE}\nBeat 3 (0:20-0:30): {DEN}",
    "seconds as words": f"0 sec: {FOX}\n10 sec: {LAKE}\n20 sec: {DEN}",
    "a prompt over two lines": f"0:00 A red fox trots through the snowy forest.\nIts breath is white.\n"
    f"0:10 {LAKE}\n0:20 {DEN}",
    "Windows": f"[shared] {SHARED}\r\n0:00 {FOX}\r\n0:10 {LAKE}\r\n0:20 {DEN}\r\n",
    "headings": f"### 0:00 {FOX}\n### 0:10 {LAKE}\n### 0:20 {DEN}",
    "subtitles": f"1\n00:00:00,000 --> 00:00:10,000\n{FOX}\n\n2\n00:00:10,000 --> 00:00:20,000\n{LAKE}\n\n"
    f"3\n00:00:20,000 --> 00:00:30,000\n{DEN}\n",
}


@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_of_this_form_is_the_story(form):
    timeline = read_any(ANSWERS[form], 30.0)
    shared = f"{SHARED}, " if "[shared]" in ANSWERS[form] else ""
    assert [segment.text for segment in timeline.segments] == [
        shared + text for text in (FOX, LAKE, DEN)
    ]
    starts = [segment.start_block * 0.75 for segment in timeline.segments]
    assert starts == pytest.approx(BEGINS, abs=0.76)


@pytest.mark.parametrize(
    "before", ["Here is your story:", "**Title: The Fox**", "Sure! Here it is."]
)
def test_words_before_the_first_time_are_refused_with_a_sentence(before):
    with pytest.raises(HeadForcingError, match="stands before the first time"):
        read_any(f"{before}\n\n0:00 {FOX}\n0:10 {LAKE}", 30.0)


@pytest.mark.parametrize("names", ["Prompt {}:", "Segment {}:", "**Part {}**:", "{}.", "镜头{}："])
def test_prompts_with_numbers_and_without_times_share_the_length(names):
    answer = "\n\n".join(
        f"{names.format(number)} {text}" for number, text in enumerate((FOX, LAKE, DEN), 1)
    )
    timeline = read_any(answer, 30.0)
    assert [segment.text for segment in timeline.segments] == [FOX, LAKE, DEN]
    assert timeline.requested == (0.0, 10.0, 20.0)


def test_the_title_of_a_scene_stays_and_its_time_does_not():
    text = f"**Scene 1: The Forest (0:00-0:10)**\n{FOX}\n**Scene 2: The Lake (0:10–0:20)**\n{LAKE}"
    timeline = read_any(text, 20.0)
    assert [segment.text for segment in timeline.segments] == [
        f"The Forest {FOX}",
        f"The Lake {LAKE}",
    ]
    assert timeline.requested == (0.0, 10.0)


def test_the_tags_that_the_text_asks_for_are_read():
    text = f"0:00 {FOX}\n0:10 [cut] {LAKE}\n0:20 [recall 1] {FOX}"
    switches = [segment.switch for segment in read_any(text, 30.0).segments]
    assert switches[1].re_anchor and switches[2].recall == 1


def test_the_page_holds_the_text(repo_root: Path):
    page = (repo_root / "docs" / "writing_a_story.md").read_text("utf-8")
    for words in (
        "[shared]",
        "0:00 first scene",
        "[cut] after its time",
        "[recall N] after its time",
    ):
        assert words in page
