"""Sentences that are translated in the page: the English text, and the parts that are sent."""

import importlib.util
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "nodes" / "host" / "sentences.py"
# the package `nodes.host` needs ComfyUI
spec = importlib.util.spec_from_file_location("sentences_of_players", FILE)
assert spec and spec.loader
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
Sentence = module.Sentence
joined = module.joined
parts_of = module.parts_of


def test_a_sentence_is_its_english_text_and_remembers_its_parts():
    block = Sentence("block %1 of %2", 3, 17)
    assert block == "block 3 of 17" and block.parts == ["block %1 of %2", "3", "17"]
    text = joined([block, Sentence("prompt %1: %2", 1, "100%1 wool")], " - ")
    assert text == "block 3 of 17 - prompt 1: 100%1 wool", "a value is never read as a template"
    assert text.parts == ["%1 - %2", block.parts, ["prompt %1: %2", "1", "100%1 wool"]]
    assert parts_of("as it is") == "as it is"
