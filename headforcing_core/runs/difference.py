"""The differences between a stored video and an earlier one, as a list says them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..files import Fields

LEAST_WORDS = 2  # that are said of a prompt, so that an adjective has its noun
WHOLE_VIDEO = 0


@dataclass(frozen=True)
class Difference:
    """A difference of a scene.

    Attributes:
        scene: its number from 1; of the last scene for `end`; `WHOLE_VIDEO` for the one seed that
            all scenes share.
        what: its words, the second at which it begins, the seed from it on, the way in which it
            follows the scene before; or the story ends with an earlier scene.
        words: of the scene, those that the earlier one does not have at this place.
    """

    scene: int
    what: Literal["words", "start", "seed", "switch", "end"]
    words: str = ""


def differences(about: Fields, earlier: Fields) -> list[Difference]:
    """The differences between the stories of two videos, by their notes (`RenderJob.about`): first
    those of words.

    If one story has more scenes, the first other scene may be one that was put in or taken out:
    what follows is not compared.
    """
    prompts = about["prompts"]
    before = earlier["prompts"]
    common = min(len(prompts), len(before))
    changed = [place for place in range(common) if prompts[place] != before[place]]
    if len(prompts) != len(before) and changed:
        common = changed[0]
        changed = changed[:1]
    found = []
    for place in changed:
        words = own_words(prompts[place], before[place])
        found.append(Difference(place + 1, "words", words))
    if not changed and len(prompts) > common:
        found.append(Difference(common + 1, "words", prompts[common]))
    if not changed and len(before) > common:
        found.append(Difference(common, "end"))
    starts = [place for place in range(common) if _differs("starts_seconds", about, earlier, place)]
    found += [Difference(place + 1, "start") for place in starts]
    found += _seeds(about, earlier, common)
    # other words may bring another scene back
    kept = [place for place in range(common) if place not in changed]
    switches = [place for place in kept if _differs("switches", about, earlier, place)]
    return found + [Difference(place + 1, "switch") for place in switches]


def _differs(name: str, about: Fields, earlier: Fields, place: int) -> bool:
    """Whether two notes have other values of a scene; older notes lack some."""
    values = about.get(name, ())
    others = earlier.get(name, ())
    return place < min(len(values), len(others)) and values[place] != others[place]


def _seeds(about: Fields, earlier: Fields, common: int) -> list[Difference]:
    """The first of the scenes in a row that have other seeds; older notes lack seeds."""
    if "seeds" not in about or "seeds" not in earlier:
        return []
    seeds = _seeds_in_use(about)
    others = _seeds_in_use(earlier)
    found = []
    for place in range(common):
        follows = (
            place > 0 and about["seeds"][place] is None and seeds[place - 1] != others[place - 1]
        )
        if seeds[place] != others[place] and not follows:
            found.append(Difference(place + 1, "seed"))
    if found and found[0].scene == 1 and len(set(seeds)) == 1:
        return [Difference(WHOLE_VIDEO, "seed")]
    return found


def _seeds_in_use(about: Fields) -> list[int | None]:
    """The seed of each scene: its own, else that of the scene before, else the video's."""
    seeds = []
    seed = about.get("seed")
    for own in about["seeds"]:
        seed = seed if own is None else own
        seeds.append(seed)
    return seeds


def own_words(text: str, other: str) -> str:
    """The words of a text from the first to the last that another one does not have there, and
    those after them, up to `LEAST_WORDS`.
    """
    words = text.split()
    others = other.split()
    most = min(len(words), len(others))
    same = 0
    while same < most and words[same] == others[same]:
        same += 1
    alike = 0  # at the end
    while alike < most - same and words[-1 - alike] == others[-1 - alike]:
        alike += 1
    end = max(len(words) - alike, same + LEAST_WORDS)
    begin = min(same, len(words) - LEAST_WORDS)
    return " ".join(words[max(begin, 0) : end])
