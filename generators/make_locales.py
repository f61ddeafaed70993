"""Writes locales/*/nodeDefs.json and main.json: the texts of all nodes and of the scripts in
nodes/web, translated.

    python tasks.py write locales

ComfyUI serves these files and its frontend shows them in the language of the settings. A
translation belongs to a text,
not to an input: translations.txt holds paragraphs of four lines, English, Chinese, Japanese and
Korean. The English of nodes is written in locales/en/nodeDefs.json, which gets the names of new
inputs here, that of scripts in `t("text")`, and that of what the player says in `Sentence("text")`.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from comfy_harness import ComfyServer
from comfy_setup import ensure
from headforcing.headforcing_core.methods.registry import method_names

REPO = Path(__file__).resolve().parents[1]
FOLDER = REPO / "locales"
LANGUAGES = ("en", "zh", "ja", "ko")
# characters with a meaning in the frontend's messages, which not all of its versions escape alike
SYNTAX = "{}|@"
LITERAL = r'"(?:[^"\\]|\\.)*"'  # a string of Python or JavaScript

Texts = dict[str, Any]


def translations() -> dict[str, dict[str, str]]:
    """By language the translation of every English text."""
    paragraphs = (
        (Path(__file__).parent / "translations.txt")
        .read_text(encoding="utf-8")
        .strip()
        .split("\n\n")
    )
    known: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
    for paragraph in paragraphs:
        texts = [
            line.replace("METHODS", ", ".join(method_names())) for line in paragraph.split("\n")
        ]
        if len(texts) != len(LANGUAGES):
            raise ValueError(f"expected {len(LANGUAGES)} lines, one per language: {paragraph}")
        for language, text in zip(LANGUAGES, texts, strict=True):
            known[language][texts[0]] = text
    return known


def english(nodes: dict[str, Any]) -> Texts:
    """The texts of the pack's nodes from ComfyUI's /object_info, as a nodeDefs.json has them."""
    return {
        name: _node(info) for name, info in sorted(nodes.items()) if name.startswith("HeadForcing")
    }


def _node(info: dict[str, Any]) -> Texts:
    given = {**info["input"].get("required", {}), **info["input"].get("optional", {})}
    inputs = {
        name: _described(spec[1].get("display_name", name), spec[1].get("tooltip"))
        for name, spec in given.items()
    }
    tooltips = info.get("output_tooltips") or [None] * len(info["output_name"])
    named = zip(info["output_name"], tooltips, strict=True)
    outputs = {str(place): _described(name, tooltip) for place, (name, tooltip) in enumerate(named)}
    texts = {"display_name": info["display_name"], "description": info["description"]}
    return texts | {
        key: value for key, value in (("inputs", inputs), ("outputs", outputs)) if value
    }


def _described(name: str, tooltip: str | None) -> Texts:
    return {"name": name} | ({"tooltip": tooltip} if tooltip else {})


def script_texts() -> list[str]:
    """The English texts that scripts show: what they call `t` with, and the sentences of the
    server.
    """
    texts = []
    for script in sorted((REPO / "nodes" / "web").rglob("*.js")):
        code = script.read_text(encoding="utf-8")
        texts += [json.loads(text) for text in re.findall(rf"\bt\(\s*({LITERAL})", code)]
    for module in sorted((REPO / "nodes").rglob("*.py")):
        code = module.read_text(encoding="utf-8")
        for parts in re.findall(rf"\bSentence\(\s*((?:{LITERAL}\s*)+)", code):
            texts.append("".join(json.loads(part) for part in re.findall(LITERAL, parts)))
    return list(
        dict.fromkeys(text for text in texts if re.search("[a-z]", re.sub("%[0-9]", "", text)))
    )


def of_scripts(language: str) -> Texts:
    """A main.json: the texts of the scripts in a language, and the name above the templates."""
    known = translations()[language]
    texts = {text: known[text] for text in script_texts() if language != "en" and text in known}
    return {
        "headforcing": texts,
        "templateWorkflows": {"category": {"headforcing": "Head Forcing"}},
    }


def strings(texts: Texts) -> list[str]:
    """All strings of a nodeDefs.json."""
    found = []
    for value in texts.values():
        found += strings(value) if isinstance(value, dict) else [value]
    return found


def translated(texts: Texts, known: dict[str, str]) -> Texts:
    """The texts in another language; a text without a translation stays English."""
    return {
        key: translated(value, known) if isinstance(value, dict) else known.get(value, value)
        for key, value in texts.items()
    }


def missing(texts: Texts) -> list[str]:
    """English texts of nodes and scripts without a translation."""
    known = translations()["en"]
    return sorted({text for text in [*strings(texts), *script_texts()] if text not in known})


def main() -> int:
    with tempfile.TemporaryDirectory() as base, ComfyServer(ensure(), Path(base)) as server:
        texts = english(server.object_info())
    for language, known in translations().items():
        (FOLDER / language).mkdir(parents=True, exist_ok=True)
        for name, content in (
            ("nodeDefs", translated(texts, known)),
            ("main", of_scripts(language)),
        ):
            path = FOLDER / language / f"{name}.json"
            path.write_text(
                json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
            )
    untranslated = missing(texts)
    for text in untranslated:
        sys.stderr.write(f"no translation in translations.txt: {text}\n")
    return 1 if untranslated else 0


if __name__ == "__main__":
    sys.exit(main())
