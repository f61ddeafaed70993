"""A method of another custom node is in the sampler's menu and renders."""

from pathlib import Path

from comfy_graphs import queued, saved_latents, short_graph
from comfy_harness import ComfyServer
from comfy_setup import NEWEST, installed
from other_method import source

NODES = {
    "a_thinned/__init__.py": "NODE_CLASS_MAPPINGS = {}\n",
    "a_thinned/headforcing_methods.py": f'{source()}\nMETHODS = {{"thinned": THINNED}}\n',
    "broken/__init__.py": "NODE_CLASS_MAPPINGS = {}\n",
    "broken/headforcing_methods.py": "import nothing_of_this_name\n",
}


def test_a_method_of_another_custom_node_renders_and_a_broken_one_is_left_out(tmp_path: Path):
    with ComfyServer(installed(NEWEST), tmp_path, custom_nodes=NODES) as server:
        made = {}
        for method in ("thinned", "self_forcing"):
            graph = short_graph(method=method, seconds=6.0)
            made[method] = saved_latents(server, queued(server, graph))
        assert made["thinned"].shape == made["self_forcing"].shape
        assert not made["thinned"].equal(made["self_forcing"])
        log = (tmp_path / "server.log").read_text()
        assert "headforcing_methods.py is left out: No module named 'nothing_of_this_name'" in log
