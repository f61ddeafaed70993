"""The demo's decoder for what is shown is fast enough to be watched while the model renders."""

import pytest
import torch
from headforcing.headforcing_core.demo import assets
from headforcing.tests.benchmarks import picture


@pytest.mark.alone
def test_a_video_frame_at_256_pixels_takes_little_time_most_of_it_drawing():
    """It took 12 ms; cores differ, and three times as much is allowed."""
    torch.set_num_threads(1)
    latent = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    found = picture.milliseconds(assets.load_picture_decoder(), latent)
    assert found["together"] == pytest.approx(sum(found.values()) / 2)
    assert found["network"] < found["drawing"] < found["together"] < 36
