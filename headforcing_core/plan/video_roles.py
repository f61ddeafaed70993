"""Head roles from a profile, or from a video that was made with them."""

from __future__ import annotations

from pathlib import Path

from ..errors import HeadForcingError
from ..files import json_object
from ..head_profiles.line import profile_of_note
from ..head_profiles.profile import HeadProfile, load_profile
from ..video.reader import open_video

VIDEO = ".mp4"


def profile_from(path: Path) -> HeadProfile:
    """Read a head profile, or the roles in the metadata of an `.mp4` file of this pack; raises
    HeadForcingError, which names the file.
    """
    if path.suffix.lower() != VIDEO:
        return load_profile(path)
    with open_video(path) as container:
        note = json_object(container.metadata, "head_forcing").get("heads")
    if note is None:
        raise HeadForcingError(
            f"{path.name} has no head roles in its metadata: choose a video of Head Forcing that "
            "was made with them, or a head profile"
        )
    return profile_of_note(note, path.name)
