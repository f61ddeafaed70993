"""A workflow as one node: the subgraph blueprint that ComfyUI offers in its node library."""

import uuid
from typing import Any

NAME = "Prompt to Minute-Long Video (Head Forcing)"
DESCRIPTION = "A video of any length from prompts with times, with Self Forcing and Head Forcing."
ALIASES = ["long video", "prompt travel", "text to video", "head forcing", "self forcing", "story"]
# node, its widget, and the name of the input on the blueprint
INPUTS = (
    ("prompt", "prompts", "prompts"),
    ("prompt", "seconds", "seconds"),
    ("sampler", "width", "width"),
    ("sampler", "height", "height"),
    ("sampler", "seed", "seed"),
    ("sampler", "filename_prefix", "filename_prefix"),
    ("model", "checkpoint", "checkpoint"),
    ("clip", "clip_name", "text_encoder"),
    ("vae", "vae_name", "vae"),
)
OUTPUTS = (("sampler", "video", "video"), ("sampler", "report", "report"))
INPUT_NODE = -10
OUTPUT_NODE = -20
_LINK = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
_RENDERER = {"workflowRendererVersion": "LG"}
_NAMESPACE = uuid.UUID("6f1d7a52-52a4-4f0a-9a2c-7d6f3a1c0b11")


def stable_id(name: str) -> str:
    """The same identifier whenever a file is written."""
    return str(uuid.uuid5(_NAMESPACE, name))


def blueprint(graph: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """A saved workflow with all of `graph` (a saved workflow, too) inside one node.

    `numbers` are the ids of the nodes that `INPUTS` and `OUTPUTS` name. The note, previews and
    groups stay as they are.
    """
    nodes = {node["id"]: node for node in graph["nodes"]}
    last = graph["last_link_id"]
    links = [dict(zip(_LINK, link, strict=True)) for link in graph["links"]]
    inputs = []
    outputs = []
    values = []
    for place, (node, widget, label) in enumerate(INPUTS):
        slot, target = _slot(nodes[numbers[node]], "inputs", widget)
        last += 1
        target["link"] = last
        link = (last, INPUT_NODE, place, numbers[node], slot, target["type"])
        links.append(dict(zip(_LINK, link, strict=True)))
        inputs.append(_port("input", label, target["type"], last))
        values.append(_value(nodes[numbers[node]], widget))
    for place, (node, name, label) in enumerate(OUTPUTS):
        slot, source = _slot(nodes[numbers[node]], "outputs", name)
        last += 1
        source["links"] = [*(source["links"] or []), last]
        link = (last, numbers[node], slot, OUTPUT_NODE, place, source["type"])
        links.append(dict(zip(_LINK, link, strict=True)))
        outputs.append(_port("output", label, source["type"], last))
    inside = _inside(graph, inputs, outputs, links)
    about = {"BlueprintDescription": DESCRIPTION, "BlueprintSearchAliases": ALIASES}
    return {
        "id": stable_id(f"{NAME} blueprint"),
        "revision": 0,
        "last_node_id": 1,
        "last_link_id": 0,
        "nodes": [_outside(inside, values)],
        "links": [],
        "groups": [],
        "definitions": {"subgraphs": [inside]},
        "config": {},
        "extra": _RENDERER | about,
        "version": 0.4,
    }


def _port(side: str, label: str, kind: str, link: int) -> dict[str, Any]:
    """An input or output of the subgraph, for values of a kind."""
    return {"id": stable_id(f"{side} {label}"), "name": label, "type": kind, "linkIds": [link]}


def _inside(
    graph: dict[str, Any],
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
    links: list[dict[str, Any]],
) -> dict[str, Any]:
    """The subgraph: the nodes of `graph` with these inputs, outputs and links, the newest last."""
    right = max(node["pos"][0] + node["size"][0] for node in graph["nodes"])
    return {
        "id": stable_id(NAME),
        "version": 1,
        "state": {
            "lastGroupId": len(graph["groups"]),
            "lastNodeId": graph["last_node_id"],
            "lastLinkId": links[-1]["id"],
            "lastRerouteId": 0,
        },
        "revision": 0,
        "config": {},
        "name": NAME,
        "inputNode": {"id": INPUT_NODE, "bounding": [-320, 60, 160, 40 + 20 * len(inputs)]},
        "outputNode": {
            "id": OUTPUT_NODE,
            "bounding": [right + 120, 60, 120, 40 + 20 * len(outputs)],
        },
        "inputs": inputs,
        "outputs": outputs,
        "widgets": [],
        "nodes": graph["nodes"],
        "groups": graph["groups"],
        "links": links,
        "extra": _RENDERER,
        "category": "Video generation and editing/Text to video",
        "description": DESCRIPTION,
    }


def _outside(inside: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """The node that stands for the subgraph."""
    given = [(slot["name"], slot["type"]) for slot in inside["inputs"]]
    return {
        "id": 1,
        "type": inside["id"],
        "pos": [0, 0],
        "size": [480, 680],
        "flags": {},
        "order": 0,
        "mode": 0,
        "inputs": [
            {"name": name, "type": kind, "widget": {"name": name}, "link": None}
            for name, kind in given
        ],
        "outputs": [
            {"name": slot["name"], "type": slot["type"], "links": None}
            for slot in inside["outputs"]
        ],
        "title": NAME,
        "properties": {},
        "widgets_values": values,
    }


def _slot(node: dict[str, Any], side: str, name: str) -> tuple[int, dict[str, Any]]:
    return next((place, slot) for place, slot in enumerate(node[side]) if slot["name"] == name)


def _value(node: dict[str, Any], widget: str) -> Any:
    """The value of a widget, which the file keeps by position; a seed is followed by what is done
    to it after a run.
    """
    widgets = [slot["name"] for slot in node["inputs"] if "widget" in slot]
    values = list(node["widgets_values"])
    if "seed" in widgets:
        del values[widgets.index("seed") + 1]
    return values[widgets.index(widget)]
