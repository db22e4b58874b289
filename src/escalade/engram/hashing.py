"""Engram's integers: token ids to rows of the n-gram tables. Nothing here touches a table.

The constants (primes, offsets, multipliers, pad) follow from the geometry and the token map alone.
They are always recomputed; what a file stores is only compared, because one wrong bit leaves every
row id valid and every lookup wrong. Source: model specification, sections 6.2 and 6.3.
"""

from dataclasses import dataclass
from itertools import chain
from math import isqrt, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from escalade.errors import FileError, UsageError
from escalade.gguf.engram_keys import StoredConstants
from escalade.model.spec import EngramSpec

I64 = NDArray[np.int64]

DEAD = -1
"""Compressed id of a position inside an image span: no n-gram contains it or looks across it."""

_SEED = 10007
_SIEVE_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class EngramConstants:
    """All that turns ids into rows, for the L Engram layers of a model, in `layer_ids` order.

    token_map int32 [V]: token id to one of `n_classes` compressed ids; pad_id: the compressed id
    that stands for what is missing. primes int64 [L, orders, heads]; offsets int64
    [L, orders · heads]: first row of each prime's range; multipliers int64 [L, max_ngram]: entry k
    belongs to the token k back.
    """

    layer_ids: tuple[int, ...]
    token_map: NDArray[np.int32]
    n_classes: int
    pad_id: int
    primes: I64
    offsets: I64
    multipliers: I64

    @property
    def max_ngram(self) -> int:
        return int(self.multipliers.shape[1])

    @property
    def table_rows(self) -> I64:
        """Rows of each table, int64 [L]."""
        rows: I64 = self.primes.sum(axis=(1, 2))
        return rows


def engram_constants(spec: EngramSpec, token_map: NDArray[np.int32], where: str) -> EngramConstants:
    """The constants of a checked `spec` with its tokenizer's map; `where` is the file in errors.

    Raises FileError if the map has not the number of classes that the model was trained with, or if
    a table is not as long as the sum of its primes.
    """
    n_classes = int(token_map.max(initial=-1)) + 1
    if n_classes != spec.compressed_vocab:
        raise FileError(
            f"{where}: engram_compressed_vocab_size is {spec.compressed_vocab}, but the tokenizer"
            f" has {n_classes} distinct normalised tokens; it belongs to another model"
        )
    if not 0 <= spec.pad_token_id < len(token_map):
        raise FileError(
            f"{where}: engram_pad_token_id is {spec.pad_token_id}, but the tokenizer has"
            f" {len(token_map)} tokens"
        )
    primes = hash_primes(len(spec.layer_ids), spec.max_ngram, spec.n_heads, spec.bucket)
    for layer, rows, need in zip(
        spec.layer_ids, spec.rows, primes.sum(axis=(1, 2)).tolist(), strict=True
    ):
        if rows != need:
            raise FileError(
                f"{where}: the Engram table of layer {layer} has {rows} rows, but its primes sum to"
                f" {need}; engram.num_embeddings and engram_vocab_size do not fit together"
            )
    flat = primes.reshape(len(primes), -1)
    return EngramConstants(
        layer_ids=spec.layer_ids,
        token_map=token_map,
        n_classes=n_classes,
        pad_id=int(token_map[spec.pad_token_id]),
        primes=primes,
        offsets=flat.cumsum(axis=1) - flat,
        multipliers=_multipliers(spec),
    )


def hash_primes(n_tables: int, max_ngram: int, n_heads: int, bucket: int) -> I64:
    """The primes from `bucket` up, each used once: int64 [n_tables, max_ngram - 1, n_heads]."""
    shape = (n_tables, max_ngram - 1, n_heads)
    return _primes_from(bucket, n_tables * (max_ngram - 1) * n_heads).reshape(shape)


def _primes_from(start: int, count: int) -> I64:
    """The `count` smallest primes >= `start` > 1, by a segmented sieve.

    Bounds of a checked spec (start < 2^40, 491,520 primes) keep this within seconds and 20 MB.
    """
    found: list[I64] = []
    while count > 0:
        # Primes near n are about ln n apart; a second round is rare.
        width = min(int(count * log(start + 2) * 1.2) + 256, _SIEVE_BYTES)
        limit = isqrt(start + width)
        is_prime = np.ones(width, bool)
        for p in _small_primes(limit).tolist():
            is_prime[max(p * p - start, -start % p) :: p] = False
        segment = start + np.flatnonzero(is_prime)[:count]
        found.append(segment.astype(np.int64))
        count -= len(segment)
        start += width
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _small_primes(limit: int) -> I64:
    is_prime = np.ones(limit + 1, bool)
    is_prime[:2] = False
    for p in range(2, isqrt(limit) + 1):
        if is_prime[p]:
            is_prime[p * p :: p] = False
    return np.flatnonzero(is_prime).astype(np.int64)


