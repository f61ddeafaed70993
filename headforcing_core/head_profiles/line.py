"""Head roles in one line of text, a letter a head, as files carry them with what they made."""

from __future__ import annotations

from typing import Any

from ..cache.roles import HeadRole, Roles
from ..errors import HeadForcingError, one_line
from ..files import Fields
from .auto import AutoProfile, ProfileChoice
from .profile import HeadProfile

_LETTERS = {role.value[0]: role for role in HeadRole}
_LONGEST = 100_000  # letters


def roles_line(roles: Roles) -> str:
    """The first letter of the role of each head: `lam mma`; layers are apart by a space."""
    return " ".join("".join(str(role)[0] for role in layer) for layer in roles)


def roles_note(profile: HeadProfile, weights: str, chosen: ProfileChoice) -> Fields:
    """The note that a file carries: the roles, the weights that they are of, and how they were
    asked for if no profile was chosen, so that they may have been measured before the render.
    """
    asked = chosen or AutoProfile()
    # by their names, as a run folder stores them: the tags of a video are the same from both
    note: Fields = {"asked": _asked(asked)} if isinstance(asked, AutoProfile) else {}
    return note | {"roles": roles_line(profile.roles), "weights": weights}


def profile_of_note(note: Any, name: str) -> HeadProfile:
    """The profile of a note in a file of this name; raises HeadForcingError for anything else."""
    text = note.get("roles") if isinstance(note, dict) else note
    layers = text.split(" ") if isinstance(text, str) and len(text) <= _LONGEST else []
    widths = {len(layer) for layer in layers}
    if len(widths) != 1 or 0 in widths or not set("".join(layers)) <= _LETTERS.keys():
        raise HeadForcingError(
            f"{one_line(name)}: its head roles must be a letter l, a or m for each head, as many "
            f"in each layer, found {one_line(repr(text)[:60])}; choose another profile"
        )
    roles = tuple(tuple(_LETTERS[letter] for letter in layer) for layer in layers)
    source = {"source": f"the metadata of {one_line(name)}"}
    return HeadProfile(one_line(name), len(roles), len(roles[0]), roles, provenance=source)


def answers(note: Any, weights: str, auto: AutoProfile) -> bool:
    """Whether the roles of a note are of these weights, and were asked for like this."""
    return (
        isinstance(note, dict)
        and bool(weights)
        and note.get("weights") == weights
        and note.get("asked") == _asked(auto)
    )


def _asked(auto: AutoProfile) -> list[Any]:
    return [auto.rule, auto.anchor_fraction, auto.local_fraction]
