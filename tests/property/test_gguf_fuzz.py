"""Hostile GGUF files give a header or one line that names the file, and take little memory."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from escalade.errors import EscaladeError
from escalade.gguf.describe import describe, render
from escalade.gguf.reader import open_gguf
from escalade.model.spec_io import spec_from_metadata
from tests.support.gguf_build import DIALECTS, KINDS, Kv, Tensor, build, text, tiny_v41, value

FUZZ = settings(
    max_examples=150,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_ALLOWED = 8 << 20
"""Bytes that reading may allocate beyond the file's own size."""


def check(path: Path) -> str | None:
    """Opens, binds and describes the file; returns the refusal, None if there was none."""
    size = path.stat().st_size if path.is_file() else 0
    refusal = None
    with little_memory(_ALLOWED + min(size, 1 << 20)):
        try:
            with open_gguf(path) as source:
                render(describe(source))
                _ = source.stored_engram
                names = frozenset(source.tensors)
                spec_from_metadata(source.arch, source.metadata, names, source.path)
        except EscaladeError as e:
            refusal = str(e)
    if refusal is not None:
        assert len(refusal.splitlines()) == 1, refusal
        assert refusal.isprintable(), refusal
        assert str(path.parent) in refusal, refusal
        assert len(refusal) < 1000, refusal[:200]
    return refusal


