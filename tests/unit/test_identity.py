"""Every bit of every weight counts in a model's identity; a file's is computed once."""

import os

import torch
from checkpoint_files import WEIGHTS, save
from headforcing.headforcing_core.weights import checkpoint
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint
from headforcing.headforcing_core.weights.identity import CHUNK, checksums, identity


def test_a_single_bit_anywhere_in_any_type_counts_and_where_it_lies_in_memory_does_not():
    values = torch.zeros(2 * CHUNK + 5, dtype=torch.uint8)
    first = checksums(values)
    assert len(first) == 3
    for place in (0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 4):
        for bit in (1, 16, 128):
            values[place] = bit
            assert checksums(values) != first, (place, bit)
            values[place] = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8):
        for count in (1, 3, 1001):
            values = torch.arange(count).to(torch.float32).to(dtype)
            name = identity([("x", values)])
            assert name == identity([("x", torch.cat([values[:1].clone(), values])[1:])])
            values.view(torch.uint8)[-1] ^= 1
            assert name != identity([("x", values)])


def test_names_shapes_types_order_and_every_tensor_of_many_count():
    x = torch.arange(6.0)
    others = [
        [("y", x)], [("x", x.view(2, 3))], [("x", x.view(torch.int32))], [("x", x), ("z", x)], [("z", x), ("x", x)],
        [("x", x.flip(0))], [("x", x.view(3, 2))],
    ]  # fmt: skip
    assert len({identity([("x", x)]), *map(identity, others)}) == 8
    many = {str(number): torch.full((5,), float(number)) for number in range(40)}
    assert len({identity((many | {name: torch.ones(5) * 99}).items()) for name in (*many, "none")}) == 41


def test_a_file_is_hashed_once_and_again_when_a_bit_of_any_tensor_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls, compute, path = [], checkpoint.identity, tmp_path / "a.safetensors"
    monkeypatch.setattr(checkpoint, "identity", lambda *args: calls.append(1) or compute(*args))

    def fingerprint(expected_calls, tensors=None, old=True):
        if tensors is not None:
            save(path, tensors)
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 60 * old))
        found = inspect_checkpoint(path).fingerprint
        assert len(calls) == expected_calls
        return found

    first = fingerprint(1, WEIGHTS, old=False)
    assert fingerprint(2) == first, "a file of this moment may still change"
    assert {fingerprint(3, WEIGHTS), fingerprint(3), fingerprint(3)} == {first}
    names = {first}
    for number, (name, tensor) in enumerate(list(WEIGHTS.items())[::40]):
        changed = tensor.clone()
        changed.view(-1)[-1] *= 1 + 2**-20
        names.add(fingerprint(4 + number, WEIGHTS | {name: changed}))
    done = len(calls)
    assert len(names) == done - 2, "changes below bfloat16"
    for stored in (tmp_path / "cache" / "headforcing" / "identities").iterdir():
        stored.write_text("../../etc", encoding="ascii")
    assert fingerprint(done + 1) in names, "a damaged note is computed anew"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert fingerprint(done + 2), "a cache that cannot be written costs time only"
