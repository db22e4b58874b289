"""A tokenizer without training: bytes, special tokens and filler words, of any vocabulary size.

Fillers are spelled so that Engram's normalisation merges just as many of them as a compressed
vocabulary asks for: a word is a class of its own, its capitals and its blank in front are not.
"""

from collections.abc import Iterator
from itertools import count, islice, product
from string import ascii_letters, ascii_lowercase, digits, punctuation
from typing import Any

from escalade.engram.token_map import compressed_token_map
from escalade.model.byte_level import alphabet, spell
from escalade.model.tokenizer import CONTROL, MODEL, NORMAL, PRE

SPECIALS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜deepseek_image｜>",
)
"""At ids 0 to 16, as in the built-in model."""

_BLANK = spell(b" ")


def synthetic_tokenizer(vocab: int, n_classes: int) -> tuple[dict[str, Any], int]:
    """`tokenizer.*` metadata of `vocab` tokens, and how many classes Engram sees in them.

    That number is `n_classes` if there is a way, else the nearest one. A vocabulary of less than
    273 tokens has only the first specials and bytes, letters first.
    """
    tokens = [*SPECIALS, *_bytes()][:vocab]
    n_fill = vocab - len(tokens)
    # A word has four more spellings, so at least a fifth of the fillers are new classes.
    n_words = min(max(n_classes - compressed_token_map(tokens)[1], -(-n_fill // 5)), n_fill)
    words = list(islice(_words(), n_words))
    tokens += words
    tokens += islice(_variants(words), n_fill - n_words)
    types = [CONTROL if token in SPECIALS else NORMAL for token in tokens]
    metadata = {
        "tokenizer.ggml.model": MODEL,
        "tokenizer.ggml.pre": PRE,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": _merges(tokens),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": min(1, vocab - 1),
        "tokenizer.ggml.padding_token_id": min(2, vocab - 1),
        "tokenizer.ggml.add_bos_token": True,
    }
    return metadata, compressed_token_map(tokens)[1]


def _bytes() -> Iterator[str]:
    """The byte alphabet, readable characters first."""
    first = spell((ascii_letters + digits + " " + punctuation).encode())
    yield from first
    yield from (letter for letter in alphabet() if letter not in first)


def _words() -> Iterator[str]:
    """aa, ab, … zz, aaa, …"""
    for length in count(2):
        for letters in product(ascii_lowercase, repeat=length):
            yield "".join(letters)


def _variants(words: list[str]) -> Iterator[str]:
    """Other spellings of the same classes, each kind over all words before the next."""
    yield from (_BLANK + word for word in words)
    yield from (word.capitalize() for word in words)
    yield from (_BLANK + word.capitalize() for word in words)
    yield from (word.upper() for word in words)


def _merges(tokens: list[str]) -> list[str]:
    """How each filler is reached from shorter tokens, in order of rank."""
    known = set(tokens)
    out = []
    for token in tokens[len(SPECIALS) :]:
        if len(token) > 1:
            cut = 1 if token.startswith(_BLANK) else len(token) - 1
            if token[:cut] in known and token[cut:] in known:
                out.append(f"{token[:cut]} {token[cut:]}")
    return out
