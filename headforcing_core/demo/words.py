"""The words of the world of rooms, and a prompt made of them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

CHOICES: dict[str, tuple[str, ...]] = {
    "colour": ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "pink"),
    "shape": ("ball", "square", "triangle", "star", "cross"),
    "motion": ("bouncing", "gliding", "circling"),
    "background": ("grey", "navy", "teal", "maroon", "olive", "slate", "brown", "sand"),
    "pattern": ("plain", "checkerboard", "striped"),
    "camera": ("", "panning left", "panning right"),
}
"""By what they say. Looks are drawn by their order, so it must not change."""

TEMPLATE = "a {colour} {shape} {motion} in the {background} {pattern} room {camera}"

_PROMPT = re.compile(
    r"a (?P<colour>\S+) (?P<shape>\S+) (?P<motion>\S+) in the (?P<background>\S+) (?P<pattern>\S+) "
    r"room ?(?P<camera>.*)"
)

HELP = f"The toy world understands prompts of the form '{TEMPLATE}', with " + "; ".join(
    f"{kind}: {'' if all(words) else 'nothing or '}{', '.join(filter(None, words))}"
    for kind, words in CHOICES.items()
)


@dataclass(frozen=True)
class Look:
    """The content of a prompt such as `a red ball bouncing in the teal striped room panning
    left`.
    """

    colour: str
    shape: str
    motion: str
    background: str
    pattern: str
    camera: str = ""

    @property
    def room(self) -> str:
        """The name of the room's wall, by which a story comes back to it."""
        return f"{self.background} {self.pattern}"

    @property
    def prompt(self) -> str:
        return TEMPLATE.format(**asdict(self)).strip()

    @classmethod
    def parse(cls, prompt: str) -> Look:
        """Parse a prompt; raises ValueError for text that is not in the grammar of the world of
        rooms.
        """
        found = _PROMPT.fullmatch(" ".join(prompt.lower().split()))
        if found is None:
            raise ValueError(f"not a prompt of the world of rooms: {prompt!r}")
        named = found.groupdict("")
        for name, word in named.items():
            if word not in CHOICES[name]:
                raise ValueError(f"the world of rooms has no {name} {word!r}")
        return cls(**named)

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Look:
        """Draw a random look with a camera that stands still."""
        return cls(
            **{name: str(rng.choice(words)) for name, words in CHOICES.items() if name != "camera"}
        )
