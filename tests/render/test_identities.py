"""What a stored thing depends on is in its name: each part is changed alone."""

from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.video.soundtrack import Soundtrack
from method_renders import causvid_plan, job_of, repeated


@pytest.mark.parametrize("place", [(1.0, 0.0), (0.0, 6.0), (0.0, -6.0)])
def test_a_sound_in_another_place_or_louder_is_another_sound(place: tuple[float, float]) -> None:
    sound = Soundtrack.of_samples(torch.linspace(-0.5, 0.5, 800)[None], 8000)
    assert sound.placed(0.0, 0.0).identity == sound.identity
    assert sound.placed(*place).identity != sound.identity


def test_the_vae_that_encodes_the_last_picture_of_a_rollout_is_in_the_keys_of_the_next_one() -> (
    None
):
    plan = causvid_plan(seconds=18.0)
    first_restart = plan.vae_use.first_block

    def keys(vae: str) -> list[str]:
        return job_of(plan, codec=SimpleNamespace(reencode=repeated, fingerprint=lambda: vae)).keys

    assert plan.vae_use and keys("one") == keys("one")
    pairs = list(zip(keys("one"), keys("another"), strict=True))
    assert all(one == another for one, another in pairs[:first_restart])
    assert all(one != another for one, another in pairs[first_restart:])
    assert len(pairs) > first_restart
