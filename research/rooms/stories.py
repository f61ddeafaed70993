"""Stories of the world of rooms: which room is shown in which block, so that rooms come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...headforcing_core.demo.words import CHOICES, Look
from .scenes import BACKGROUNDS

BLOCKS = 12  # of a clip in training: 36 latent frames, 9 seconds
# of another room at a block, in the other clips: a fifth of all blocks are returns
CHANGE_ODDS = 0.55
ONE_ROOM = 0.20
PANNING = 0.15  # of clips in one room with a camera that stands still, and with one that pans
ACTOR_CHANGE = 0.25  # of clips in which a prompt changes a property of the actor
CONFUSED = 0.5  # of clips in which two rooms have walls of one colour


def random_story(rng: np.random.Generator, blocks: int = BLOCKS) -> tuple[Look, ...]:
    """A story for training, one look per block."""
    kind = rng.random()
    look = Look.draw(rng)
    if kind < ONE_ROOM:
        looks = [look] * blocks
    elif kind < ONE_ROOM + PANNING:
        there, back = rng.permutation(("panning left", "panning right")).tolist()
        turn = int(rng.integers(2, blocks)) if blocks > 2 else blocks
        looks = [replace(look, camera=there if block < turn else back) for block in range(blocks)]
    else:
        looks = _wander(look, draw_rooms(rng, look, int(rng.integers(3, 5))), blocks, rng)
    if blocks > 1 and rng.random() < ACTOR_CHANGE:
        name = str(rng.choice(("colour", "shape", "motion")))
        word = str(rng.choice(CHOICES[name]))
        at = int(rng.integers(1, blocks))
        looks[at:] = [replace(look, **{name: word}) for look in looks[at:]]
    return tuple(looks)


def draw_rooms(rng: np.random.Generator, first: Look, count: int) -> list[tuple[str, str]]:
    """`count` different rooms `(background, pattern)` with that of a look as the first.

    In half of the cases the second has the first one's colour and another pattern. All others have
    their own colours.
    """
    rooms = [(first.background, first.pattern)]
    if count > 1 and rng.random() < CONFUSED:
        rooms.append(
            (
                first.background,
                str(rng.choice([p for p in CHOICES["pattern"] if p != first.pattern])),
            )
        )
    others = [name for name in BACKGROUNDS if name != first.background]
    colours = rng.permutation(others)[: count - len(rooms)].tolist()
    return rooms + [(colour, str(rng.choice(CHOICES["pattern"]))) for colour in colours]


def _wander(
    look: Look,
    rooms: Sequence[tuple[str, str]],
    blocks: int,
    rng: np.random.Generator,
) -> list[Look]:
    """Another of the rooms at each block with probability `CHANGE_ODDS`."""
    here = 0
    looks = []
    for block in range(blocks):
        if block and rng.random() < CHANGE_ODDS:
            here = int(rng.choice([room for room in range(len(rooms)) if room != here]))
        background, pattern = rooms[here]
        looks.append(replace(look, background=background, pattern=pattern))
    return looks


def returning_story(
    rng: np.random.Generator, shown: int, away: int, back: int = 1, before: int = 0
) -> tuple[Look, ...]:
    """A room for `shown` blocks, two others in turn for `away` blocks, then the first again for
    `back` blocks.

    With `before` the story begins in yet another room for so many blocks.
    """
    look = Look.draw(rng)
    *opening, first, second, third = draw_rooms(rng, look, 4 if before else 3)
    stays = max(1, -(-away // 2))  # blocks in each of the other rooms
    others = [(second, third)[block // stays] for block in range(away)]
    visits = opening * before + [first] * shown + others + [first] * back
    return tuple(
        replace(look, background=background, pattern=pattern) for background, pattern in visits
    )


def round_story(
    rng: np.random.Generator, rooms: int = 8, stay: int = 6, again: int = 2
) -> tuple[Look, ...]:
    """All rooms for `stay` blocks each, then each for `again` blocks in the same order.

    In 6 blocks every room has two candidates for episodic memory, which considers one in three
    blocks.
    """
    look = Look.draw(rng)
    drawn = draw_rooms(rng, look, rooms)
    looks: list[Look] = []
    for blocks in (stay, again):
        for background, pattern in drawn:
            looks += [replace(look, background=background, pattern=pattern)] * blocks
    return tuple(looks)


def visits(looks: Sequence[Look]) -> list[range]:
    """The blocks of every visit to a room, in order."""
    starts = [i for i, look in enumerate(looks) if not i or look.room != looks[i - 1].room]
    return [range(start, end) for start, end in pairwise([*starts, len(looks)])]


def last_visits(looks: Sequence[Look]) -> list[range]:
    """For every block the visit before to its room, other rooms between; empty where the room is
    new.
    """
    found: list[range] = []
    last: dict[str, range] = {}
    for visit in visits(looks):
        room = looks[visit.start].room
        found += [last.get(room, range(0))] * len(visit)
        last[room] = visit
    return found


def returns(looks: Sequence[Look]) -> list[int]:
    """For every block, after how many blocks its room is shown again; 0 in the rest of a visit and
    at the first one.
    """
    last_seen: dict[str, int] = {}
    gaps = []
    for block, look in enumerate(looks):
        gap = block - last_seen.get(look.room, block) - 1
        gaps.append(max(0, gap))
        last_seen[look.room] = block
    return gaps
