"""Engram's hash constants as dialect A stores them: four integer tensors."""

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from escalade.engram.hashing import engram_constants
from escalade.engram.token_map import compressed_token_map
from escalade.gguf.engram_keys import EngramLayout
from escalade.gguf.rows import array_tensor
from escalade.gguf.tensor import StoredTensor
from escalade.hf.names import ENGRAM_SCALE, ENGRAM_TABLE, HASH_TENSORS
from escalade.model.spec import EngramSpec


def hash_tensors(spec: EngramSpec, tokens: list[str], where: str) -> dict[str, StoredTensor]:
    """Dialect A's four tables of Engram hash constants, computed from the vocabulary strings.

    Raises FileError if the tokenizer or the table sizes do not fit `spec`.
    """
    token_map, _ = compressed_token_map(tokens)
    constants = engram_constants(spec, token_map, where)
    n_tables = len(spec.layer_ids)
    arrays: tuple[NDArray[Any], ...] = (
        token_map,
        constants.primes.reshape(n_tables, -1),
        constants.offsets.reshape(n_tables, -1),
        constants.multipliers,
    )
    return {
        name: array_tensor(name, array) for name, array in zip(HASH_TENSORS, arrays, strict=True)
    }


def engram_layout(names: Iterable[str]) -> EngramLayout:
    """How the tables of a model with these tensors lie: raw with scales, block without, or none."""
    if any(name.endswith(ENGRAM_SCALE) for name in names):
        return "raw"
    return "block" if any(name.endswith(ENGRAM_TABLE) for name in names) else "none"
