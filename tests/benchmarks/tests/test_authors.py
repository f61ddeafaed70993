"""The comparison with the authors' code, on a checkout that holds a stand-in for their model."""

from pathlib import Path

import pytest
from headforcing.tests.benchmarks import authors

MODEL = """
from headforcing.headforcing_core.model.wan import WanConfig, WanModel

class CausalWanModel(WanModel):
    def __init__(self, local_attn_size, sink_size, **sizes):
        super().__init__(WanConfig(**sizes))
        self.room = local_attn_size

    def forward(self, x, t, context, seq_len, kv_cache, crossattn_cache, current_start):
        assert x.shape[:3] == (1, 16, 3) and t.shape == (1, 3) and context[0].shape[1] == 4096
        assert kv_cache[0]["k"].shape[1] == self.room * seq_len // 3 and current_start % seq_len == 0
        return 0 * x
"""


@pytest.mark.parametrize("method", authors.PAIRS)
def test_both_models_make_the_same_blocks_and_are_timed(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "wan" / "modules"
    folder.mkdir(parents=True)
    (folder / "causal_model.py").write_text(MODEL)
    (folder / "model.py").write_text("")
    words = [str(tmp_path), "--method", method, "--size", "32x32", "--dim", "128", "--blocks", "1"]
    found = authors.main([*words, "--out", str(tmp_path / "found.json")])
    assert found["of_the_authors_time"].keys() == {method, "head_forcing"} and (tmp_path / "found.json").is_file()
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found["seconds_per_block"].values())
    assert min(found["difference_of_latents"]) > 0.1  # the stand-in predicts nothing


def test_another_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        authors.main([str(tmp_path)])
    assert "has no wan/modules/causal_model.py; give a checkout" in capsys.readouterr().err
