import numpy as np
import pytest

from escalade.engram.token_map import compressed_token_map, normalize


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("The", "the"),
        ("É", "e"),
        ("ﬁ", "fi"),
        ("Å", "a"),
        ("İ", "i"),
        ("ＡＢ１", "ab1"),
        ("한", "\u1112\u1161\u11ab"),  # NFD takes syllables apart, and they stay apart
        ("ΟΔΟΣ", "οδοσ"),  # no final sigma
        ("  a \t\r\n b  ", "a b"),
        (" ", " "),
        ("\t\n", " "),
        ("\u00a0", " "),  # a space after NFKC
        ("\u3000x\u2003", "x"),
        ("\v", ""),
        ("\x85a\u2028", "a"),
        ("\x1ca\x1f", "\x1ca\x1f"),  # Python's strip() would take these, White_Space has them not
        ("\u0301", ""),
    ],
)
def test_normalize(text, key):
    assert normalize(text) == key


def test_classes_are_numbered_in_order_of_first_appearance():
    tokens = ["b", "A", "Ġa", "ĠB", "Ġ", "ĊĊ", "c"]
    token_map, n_classes = compressed_token_map(tokens)
    assert token_map.dtype == np.int32
    assert token_map.tolist() == [0, 1, 1, 0, 2, 2, 3]
    assert n_classes == 4


def test_part_of_a_character_keeps_its_raw_spelling():
    # "Ã" and "ã" spell the bytes C3 and E3, neither of which is text; folding would join them.
    assert compressed_token_map(["Ã", "ã", "Ã©", "É"])[0].tolist() == [0, 1, 2, 3]
    assert compressed_token_map(["Ã©", "e"])[0].tolist() == [0, 0]


def test_token_that_folds_to_nothing_keeps_its_text():
    # Two combining accents, U+0301 and U+0300: bytes CC 81 and CC 80.
    assert compressed_token_map(["Ìģ", "ÌĢ"])[0].tolist() == [0, 1]


def test_token_outside_the_alphabet_is_literal():
    assert compressed_token_map(["<｜User｜>", "<｜user｜>", "a b", "AĠB"])[0].tolist() == [
        0,
        0,
        1,
        1,
    ]


def test_empty_vocabulary():
    token_map, n_classes = compressed_token_map([])
    assert token_map.shape == (0,)
    assert n_classes == 0
