"""How tests/conftest.py gives tests to processes."""

import runpy
from pathlib import Path

CONFTEST = runpy.run_path(str(Path(__file__).resolve().parents[1] / "conftest.py"))
NAMES = {  # tests, and the groups that they belong to
    "tests/unit/test_plan.py::test_a[1]": "tests/unit/test_plan.py",
    "tests/comfy/test_nodes_parity.py::test_b[0.3.75-smoke-7]": "tests/comfy/test_nodes_parity.py0.3.75",
    "tests/comfy/test_nodes.py::test_c[comfy]": "comfy: tests/comfy/test_nodes.py",
    "tests/comfy/test_nodes.py::test_c[comfy_floor]": "comfy_floor: tests/comfy/test_nodes.py",
    "tests/comfy/test_nodes.py::test_d": "comfy: tests/comfy/test_nodes.py",
    "tests/comfy/test_studio.py::test_e": "comfy_latest: tests/comfy/test_studio.py",
    "tests/comfy/test_studio.py::test_f[comfy, Nodes 2.0]": "comfy: tests/comfy/test_studio.py",
    "tests/comfy/test_sound.py::test_g[comfy_latest, Nodes 2.0]": "comfy_latest: tests/comfy/test_sound.py",
}
WAITING = ["comfy_latest: a", "comfy: b", "comfy_latest: c", "d", "comfy_floor: e"]


def test_the_tests_of_a_file_that_run_in_one_server_are_a_group():
    assert {name: CONFTEST["process_group"](name) for name in NAMES} == NAMES


def test_a_process_stays_with_its_server_and_starts_that_of_another_one_last():
    taken = CONFTEST["next_group"]
    assert taken(WAITING, set(), set()) == "comfy_latest: a"
    assert taken(WAITING, {"comfy"}, {"comfy_latest"}) == "comfy: b"
    assert taken(WAITING, {"comfy", ""}, {"comfy_latest", ""}) == "comfy: b"
    assert taken(WAITING, set(), {"comfy_latest", "comfy"}) == "comfy_floor: e"
    assert taken(WAITING[:4], {""}, {"comfy_latest", "comfy"}) == "d"
    assert taken(WAITING[:3], {""}, {"comfy_latest", "comfy"}) == "comfy_latest: a"
