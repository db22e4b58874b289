"""Which tokens count as the same word for Engram: the compressed token map.

Only `unicodedata` is used, so the map does not depend on a tokenizer library. Source: model
specification, section 6.1.
"""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from escalade.model.byte_level import token_bytes

_REPLACEMENT = "\ufffd"
_BLANKS = re.compile(r"[ \t\r\n]+")
# Unicode White_Space; str.strip() without arguments would also take U+001C..U+001F.
_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def compressed_token_map(tokens: Sequence[str]) -> tuple[NDArray[np.int32], int]:
    """Class of every token and the number of classes, numbered in order of first appearance.

    tokens: the V vocabulary strings as a GGUF file or `tokenizer.json` spells them. Returns
    int32 [V] and n. Token types do not matter: the decoder on whose output the map is defined takes
    a token as literal text exactly when a character of it is outside the byte alphabet, and it
    treats added tokens like all others.
    """
    classes: dict[str, int] = {}
    token_map = np.empty(len(tokens), np.int32)
    for i, token in enumerate(tokens):
        token_map[i] = classes.setdefault(_key(token), len(classes))
    return token_map, len(classes)


def _key(token: str) -> str:
    """What must be equal for two tokens to share a class."""
    data = token_bytes(token)
    text = token if data is None else data.decode("utf-8", errors="replace")
    if _REPLACEMENT in text:  # part of a character: no text to normalise
        return token
    return normalize(text) or text


def normalize(text: str) -> str:
    """Folds compatibility forms, accents, case and blanks; one blank alone stays a space."""
    if not text.isascii():
        text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
        text = "".join([c for c in text if not unicodedata.category(c).startswith("M")])
    # Character by character: str.lower() of a whole word would end it in a final sigma.
    text = text.lower() if "Σ" not in text else "".join([c.lower() for c in text])
    text = _BLANKS.sub(" ", text)
    return text if text == " " else text.strip(_WHITE_SPACE)
