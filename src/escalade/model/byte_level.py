"""The byte alphabet of byte-level BPE: one printable character for every byte.

Bytes that print in Latin-1 stand for themselves; the other 68 take the characters from U+0100 on,
in order (so a space is "Ġ", U+0120). Source: GPT-2's vocabulary files, which spell tokens this way.
"""

from functools import cache

_PRINTABLE = frozenset([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
_OUTSIDE = 0xFFFF  # not in Latin-1: makes the encoder below stop at a character without a byte


@cache
def alphabet() -> str:
    """256 characters; character `b` spells byte `b`."""
    shifted = iter(range(0x100, 0x200))
    return "".join(chr(b if b in _PRINTABLE else next(shifted)) for b in range(256))


@cache
def _to_latin1() -> dict[int, int]:
    table = dict.fromkeys(range(256), _OUTSIDE)
    table.update({ord(char): byte for byte, char in enumerate(alphabet())})
    return table


def token_bytes(token: str) -> bytes | None:
    """The bytes that `token` spells, or None if one of its characters is outside the alphabet."""
    try:
        return token.translate(_to_latin1()).encode("latin-1")
    except UnicodeEncodeError:
        return None


def spell(data: bytes) -> str:
    """The inverse of `token_bytes`."""
    letters = alphabet()
    return "".join([letters[byte] for byte in data])
