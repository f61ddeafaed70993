"""Memory of a GPU that PyTorch may take, and what it gives back."""

import sys

import pytest
import torch
from headforcing.headforcing_core import devices
from headforcing.headforcing_core.devices import empty_cache, stay_on_card

GB = 10**9


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was asked of a card of 12 GB, of which 6 GB are free and 4 GB PyTorch's."""
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6 * GB, 12 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4 * GB)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("emptied"))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: asked.append(share)
    )
    return asked


def test_on_windows_pytorch_takes_no_more_than_is_free(asked, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    stay_on_card("cuda:0")
    assert asked == [pytest.approx((6 + 4 - 0.3) / 12)]


@pytest.mark.parametrize(("system", "device"), [("linux", "cuda"), ("win32", "cpu")])
def test_elsewhere_there_is_no_limit(asked, monkeypatch, system: str, device: str):
    monkeypatch.setattr(sys, "platform", system)
    stay_on_card(device)
    assert asked == []


def test_a_limit_is_never_below_nothing(asked, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(devices, "LEFT_TO_OTHERS", 11 * GB)
    stay_on_card("cuda")
    assert asked == [0]


def test_only_a_gpu_has_a_cache_to_be_emptied(asked):
    empty_cache("cpu")
    assert asked == []
    empty_cache("cuda:1")
    assert asked == ["emptied"]
