"""Every text of every node is there in every language, and ComfyUI serves it."""

import json

from make_locales import FOLDER, LANGUAGES, SYNTAX, english, missing, strings, translated, translations

AGAIN = "change tests/helpers/translations.txt, then run python tests/helpers/make_locales.py"

SAME = ("[recache]", "[flush]", "[blend 3]", "[re-anchor]", "832x480", "0.75", ".safetensors", "ComfyUI/models")

# what people type into the search box, and the node that they look for
SEARCHES = {
    "prompt travel": "HeadForcingPromptTimeline",
    "prompt schedule": "HeadForcingPromptTimeline",
    "long video": "HeadForcingSampler",
    "extend": "HeadForcingSampler",
    "video combine": "HeadForcingDecodeVideo",
    "resume": "HeadForcingLoadRun",
    "XY plot": "HeadForcingCompareMethods",
    "attention": "HeadForcingProfileHeads",
}


def test_nodes_are_found_by_what_people_type_and_lie_in_categories(comfy):
    nodes = {name: info for name, info in comfy.object_info().items() if name.startswith("HeadForcing")}
    for name, info in nodes.items():
        assert len(info["search_aliases"]) >= 3, name
        assert info["category"].startswith("Head Forcing/"), name
    for typed, name in SEARCHES.items():
        assert typed in nodes[name]["search_aliases"], typed


def test_every_text_of_every_node_is_translated_and_served(comfy):
    texts = english(comfy.object_info())
    assert missing(texts) == [], AGAIN
    served = comfy.get_json("/i18n")
    for language, known in translations().items():
        stored = json.loads((FOLDER / language / "nodeDefs.json").read_text(encoding="utf-8"))
        assert stored == translated(texts, known), f"{language}: {AGAIN}"
        assert {name: served[language]["nodeDefs"][name] for name in stored} == stored
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(LANGUAGES)


def test_no_text_has_characters_that_the_frontend_reads_as_syntax():
    for known in translations().values():
        for text in known.values():
            assert text.strip() == text and text and not set(text) & set(SYNTAX), text


def test_tags_numbers_and_file_types_are_the_same_in_every_language():
    """A tag such as [flush] is typed as it is, whatever the language."""
    for known in translations().values():
        for text, translation in known.items():
            tags = [
                word for word in ("[recache]", "[flush]", "[blend 3]", "[re-anchor]", "832x480", "0.75") if word in text
            ]
            assert all(tag in translation for tag in tags), translation


def test_a_text_without_a_translation_is_noticed():
    assert missing({"Node": {"display_name": "Load Self Forcing", "inputs": {"x": {"name": "a new input"}}}}) == [
        "a new input"
    ]
    assert strings({"a": {"b": "c"}, "d": "e"}) == ["c", "e"]