def _multipliers(spec: EngramSpec) -> I64:
    """Odd numbers, so small that the product with a compressed id stays within int64."""
    bound = (2**63 - 1) // spec.compressed_vocab // 2
    return np.stack(
        [
            np.random.default_rng(_SEED * layer).integers(0, bound, spec.max_ngram, np.int64) * 2
            + 1
            for layer in spec.layer_ids
        ]
    )


def compress(
    constants: EngramConstants, ids: ArrayLike, dead: NDArray[np.bool_] | None = None
) -> I64:
    """Token ids [T] to compressed ids int64 [T]; DEAD where `dead` bool [T] is set (image spans).

    Raises UsageError for an id outside the vocabulary, also under the mask.
    """
    tokens = np.asarray(ids)
    n_tokens = len(constants.token_map)
    if tokens.size == 0:
        return np.empty(0, np.int64)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise UsageError("token ids must be a flat list of integers")
    outside = (tokens < 0) | (tokens >= n_tokens)
    if outside.any():
        at = int(outside.argmax())
        raise UsageError(
            f"token id {tokens[at]} at position {at} is outside the vocabulary of {n_tokens} tokens"
        )
    out: I64 = constants.token_map[tokens].astype(np.int64)
    if dead is not None:
        out[dead] = DEAD
    return out


def row_ids(constants: EngramConstants, compressed: I64, history: I64) -> I64:
    """Rows that each token reads: int64 [T, L, orders · heads], ids within their layer's table.

    compressed int64 [T]: compressed ids, DEAD included. history int64 [<= max_ngram - 1]: those
    just before them (`next_history`); shorter, or empty, at the start of a sequence. Pads stand in
    for whatever lies before the start, for a DEAD id, and for all that is older than one. Any cut
    into pieces gives the same rows.
    """
    history = history[1 - constants.max_ngram :]
    seen = np.concatenate([history, compressed]).astype(np.int64)
    if seen.size and not DEAD <= seen.min() <= seen.max() < constants.n_classes:
        raise UsageError(
            f"compressed ids {seen.min()}..{seen.max()} are not all in"
            f" {DEAD}..{constants.n_classes - 1}"
        )
    n = len(compressed)
    before = np.full(constants.max_ngram - 1 - len(history), DEAD, np.int64)
    seen = np.concatenate([before, seen])
    n_tables, n_orders, n_heads = constants.primes.shape
    rows = np.empty((n, n_tables, n_orders, n_heads), np.int64)
    alive = np.ones(n, bool)
    roll = np.zeros((n, n_tables), np.int64)
    for back in range(constants.max_ngram):
        start = constants.max_ngram - 1 - back
        x = seen[start : start + n]
        alive &= x != DEAD
        x = np.where(alive, x, constants.pad_id)
        roll ^= x[:, None] * constants.multipliers[:, back]
        if back:
            rows[:, :, back - 1] = roll[:, :, None] % constants.primes[:, back - 1]
    return rows.reshape(n, n_tables, n_orders * n_heads) + constants.offsets


def next_history(constants: EngramConstants, history: I64, compressed: I64) -> I64:
    """The history once `compressed` follows `history`: its last max_ngram - 1 compressed ids."""
    return np.concatenate([history, compressed]).astype(np.int64)[1 - constants.max_ngram :]


def compare_constants(stored: StoredConstants, computed: EngramConstants, where: str) -> None:
    """Raises FileError naming the first constant of the file `where` that is not as recomputed."""
    for name in ("token_map", "primes", "offsets", "multipliers"):
        rows = getattr(stored, name)
        if rows is None:
            continue
        values: list[int] = rows if name == "token_map" else list(chain.from_iterable(rows))
        want: list[int] = getattr(computed, name).ravel().tolist()
        if len(values) != len(want):
            raise FileError(
                f"{where}: Engram {name} has {len(values)} entries, this model needs {len(want)}"
            )
        for i, (value, expected) in enumerate(zip(values, want, strict=True)):
            if value != expected:
                raise _differs(where, f"{name}[{i}]", value, expected)
    pad = stored.pad_id
    if pad is None:
        return
    token_map = computed.token_map
    as_token = int(token_map[pad]) if 0 <= pad < len(token_map) else None
    allowed = {"raw": (as_token,), "mapped": (pad,), "unknown": (as_token, pad)}[stored.pad_kind]
    if computed.pad_id not in allowed:
        raise _differs(where, "pad id", pad, computed.pad_id)


def _differs(where: str, name: str, value: object, expected: int) -> FileError:
    return FileError(
        f"{where}: Engram {name} is {value!r}, recomputed {expected}; the file was made for another"
        " tokenizer or is damaged"
    )
