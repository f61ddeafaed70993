"""Where the nodes of a workflow lie: columns from left to right, in each of them groups from top to
bottom.
"""

from dataclasses import dataclass, field
from typing import Any

from boxes import TITLE

ERROR = 16  # what a node grows by when the editor puts a strip with an error below it
GAP = 24 + ERROR  # between nodes of a group
COLUMN_GAP = 70
GROUP_GAP = 40
# of a group's frame
PADDING = 16
HEADING = 46
COLOURS = ("#3f789e", "#b58b2a", "#8A8", "#88A")  # of the groups by column, the last of all others
LANE = 20  # between links above the columns

Size = tuple[float, float]


@dataclass(frozen=True)
class Node:
    """A node of a workflow: its type, inputs (`[name, output]` is a link), and a height if it holds
    text or pictures.

    `room` is kept free in it for a result that it shows: its height as a share of the width.
    """

    kind: str
    inputs: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    height: int = 0
    room: float = 0


@dataclass(frozen=True)
class Group:
    """Nodes below one another in a frame with a number and a title."""

    title: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """Groups below one another, all `width` wide; a note under them has its height."""

    width: int
    groups: tuple[Group, ...]
    note_height: int = 0


@dataclass(frozen=True)
class Workflow:
    """A graph, its columns, and the Markdown of its note.

    `controls` (node and widget) and `results` (nodes) make it an app: what app mode shows in place
    of the graph.
    """

    nodes: dict[str, Node]
    columns: tuple[Column, ...]
    note: str = ""
    controls: tuple[tuple[str, str], ...] = ()
    results: tuple[str, ...] = ()


@dataclass
class Places:
    """Positions and sizes by node (the note is called `note`), and the frames of the groups."""

    nodes: dict[str, tuple[float, float, float, float]] = field(default_factory=dict)
    frames: list[dict[str, Any]] = field(default_factory=list)


def arrange(workflow: Workflow, heights: dict[str, float]) -> Places:
    """Positions of all nodes, given the height that each needs at least."""
    places = Places()
    left = 0.0
    for number, column in enumerate(workflow.columns):
        colour = COLOURS[min(number, len(COLOURS) - 1)]
        top = 0.0
        for group in column.groups:
            y = top + HEADING + TITLE
            for name in group.nodes:
                node = workflow.nodes[name]
                height = max(heights[name] + node.room * column.width, node.height)
                places.nodes[name] = (left, y, column.width, height)
                y += height + GAP + TITLE
            bottom = y - GAP - TITLE + ERROR + PADDING
            title = f"{len(places.frames) + 1} {group.title}"
            box = (left, top, column.width, bottom - top)
            places.frames.append(_frame(len(places.frames) + 1, title, colour, box))
            top = bottom + GROUP_GAP
        if column.note_height:
            places.nodes["note"] = (left, top + TITLE, column.width, column.note_height)
        left += column.width + COLUMN_GAP
    return places


def _frame(
    number: int, title: str, colour: str, box: tuple[float, float, float, float]
) -> dict[str, Any]:
    x, y, width, height = box
    return {
        "id": number,
        "title": title,
        "bounding": [x - PADDING, y, width + 2 * PADDING, height],
        "color": colour,
        "font_size": 24,
        "flags": {},
    }


def lead_above(graph: dict[str, Any]) -> None:
    """Lead each link of a saved graph that would run behind a node above all groups, by two
    reroutes."""
    nodes = {node["id"]: node for node in graph["nodes"]}
    hidden = [link for link in graph["links"] if _passes_a_node(link, nodes)]
    reroutes = []
    extensions = []
    for lane, (link, source, _, target, *_) in enumerate(hidden, 1):
        before = nodes[source]["pos"][0] + nodes[source]["size"][0] + COLUMN_GAP / 2
        after = nodes[target]["pos"][0] - COLUMN_GAP / 2
        first = len(reroutes) + 1
        for place, x in enumerate((before, after)):
            reroutes.append({"id": first + place, "pos": [x, -LANE * lane], "linkIds": [link]})
        reroutes[-1]["parentId"] = first
        extensions.append({"id": link, "parentId": first + 1})
    if hidden:
        graph["extra"] |= {"reroutes": reroutes, "linkExtensions": extensions}


def _passes_a_node(link: list[Any], nodes: dict[int, dict[str, Any]]) -> bool:
    """Whether a column of nodes lies between the two ends of a link."""
    right = nodes[link[1]]["pos"][0] + nodes[link[1]]["size"][0]
    left = nodes[link[3]]["pos"][0]
    return any(right < node["pos"][0] < left for node in nodes.values())
