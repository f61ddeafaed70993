"""What the workflows refer to: the files of models and where they come from, the pack of each node,
and their texts.

The editor offers the download of a missing file, and the installation of a missing pack, from a
node's properties.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).parent / "workflow_texts"
PACK = ("headforcing", "0.1.0")
CORE = ("comfy-core", "0.30.0")
MODELS: list[dict[str, str]] = json.loads((TEXTS / "models.json").read_text(encoding="utf-8"))
"""`node` that loads it, `name`, `url` and `directory` of every model."""


def models_of(names: set[str]) -> dict[str, dict[str, str]]:
    """The models with these names, by the node that loads them."""
    keys = ("name", "url", "directory")
    found = {}
    for model in MODELS:
        if model["name"] in names:
            found[model["node"]] = {key: model[key] for key in keys}
    return found


def add_sources(graph: dict[str, Any]) -> None:
    """Add the properties to the nodes of a workflow in the editor's format."""
    values = chain(*(node.get("widgets_values") or () for node in graph["nodes"]))
    models = models_of(set(map(str, values)))
    for node in graph["nodes"]:
        kind = node["type"]
        properties = node.setdefault("properties", {})
        if kind == "MarkdownNote":  # part of the editor itself
            continue
        properties["cnr_id"], properties["ver"] = PACK if kind.startswith("HeadForcing") else CORE
        if kind in models:
            properties["models"] = [models[kind]]


def story(name: str) -> str:
    """A story of `workflow_texts/stories`."""
    return (TEXTS / "stories" / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def note(name: str, names: set[str]) -> str:
    """The note of a workflow, with a list of those of its models that have these names in place of
    FILES.
    """
    models = models_of(names).values()
    lines = [
        f"- [{model['name']}]({model['url']})\n  in *models/{model['directory']}*"
        for model in models
    ]
    files = "**Files** (ComfyUI offers to download what is missing)\n\n" + "\n".join(lines)
    text = (TEXTS / "notes" / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
    return text.replace("FILES", files)


def write(graph: dict[str, Any], path: Path) -> None:
    """Write a workflow as a file."""
    path.write_text(json.dumps(graph, indent=1) + "\n", encoding="utf-8")
