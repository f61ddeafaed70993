"""Letters that people type: marks belong to them, and one letter is the same letter however it is
encoded.
"""

import pytest
from headforcing.cli.texts import read_text
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.timeline.references import check_names, named_in
from headforcing.headforcing_core.timeline.returns import alike

NAMASTE = "\u0928\u092e\u0938\u094d\u0924\u0947"
BEAR = "\u0e2b\u0e21\u0e35"
HANGUL = "\uac15"
HANGUL_LETTERS = "\u1100\u1161\u11bc"


@pytest.mark.parametrize("name", [NAMASTE, BEAR, "Zo\u00eb", "Zoe\u0308", HANGUL, HANGUL_LETTERS])
def test_a_name_of_any_script_is_taken_and_found(name):
    check_names([name])
    assert named_in(f"@{name} runs", [name]) == (name,)


@pytest.mark.parametrize(
    ("name", "written"),
    [("Zo\u00eb", "Zoe\u0308"), ("Zoe\u0308", "ZO\u00cb"), (HANGUL, HANGUL_LETTERS)],
)
def test_a_name_is_found_in_another_encoding(name, written):
    assert named_in(f"@{written} runs", [name, "other"]) == (name,)
    assert read_text(f"@{written} runs", [name]) == f"@{written} runs"


@pytest.mark.parametrize(
    ("names", "written"),
    [(["Zoe"], "Zoe\u0308"), (["\u0928\u092e\u0938"], NAMASTE), (["hero"], "herox")],
)
def test_a_name_is_not_found_in_a_longer_one(names, written):
    with pytest.raises(HeadForcingError, match="no picture is named"):
        named_in(f"@{written} runs", names)


def test_names_that_differ_by_a_mark_are_two_and_by_encoding_one():
    check_names(["Zoe", "Zo\u00eb"])
    assert named_in("@Zoe\u0308 runs", ["Zoe", "Zo\u00eb"]) == ("Zo\u00eb",)
    with pytest.raises(HeadForcingError, match="two pictures"):
        check_names(["Zoe\u0308", "Zo\u00eb"])


def test_prompts_are_compared_however_they_are_encoded():
    assert alike("The cafe\u0301 of Zoe\u0308 at night", "the caf\u00e9 of Zo\u00eb at night")
    assert not alike(NAMASTE, "\u0928\u092e\u0938")


@pytest.mark.parametrize(
    "scene", ["Sce\u0300ne {}: a fox", "\u110c\u1161\u11bc\u1106\u1167\u11ab {}: a fox"]
)
def test_words_for_a_scene_are_read_in_any_encoding(scene):
    text = "\n".join(scene.format(number) for number in (1, 2))
    assert len(read_any(text).segments) == 2
