"""The shipped workflows, opened in the real editor as a user would, on the oldest and the newest
tested ComfyUI.
"""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from boxes import box_of, box_of_group, inside, overlapping
from comfy_browser import Browser, of_node, of_widget
from comfy_setup import FLOOR
from make_workflows import numbers_of, stand_ins
from PIL import Image
from workflow_blueprint import NAME as BLUEPRINT
from workflow_graphs import NEWER_CORE, RUNNABLE, WORKFLOWS
from workflow_layout import ERROR
from workflow_sources import CORE, MODELS, PACK, models_of

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
APP = "12 Minute video as an app"

# combos that list what this machine has and take other values, too
ANY_VALUE = {"SelectVAEDevice": ("device",)}


def graph_of(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_the_folder_holds_exactly_the_workflows_that_are_drawn_and_a_thumbnail_for_each():
    thumbnails = sorted(FOLDER.glob("*.jpg"))
    assert NAMES == sorted(WORKFLOWS) == [path.stem for path in thumbnails]
    for path in thumbnails:
        with Image.open(path) as picture:
            assert picture.size == (480, 480), (
                f"{path.name} is not from generators/make_thumbnails.py"
            )


@pytest.mark.parametrize("name", NAMES)
def test_the_note_reads_in_both_renderers_and_links_to_every_file(name):
    """Nodes 2.0 draws `code` in a colour that cannot be read."""
    nodes = graph_of(name)["nodes"]
    (note,) = [node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote"]
    assert note == WORKFLOWS[name].note and "`" not in note
    if name not in RUNNABLE:
        values = chain(*(node.get("widgets_values") or () for node in nodes))
        for model in models_of(set(map(str, values))).values():
            assert (
                f"[{model['name']}]({model['url']})" in note
                and f"models/{model['directory']}" in note
            )


@pytest.mark.parametrize("name", NAMES)
def test_wires_run_from_left_to_right_between_few_nodes_with_titles_in_groups(name):
    graph = graph_of(name)
    nodes = {node["id"]: node for node in graph["nodes"]}
    for _, source, _, target, _, kind in graph["links"]:
        right = nodes[source]["pos"][0] + nodes[source]["size"][0]
        assert right < nodes[target]["pos"][0], (
            f"{kind} from {nodes[source]['type']} to {nodes[target]['type']}"
        )
    boxes = []
    for node in nodes.values():
        width, height = node["size"]
        boxes.append(box_of(node["pos"], [width, height + ERROR]))
    groups = [box_of_group(group["bounding"]) for group in graph["groups"]]
    assert overlapping(boxes) == overlapping(groups) == [], "with an error below each node"
    alone = []
    for node, box in zip(nodes.values(), boxes, strict=True):
        if not any(inside(box, group) for group in groups):
            alone.append(node["type"])
    assert alone == ["MarkdownNote"]
    assert all(group["title"] and group["color"] for group in graph["groups"])
    numbers = [group["title"].split()[0] for group in graph["groups"]]
    assert numbers == [str(number) for number in range(1, len(groups) + 1)]
    titles = [node.get("title", node["type"]) for node in nodes.values()]
    assert len(set(titles)) == len(titles) < 14 and not {"PreviewImage", "PreviewAny"} & set(titles)


@pytest.mark.parametrize("name", NAMES)
def test_no_wire_runs_behind_a_node(name):
    """The one of the VAE would seem to end in the story: reroutes lead it above all groups."""
    graph = graph_of(name)
    nodes = {node["id"]: node for node in graph["nodes"]}
    reroutes = {each["id"]: each for each in graph["extra"].get("reroutes", [])}
    led = {each["id"]: each["parentId"] for each in graph["extra"].get("linkExtensions", [])}
    top = min(group["bounding"][1] for group in graph["groups"])
    for link, source, _, target, *_ in graph["links"]:
        left = nodes[source]["pos"][0] + nodes[source]["size"][0]
        right = nodes[target]["pos"][0]
        between = [node for node in nodes.values() if left < node["pos"][0] < right]
        assert bool(between) == (link in led), (nodes[source]["type"], nodes[target]["type"])
        if between:
            last = reroutes[led[link]]
            first = reroutes[last["parentId"]]
            assert left < first["pos"][0] < last["pos"][0] < right
            assert first["pos"][1] == last["pos"][1] < top
            assert first["linkIds"] == last["linkIds"] == [link]


def test_every_node_names_its_pack_and_every_loader_the_source_of_its_file():
    version = re.search(
        r'^version = "(.+)"$', (FOLDER.parent / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert version and PACK == ("headforcing", version[1])
    loaders = set()
    for name in NAMES:
        for node in graph_of(name)["nodes"]:
            kind = node["type"]
            properties = node["properties"]
            if kind == "MarkdownNote":
                continue
            ours = kind.startswith("HeadForcing")
            assert (properties["cnr_id"], properties["ver"]) == (PACK if ours else CORE), (
                name,
                kind,
            )
            if kind in {model["node"] for model in MODELS}:
                (model,) = properties["models"]
                assert model == models_of({model["name"]})[kind]
                assert (
                    model["name"] == node["widgets_values"][0] == model["url"].rpartition("/")[2]
                ), (name, kind)
                loaders.add((kind, model["directory"]))
    assert loaders == {(model["node"], model["directory"]) for model in MODELS}


def inputs_of(kind: str, known: dict[str, Any]) -> dict[str, Any]:
    schema = known[kind]["input"]
    return {**schema.get("required", {}), **schema.get("optional", {})}


def problems(prompt: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """What the server would refuse: missing inputs, links of the wrong type, values not in a
    list.
    """
    found = []
    for node in prompt.values():
        kind = node["class_type"]
        given = node["inputs"]
        required = known[kind]["input"].get("required", {}).items()
        missing = {name for name, spec in required if not str(spec[0]).startswith("COMFY_")} - set(
            given
        )
        found += [f"{kind}: {name} is missing" for name in missing]
        specs = inputs_of(kind, known)
        for name, value in given.items():
            spec = specs.get(name)
            if spec is None or name in ANY_VALUE.get(kind, ()):
                continue
            if isinstance(value, list):
                linked = known[prompt[value[0]]["class_type"]]["output"][value[1]]
                if spec[0] not in (linked, "*") and linked != "*":
                    found.append(f"{kind}: {name} wants {spec[0]}, gets {linked}")
            else:
                options = spec[1].get("options") if spec[0] == "COMBO" else spec[0]
                if isinstance(options, list) and value not in options:
                    found.append(f"{kind}: {name} = {value!r} is not in the list")
    return found


def unexplained(prompt: dict[str, Any], name: str, known: dict[str, Any]) -> list[str]:
    """Values of our nodes that are neither what a new node has nor what the description of the
    workflow says.
    """
    found = []
    for described, number in numbers_of(WORKFLOWS[name]).items():
        node = prompt.get(str(number))
        if node is None or not node["class_type"].startswith("HeadForcing"):
            continue
        specs = inputs_of(node["class_type"], known)
        given = WORKFLOWS[name].nodes[described].inputs
        for key, value in node["inputs"].items():
            options = specs[key][1] if len(specs[key]) > 1 else {}
            if key not in given and value != options.get("default", value):
                found.append(f"{described}: {key} = {value!r}")
    return found


@pytest.fixture
def editor(request):
    server, _, renderer = getattr(request, "param", "comfy").partition(", ")
    server = request.getfixturevalue(server)
    stand_ins(server)
    with Browser(server, vue_nodes=bool(renderer)) as browser:
        yield browser
        assert (browser.page_errors, browser.alerts) == ([], [])


@pytest.mark.repeat("comfy_floor]")
@pytest.mark.parametrize("editor", ["comfy, Nodes 2.0", "comfy_floor"], indirect=True)
def test_every_workflow_opens_without_red_nodes_and_fits_the_server(editor):
    """In Nodes 2.0 nodes take the height of what is in them: none grows over another or out of its
    group.
    """
    known = editor.server.object_info()
    old = editor.server.install.version == FLOOR
    for name in NAMES:
        if old and name in NEWER_CORE:
            continue
        editor.load_workflow(FOLDER / f"{name}.json")
        assert editor.missing_nodes() == [], name
        prompt = editor.api_prompt()
        assert prompt and problems(prompt, known) == [], name
        assert unexplained(prompt, name, known) == [], name
        assert editor.toasts() == [], name
        if not old and name != APP:
            editor.fit_view()
            boxes = editor.page.evaluate(
                "app.graph.nodes.map((node) => [[...node.pos], [...node.size]])"
            )
            assert overlapping([box_of(*box) for box in boxes]) == [], name
            assert editor.outside_groups() == [], name
    check_blueprint(editor, known)
    # what is not there is seen
    editor.page.evaluate("(graph) => app.loadGraphData(graph)", UNKNOWN)
    assert editor.missing_nodes() == ["NoSuchNode"]


UNKNOWN = {"version": 0.4, "nodes": [{"id": 1, "type": "NoSuchNode", "pos": [0, 0]}], "links": []}


def check_blueprint(editor: Browser, known: dict[str, Any]) -> None:
    """It is offered as one node whose widgets reach the nodes in it."""
    offered = editor.server.get_json("/global_subgraphs").values()
    assert [found["name"] for found in offered if "HeadForcing" in str(found)] == [BLUEPRINT]
    editor.load_workflow(FOLDER.parent / "subgraphs" / f"{BLUEPRINT}.json")
    editor.page.evaluate("""() => {
      for (const [name, value] of [["prompts", "0:00 a snail"], ["seed", 99], ["width", 640]])
        app.graph.nodes[0].widgets.find((widget) => widget.name === name).value = value;
    }""")
    prompt = editor.api_prompt()
    inputs = {node["class_type"]: node["inputs"] for node in prompt.values()}
    assert inputs["HeadForcingPromptTimeline"]["prompts"] == "0:00 a snail"
    sampler = inputs["HeadForcingSampler"]
    assert (sampler["seed"], sampler["width"], sampler["height"]) == (99, 640, 480)
    assert problems(prompt, known) == []


# of a workflow saved by version 0.1.0: by position, with the widget that changes the seed
OLD_VALUES = [
    64,
    64,
    3,
    7,
    "increment",
    "infinity_rope",
    "longlive",
    "1, 0.5",
    4,
    6,
    0.9,
    2,
    "shuffled",
    3,
    False,
    60,
]
OLD_VALUES += ["video/old", True]
SAMPLER = of_node("Sampler")
LOOK = f"""() => {{
  const shown = {SAMPLER}.widgets.filter((widget) => {SAMPLER}.isWidgetVisible(widget));
  return [shown.map(({{ name }}) => name), {SAMPLER}.size[1]];
}}"""
PRESS = f"() => {of_widget('Sampler', 'advanced inputs')}.callback()"
COPY = """() => {
  const [old] = app.graph.nodes;
  app.canvas.copyToClipboard([old]);
  app.canvas.pasteFromClipboard();
  app.graph.remove(old);
}"""
FRESH = """(type) => {
  app.graph.clear();
  const node = LiteGraph.createNode(type);
  app.graph.add(node);
  return node.widgets.find((widget) => widget.name === "seed").linkedWidgets.map((widget) => widget.value);
}"""


def test_a_new_sampler_fits_a_screen_and_keeps_its_seed_and_an_old_file_keeps_its_values(editor):
    """Advanced inputs are folded until a button shows them; changed ones stay in sight. Resume
    finds the blocks of a stopped render by their seed."""
    page = editor.page
    for kind in ("HeadForcingCompareMethods", "HeadForcingProfileHeads", "HeadForcingSampler"):
        assert page.evaluate(FRESH, kind) == ["fixed"], kind
    few, low = page.evaluate(LOOK)
    page.evaluate(PRESS)
    every, high = page.evaluate(LOOK)
    assert (
        len(few) <= 10 and len(every) > len(few) + 8 and set(few) < set(every) and high > low + 200
    )
    page.evaluate(COPY)
    assert page.evaluate(LOOK) == [every, high], "a copy has what its original shows"
    page.evaluate(PRESS)
    assert page.evaluate(LOOK)[0] == few
    page.evaluate(f"{of_widget('Sampler', 'method')}.value = 'longlive'")
    page.evaluate(COPY)
    assert set(page.evaluate(LOOK)[0]) - set(few) == {"method"}, (
        "a changed value stays in sight, and no other"
    )

    graph = graph_of("02 Re-roll one scene")
    changed = {"method", "sigmas", "roles", "batch_size"}
    (sampler,) = [node for node in graph["nodes"] if node["type"] == "HeadForcingSampler"]
    for values, shown in ((sampler["widgets_values"], set()), (OLD_VALUES, changed)):
        sampler["widgets_values"] = values
        page.evaluate("(graph) => app.loadGraphData(graph)", graph)
        page.wait_for_timeout(300)
        assert set(page.evaluate(LOOK)[0]) & changed == shown
    values = [value for value in editor.sent("Sampler").values() if not isinstance(value, list)]
    # what was added since has its default
    assert [*(value for value in OLD_VALUES if value != "increment"), "none"] == values
    assert page.evaluate(f"{SAMPLER}.serialize().widgets_values")[: len(OLD_VALUES)] == OLD_VALUES
