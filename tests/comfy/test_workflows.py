"""The shipped workflows, opened in the real editor as a user would, on the oldest and the newest tested ComfyUI."""

import json
import re
from pathlib import Path
from typing import Any

import av
import pytest
from comfy_browser import Browser
from make_workflows import RUNNABLE, WORKFLOWS, stand_ins
from workflow_sources import CORE, MODELS, PACK

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def test_the_folder_holds_exactly_the_workflows_that_are_drawn_and_a_thumbnail_for_each():
    assert NAMES == sorted(WORKFLOWS)
    assert sorted(path.stem for path in FOLDER.glob("*.jpg")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_is_small_and_has_a_note(name):
    nodes = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["nodes"]
    assert len(nodes) < 12
    assert sum(node["type"] == "MarkdownNote" for node in nodes) == 1


def test_notes_of_workflows_with_models_name_every_file_and_its_folder():
    for name in set(NAMES) - set(RUNNABLE):
        nodes = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["nodes"]
        (note,) = (node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote")
        for file in ("diffusion_models/self_forcing_dmd", "text_encoders/umt5_xxl", "vae/wan_2.1_vae"):
            assert file in note, name


def test_every_node_names_its_pack_and_every_loader_the_source_of_its_file():
    version = re.search(r'^version = "(.+)"$', (FOLDER.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and PACK == ("headforcing", version[1])
    loaders = set()
    for name in NAMES:
        graph = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        for node in graph["nodes"]:
            kind, properties = node["type"], node["properties"]
            if kind == "MarkdownNote":
                continue
            ours = kind.startswith("HeadForcing")
            assert (properties["cnr_id"], properties["ver"]) == (PACK if ours else CORE), (name, kind)
            if kind in MODELS:
                (model,) = properties["models"]
                assert model["name"] == node["widgets_values"][0] == model["url"].rpartition("/")[2], (name, kind)
                loaders.add((kind, model["directory"]))
    assert loaders == {(kind, model["directory"]) for kind, model in MODELS.items()}


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
                if isinstance(options, list) and value not in options:
                    found.append(f"{node['class_type']}: {name} = {value!r} is not in the list")
    return found


@pytest.fixture(params=["comfy", "comfy_floor"])
def editor(request):
    server = request.getfixturevalue(request.param)
    stand_ins(server)
    with Browser(server) as browser:
        yield browser


def test_every_workflow_opens_without_red_nodes_and_fits_the_server(editor):
    known = editor.server.object_info()
    for name in NAMES:
        editor.load_workflow(FOLDER / f"{name}.json")
        assert editor.missing_nodes() == [], name
        prompt = editor.api_prompt()
        assert prompt, name
        assert problems(prompt, known) == [], name
        assert editor.toasts() == [], name
    assert editor.page_errors == []
    assert editor.alerts == []


def test_a_new_node_keeps_its_seed_and_a_saved_one_its_choice(editor):
    """Resume finds the blocks of a stopped render by their seed."""
    fresh = """(type) => {
      const node = LiteGraph.createNode(type);
      app.graph.add(node);
      return node.widgets.find((widget) => widget.name === "seed").linkedWidgets.map((widget) => widget.value);
    }"""
    for kind in ("HeadForcingSampler", "HeadForcingCompareMethods", "HeadForcingProfileHeads"):
        assert editor.page.evaluate(fresh, kind) == ["fixed"], kind
    graph = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))
    (sampler,) = (node for node in graph["nodes"] if node["type"] == "HeadForcingSampler")
    sampler["widgets_values"][sampler["widgets_values"].index("fixed")] = "increment"
    editor.page.evaluate("(graph) => app.loadGraphData(graph)", graph)
    editor.page.wait_for_timeout(500)
    chosen = """() => app.graph.nodes.find((node) => node.type === "HeadForcingSampler")
      .widgets.find((widget) => widget.name === "seed").linkedWidgets.map((widget) => widget.value)"""
    assert editor.page.evaluate(chosen) == ["increment"]
    assert editor.page_errors == []


# of a workflow saved by version 0.1.0: by position, with the widget that changes the seed
OLD_VALUES = [64, 64, 3, 7, "increment", "infinity_rope", "longlive", "1, 0.5", 4, 6, 0.9, 2, "shuffled", 3, False, 60]
OLD_VALUES += ["video/old", True]
ADVANCED = """method model_family sigmas episodic_frames recent_frames novelty_threshold memory_every_blocks roles
batch_size checkpoint_seconds decode_in_background""".split()


def test_the_sampler_fits_a_screen_and_an_old_file_keeps_its_values(editor):
    """Advanced inputs are folded until a button or a changed value shows them."""
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

    graph = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))
    (sampler,) = (node for node in graph["nodes"] if node["type"] == "HeadForcingSampler")
    editor.page.evaluate("(graph) => app.loadGraphData(graph)", graph)
    editor.page.wait_for_timeout(500)
    assert not set(editor.page.evaluate(look)[0]) & set(ADVANCED)
    sampler["widgets_values"] = OLD_VALUES
    editor.page.evaluate("(graph) => app.loadGraphData(graph)", graph)
    editor.page.wait_for_timeout(500)
    assert set(ADVANCED) < set(editor.page.evaluate(look)[0])
    (inputs,) = (n["inputs"] for n in editor.api_prompt().values() if n["class_type"] == "HeadForcingSampler")
    values = [value for name, value in inputs.items() if not isinstance(value, list)]
    assert [value for value in OLD_VALUES if value != "increment"] == values
    saved = editor.page.evaluate("() => app.graph.serialize().nodes.find((n) => n.type === 'HeadForcingSampler')")
    assert saved["widgets_values"][: len(OLD_VALUES)] == OLD_VALUES
    assert editor.page_errors == []


def test_the_demo_workflow_fills_the_video_node(editor, tmp_path_factory):
    """Open the file, press Run, watch: a minute of video appears in the last node. The screenshot is kept."""
    editor.load_workflow(FOLDER / "demo.json")
    editor.queue()
    assert editor.wait_done(180) == "success"
    editor.page.wait_for_function("document.querySelector('video')?.readyState >= 2", timeout=30_000)
    seconds = editor.page.evaluate("document.querySelector('video').duration")
    assert seconds == pytest.approx(60, abs=0.1)
    editor.fit_view()
    shot = editor.screenshot(tmp_path_factory.mktemp("editor") / f"demo-{editor.server.install.version}.png")
    assert shot.stat().st_size > 50_000
    assert editor.page_errors == []
    assert editor.blocked == [], "the pack asked another machine for something"

    (file,) = (editor.server.output_dir / "video").glob("HeadForcing_00001_*")
    with av.open(str(file)) as container:
        assert {"workflow", "prompt"} <= set(container.metadata)
        assert container.streams.video[0].frames == 960
