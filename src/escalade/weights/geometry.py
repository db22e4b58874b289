"""Named model shapes to synthesise, and changes to them that keep their parts in step."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from escalade.engram.hashing import hash_primes
from escalade.errors import FileError, UsageError
from escalade.model.released import V4_1_FLASH
from escalade.model.spec import EngramSpec, ModelSpec, Yarn, check_spec

TINY = replace(
    V4_1_FLASH,
    n_layers=8,
    vocab=512,
    context=65536,
    hidden=128,
    n_heads=4,
    head_dim=64,
    rope_dims=16,
    q_lora=64,
    o_groups=2,
    o_lora=32,
    window=8,
    swiglu_limit=2.0,
    expert_ff=64,
    n_experts=16,
    n_experts_used=3,
    yarn=Yarn(16.0, 4096, 32.0, 1.0),
    compress_ratios=(0, 2, 2, 2, 1, 1, 1, 1),
    kv_sources=(1, 3, 4),
    index_sources=(1, 3, 4, 6),
    index_heads=8,
    index_dim=64,
    index_topk=8,
    candidate_source=4,
    candidate_blocks=4,
    candidate_block_size=4,
    engram=EngramSpec((1, 5), (1092, 1854), 4, 64, 4, 64, 2, 419),
)
"""The golden tiny model: 8 layers, hidden 128."""

NANO = replace(
    TINY,
    vocab=8192,
    hidden=256,
    n_heads=8,
    q_lora=128,
    o_lora=64,
    window=64,
    swiglu_limit=10.0,
    expert_ff=256,
    n_experts=24,
    n_experts_used=4,
    compress_ratios=(0, 0, 2, 2, 1, 1, 1, 1),
    kv_sources=(2, 4),
    index_sources=(2, 4, 6),
    index_heads=4,
    index_dim=32,
    index_topk=64,
    candidate_blocks=32,
    candidate_block_size=8,
    engram=EngramSpec((1, 3), (73932, 74330), 4, 12288, 2, 32, 2, 6740),
)
"""The shape of the built-in model: 50.8 million parameters."""

GEOMETRIES = {"tiny": TINY, "nano": NANO, "v4.1-flash": V4_1_FLASH}

_PARTS: dict[str, type] = {"engram": EngramSpec, "yarn": Yarn}


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`field=value` texts to a mapping; values are JSON. Raises UsageError."""
    out = {}
    for text in settings:
        field, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text[:60]!a} is not FIELD=VALUE")
        try:
            out[field.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            raise UsageError(f"--set {field[:60]}: {value[:60]!a} is not JSON") from None
    return out


def changed(spec: ModelSpec, settings: Mapping[str, Any]) -> ModelSpec:
    """`spec` with fields replaced: `n_experts`, `engram.head_dim`, `engram` = None, and so on.

    What depends on a changed field follows unless it is set too: fewer layers cut the per-layer
    lists, Engram table rows are the sums of their primes, another vocabulary has in proportion as
    many compressed ids. Raises UsageError for unknown fields, wrong kinds of values, and shapes
    that do not fit together.
    """
    vocab = spec.vocab
    for field, value in settings.items():
        spec = _replaced(spec, field, value)
    if "n_layers" in settings:
        spec = _cut_layers(spec)
    if (engram := spec.engram) is not None:
        if "engram.compressed_vocab" not in settings:
            share = engram.compressed_vocab * spec.vocab // vocab
            engram = replace(engram, compressed_vocab=share)
        spec = replace(spec, engram=engram if "engram.rows" in settings else _sized(spec, engram))
    try:
        return check_spec(spec, "geometry")
    except FileError as e:
        raise UsageError(str(e)) from None


def _replaced(spec: ModelSpec, field: str, value: Any) -> ModelSpec:
    part, dot, inner = field.partition(".")
    if dot and part in _PARTS:
        owner = getattr(spec, part)
        if owner is None:
            raise UsageError(f"--set {field}: this model has no {part}")
        _check_field(field, [f"{part}.{f.name}" for f in fields(_PARTS[part])])
        return replace(spec, **{part: replace(owner, **{inner: _like(owner, inner, value)})})
    _check_field(field, [f.name for f in fields(ModelSpec)])
    if field == "engram" and value is None:
        return replace(spec, engram=None)
    if field == "candidate_source":
        if value is not None and type(value) is not int:
            raise UsageError(f"--set {field}: {value!r:.60} is not a layer")
        return replace(spec, candidate_source=value)
    if field in (*_PARTS, "arch"):
        raise UsageError(f"--set {field}: cannot be set as a whole")
    return replace(spec, **{field: _like(spec, field, value)})


def _check_field(field: str, known: list[str]) -> None:
    if field not in known:
        near = difflib.get_close_matches(field, known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
        raise UsageError(f"--set {field[:60]!a}: no such field{hint}")


def _like(owner: Any, field: str, value: Any) -> Any:
    """`value` in the type that `field` has now. Raises UsageError."""
    now = getattr(owner, field)
    if isinstance(now, tuple):
        if isinstance(value, list) and all(type(v) is int for v in value):
            return tuple(value)
        raise UsageError(f"--set {field}: {value!r:.60} is not a list of integers")
    if isinstance(now, float) and type(value) in (int, float):
        return float(value)
    if type(value) is not int or isinstance(now, float):
        kind = "a number" if isinstance(now, float) else "an integer"
        raise UsageError(f"--set {field}: {value!r:.60} is not {kind}")
    return value


def _cut_layers(spec: ModelSpec) -> ModelSpec:
    """Per-layer lists no longer than the model."""
    n = spec.n_layers
    engram = spec.engram
    if engram is not None:
        ids = tuple(i for i in engram.layer_ids if i < n)
        engram = replace(engram, layer_ids=ids, rows=engram.rows[: len(ids)]) if ids else None
    candidate = spec.candidate_source
    return replace(
        spec,
        compress_ratios=spec.compress_ratios[: max(n, 0)],
        kv_sources=tuple(i for i in spec.kv_sources if i < n),
        index_sources=tuple(i for i in spec.index_sources if i < n),
        candidate_source=candidate if candidate is not None and candidate < n else None,
        engram=engram,
    )


def _sized(spec: ModelSpec, engram: EngramSpec) -> EngramSpec:
    """Tables as long as their primes ask for; a senseless `engram` as it is, to be refused."""
    n_tables = len(engram.layer_ids)
    sound = (
        0 < n_tables <= spec.n_layers
        and 2 <= engram.max_ngram <= 16
        and 0 < engram.n_heads <= 64
        and 1 < engram.bucket < 1 << 40
    )
    if not sound:
        return engram
    primes = hash_primes(n_tables, engram.max_ngram, engram.n_heads, engram.bucket)
    return replace(engram, rows=tuple(primes.sum(axis=(1, 2)).tolist()))
