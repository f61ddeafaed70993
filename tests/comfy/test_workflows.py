"""The shipped workflows, opened in the real editor as a user would, on the oldest and the newest tested ComfyUI."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from comfy_browser import Browser
from comfy_setup import FLOOR
from make_workflows import numbers_of, stand_ins
from PIL import Image
from workflow_blueprint import NAME as BLUEPRINT
from workflow_graphs import NEWER_CORE, RUNNABLE, WORKFLOWS
from workflow_layout import box_of, box_of_group, inside, overlapping
from workflow_sources import CORE, MODELS, PACK, models_of

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
APP = "minute_video_app"

# combos that list what this machine has and take other values, too
ANY_VALUE = {"SelectVAEDevice": ("device",)}


def graph_of(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_the_folder_holds_exactly_the_workflows_that_are_drawn_and_a_thumbnail_for_each():
    assert NAMES == sorted(WORKFLOWS)
    assert sorted(path.stem for path in FOLDER.glob("*.jpg")) == NAMES
    for path in FOLDER.glob("*.jpg"):
        with Image.open(path) as picture:
            assert picture.size == (480, 480), f"{path.name} is not from make_thumbnails.py"


@pytest.mark.parametrize("name", NAMES)
def test_the_note_reads_in_both_renderers_and_links_to_every_file(name):
    """Nodes 2.0 draws `code` in a colour that cannot be read."""
    nodes = graph_of(name)["nodes"]
    (note,) = (node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote")
    assert note == WORKFLOWS[name].note and "`" not in note
    if name not in RUNNABLE:
        files = {str(value) for node in nodes for value in node.get("widgets_values") or ()}
        for model in models_of(files).values():
            assert f"[{model['name']}]({model['url']})" in note and f"models/{model['directory']}" in note


@pytest.mark.parametrize("name", NAMES)
def test_wires_run_from_left_to_right_and_nodes_lie_in_titled_groups_apart_from_one_another(name):
    graph = graph_of(name)
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) < 14
    for _, source, _, target, _, kind in graph["links"]:
        right = nodes[source]["pos"][0] + nodes[source]["size"][0]
        assert right < nodes[target]["pos"][0], f"{kind} from {nodes[source]['type']} to {nodes[target]['type']}"
    boxes = {number: box_of(node["pos"], node["size"]) for number, node in nodes.items()}
    groups = [group["bounding"] for group in graph["groups"]]
    assert overlapping(list(boxes.values())) == overlapping([box_of_group(group) for group in groups]) == []
    assert all(group["title"] and group["color"] for group in graph["groups"])
    titles = [node.get("title", node["type"]) for node in graph["nodes"]]
    assert len(set(titles)) == len(titles) and not {"PreviewImage", "PreviewAny"} & set(titles)
    for node in graph["nodes"]:
        around = [group for group in groups if inside(boxes[node["id"]], box_of_group(group))]
        assert len(around) == (node["type"] != "MarkdownNote"), node["type"]


def test_every_node_names_its_pack_and_every_loader_the_source_of_its_file():
    version = re.search(r'^version = "(.+)"$', (FOLDER.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and PACK == ("headforcing", version[1])
    loaders = set()
    for name in NAMES:
        for node in graph_of(name)["nodes"]:
            kind, properties = node["type"], node["properties"]
            if kind == "MarkdownNote":
                continue
            ours = kind.startswith("HeadForcing")
            assert (properties["cnr_id"], properties["ver"]) == (PACK if ours else CORE), (name, kind)
            if kind in {model["node"] for model in MODELS}:
                (model,) = properties["models"]
                assert model == models_of({model["name"]})[kind]
                assert model["name"] == node["widgets_values"][0] == model["url"].rpartition("/")[2], (name, kind)
                loaders.add((kind, model["directory"]))
    assert loaders == {(model["node"], model["directory"]) for model in MODELS}


def problems(prompt: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """What the server would refuse: unknown nodes, missing inputs, links of the wrong type, values not in a list."""
    found = []
    for number, node in prompt.items():
        if node["class_type"] not in known:
            found.append(f"{number}: unknown node {node['class_type']}")
            continue
        schema = known[node["class_type"]]["input"]
        for name, spec in schema.get("required", {}).items():
            if name not in node["inputs"] and not str(spec[0]).startswith("COMFY_"):
                found.append(f"{node['class_type']}: {name} is missing")
        for name, value in node["inputs"].items():
            spec = {**schema.get("required", {}), **schema.get("optional", {})}.get(name)
            if isinstance(value, list) and spec is not None:
                given = known[prompt[value[0]]["class_type"]]["output"][value[1]]
                if spec[0] not in (given, "*") and given != "*":
                    found.append(f"{node['class_type']}: {name} wants {spec[0]}, gets {given}")
            elif spec is not None:
                options = spec[1].get("options") if spec[0] == "COMBO" else spec[0]
                if name in ANY_VALUE.get(node["class_type"], ()):
                    continue
                if isinstance(options, list) and value not in options:
                    found.append(f"{node['class_type']}: {name} = {value!r} is not in the list")
    return found


def unexplained(prompt: dict[str, Any], name: str, known: dict[str, Any]) -> list[str]:
    """Values of our nodes that are neither what a new node has nor what the description of the workflow says."""
    numbers, found = numbers_of(WORKFLOWS[name]), []
    for described, number in numbers.items():
        node = prompt.get(str(number))
        if node is None or not node["class_type"].startswith("HeadForcing"):
            continue
        schema = known[node["class_type"]]["input"]
        specs = {**schema.get("required", {}), **schema.get("optional", {})}
        for key, value in node["inputs"].items():
            given = WORKFLOWS[name].nodes[described].inputs
            options = specs[key][1] if len(specs[key]) > 1 else {}
            if key not in given and "default" in options and value != options["default"]:
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


@pytest.mark.parametrize("editor", ["comfy, Nodes 2.0", "comfy_floor"], indirect=True)
def test_every_workflow_opens_without_red_nodes_and_fits_the_server(editor, tmp_path):
    """In Nodes 2.0 nodes take the height of what is in them: none grows over another or out of its group."""
    known = editor.server.object_info()
    old = editor.server.install.version == FLOOR
    for name in NAMES:
        if old and name in NEWER_CORE:
            continue
        editor.load_workflow(FOLDER / f"{name}.json")
        assert editor.missing_nodes() == [], name
        prompt = editor.api_prompt()
        assert prompt, name
        assert problems(prompt, known) == [], name
        assert unexplained(prompt, name, known) == [], name
        assert editor.toasts() == [], name
        if not old and name != APP:
            editor.fit_view()
            boxes = editor.page.evaluate("app.graph.nodes.map((node) => [[...node.pos], [...node.size]])")
            assert overlapping([box_of(*box) for box in boxes]) == [], name
            assert editor.outside_groups() == [], name
    if not old:
        check_app(editor)
        unknown = tmp_path / "unknown.json"  # what is not there is seen
        unknown.write_text('{"version": 0.4, "nodes": [{"id": 1, "type": "NoSuchNode", "pos": [0, 0]}], "links": []}')
        editor.load_workflow(unknown)
        assert editor.missing_nodes() == ["NoSuchNode"]


def check_app(editor: Browser) -> None:
    """The app shows its controls."""
    editor.load_workflow(FOLDER / f"{APP}.json")
    editor.page.get_by_text("Number of runs").wait_for()  # of app mode
    app, numbers = WORKFLOWS[APP], numbers_of(WORKFLOWS[APP])
    assert graph_of(APP)["extra"]["linearData"] == {
        "inputs": [[numbers[node], widget] for node, widget in app.controls],
        "outputs": [numbers[node] for node in app.results],
    }
    for _, widget in app.controls:
        labels = editor.page.get_by_text(widget, exact=True).all()
        assert any(label.is_visible() for label in labels), widget


def test_the_blueprint_is_offered_as_one_node_whose_widgets_reach_the_nodes_in_it(editor):
    offered = editor.server.get_json("/global_subgraphs").values()
    assert [found["name"] for found in offered if "HeadForcing" in str(found)] == [BLUEPRINT]
    editor.load_workflow(FOLDER.parent / "subgraphs" / f"{BLUEPRINT}.json")
    editor.page.evaluate("""() => {
      for (const [name, value] of [["prompts", "0:00 a snail"], ["seed", 99], ["width", 640]])
        app.graph.nodes[0].widgets.find((widget) => widget.name === name).value = value;
    }""")
    prompt = {node["class_type"]: node["inputs"] for node in editor.api_prompt().values()}
    assert prompt["HeadForcingPromptTimeline"]["prompts"] == "0:00 a snail"
    sampler = prompt["HeadForcingSampler"]
    assert (sampler["seed"], sampler["width"], sampler["height"]) == (99, 640, 480)
    assert prompt["VAELoader"]["vae_name"] == "wan_2.1_vae.safetensors"
    assert problems(editor.api_prompt(), editor.server.object_info()) == []


def test_a_new_node_keeps_its_seed_and_a_saved_one_its_choice(editor):
    """Resume finds the blocks of a stopped render by their seed."""
    fresh = """(type) => {
      const node = LiteGraph.createNode(type);
      app.graph.add(node);
      return node.widgets.find((widget) => widget.name === "seed").linkedWidgets.map((widget) => widget.value);
    }"""
    for kind in ("HeadForcingSampler", "HeadForcingCompareMethods", "HeadForcingProfileHeads"):
        assert editor.page.evaluate(fresh, kind) == ["fixed"], kind
    graph = graph_of("demo")
    (sampler,) = (node for node in graph["nodes"] if node["type"] == "HeadForcingSampler")
    sampler["widgets_values"][sampler["widgets_values"].index("fixed")] = "increment"
    editor.page.evaluate("(graph) => app.loadGraphData(graph)", graph)
    editor.page.wait_for_timeout(500)
    chosen = """() => app.graph.nodes.find((node) => node.type === "HeadForcingSampler")
      .widgets.find((widget) => widget.name === "seed").linkedWidgets.map((widget) => widget.value)"""
    assert editor.page.evaluate(chosen) == ["increment"]


# of a workflow saved by version 0.1.0: by position, with the widget that changes the seed
OLD_VALUES = [64, 64, 3, 7, "increment", "infinity_rope", "longlive", "1, 0.5", 4, 6, 0.9, 2, "shuffled", 3, False, 60]
OLD_VALUES += ["video/old", True]
ADVANCED = """method model_family sigmas episodic_frames recent_frames novelty_threshold memory_every_blocks roles
batch_size checkpoint_seconds decode_in_background""".split()


BUTTON = "app.graph.nodes[0].widgets.find((widget) => widget.name === 'advanced inputs')"


def test_the_sampler_fits_a_screen_and_an_old_file_keeps_its_values(editor):
    """Advanced inputs are folded until a button shows them; changed ones stay in sight."""
    fresh = """() => {
      app.graph.clear();
      const node = LiteGraph.createNode("HeadForcingSampler");
      app.graph.add(node);
      return node.id;
    }"""
    look = """() => {
      const node = app.graph.nodes.find((node) => node.type === "HeadForcingSampler");
      return [node.widgets.filter((w) => node.isWidgetVisible(w)).map((w) => w.name), node.size[1]];
    }"""
    press = """() => {
      const node = app.graph.nodes.find((node) => node.type === "HeadForcingSampler");
      node.widgets.find((widget) => widget.name === "advanced inputs").callback();
    }"""
    editor.page.evaluate(fresh)
    few, low = editor.page.evaluate(look)
    assert len(few) <= 10 and not set(few) & set(ADVANCED)
    editor.page.evaluate(press)
    every, high = editor.page.evaluate(look)
    assert set(every) - set(few) == set(ADVANCED) and high > low + 200
    editor.page.evaluate(press)
    assert editor.page.evaluate(look) == [few, low]

    # a copy has what its original shows, and can be unfolded alike
    editor.page.evaluate(press)
    copied = """() => {
      const [old] = app.graph.nodes;
      app.canvas.copyToClipboard([old]);
      app.canvas.pasteFromClipboard();
      app.graph.remove(old);
    }"""
    editor.page.evaluate(copied)
    assert editor.page.evaluate(look) == [every, high]
    assert editor.page.evaluate(f"{BUTTON}.label") == "hide advanced inputs"
    editor.page.evaluate(press)
    assert editor.page.evaluate(look)[0] == few and editor.page.evaluate(f"{BUTTON}.label") == "show advanced inputs"
    editor.page.evaluate("() => (app.graph.nodes[0].widgets.find((w) => w.name === 'method').value = 'longlive')")
    editor.page.evaluate(copied)
    assert set(editor.page.evaluate(look)[0]) - set(few) == {"method"}, "a changed value stays in sight, and no other"

    graph = graph_of("re_roll_one_scene")
    (sampler,) = (node for node in graph["nodes"] if node["type"] == "HeadForcingSampler")
    editor.page.evaluate("(graph) => app.loadGraphData(graph)", graph)
    editor.page.wait_for_timeout(500)
    assert not set(editor.page.evaluate(look)[0]) & set(ADVANCED)
    sampler["widgets_values"] = OLD_VALUES
    editor.page.evaluate("(graph) => app.loadGraphData(graph)", graph)
    editor.page.wait_for_timeout(500)
    assert {"method", "model_family", "sigmas", "roles", "batch_size"} < set(editor.page.evaluate(look)[0])
    (inputs,) = (n["inputs"] for n in editor.api_prompt().values() if n["class_type"] == "HeadForcingSampler")
    values = [value for name, value in inputs.items() if not isinstance(value, list)]
    assert [value for value in OLD_VALUES if value != "increment"] == values
    saved = editor.page.evaluate("() => app.graph.serialize().nodes.find((n) => n.type === 'HeadForcingSampler')")
    assert saved["widgets_values"][: len(OLD_VALUES)] == OLD_VALUES
