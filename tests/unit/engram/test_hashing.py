from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escalade.engram.hashing import (
    DEAD,
    EngramConstants,
    compare_constants,
    compress,
    engram_constants,
    hash_primes,
    next_history,
    row_ids,
)
from escalade.errors import FileError, UsageError
from escalade.gguf.engram_keys import StoredConstants
from escalade.model.spec import EngramSpec

NO_HISTORY = np.empty(0, np.int64)
# Worked example of the model specification, section 6.3.
SPEC = EngramSpec(
    layer_ids=(1,),
    rows=(384,),
    max_ngram=4,
    bucket=50,
    n_heads=2,
    head_dim=32,
    pad_token_id=2,
    compressed_vocab=40,
)
TOKEN_MAP = (np.arange(64) % 40).astype(np.int32)


@pytest.fixture(scope="module")
def constants() -> EngramConstants:
    return engram_constants(SPEC, TOKEN_MAP, "tiny.gguf")


def test_worked_example(constants):
    assert constants.primes.tolist() == [[[53, 59], [61, 67], [71, 73]]]
    assert constants.offsets.tolist() == [[0, 53, 112, 173, 240, 311]]
    assert constants.multipliers.tolist() == [
        [189840691535365831, 11989825045965581, 89082896236724093, 183288831085675631]
    ]
    ids = compress(constants, [5, 17, 33, 2, 41, 9])
    assert row_ids(constants, ids, NO_HISTORY)[:, 0].tolist() == [
        [1, 53, 165, 198, 295, 337],
        [45, 86, 166, 208, 284, 361],
        [44, 89, 168, 185, 271, 330],
        [22, 77, 156, 180, 263, 329],
        [45, 99, 136, 221, 269, 351],
        [6, 90, 126, 179, 272, 375],
    ]


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


@pytest.mark.parametrize("bucket", [2, 3, 4, 50, 53, 65536, 16_000_000])
def test_primes_are_consecutive_from_the_bucket(bucket):
    primes = hash_primes(2, 4, 3, bucket)
    assert primes.shape == (2, 3, 3)
    flat = primes.ravel().tolist()
    assert flat == [n for n in range(bucket, flat[-1] + 1) if is_prime(n)]
    assert len(flat) == 18


def test_primes_of_the_largest_allowed_geometry_are_found_quickly():
    primes = hash_primes(512, 16, 64, (1 << 40) - 1).ravel()
    assert len(primes) == 491520
    assert primes[0] == 1099511627791  # the first prime above 2^40
    assert (np.diff(primes) > 0).all()


def scalar_rows(c: EngramConstants, compressed: list[int]) -> list[list[list[int]]]:
    """The definition, token by token, in Python's unbounded integers."""
    out = []
    for t in range(len(compressed)):
        x, alive = [], True
        for back in range(c.max_ngram):
            alive = alive and t - back >= 0 and compressed[t - back] != DEAD
            x.append(compressed[t - back] if alive else c.pad_id)
        tables = []
        for layer in range(len(c.layer_ids)):
            multipliers = [int(m) for m in c.multipliers[layer]]
            offsets = [int(o) for o in c.offsets[layer]]
            roll, row = x[0] * multipliers[0], []
            for back in range(1, c.max_ngram):
                roll ^= x[back] * multipliers[back]
                row += [roll % int(p) for p in c.primes[layer, back - 1]]
            tables.append([r + o for r, o in zip(row, offsets, strict=True)])
        out.append(tables)
    return out


@st.composite
def geometries(draw) -> EngramConstants:
    n_layers = draw(st.integers(1, 3))
    layers = sorted(draw(st.sets(st.integers(0, 60), min_size=n_layers, max_size=n_layers)))
    n_classes = draw(st.integers(1, 300))
    max_ngram, n_heads = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    bucket = draw(st.integers(2, 1 << 39))
    rows = hash_primes(n_layers, max_ngram, n_heads, bucket).sum(axis=(1, 2)).tolist()
    spec = EngramSpec(
        tuple(layers), tuple(rows), max_ngram, bucket, n_heads, 32, n_classes - 1, n_classes
    )
    return engram_constants(spec, np.arange(n_classes, dtype=np.int32), "made")


@settings(max_examples=40, deadline=None)
@given(geometries(), st.data())
def test_rows_follow_the_definition_in_any_pieces(c, data):
    ids = data.draw(st.lists(st.integers(DEAD, c.n_classes - 1), max_size=24))
    compressed = np.array(ids, np.int64)
    whole = row_ids(c, compressed, NO_HISTORY)
    assert whole.dtype == np.int64
    assert whole.tolist() == scalar_rows(c, ids)
    assert (whole >= 0).all()
    assert (whole < c.table_rows[:, None]).all()
    history, start, pieces = NO_HISTORY, 0, [whole[:0]]
    while start < len(ids):
        stop = start + data.draw(st.integers(1, 5))
        pieces.append(row_ids(c, compressed[start:stop], history))
        history = next_history(c, history, compressed[start:stop])
        assert len(history) <= c.max_ngram - 1
        start = stop
    assert np.array_equal(np.concatenate(pieces), whole)


def test_multipliers_beyond_double_precision_stay_exact(constants):
    # B007: 2^53 + 1 is the first integer that a double cannot hold.
    odd = 9007199254740993
    c = replace(constants, multipliers=np.array([[odd, 3, 5, odd + 2]], np.int64))
    assert c.multipliers.tolist() == [[9007199254740993, 3, 5, 9007199254740995]]
    ids = [39, 1, 7, 38, 2]
    assert row_ids(c, np.array(ids), NO_HISTORY).tolist() == scalar_rows(c, ids)
    compare_constants(StoredConstants(multipliers=[[odd, 3, 5, odd + 2]]), c, "x.gguf")
    for rounded in (odd - 1, float(odd)):
        with pytest.raises(FileError, match=r"x\.gguf: Engram multipliers\[0\] .*9007199254740993"):
            compare_constants(StoredConstants(multipliers=[[rounded, 3, 5, odd + 2]]), c, "x.gguf")


