"""Boxes of nodes and groups on the canvas of the editor."""

from itertools import combinations

TITLE = 30  # height of a node's title bar, which lies above its position

Box = tuple[float, float, float, float]  # left, top, right, bottom


def box_of(place: list[float], size: list[float], title: float = TITLE) -> Box:
    """The box of a node with its title bar."""
    return place[0], place[1] - title, place[0] + size[0], place[1] + size[1]


def box_of_group(bounding: list[float]) -> Box:
    return box_of(bounding[:2], bounding[2:], title=0)


def inside(inner: Box, outer: Box) -> bool:
    return (
        outer[0] <= inner[0]
        and outer[1] <= inner[1]
        and inner[2] <= outer[2]
        and inner[3] <= outer[3]
    )


def overlapping(boxes: list[Box]) -> list[tuple[Box, Box]]:
    found = []
    for b, a in combinations(boxes, 2):
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            found.append((a, b))
    return found