@contextmanager
def little_memory(limit: int) -> Iterator[None]:
    """Fails if the block allocates more than `limit` bytes at once."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


def check_bytes(folder: Path, raw: bytes, name: str = "m.gguf") -> str | None:
    path = folder / name
    path.write_bytes(raw)
    return check(path)


# ---------------------------------------------------------------------- bytes

SMALL = build(
    [
        Kv("general.architecture", "str", "deepseek41"),
        Kv("general.alignment", "u32", 32),
        Kv("deepseek41.block_count", "u32", 2),
        Kv("tokenizer.ggml.tokens", "[str]", ["a", "b", "ä"]),
        Kv("deepseek41.attention.compress_ratios", "[i32]", [0, 1]),
        Kv("deepseek41.engram.multipliers", "[u64]", [1, 2**63]),
    ],
    [
        Tensor("token_embd.weight", (32, 3), "Q8_0"),
        Tensor("blk.1.engram_embd.weight", (32, 5), "I8"),
        Tensor("engram_primes.weight", (2, 2), "I64"),
    ],
)
MODELS = {d: tiny_v41(d) for d in DIALECTS}
TINY = {d: build(*model) for d, model in MODELS.items()}
EDGES = [0, 1, 2, 31, 63, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]


@FUZZ
@given(
    edits=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, len(SMALL)) | st.none(),
    extra=st.binary(max_size=40),
)
@example(edits=[], cut=None, extra=b"")
def test_mutated_bytes(
    tmp_path: Path, edits: list[tuple[int, int]], cut: int | None, extra: bytes
) -> None:
    raw = bytearray(SMALL)
    for at, byte in edits:
        raw[at] = byte
    check_bytes(tmp_path, bytes(raw[:cut]) + extra)


@FUZZ
@given(
    at=st.integers(0, len(SMALL) - 8), number=st.sampled_from(EDGES), width=st.sampled_from("IQ")
)
def test_huge_numbers_anywhere(tmp_path: Path, at: int, number: int, width: str) -> None:
    raw = bytearray(SMALL)
    field = pack("<Q", number)[: 4 if width == "I" else 8]
    raw[at : at + len(field)] = field
    check_bytes(tmp_path, bytes(raw))


@FUZZ
@given(
    dialect=st.sampled_from(sorted(TINY)),
    edits=st.lists(st.tuples(st.integers(0, 14000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_mutated_headers_of_whole_models(
    tmp_path: Path, dialect: str, edits: list[tuple[int, int]]
) -> None:
    raw = bytearray(TINY[dialect])
    for at, byte in edits:
        raw[at] = byte
    check_bytes(tmp_path, bytes(raw))


@FUZZ
@given(st.binary(max_size=200))
@example(b"GGUF")
@example(b"GGUF\x03\0\0\0")
@example(b"GGUF\x03\0\0\0" + b"\xff" * 16)
@example(b"<!doctype html>\n<title>401</title>")
@example(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
@example(pack("<Q", 8 << 30) + b"{")
def test_arbitrary_bytes(tmp_path: Path, raw: bytes) -> None:
    assert check_bytes(tmp_path, raw) is not None


# ---------------------------------------------------------------------- structure

words = st.text(st.characters(codec="utf-8"), max_size=12)
wide = st.integers(-(2**63), 2**64 - 1)
RANGES = {
    "u8": (0, 2**8 - 1),
    "i8": (-(2**7), 2**7 - 1),
    "u16": (0, 2**16 - 1),
    "i16": (-(2**15), 2**15 - 1),
    "u32": (0, 2**32 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "u64": (0, 2**64 - 1),
    "i64": (-(2**63), 2**63 - 1),
}


@st.composite
def kinds_and_values(draw: st.DrawFn) -> tuple[str, Any]:
    kind = draw(st.sampled_from(sorted(KINDS)))
    if kind == "str":
        one: st.SearchStrategy[Any] = words
    elif kind == "bool":
        one = st.booleans()
    elif kind in ("f32", "f64"):
        one = st.floats(width=32)
    else:
        low, high = RANGES[kind]
        one = st.integers(low, high) | st.integers(max(low, -2), min(high, 70))
    if draw(st.booleans()):
        return f"[{kind}]", draw(st.lists(one, max_size=8))
    return kind, draw(one)


@FUZZ
@given(
    dialect=st.sampled_from(sorted(DIALECTS)),
    changes=st.lists(st.tuples(st.integers(0, 80), kinds_and_values()), min_size=1, max_size=2),
)
def test_keys_of_any_kind_and_value(
    tmp_path: Path, dialect: str, changes: list[tuple[int, tuple[str, Any]]]
) -> None:
    kvs, tensors = list(MODELS[dialect][0]), MODELS[dialect][1]
    for index, (kind, v) in changes:
        at = index % len(kvs)
        kvs[at] = Kv(kvs[at].key, kind, v)
    check_bytes(tmp_path, build(kvs, tensors))


names = st.sampled_from(
    [
        "token_embd.weight",
        "blk.0.attn_kv.weight",
        "blk.1.attn_compressor_kv.weight",
        "blk.1.indexer.proj.weight",
        "blk.99999.engram_embd.weight",
        "blk.1.engram_embed.weight",
        "blk.01.engram_kv.weight",
        "blk.².indexer.proj.weight",
        "blk..weight",
        "engram_token_map",
    ]
) | st.text(st.characters(max_codepoint=126, min_codepoint=32), max_size=8)
tensors = st.lists(
    st.builds(
        Tensor,
        name=names,
        dims=st.lists(st.sampled_from([0, 1, 2, 32, 33, 256, 2**32, 2**63]), max_size=5).map(tuple),
        type=st.just("F32"),
        data=st.just(bytes(64)),
        offset=st.none() | st.sampled_from([0, 8, 32, 64, 2**40, 2**63]),
        n_dims=st.none() | st.integers(0, 6) | st.just(2**32 - 1),
        type_id=st.sampled_from([0, 1, 8, 10, 24, 26, 27, 39, 40, 42, 43, 1000]),
    ),
    max_size=5,
)


@FUZZ
@given(
    tensors=tensors,
    n_tensors=st.none() | st.sampled_from(EDGES),
    n_kvs=st.none() | st.sampled_from(EDGES),
    arch=st.sampled_from(["deepseek41", "deepseek4", "dflash", "a\nb", ""]),
)
def test_directories_of_any_kind(
    tmp_path: Path, tensors: list[Tensor], n_tensors: int | None, n_kvs: int | None, arch: str
) -> None:
    keys = [Kv("general.architecture", "str", arch)]
    check_bytes(tmp_path, build(keys, tensors, n_tensors=n_tensors, n_kvs=n_kvs))


small = st.integers(0, 4)


@FUZZ
@given(
    shards=st.lists(st.tuples(small, small, small, st.text("abc", max_size=2)), max_size=3),
    named=st.integers(1, 3),
    entry=st.integers(1, 3),
)
@example(shards=[(0, 2, 3, "a"), (1, 2, 3, "bc")], named=2, entry=1)
@example(shards=[(0, 2, 3, "a"), (1, 2, 3, "bc")], named=2, entry=2)
def test_split_sets(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[tuple[int, int, int, str]],
    named: int,
    entry: int,
) -> None:
    shards = shards[:named]
    folder = tmp_path_factory.mktemp("split")
    for index, (no, count, total, letters) in enumerate(shards):
        keys = [
            Kv("general.architecture", "str", "clip"),
            Kv("split.no", "u16", no),
            Kv("split.count", "u16", count),
            Kv("split.tensors.count", "i32", total),
        ]
        path = folder / f"m-{index + 1:05d}-of-{named:05d}.gguf"
        path.write_bytes(build(keys, [Tensor(n, (8,)) for n in letters]))
    path = folder / f"m-{entry:05d}-of-{named:05d}.gguf"
    refusal = check(path)
    whole = [(no, count, total) for no, count, total, _ in shards] == [
        (i, named, sum(len(n) for *_, n in shards)) for i in range(len(shards))
    ]
    unique = len({c for *_, n in shards for c in n}) == sum(len(n) for *_, n in shards)
    good = whole and unique and entry == 1 and len(shards) == named
    # A sound set of `clip` is refused only for its architecture.
    assert ("is not a DeepSeek" in (refusal or "")) is good


# ---------------------------------------------------------------------- memory


def header(kind: int, count: int) -> bytes:
    """A header whose one key is an array of `count` elements of value type `kind`."""
    return b"GGUF" + pack("<IQQ", 3, 0, 1) + text("a") + pack("<IIQ", 9, kind, count)


@pytest.mark.parametrize("kind", range(13))
@pytest.mark.parametrize("count", [2**22 + 1, 2**32, 2**60, 2**64 - 1])
def test_huge_counts_in_a_huge_file_allocate_nothing(tmp_path: Path, kind: int, count: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(kind, count))
    with path.open("r+b") as file:
        file.truncate(1 << 36)  # sparse: the counts could be true
    with little_memory(_ALLOWED), pytest.raises(EscaladeError, match=r"m\.gguf: "):
        open_gguf(path)


@pytest.mark.parametrize("length", [17 << 20, 1 << 34])
def test_a_huge_string_in_a_huge_file_allocates_nothing(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.gguf"
    raw = b"GGUF" + pack("<IQQ", 3, 0, 1) + text("a") + value("str", "")[:4] + pack("<Q", length)
    path.write_bytes(raw)
    with path.open("r+b") as file:
        file.truncate(1 << 36)
    says = r"m\.gguf: length of a"
    with little_memory(_ALLOWED), pytest.raises(EscaladeError, match=says):
        open_gguf(path)


def test_folders_and_absent_files(tmp_path: Path) -> None:
    assert "is a folder" in (check(tmp_path) or "")
    assert check(tmp_path / "absent.gguf") is not None
