"""Every text of every node is there in every language, and ComfyUI serves it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from comfy_browser import Browser, of_player
from comfy_graphs import growing_graph
from make_locales import (
    FOLDER,
    LANGUAGES,
    SYNTAX,
    english,
    missing,
    of_scripts,
    strings,
    translated,
    translations,
)

AGAIN = "change generators/translations.txt, then run python tasks.py write locales"

# whatever the language
TYPED = ("[recache]", "[flush]", "[blend 3]", "[re-anchor]", "832x480", "0.75")


@pytest.fixture
def spoken_in(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """A page of a server, in a language."""
    name, language = request.param.split(", ")
    server = request.getfixturevalue(name)
    server.post("/settings/Comfy.Locale", language)
    try:
        with Browser(server, size=(1600, 1200), any_source=True) as page:
            yield page
            assert (page.page_errors, page.alerts) == ([], [])
    finally:
        server.post("/settings/Comfy.Locale", "en")


def test_translations_are_those_of_todays_texts_and_served(comfy):
    """A text that is not translated yet is English: in the file, or where the frontend finds none
    in it.
    """
    texts = english(comfy.object_info())
    assert len(missing(texts)) < 0.1 * len(strings(texts)), AGAIN
    assert [text for text in strings(texts) if set(text) & set(SYNTAX)] == [], (
        "the oldest frontend shows no page then"
    )
    served = comfy.get_json("/i18n")
    for language, known in translations().items():
        stored = json.loads((FOLDER / language / "nodeDefs.json").read_text(encoding="utf-8"))
        assert outdated(stored, translated(texts, known)) == [], f"{language}: {AGAIN}"
        assert {name: served[language]["nodeDefs"][name] for name in stored} == stored
        told = json.loads((FOLDER / language / "main.json").read_text(encoding="utf-8"))
        assert outdated(told, of_scripts(language)) == [], f"{language}: {AGAIN}"
        assert served[language]["headforcing"] == told["headforcing"]
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(LANGUAGES)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoken_in", "words", "length"),
    [("comfy_floor, ja", "複製", "1:00"), ("comfy_floor, fr", "Copy", "1:00")],
    ids=["comfy_floor, ja", "comfy_floor, fr"],
    indirect=["spoken_in"],
)
def test_the_editor_speaks_the_language_of_the_settings(
    spoken_in: Browser, words: str, length: str
):
    page = spoken_in.page
    spoken_in.load_workflow(FOLDER.parent / "workflows" / "01 Demo without downloads.json")
    page.wait_for_function(
        "(text) => document.querySelector('.hf-status').textContent === text", arg=length
    )
    assert page.locator(f".hf-tools input[value='{words}']").count() == 1


def outdated(stored: Any, texts: Any, place: str = "") -> list[str]:
    """Where a stored text is not that of the nodes; texts that are not stored are no fault."""
    if not isinstance(stored, dict) or not isinstance(texts, dict):
        return [] if stored == texts else [place]
    found = []
    for key in stored:
        found += outdated(stored[key], texts.get(key), f"{place}/{key}")
    return found


def test_no_text_has_characters_that_the_frontend_reads_as_syntax_and_tags_stay_as_they_are_typed():
    for known in translations().values():
        for text, translation in known.items():
            assert (
                translation.strip() == translation
                and translation
                and not set(translation) & set(SYNTAX)
            ), text
            assert all(tag in translation for tag in TYPED if tag in text), translation


@pytest.mark.slow
@pytest.mark.parametrize("spoken_in", ["comfy_latest, zh"], indirect=True)
def test_the_player_says_what_the_server_tells_in_the_language_of_the_settings(spoken_in: Browser):
    page = spoken_in.page
    said = f"({of_player()}?.firstChild.textContent ?? '')"
    spoken_in.load_api(growing_graph("locales/v", 6.0, seed=905))
    spoken_in.server.hold(9)  # 2 of 9 blocks
    page.evaluate("() => app.queuePrompt(0)")
    page.wait_for_function(f"/^0:0\\d \\/ 0:06 - 提示词 1：a/.test({said})")
    spoken_in.server.hold(None)
    page.wait_for_function(
        f"{said}.startsWith('已写入 output/locales/v_00001_.mp4 - 视频 0:06，用时 0:')"
    )
