"""Texts of videos of real weights: files, or prompts of this pack that no head profile is measured on."""

from __future__ import annotations

import json

from ..headforcing_core.commands.values import read_text
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.timeline.grammar import split_prompts

RESERVED_PROMPTS = (
    "A lighthouse keeper in a blue coat climbs a spiral staircase with a lantern, shadows turning on the stone wall",
    "A golden retriever runs through a field of sunflowers towards the camera, ears flapping, late afternoon sun",
    "A glassblower turns a glowing orange bubble of glass at the end of a long pipe in a dark workshop",
    "A red tram climbs a steep street between white houses, the sea behind it, seen from the pavement",
    "An old fisherman mends a green net on a wooden pier at sunrise, gulls circling above the boats",
    "A snowboarder carves down an untouched slope, powder flying up behind the board, drone following",
    "A librarian in a grey cardigan pushes a trolley of books along tall shelves under warm lamps",
    "A jellyfish with long trailing arms drifts upwards through dark blue water, lit from below",
    "A baker slides round loaves into a brick oven, flour on the table, fire glowing inside",
    "A cyclist in a yellow jersey rides along a cliff road above the ocean, wind in the grass",
    "A tortoise crosses a sandy path between cacti, slowly, one step after the other, low camera",
    "A drummer plays in a garage in red light, sticks blurring, cymbals trembling",
    "A hot air balloon with blue and white stripes rises over vineyards in morning mist",
    "A woman in a green dress walks through a gallery and stops before a large abstract painting",
    "A white goat jumps from rock to rock on a mountain side, bells ringing, clouds below",
    "A welder in a dark mask works on a steel frame, blue sparks falling to the floor of a hall",
    "A small wooden rowing boat crosses a still lake at dusk, rings of waves spreading from the oars",
    "A street musician with an accordion plays under an arch while people with umbrellas hurry past",
    "A black panther walks along a thick branch in a rainforest, light falling through the leaves",
    "A toy train runs in circles around a Christmas tree, passing presents in shiny paper",
    "A gardener with a straw hat cuts roses in a walled garden, bees moving between the flowers",
    "A steam locomotive pulls out of a small station in winter, white smoke filling the platform",
    "A skateboarder rolls down a concrete bowl and turns in the air at its edge, evening light",
    "A geisha with a red paper umbrella walks over an arched bridge in light rain, pond below",
    "A tractor ploughs a brown field, a cloud of gulls following it, hills in the distance",
    "A scientist in a white coat lifts a test tube with a green liquid towards the lamp and turns it",
    "A brown bear stands in a river and catches a jumping salmon, water splashing all around",
    "A kite shaped like a dragon dances in the wind above a crowded beach, its tail waving",
    "A barista pours milk into a cup of coffee and draws a leaf in the foam, close-up from above",
    "A knight in dull armour rides a grey horse through a misty birch wood, banner hanging wet",
    "A child in red boots builds a snowman in a garden and puts a carrot on it as a nose",
    "A sea of clouds flows over a mountain ridge at sunrise, tall firs standing out of it, time lapse",
)


def prompts_of(given: str | None, count: int) -> list[str]:
    """A prompt for each video: the lines of a text or of @FILE, or `RESERVED_PROMPTS`."""
    lines = RESERVED_PROMPTS if given is None else split_prompts(read_text(given))
    if len(lines) < count:
        raise HeadForcingError(f"--videos asks for {count} videos, but there are prompts for {len(lines)}")
    return [f"\n{line}" if line.startswith("@") else line for line in lines[:count]]  # a line never names a file


def stories_of(given: str, count: int, option: str, texts: int | None = None) -> list[str]:
    """A story for each video, a line of JSON with so many `texts` or at least two: `{"prompts": ["...", "..."]}`."""
    lines = split_prompts(read_text(given))
    if len(lines) < count:
        raise HeadForcingError(f"{option} must have a line for each of {count} videos, but there are {len(lines)}")
    for number, line in enumerate(lines[:count], 1):
        try:
            found = json.loads(line)["prompts"]
        except (ValueError, KeyError, TypeError):
            found = None
        strings = isinstance(found, list) and all(isinstance(text, str) and text.strip() for text in found)
        if not strings or (len(found) < 2 if texts is None else len(found) != texts):
            raise HeadForcingError(
                f'{option} must have {texts or "two or more"} texts in each line, as {{"prompts": ["...", "..."]}}; '
                f"line {number} is {line[:60]!r}"
            )
    return list(lines[:count])
