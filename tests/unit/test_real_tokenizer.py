"""Our umT5 tokenising with the pieces of the real tokenizer (256,300), which lies beside the
repository.
"""

import itertools
import logging
import random
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.weights.umt5 import (
    MAX_TOKENS,
    UMT5Encoder,
    clean_prompt,
    first_cut_word,
)
from real_tokenizer import sentencepiece_model

SENTENCES = {
    "English": "A red fox runs through deep snow at dawn, filmed from a slow drone.",
    "German": "Ein Mädchen läuft über die große Brücke, während es heftig regnet.",
    "French": "Une forêt brumeuse où l'on aperçoit un cerf près d'un étang gelé.",
    "Spanish": "¿Dónde está el niño? Corre por la playa mientras cae la tarde.",
    "Russian": "Старый маяк стоит на скале, и волны бьются о берег.",
    "Greek": "Ένα μικρό καΐκι ταξιδεύει στη γαλάζια θάλασσα.",
    "Arabic": "قافلة من الجمال تعبر الصحراء عند غروب الشمس.",
    "Hebrew": "ילדה קטנה מחזיקה מטרייה אדומה ברחוב גשום.",
    "Hindi": "एक बूढ़ा आदमी नदी के किनारे बैठकर बाँसुरी बजा रहा है।",
    "Chinese": "一只熊猫坐在竹林里慢慢地吃竹子，镜头缓缓推进。",
    "Japanese": "桜の花びらが舞う中、少女が静かな道を歩いている。",
    "Korean": "비 오는 밤거리에서 노란 우산을 쓴 남자가 걷는다.",
}
INSERTED = (
    "",
    "🦊",
    "👩🏽‍🚀 🇯🇵",
    "cafe\u0301 e\u0302\u0323",  # combining marks
    "東京タワー",
    "50 mm, f/1.8",
    "(wide shot)",
    "ＡＢ（全角）ﬁ①½™ …",  # which another normalisation would write in other letters
)
COUNT = 2000


@pytest.fixture(scope="module")
def file(real_file):
    return real_file("umt5_tokenizer.json")


@pytest.fixture(scope="module")
def real(file):
    """The tokenizer as another library reads it."""
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(file))


@pytest.fixture(scope="module")
def ours(file):
    """Our tokenising, over a sentencepiece model of the same pieces and scores."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = sentencepiece_model(file)
    return UMT5Encoder(SimpleNamespace(), sentencepiece.SentencePieceProcessor(model_proto=model))


def prompts():
    """2,000 prompts: sentences of twelve languages, shuffled words of two, emoji and marks."""
    draw = random.Random(5)
    languages = itertools.cycle(SENTENCES.values())
    texts = []
    for sentence in itertools.islice(languages, COUNT):
        words = sentence.split(" ")
        other = draw.choice(list(SENTENCES.values())).split(" ")
        mixed = [*words, draw.choice(INSERTED), *draw.sample(other, len(other))]
        if len(texts) >= len(SENTENCES):
            draw.shuffle(mixed)
        texts.append(" ".join(mixed))
    return texts


def test_two_thousand_prompts_in_twelve_languages_have_the_pieces_of_the_real_tokenizer(real, ours):
    different = [
        text for text in prompts() if ours.tokens(text) != real.encode(clean_prompt(text)).ids
    ]
    assert len(different) == 0, different[:5]


@pytest.mark.parametrize("language", SENTENCES)
def test_a_long_prompt_is_cut_at_the_piece_where_the_real_tokenizer_cuts_it(real, ours, language):
    long = " ".join([SENTENCES[language]] * 60)
    real.enable_truncation(MAX_TOKENS)
    try:
        expected = real.encode(clean_prompt(long)).ids
    finally:
        real.no_truncation()
    assert len(expected) == MAX_TOKENS
    assert ours.tokens(long) == expected


def test_the_word_that_is_named_is_the_first_that_the_model_does_not_read_whole(ours):
    words = [f"word{number}" for number in range(400)]
    text = " ".join(words)
    pieces = ours.tokenizer.encode(text, out_type=str)
    named = first_cut_word(pieces, MAX_TOKENS - 1)
    whole = words[: words.index(named)]
    fits = [*whole, named]
    assert len(ours.tokenizer.encode(" ".join(whole))) <= MAX_TOKENS - 1
    assert len(ours.tokenizer.encode(" ".join(fits))) > MAX_TOKENS - 1


@pytest.mark.parametrize(
    ("pieces", "kept", "named"),
    [
        (["▁a", "▁red", "▁fox"], 2, "fox"),
        (["▁a", "▁un", "usual", "ly", "▁fox"], 2, "unusually"),
        (["▁a", "▁", "fox", "▁runs"], 1, "fox"),
        (["▁" + "竹" * 50, "熊猫"], 1, "熊猫"),
    ],
)
def test_a_word_that_is_cut_inside_is_named_whole(pieces, kept, named):
    assert first_cut_word(pieces, kept) == named


def test_encoding_says_which_word_is_cut(ours, caplog):
    """The encoder's model is a table of no words: only the tokenizer is real here."""

    class NoModel:
        shared = SimpleNamespace(weight=torch.zeros(1))

        def __call__(self, input_ids):
            return SimpleNamespace(last_hidden_state=torch.zeros(*input_ids.shape, 1))

    encoder = UMT5Encoder(NoModel(), ours.tokenizer)
    text = " ".join(f"word{number}" for number in range(400))
    with caplog.at_level(logging.WARNING):
        encoder.encode(["a short prompt"])
        assert not caplog.records
        encoder.encode([text])
    named = first_cut_word(ours.tokenizer.encode(text, out_type=str), MAX_TOKENS - 1)
    assert f"the first word that is cut is {named!r}" in caplog.text
