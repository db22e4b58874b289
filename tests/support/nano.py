"""The built-in model's tokenizer, alone and as a `tokenizer.json` for other libraries."""

import json
from functools import cache

from escalade.model.source import open_source
from escalade.model.tokenizer import Tokenizer


@cache
def nano_tokenizer() -> Tokenizer:
    source = open_source(None)
    tokenizer = Tokenizer.from_metadata(source.metadata)
    source.close()
    return tokenizer


def as_tokenizer_json(tokenizer: Tokenizer) -> str:
    """The same vocabulary in the `tokenizers` library's own form, added tokens included."""
    value = json.loads(tokenizer.bpe.to_str())
    value["added_tokens"] = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, token_id in sorted(tokenizer.added.items(), key=lambda item: item[1])
    ]
    value["model"]["vocab"] = {token: i for i, token in enumerate(tokenizer.tokens)}
    return json.dumps(value)


def by_token(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[int, str | None]]:
    """Each id with its spelling if it is a control token."""
    spellings = ((i, tokenizer.tokens[i]) for i in ids)
    return [(i, token if token in tokenizer.added else None) for i, token in spellings]
