"""`auto` takes the fastest kind of device there is."""

import pytest
import torch
from headforcing.cli.values import pick_device


@pytest.mark.parametrize(
    ("there", "taken"),
    [((), "cpu"), (("xpu",), "xpu"), (("mps",), "mps"), (("cuda", "xpu"), "cuda")],
)
def test_auto_takes_what_is_there(there, taken, monkeypatch):
    for kind, module in (("cuda", torch.cuda), ("mps", torch.backends.mps), ("xpu", torch.xpu)):
        monkeypatch.setattr(module, "is_available", lambda found=kind in there: found)
    made = torch.zeros
    asked = []

    def zeros(*size, device):
        asked.append(str(device))
        return made(*size)

    monkeypatch.setattr(torch, "zeros", zeros)
    pick_device("auto")
    assert asked == [taken]
