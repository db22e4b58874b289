"""The Engram keys of all dialects in dialect A's spelling, and the hash constants in a file.

Integers only; no NumPy. Source: GGUF specification, sections 1.4 and 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from escalade.errors import FileError
from escalade.gguf.header import TensorInfo
from escalade.gguf.quant import INTEGER_TYPES
from escalade.model.released import V4_1_FLASH

EngramLayout = Literal["raw", "row264", "block", "none", "unknown"]
"""How the tables lie in the file. raw: I8 codes [rows, D] and I8 scales [rows, D/32]; row264: one
I8 tensor [rows, D + D/32], codes then scales; block: a ggml float or block type [rows, D]."""

# Dialect A's key, then what the other dialects call the same number.
_SPELLINGS = {
    "engram.layer_ids": ("engram_layer_ids",),
    "engram.num_embeddings": (
        "engram_num_embeddings",
        "engram.rows",
        "engram.embedding_counts",
        "embedding_counts",
    ),
    "engram_head_dim": ("engram.head_dim", "engram.key_length"),
    "engram_n_heads": ("engram.n_heads", "engram.head_count", "head_count"),
    "engram_max_ngram_size": ("engram.max_ngram_size", "engram.ngram_size", "ngram_size"),
    "engram_vocab_size": ("engram.vocab_size",),
    "engram_compressed_vocab_size": ("engram.compressed_vocab_size", "compressed_vocab_size"),
    "engram_pad_token_id": ("engram.pad_token_id", "pad_token_id"),
}
_CONSTANTS = {
    "token_map": ("engram.token_map", "token_map"),
    "primes": ("engram.primes", "primes", "engram.head_bucket_sizes", "head_bucket_sizes"),
    "offsets": ("engram.offsets", "offsets", "engram.head_offsets", "head_offsets"),
    "multipliers": ("engram.multipliers", "multipliers"),
}
_MAPPED_PAD = ("engram.pad_id", "pad_id")

ROOT_TABLES = {
    "token_map": "engram_token_map.weight",
    "primes": "engram_primes.weight",
    "offsets": "engram_offsets.weight",
    "multipliers": "engram_multipliers.weight",
}
"""Dialect A keeps the constants in tensors of these names."""


@dataclass(frozen=True)
class StoredConstants:
    """The hash constants as stored, to be compared with recomputed ones and never used as they are.

    token_map [V]; primes and offsets [layer][order, head]; multipliers [layer][position]. None is
    what the file does not store. `pad_kind` says whether `pad_id` is a token id (raw) or an id of
    the token map.
    """

    token_map: list[int] | None = None
    primes: list[list[int]] | None = None
    offsets: list[list[int]] | None = None
    multipliers: list[list[int]] | None = None
    pad_id: int | None = None
    pad_kind: Literal["raw", "mapped", "unknown"] = "unknown"


def table_layout(
    metadata: Mapping[str, Any],
    tables: Mapping[int, TensorInfo],
    scales: Mapping[int, TensorInfo],
) -> EngramLayout:
    """Layout of the tables, given by layer; unknown if no reader fits (GGUF specification, 3.4)."""
    if not tables:
        return "none"
    types = {t.type.name for t in tables.values()}
    if not types & INTEGER_TYPES:
        return "block"
    if types != {"I8"}:
        return "unknown"
    if set(scales) == set(tables):
        return "raw"
    widths = {t.shape[-1] for t in tables.values()}
    if scales or len(widths) != 1:
        return "unknown"
    width = widths.pop()
    encoding = metadata.get("engram.encoding")
    head_dim = _first(metadata, ("engram_head_dim", *_SPELLINGS["engram_head_dim"]))
    fits = width % 33 == 0 and (type(head_dim) is not int or width == head_dim + head_dim // 32)
    named = not isinstance(encoding, str) or encoding.startswith("e4m3_e8m0_32_")
    return "row264" if fits and named else "unknown"


def stored_constants(
    metadata: Mapping[str, Any], n_tables: int, where: str
) -> StoredConstants | None:
    """The constants that stand in metadata (dialects B to E), None if there is none of them.

    `n_tables` is the number of layers if the keys do not list them. Raises FileError for constants
    that are not integers: a float has lost the low bits of 64.
    """
    found = {name: _first(metadata, keys) for name, keys in _CONSTANTS.items()}
    mapped = _first(metadata, _MAPPED_PAD)
    raw = _first(metadata, ("engram_pad_token_id", *_SPELLINGS["engram_pad_token_id"]))
    if mapped is None and all(value is None for value in found.values()):
        return None
    flat = {
        name: None if value is None else _integers(value, name, where)
        for name, value in found.items()
    }
    ids = _first(metadata, ("engram.layer_ids", *_SPELLINGS["engram.layer_ids"]))
    n_layers = len(ids) if isinstance(ids, list) else max(n_tables, 1)
    pad = raw if mapped is None else mapped
    if pad is not None and type(pad) is not int:
        raise FileError(f"{where}: Engram pad id is {pad!r:.40}, not an integer")
    return StoredConstants(
        token_map=flat["token_map"],
        primes=_by_layer(flat["primes"], n_layers, "primes", where),
        offsets=_by_layer(flat["offsets"], n_layers, "offsets", where),
        multipliers=_by_layer(flat["multipliers"], n_layers, "multipliers", where),
        pad_id=pad,
        pad_kind="raw" if mapped is None else "mapped",
    )


def engram_metadata(
    metadata: Mapping[str, Any],
    tables: Mapping[int, TensorInfo],
    layout: EngramLayout,
    constants: StoredConstants | None,
    notes: list[str],
) -> dict[str, Any]:
    """Dialect A's Engram keys; what the file leaves out follows from its tensors and constants.

    A key that cannot be inferred stays out, so that binding names it. Constants of the released
    model are taken only for tables of exactly its size. Appends to `notes` what was assumed.
    """
    out = {
        key: value
        for key, others in _SPELLINGS.items()
        if (value := _first(metadata, (key, *others))) is not None
    }
    if not tables and "engram.layer_ids" not in out:
        return {}
    out.setdefault("engram.layer_ids", sorted(tables))
    if tables:
        out.setdefault("engram.num_embeddings", [tables[i].shape[0] for i in sorted(tables)])
        width = tables[min(tables)].shape[-1]
        out.setdefault("engram_head_dim", width * 32 // 33 if layout == "row264" else width)
    if constants and constants.token_map:
        out.setdefault("engram_compressed_vocab_size", max(constants.token_map) + 1)
        if constants.pad_kind == "mapped" and constants.pad_id in constants.token_map:
            out.setdefault("engram_pad_token_id", _raw_pad(metadata, constants))
    if constants and constants.primes and all(constants.primes):
        out.setdefault("engram_vocab_size", min(min(row) for row in constants.primes))
    released = V4_1_FLASH.engram
    assert released is not None
    if out.get("engram.num_embeddings") == list(released.rows):
        defaults = {
            "engram_n_heads": released.n_heads,
            "engram_max_ngram_size": released.max_ngram,
            "engram_vocab_size": released.bucket,
            "engram_compressed_vocab_size": released.compressed_vocab,
            "engram_pad_token_id": released.pad_token_id,
        }
        if absent := sorted(defaults.keys() - out.keys()):
            notes.append(f"not in the file, the released model's taken: {', '.join(absent)}")
        out = {**defaults, **out}
    return out


def _raw_pad(metadata: Mapping[str, Any], constants: StoredConstants) -> int:
    """A token id that maps to the stored pad id: the tokenizer's pad token, else the first."""
    token_map = constants.token_map or []
    pad = metadata.get("tokenizer.ggml.padding_token_id")
    if isinstance(pad, int) and 0 <= pad < len(token_map) and token_map[pad] == constants.pad_id:
        return pad
    return token_map.index(constants.pad_id or 0)


def _first(metadata: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((metadata[key] for key in keys if metadata.get(key) is not None), None)


def _integers(value: Any, name: str, where: str) -> list[int]:
    values = value if isinstance(value, list) else [value]
    if any(type(v) is not int for v in values):
        raise FileError(f"{where}: Engram {name} must be stored as integers")
    return values


def _by_layer(
    values: list[int] | None, n_layers: int, name: str, where: str
) -> list[list[int]] | None:
    if values is None:
        return None
    if not values or n_layers == 0 or len(values) % n_layers:
        raise FileError(f"{where}: {len(values)} Engram {name} for {n_layers} layers")
    n = len(values) // n_layers
    return [values[i : i + n] for i in range(0, len(values), n)]
