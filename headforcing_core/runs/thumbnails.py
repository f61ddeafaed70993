"""Small pictures of stored videos for lists, made from latents and kept in the run folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from ..errors import HeadForcingError
from ..hashing import SHORT
from .entries import Entry
from .files import THUMBNAIL, files_of, read_bytes, read_tensors, write_bytes

MOST = 5  # pictures of one video


def pictured_blocks(entry: Entry) -> list[int]:
    """The finished blocks among those that are shown: the first one, and others at equal distances over the video."""
    last, most = len(entry.video.keys) - 1, min(MOST, len(entry.video.keys))
    places = [number * last // max(1, most - 1) for number in range(most)]
    return [place for place in places if place < entry.finished]


def thumbnail(entry: Entry, number: int, draw: Callable[[Tensor], bytes]) -> bytes | None:
    """The JPEG of a take's `number`-th pictured block; None where there is none or it cannot be read.

    It is read from the run folder, else made by `draw` from the block's first latent frame `[16, h, w]` and kept there:
    takes that share a block share its picture.
    """
    blocks, folder = pictured_blocks(entry), entry.video.folder
    if not 0 <= number < len(blocks):
        return None
    key = entry.video.keys[blocks[number]]
    with suppress(HeadForcingError, OSError):  # damaged, or gone with its folder: made again
        if kept := files_of(folder, THUMBNAIL).get(key[:SHORT]):
            return read_bytes(kept)
    try:
        tensors, fields = read_tensors(files_of(folder, "block")[key[:SHORT]])
    except (HeadForcingError, OSError, KeyError):
        return None
    if fields["key"] != key:
        return None
    picture = draw(tensors["latents"][0])
    with suppress(HeadForcingError):  # a folder that cannot be written: made again next time
        write_bytes(folder, f"{THUMBNAIL}-{key[:SHORT]}", ".jpg", picture)
    return picture
