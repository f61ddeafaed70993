"""Methods of other packages: found by their entry point, or left out with a warning."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import METHODS, add_methods
from other_method import source
from own_process import run

ENTRY = """[headforcing.methods]
thinned = my_method:THINNED
absent = my_method:NOTHING
longlive = my_method:THINNED
"""
RENDER = """
import sys
from headforcing.cli.cli import main
sys.exit(main(sys.argv[1:]))
"""


def installed(folder: Path) -> Path:
    """A small package with a method, installed into a folder of Python's path."""
    info = folder / "my_method-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-method\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    (folder / "my_method.py").write_text(source())
    return folder


def test_a_method_of_an_installed_package_renders_and_a_broken_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(installed(tmp_path / "site")))
    words = ["--prompts", "a red ball", "--seconds", "6", "--scale", "1", "--out", tmp_path]
    told = run("-c", RENDER, "demo", "--json", "--method", "thinned", *words)
    assert json.loads(told)["reused_blocks"] == 0 and (tmp_path / "demo.mp4").is_file()
    methods = json.loads(run("-c", RENDER, "methods", "--json"))["options"]
    assert methods["thinned"] == {"blocks": 4} and "absent" not in methods
    assert "window_frames" in methods["longlive"], "the name was taken"


def test_a_row_with_a_name_that_is_taken_and_what_is_no_row_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("longlive", "head_forcing", "fifo_eviction", "memflow_sma"):
        with pytest.raises(HeadForcingError, match=f"method {name}: there is one of this name"):
            add_methods({name: METHODS["causvid"]})
    with pytest.raises(HeadForcingError, match="method mine: expected a PublishedMethod .*, found"):
        add_methods({"mine": METHODS["causvid"].method})
    add_methods({"causvid": METHODS["causvid"]})  # a file that is read twice


def test_stored_blocks_tell_methods_of_one_name_apart_and_versions_of_one():
    own = METHODS["causvid"].method
    assert own.key["method"] == "CausVid" and not {"module", "version"} & set(own.key)
    first = dataclass(frozen=True)(type("CausVid", (type(own),), {"__module__": "first"}))
    later = dataclass(frozen=True)(type("CausVid", (first,), {"__module__": "first", "version": 1}))
    other = dataclass(frozen=True)(type("CausVid", (type(own),), {"__module__": "other"}))
    keys = [each.key for each in (own, first(), later(), other())]
    assert all(keys.count(key) == 1 for key in keys)