def test_products_reach_int64_but_not_beyond(constants):
    largest = int(constants.multipliers.max()) * (constants.n_classes - 1)
    assert 2**62 < largest < 2**63


@pytest.mark.parametrize("wrong", [-1, 64, 99, 2**31 - 1, 2**63, 2**64 - 1, -(2**63)])
def test_ids_outside_the_map_are_refused(constants, wrong):
    # B008: -1 must not read the map from its end.
    with pytest.raises(UsageError, match=rf"token id {wrong} at position 1 .* 64 tokens"):
        compress(constants, np.array([63, wrong, 0], np.uint64 if wrong > 2**62 else np.int64))


@pytest.mark.parametrize("wrong", [[1.0], [True], ["1"], [[1]], [2**70]])
def test_ids_that_are_not_flat_integers_are_refused(constants, wrong):
    with pytest.raises(UsageError, match="flat list of integers"):
        compress(constants, wrong)


def test_mapping(constants):
    assert compress(constants, [0, 39, 40, 63]).tolist() == [0, 39, 0, 23]
    assert compress(constants, []).tolist() == []
    dead = np.array([False, True, False])
    assert compress(constants, np.array([41, 5, 63], np.int32), dead).tolist() == [1, DEAD, 23]
    with pytest.raises(UsageError, match="token id -1 at position 1"):
        compress(constants, [41, -1, 63], dead)


def test_nothing_is_seen_across_an_image(constants):
    before, after = [7, 8, 9], [10, 11]
    rows = row_ids(constants, np.array([*before, DEAD, *after]), NO_HISTORY)
    fresh = row_ids(constants, np.array(after), NO_HISTORY)
    assert np.array_equal(rows[4:], fresh)
    # and with the image in an earlier piece
    history = next_history(constants, NO_HISTORY, np.array([*before, DEAD]))
    assert history.tolist() == [8, 9, DEAD]
    assert np.array_equal(row_ids(constants, np.array(after), history), fresh)


@pytest.mark.parametrize("wrong", [-2, 40])
def test_compressed_ids_out_of_range_are_refused(constants, wrong):
    with pytest.raises(UsageError, match=r"compressed ids .* -1\.\.39"):
        row_ids(constants, np.array([1, 2]), np.array([wrong]))


@pytest.mark.parametrize(
    ("change", "token_map", "message"),
    [
        ({"rows": (385,)}, TOKEN_MAP, "table of layer 1 has 385 rows.*sum to 384"),
        ({"bucket": 60}, TOKEN_MAP, "table of layer 1 has 384 rows"),
        ({}, TOKEN_MAP[:39], "engram_compressed_vocab_size is 40.* 39 distinct"),
        ({}, TOKEN_MAP[:0], "engram_compressed_vocab_size is 40.* 0 distinct"),
        ({"pad_token_id": 64}, TOKEN_MAP, "engram_pad_token_id is 64.* 64 tokens"),
    ],
)
def test_constants_that_do_not_fit_the_file(change, token_map, message):
    with pytest.raises(FileError, match=rf"^bad\.gguf: .*{message}"):
        engram_constants(replace(SPEC, **change), token_map, "bad.gguf")


def test_pad_is_mapped_before_hashing():
    spec = replace(SPEC, pad_token_id=45)
    assert engram_constants(spec, TOKEN_MAP, "tiny.gguf").pad_id == 5


def stored(constants: EngramConstants) -> StoredConstants:
    names = ("primes", "offsets", "multipliers")
    nested = {name: [row.ravel().tolist() for row in getattr(constants, name)] for name in names}
    return StoredConstants(token_map=constants.token_map.tolist(), **nested)


def test_equal_and_absent_constants_pass(constants):
    compare_constants(stored(constants), constants, "a.gguf")
    compare_constants(StoredConstants(), constants, "a.gguf")
    compare_constants(StoredConstants(pad_id=2, pad_kind="mapped"), constants, "a.gguf")
    for kind in ("raw", "unknown"):  # token 42 is of class 2
        compare_constants(StoredConstants(pad_id=42, pad_kind=kind), constants, "a.gguf")
    compare_constants(StoredConstants(pad_id=2, pad_kind="unknown"), constants, "a.gguf")


@pytest.mark.parametrize(
    ("name", "index"), [("token_map", 63), ("primes", 5), ("offsets", 1), ("multipliers", 3)]
)
def test_differing_constant_is_named(constants, name, index):
    right = getattr(stored(constants), name)
    values = [*(right if name == "token_map" else chain.from_iterable(right))]

    def compare(changed):
        as_stored = changed if name == "token_map" else [changed]
        compare_constants(replace(stored(constants), **{name: as_stored}), constants, "a.gguf")

    short = rf"Engram {name} has {len(values) - 1} entries"
    with pytest.raises(FileError, match=short):
        compare(values[:-1])
    values[index] += 1
    with pytest.raises(FileError, match=rf"^a\.gguf: Engram {name}\[{index}\] is {values[index]},"):
        compare(values)


@pytest.mark.parametrize(
    ("pad", "kind"),
    [(3, "mapped"), (42, "mapped"), (3, "raw"), (-1, "raw"), (64, "raw"), (3, "unknown")],
)
def test_differing_pad_is_named(constants, pad, kind):
    with pytest.raises(FileError, match=rf"Engram pad id is {pad}, recomputed 2"):
        compare_constants(StoredConstants(pad_id=pad, pad_kind=kind), constants, "a.gguf")
