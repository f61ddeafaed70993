"""Where the nodes of a workflow lie: columns from left to right, in each of them groups from top to
bottom.
"""

from dataclasses import dataclass, field
from typing import Any

from boxes import TITLE

GAP = 24  # between nodes of a group
COLUMN_GAP = 70
GROUP_GAP = 40
# of a group's frame
PADDING = 16
HEADING = 46

Size = tuple[float, float]


@dataclass(frozen=True)
class Node:
    """A node of a workflow: its type, inputs (`[name, output]` is a link), and a height if it holds
    text or pictures.

    `room` is kept free below it for a result that it shows: its height as a share of the width.
    """

    kind: str
    inputs: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    height: int = 0
    room: float = 0


@dataclass(frozen=True)
class Group:
    """Nodes below one another in a frame with a title."""

    title: str
    colour: str
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
    bottoms = []
    rooms = []
    for column in workflow.columns:
        top = 0.0
        for group in column.groups:
            y = top + HEADING + TITLE
            for name in group.nodes:
                height = max(heights[name], workflow.nodes[name].height)
                places.nodes[name] = (left, y, column.width, height)
                y += height + GAP + TITLE
            bottom = y - GAP - TITLE + PADDING
            places.frames.append(_frame(group, (left, top, column.width, bottom - top)))
            top = bottom + GROUP_GAP
        if column.note_height:
            places.nodes["note"] = (left, top + TITLE, column.width, column.note_height)
        bottoms.append(bottom if not column.note_height else 0.0)
        rooms.append(bottom + workflow.nodes[column.groups[-1].nodes[-1]].room * column.width)
        left += column.width + COLUMN_GAP
    lowest = max(bottoms)
    for column, bottom in zip(workflow.columns, bottoms, strict=True):
        name = column.groups[-1].nodes[-1]
        # text fills its group
        if bottom and workflow.nodes[name].height and not workflow.nodes[name].room:
            x, y, width, height = places.nodes[name]
            places.nodes[name] = (x, y, width, height + lowest - bottom)
    _align(places.frames, [max(room, lowest) for room in rooms], workflow.columns)
    return places


def _frame(group: Group, box: tuple[float, float, float, float]) -> dict[str, Any]:
    x, y, width, height = box
    bounding = [x - PADDING, y, width + 2 * PADDING, height]
    return {
        "title": group.title,
        "bounding": bounding,
        "color": group.colour,
        "font_size": 24,
        "flags": {},
    }


def _align(frames: list[dict[str, Any]], bottoms: list[float], columns: tuple[Column, ...]) -> None:
    """Number the frames, and let the last of each column end where the lowest does, or where its
    result will.
    """
    for number, frame in enumerate(frames, 1):
        frame["id"] = number
    last = -1
    for column, bottom in zip(columns, bottoms, strict=True):
        last += len(column.groups)
        if not column.note_height:
            frames[last]["bounding"][3] = bottom - frames[last]["bounding"][1]
