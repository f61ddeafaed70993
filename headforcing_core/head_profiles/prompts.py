"""Profiling prompts for text-to-video models, written for this pack, with different subjects,
motion and light.
"""

PROFILING_PROMPTS = (
    "A red fox with a thick winter coat trots through a snowy pine forest at dawn, golden light "
    "between the trunks",
    "A potter with clay on her hands shapes a tall vase on a spinning wheel in a sunlit workshop, "
    "close-up",
    "A night train crosses a stone viaduct in heavy rain, its lit windows reflected in the river "
    "below",
    "Two children in yellow raincoats jump into puddles on a cobbled street, water splashing in "
    "slow motion",
    "A chef tosses vegetables in a flaming wok in a crowded street kitchen, steam and sparks "
    "rising",
    "An old sailing ship leans into the wind on a rough green sea, spray flying over the bow, "
    "aerial view",
    "A ballet dancer in a white dress turns on an empty stage under a single spotlight, dust in "
    "the air",
    "A hummingbird hovers in front of a purple flower, its wings a blur, macro shot with soft "
    "background",
    "A robot with a dented copper body waters plants in an overgrown greenhouse, warm afternoon "
    "light",
    "A motorcyclist rides along a winding desert road at sunset, the camera following low beside "
    "the wheel",
    "A grey cat sleeps on a windowsill while snow falls outside, its whiskers moving as it "
    "breathes",
    "A market in Marrakesh at noon, people walking between stalls of spices and lamps, handheld "
    "camera",
    "An astronaut walks across a plain of black sand towards a huge ringed planet on the horizon",
    "A waterfall in a jungle seen from a slowly rising drone, mist and a flock of white birds",
    "A violinist plays in an empty subway station, the lights of an arriving train sweep over the "
    "tiles",
    "A paper boat drifts down a narrow stream in autumn, passing red and orange leaves, close to "
    "the water",
    "A horse gallops along a beach at low tide, mane flying, its reflection broken in the wet sand",
    "A city skyline from dusk to night in time lapse, windows lighting up one after another, "
    "clouds racing",
    "A grandmother and her grandson knead dough at a wooden table covered with flour, laughing, "
    "soft light",
    "A school of silver fish turns as one in clear blue water while a sea turtle swims through "
    "them",
)
