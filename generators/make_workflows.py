"""Writes workflows/*.json and subgraphs/*.json from workflow_graphs.py, and the README's picture of
the demo graph.

    python tasks.py write workflows [NAME ...]

The editor turns each graph from API format into its own, so the files are what it would save
itself, and says how much room every node needs in both of its renderers. `make_thumbnails.py` makes
the thumbnails.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from comfy_browser import Browser
from comfy_harness import ComfyServer
from comfy_setup import ensure
from PIL import Image
from workflow_blueprint import NAME as BLUEPRINT
from workflow_blueprint import blueprint
from workflow_graphs import WORKFLOWS
from workflow_layout import Places, Workflow, arrange, lead_above
from workflow_sources import MODELS, add_sources, write

REPO = Path(__file__).resolve().parents[1]
FOLDER = REPO / "workflows"
SUBGRAPHS = REPO / "subgraphs"
PICTURE = REPO / "docs" / "images" / "graph.jpg"  # for the README
TIMELINE_PICTURE = REPO / "nodes" / "web" / "docs" / "images" / "timeline.jpg"  # for its help page
PICTURE_SECOND = 36.5  # of the demo's video: a second that shows something
SHOWN_VIDEO = "[...document.querySelectorAll('video')].find((video) => video.readyState >= 2)"
DEMO = "01 Demo without downloads"
BLUEPRINT_OF = "12 Minute video as an app"  # the workflow that the blueprint holds

_SHRINK = """(widths) => {
  for (const node of app.graph.nodes) {
    node.setSize([widths[node.id], node.computeSize()[1]]);
    for (const widget of node.widgets ?? []) if (widget.name === "control_after_generate") widget.value = "fixed";
  }
  app.graph.setDirtyCanvas(true, true);
}"""


def numbers_of(workflow: Workflow) -> dict[str, int]:
    """The id of every node, by its name in the workflow."""
    return {name: number for number, name in enumerate(workflow.nodes, 1)}


def api_prompt(workflow: Workflow) -> dict[str, Any]:
    """The graph in API format."""
    numbers = numbers_of(workflow)

    def value(given: Any) -> Any:
        return [str(numbers[given[0]]), given[1]] if isinstance(given, list) else given

    prompt = {}
    for name, node in workflow.nodes.items():
        inputs = {key: value(given) for key, given in node.inputs.items()}
        prompt[str(numbers[name])] = {"class_type": node.kind, "inputs": inputs}
    return prompt


def widths(workflow: Workflow) -> dict[int, int]:
    """The width of every node by its id: that of its column."""
    numbers = numbers_of(workflow)
    found = {}
    for column in workflow.columns:
        for group in column.groups:
            found |= dict.fromkeys((numbers[name] for name in group.nodes), column.width)
    return found


def saved(editor: Browser) -> dict[str, Any]:
    """The open graph as the editor writes a file: undefined fields left out, where playwright would
    hand over null.
    """
    editor.page.wait_for_timeout(300)
    return json.loads(editor.page.evaluate("() => JSON.stringify(app.graph.serialize())"))


def lay_out(graph: dict[str, Any], workflow: Workflow, places: Places) -> None:
    """Move the nodes of a saved graph to their places; add titles, groups and the note."""
    numbers = numbers_of(workflow)
    names = {number: name for name, number in numbers.items()}
    for node in graph["nodes"]:
        name = names[node["id"]]
        described = workflow.nodes[name]
        x, y, width, height = places.nodes[name]
        node["pos"], node["size"] = [x, y], [width, round(height)]
        if described.title:
            node["title"] = described.title
    graph["groups"] = places.frames
    x, y, width, height = places.nodes["note"]
    graph["last_node_id"] += 1
    graph["nodes"].append(
        {
            "id": graph["last_node_id"],
            "type": "MarkdownNote",
            "title": "Read me",
            "pos": [x, y],
            "size": [width, height],
            "flags": {},
            "order": 0,
            "mode": 0,
            "inputs": [],
            "outputs": [],
            "properties": {},
            "widgets_values": [workflow.note],
        }
    )
    graph["extra"] = {"workflowRendererVersion": "LG"}
    lead_above(graph)
    if workflow.controls:
        controls = [[numbers[name], widget] for name, widget in workflow.controls]
        results = [numbers[name] for name in workflow.results]
        graph["extra"] |= {
            "linearMode": True,
            "linearData": {"inputs": controls, "outputs": results},
        }


def make(server: ComfyServer, chosen: dict[str, Workflow]) -> None:
    """Write the chosen workflows."""
    graphs = {}
    room = {}
    for name, workflow in chosen.items():
        # a page remembers widgets by the numbers of their nodes
        with Browser(server, size=(1920, 1080)) as editor:
            editor.load_api(api_prompt(workflow))
            editor.page.evaluate(_SHRINK, widths(workflow))  # every node as low as it can be
            graphs[name] = saved(editor)
        room[name] = {node["id"]: node["size"][1] for node in graphs[name]["nodes"]}
    # its nodes grow to what they need
    with Browser(server, size=(1920, 1080), vue_nodes=True) as editor:
        for name, graph in graphs.items():
            editor.page.evaluate("(graph) => app.loadGraphData(graph)", graph)
            editor.fit_view()
            editor.page.wait_for_timeout(700)
            for node in saved(editor)["nodes"]:
                room[name][node["id"]] = max(room[name][node["id"]], node["size"][1])
    for name, workflow in chosen.items():
        needed = {node: room[name][number] for node, number in numbers_of(workflow).items()}
        lay_out(graphs[name], workflow, arrange(workflow, needed))
        add_sources(graphs[name])
        del graphs[name]["id"]  # each time a template is opened it is a workflow of its own
        write(graphs[name], FOLDER / f"{name}.json")
    if BLUEPRINT_OF in graphs:
        SUBGRAPHS.mkdir(exist_ok=True)
        as_node = blueprint(graphs[BLUEPRINT_OF], numbers_of(chosen[BLUEPRINT_OF]))
        write(as_node, SUBGRAPHS / f"{BLUEPRINT}.json")


def stand_ins(server: ComfyServer) -> None:
    """Empty files under the names in the graphs, so that the editor does not mark them as missing
    in the pictures.
    """
    for model in MODELS:
        server.model_path(model["directory"], model["name"]).touch()
    (server.input_dir / "my_video.mp4").touch()
    (server.input_dir / "my_speech.wav").touch()
    for name in ("my_image.png", "my_portrait.png"):
        Image.new("RGB", (64, 48), "tan").save(server.input_dir / name)


_BOX = """(type) => {
  const node = app.graph.nodes.find((node) => node.type === type);
  const { scale, offset } = app.canvas.ds;
  const [x, y] = [(node.pos[0] + offset[0]) * scale, (node.pos[1] - 30 + offset[1]) * scale];
  const canvas = app.canvas.canvas.getBoundingClientRect();
  return { x: x + canvas.x - 6, y: y + canvas.y - 6, width: node.size[0] * scale + 12,
    height: (node.size[1] + 30) * scale + 12 };
}"""


def photograph_timeline(server: ComfyServer, shot: Path) -> None:
    """The Prompt Timeline of the demo."""
    with Browser(server, size=(1920, 1080)) as editor:
        editor.load_workflow(FOLDER / f"{DEMO}.json")
        editor.fit_view()
        editor.page.wait_for_timeout(1500)
        editor.page.screenshot(
            path=str(shot), clip=editor.page.evaluate(_BOX, "HeadForcingPromptTimeline")
        )
    with Image.open(shot) as image:
        picture = image.convert("RGB")
        picture.thumbnail((640, 900))
        picture.save(TIMELINE_PICTURE, quality=82, optimize=True)


def photograph(server: ComfyServer, shot: Path) -> None:
    """The demo graph after Run, its video stopped where there is something to see."""
    with Browser(server, size=(1920, 1080)) as editor:
        editor.load_workflow(FOLDER / f"{DEMO}.json")
        editor.queue()
        outcome = editor.wait_done(240)
        if outcome != "success" or editor.page_errors:
            raise RuntimeError(
                f"the workflow ended with {outcome}, the editor reported {editor.page_errors}"
            )
        editor.page.wait_for_function(SHOWN_VIDEO, timeout=30_000)
        editor.page.evaluate(
            f"(t) => {{ const v = {SHOWN_VIDEO}; v.pause(); v.currentTime = t; }}", PICTURE_SECOND
        )
        editor.page.wait_for_timeout(1500)
        editor.fit_view()
        editor.page.screenshot(path=str(shot))
        with Image.open(shot) as image:
            image.convert("RGB").save(PICTURE, quality=85)


def main(names: list[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as base, ComfyServer(ensure("0.30.0"), Path(base)) as server:
        stand_ins(server)
        make(server, {name: WORKFLOWS[name] for name in names or WORKFLOWS})
        if not names or DEMO in names:
            photograph(server, Path(base) / "demo.png")
            photograph_timeline(server, Path(base) / "timeline.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
