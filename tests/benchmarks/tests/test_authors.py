"""The comparison with the authors' code, on a checkout that holds a stand-in for their model and
program.
"""

from pathlib import Path

import pytest
import torch
from headforcing.tests.benchmarks import authors
from headforcing.tests.benchmarks.authors_code import CODES

MODEL = """
from types import SimpleNamespace
from headforcing.headforcing_core.model.wan import WanConfig, WanModel

class CausalWanModel(WanModel):
    def __init__(self, local_attn_size, sink_size, compression_method=None, **sizes):
        super().__init__(WanConfig(**sizes))
        self.local_attn_size = local_attn_size
        for block in self.blocks:
            block.self_attn.PC = SimpleNamespace(history_capacity=0)
            block.self_attn.max_attention_size = 0
            block.self_attn._ensure_score_metadata = lambda device: None

    def _apply_cache_updates(self, kv_cache):
        kv_cache[0]["k"] += 1

    def forward(self, x, t, context, seq_len, kv_cache, crossattn_cache, current_start):
        assert x.shape[:3] == (1, 16, 3) and t.shape == (1, 3) and context[0].shape[1] == 4096
        assert self.blocks[0].self_attn.max_attention_size == self.local_attn_size * seq_len // 3
        assert len(kv_cache) == len(crossattn_cache) == len(self.blocks) and current_start % seq_len == 0
        self._apply_cache_updates(kv_cache)
        return 0 * x
"""

PROGRAM = """
import torch
from demo_utils.memory import gpu
from utils.interactive import parse_scene_segments
from utils.memory import gpu
from utils.wan_wrapper import WanVAEWrapper

class CausalInferencePipeline:
    def _initialize_kv_cache(self, batch_size, dtype, device):
        size = self.frame_seq_length * abs(self.local_attn_size)
        self.kv_cache1 = [{"k": torch.zeros(size, dtype=dtype)} for _ in range(self.num_transformer_blocks)]

    def _initialize_crossattn_cache(self, batch_size, dtype, device):
        self.crossattn_cache = [{"is_init": False} for _ in range(self.num_transformer_blocks)]
"""


@pytest.mark.parametrize("method", CODES)
def test_both_models_make_the_same_blocks_and_are_measured(method: str, tmp_path: Path):
    ending = CODES[method].ending
    files = {
        f"wan/modules/causal_model{ending}.py": MODEL,
        f"pipeline/causal_inference{ending}.py": PROGRAM,
        "wan/modules/extract_head_triton.py": "extract_heads_torch = None",
        "wan/modules/model.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    small = ("--size", "64x48", "--dim", "128", "--blocks", "1")
    found = authors.main([str(tmp_path), "--method", method, *small])
    sides = {method, "head_forcing"}
    for measured in (
        "of_the_authors_time",
        "of_the_authors_self_attention",
        "of_the_authors_memory",
    ):
        assert found[measured].keys() == sides and min(found[measured].values()) > 0
    assert all(
        len(seconds) == 1 and seconds[0] > 0 for seconds in found["seconds_per_block"].values()
    )
    assert min(found["difference_of_latents"]) > 0.1  # the stand-in predicts nothing


def test_memory_is_counted_while_the_caches_are_full():
    def run() -> None:
        torch.zeros(1000)  # freed before
        kept = torch.zeros(100)
        with torch.profiler.record_function(authors.FULL):
            torch.zeros(50)
            torch.zeros(25)
        del kept

    assert authors.most_bytes(run) == 4 * (100 + 50)
