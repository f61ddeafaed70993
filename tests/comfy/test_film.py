"""The moving picture of README: how a recording becomes one."""

import io

import numpy as np
from film import Film, Moment
from PIL import Image


def jpeg(grey: int) -> bytes:
    content = io.BytesIO()
    noise = np.random.default_rng(grey).integers(0, 9, (36, 64))
    Image.fromarray((noise + grey).astype("uint8")).save(content, "JPEG", quality=95)
    return content.getvalue()


def test_a_film_shows_each_moment_for_its_seconds_however_long_it_took(tmp_path):
    pictures = [(second, jpeg(20 * second)) for second in range(11)]
    moments = [Moment(seconds=1.0, start=0.5), Moment(seconds=0.5, start=2.0)]
    film = Film(None, "", pictures, moments, end_second=10.0)
    file = tmp_path / "film.webp"
    assert film.save(file, fps=4, most_bytes=1_000_000) == 6
    shown = []
    with Image.open(file) as picture:
        for number in range(picture.n_frames):
            picture.seek(number)
            picture.load()
            second = round(float(np.asarray(picture.convert("L")).mean()) / 20)
            shown.append((second, picture.info["duration"]))
    # a picture that stays is stored once
    assert shown == [(0, 250), (1, 500), (2, 250), (6, 250), (10, 1600)]


def test_a_film_that_does_not_fit_has_a_lower_quality(tmp_path):
    pictures = [(second, jpeg(20 * second)) for second in range(11)]
    film = Film(None, "", pictures, [Moment(seconds=2.0, start=0.0)], end_second=10.0)
    sizes = []
    for most_bytes in (1_000_000, 1):
        film.save(tmp_path / "film.webp", fps=5, most_bytes=most_bytes)
        sizes.append((tmp_path / "film.webp").stat().st_size)
    assert sizes[1] < 0.9 * sizes[0]
