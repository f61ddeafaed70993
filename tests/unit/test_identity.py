"""Every bit of every weight counts in a model's identity; a file's is computed once."""

import os
from pathlib import Path

import pytest
import torch
from checkpoint_files import WEIGHTS
from headforcing.headforcing_core.weights import checkpoint
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint
from headforcing.headforcing_core.weights.identity import CHUNK, checksums, identity
from safetensors.torch import save_file


def test_a_single_bit_anywhere_changes_the_checksum():
    values = torch.zeros(2 * CHUNK + 5, dtype=torch.uint8)
    first = checksums(values)
    assert len(first) == 3
    for place in (0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 4):
        for bit in (1, 16, 128):
            values[place] = bit
            assert checksums(values) != first, (place, bit)
            values[place] = 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_odd_sizes_slices_and_small_types_are_hashed_whole(dtype):
    for count in (1, 3, 1001):
        values = torch.arange(count).to(torch.float32).to(dtype)
        name = identity([("x", values)])
        padded = torch.cat([values[:1].clone(), values])
        assert name == identity([("x", padded[1:])]), "where it lies in memory makes no difference"
        changed = values.clone()
        changed.view(torch.uint8)[-1] ^= 1
        assert name != identity([("x", changed)])


def test_names_shapes_types_order_and_every_tensor_of_many_count():
    x = torch.arange(6.0)
    others = [
        [("y", x)], [("x", x.view(2, 3))], [("x", x.view(torch.int32))], [("x", x), ("z", x)], [("z", x), ("x", x)],
        [("x", x.flip(0))], [("x", x.view(3, 2))],
    ]  # fmt: skip
    assert len({identity([("x", x)]), *map(identity, others)}) == 8
    many = {str(number): torch.full((5,), float(number)) for number in range(40)}
    changed = [many | {str(number): torch.full((5,), -1.0)} for number in range(40)]
    assert len({identity(tensors.items()) for tensors in (many, *changed)}) == 41


def old(path: Path) -> Path:
    """The file as if it had been written a minute ago."""
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 60))
    return path


@pytest.mark.slow
def test_a_change_below_bfloat16_in_any_tensor_of_a_file_is_another_model(tmp_path):
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    names = {inspect_checkpoint(tmp_path / "a.safetensors").fingerprint}
    for name, tensor in WEIGHTS.items():
        changed = tensor.clone()
        changed.view(-1)[-1] *= 1 + 2**-20
        save_file(WEIGHTS | {name: changed}, tmp_path / "b.safetensors")
        names.add(inspect_checkpoint(tmp_path / "b.safetensors").fingerprint)
    assert len(names) == 1 + len(WEIGHTS)


def test_a_file_is_hashed_once_and_again_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls, compute = [], checkpoint.identity
    monkeypatch.setattr(checkpoint, "identity", lambda *args: calls.append(1) or compute(*args))
    path = tmp_path / "a.safetensors"
    save_file(WEIGHTS, path)
    fresh = [inspect_checkpoint(path).fingerprint for _ in range(2)]
    assert len(calls) == 2, "a file of this moment may still change"
    old(path)
    kept = [inspect_checkpoint(path).fingerprint for _ in range(3)]
    assert len(calls) == 3 and {*fresh, *kept} == {fresh[0]}
    save_file({name: -x for name, x in WEIGHTS.items()}, path)
    old(path)
    assert inspect_checkpoint(path).fingerprint != fresh[0] and len(calls) == 4
    for stored in (tmp_path / "cache" / "headforcing" / "identities").iterdir():
        stored.write_text("../../etc", encoding="ascii")
    assert inspect_checkpoint(path).fingerprint != fresh[0] and len(calls) == 5, "a damaged note is computed anew"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert inspect_checkpoint(path).fingerprint and len(calls) == 6, "a cache that cannot be written costs time only"
