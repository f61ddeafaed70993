"""Parts of the real models, which lie beside the repository, in ComfyUI."""

import json
from pathlib import Path

from comfy_harness import run_in_comfy
from comfy_setup import NEWEST, installed
from headforcing.headforcing_core.weights.umt5 import MAX_TOKENS
from real_tokenizer import sentencepiece_model
from sentencepiece import SentencePieceProcessor

PROGRAM = Path(__file__).parent / "programs" / "real_parts.py"


def test_real_latents_have_comfyuis_colours_and_a_long_prompt_is_told_its_first_cut_word(
    real_file, tmp_path
):
    latents = real_file("test_latents_wan.pth")
    model = sentencepiece_model(real_file("umt5_tokenizer.json"))
    (tmp_path / "spiece.model").write_bytes(model)
    words = [f"word{number}" for number in range(400)]
    text = " ".join(words)
    told = run_in_comfy(installed(NEWEST), PROGRAM, latents, tmp_path / "spiece.model", text)
    found = json.loads(told.rsplit("RESULTS", 1)[1])
    # JPEG changes colours a little
    assert len(found["previews"]) == 3 and max(found["previews"]) < 6
    assert found["thumbnail"] < 9 and found["another frame"] > 25, "made larger with soft edges"
    assert 100 < found["brightness"] < 160 and found["at the ends"] < 0.5, "neither dark nor white"
    tokenizer = SentencePieceProcessor(model_proto=model)
    cut = next(
        word
        for count, word in enumerate(words, 1)
        if len(tokenizer.encode(" ".join(words[:count]))) > MAX_TOKENS
    )
    count = len(tokenizer.encode(text)) + 1
    begin = f"the model reads the first 512 of {count} tokens of the prompt {text[:40]!r}: "
    assert found["cut"] == [f"{begin}the first word that is cut is {cut!r}; say it in fewer words"]
    assert found["unknown"] == found["other tokenizer"] == [f"{begin}say it in fewer words"]
    assert found["only the end"][0].endswith(": say it in fewer words")
