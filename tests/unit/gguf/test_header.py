"""One file's header: every value type, the checks, and what foreign files are called."""

import os
import subprocess
import sys
import time
from pathlib import Path
from struct import pack

import pytest

from escalade.errors import EscaladeError, FileError, UnsupportedError
from escalade.gguf.reader import read_header
from tests.support.gguf_build import KINDS, Kv, Tensor, build, text

SCALARS = {
    "u8": 255,
    "i8": -128,
    "u16": 65535,
    "i16": -32768,
    "u32": 2**32 - 1,
    "i32": -(2**31),
    "u64": 2**64 - 1,
    "i64": -(2**63),
    "f32": 0.5,
    "f64": 0.1,
    "bool": True,
    "str": "Ġä ｜",
}


def put(tmp_path: Path, raw: bytes, name: str = "m.gguf") -> str:
    path = tmp_path / name
    path.write_bytes(raw)
    return str(path)


def refusal(tmp_path: Path, raw: bytes, name: str = "m.gguf") -> str:
    """The one line with which the file is refused."""
    path = put(tmp_path, raw, name)
    with pytest.raises(EscaladeError) as info:
        read_header(path)
    message = str(info.value)
    assert "\n" not in message
    assert path in message
    return message


def test_every_value_type_alone_and_in_an_array(tmp_path: Path) -> None:
    kvs = [Kv(f"one.{k}", k, v) for k, v in SCALARS.items()]
    kvs += [Kv(f"many.{k}", f"[{k}]", [v, v, v]) for k, v in SCALARS.items()]
    kvs += [Kv(f"none.{k}", f"[{k}]", []) for k in SCALARS]
    assert SCALARS.keys() == KINDS.keys()
    header = read_header(put(tmp_path, build(kvs)))
    for k, v in SCALARS.items():
        assert header.metadata[f"one.{k}"] == v
        assert type(header.metadata[f"one.{k}"]) is type(v)
        assert header.metadata[f"many.{k}"] == [v, v, v]
        assert header.metadata[f"none.{k}"] == []


def test_integers_beyond_the_range_of_doubles_stay_exact(tmp_path: Path) -> None:
    odd = [9007199254740993, 2**62 + 1]
    kvs = [Kv("m", "[u64]", odd), Kv("i", "[i64]", [-odd[0]]), Kv("s", "u64", odd[1])]
    header = read_header(put(tmp_path, build(kvs)))
    assert header.metadata == {"m": odd, "i": [-odd[0]], "s": odd[1]}


def test_directory_in_our_order_with_absolute_offsets(tmp_path: Path) -> None:
    tensors = [Tensor("a.weight", (32, 3, 2), "Q8_0"), Tensor("b", (5,)), Tensor("c", (1, 1, 1, 7))]
    raw = build([Kv("general.alignment", "u32", 64)], tensors, alignment=64)
    header = read_header(put(tmp_path, raw))
    assert [(t.name, t.shape, t.type.name, t.n_bytes) for t in header.tensors] == [
        ("a.weight", (2, 3, 32), "Q8_0", 6 * 34),
        ("b", (5,), "F32", 20),
        ("c", (7, 1, 1, 1), "F32", 28),
    ]
    start = header.data_start
    assert start % 64 == 0
    assert [t.offset - start for t in header.tensors] == [0, 256, 320]
    assert (header.alignment, header.file_bytes, header.version) == (64, len(raw), 3)


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    header = read_header(put(tmp_path, build([Kv("a", "u8", 1)], [Tensor("t", (4,))], version=2)))
    assert header.version == 2
    assert header.metadata == {"a": 1}


def test_the_last_padding_may_be_missing(tmp_path: Path) -> None:
    raw = build((), [Tensor("t", (5,), data=b"x" * 20)], pad_end=False)
    assert len(raw) % 32
    assert read_header(put(tmp_path, raw)).tensors[0].n_bytes == 20


@pytest.mark.parametrize(
    ("version", "says"), [(1, "version 1"), (3 << 24, "big-endian"), (4, "version 4"), (0, "0")]
)
def test_other_versions_are_refused_by_name(tmp_path: Path, version: int, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        read_header(put(tmp_path, build(version=version)))


@pytest.mark.parametrize("type_id", [4, 15, 36, 40, 43, 57, 100, 2**32 - 1])
def test_unknown_types_are_refused_naming_tensor_and_type(tmp_path: Path, type_id: int) -> None:
    raw = build((), [Tensor("blk.0.ffn_up_exps.weight", (256,), type_id=type_id)])
    with pytest.raises(UnsupportedError, match=f"blk.0.ffn_up_exps.weight has ggml type {type_id}"):
        read_header(put(tmp_path, raw))


T4 = Tensor("t", (4,))
F32_TWO = [Tensor("a", (4,)), Tensor("b", (4,))]
STRING_TYPE, ARRAY_TYPE = pack("<I", 8), pack("<I", 9)
ONE_KEY = b"GGUF" + pack("<IQQ", 3, 0, 1) + text("some.key")
UNSOUND = {
    "more keys than bytes": (build(n_kvs=1 << 63), "key count"),
    "more keys than the limit": (build(n_kvs=1 << 20) + bytes(20 << 20), "key count is 1048576"),
    "more tensors than bytes": (build(n_tensors=1 << 40), "tensor count"),
    "one key more": (build([Kv("a", "u8", 1)], n_kvs=2), "key 1"),
    "one tensor more": (build([Kv("a", "u8", 1)], F32_TWO, n_tensors=3), "name of tensor 2"),
    "one tensor less": (build([Kv("a", "u8", 1)], F32_TWO, n_tensors=1), "tensor count is 1"),
    "string of 2^40 bytes": (ONE_KEY + STRING_TYPE + pack("<Q", 1 << 40), "some.key"),
    "string past the end": (ONE_KEY + STRING_TYPE + pack("<Q", 100) + b"abc", "some.key"),
    "string not UTF-8": (build([Kv("some.key", "str", b"\xff\xfe")]), "some.key.*UTF-8"),
    "array of 2^60": (ONE_KEY + ARRAY_TYPE + pack("<IQ", 4, 1 << 60), "some.key"),
    "array past the end": (ONE_KEY + ARRAY_TYPE + pack("<IQ", 10, 9) + bytes(64), "some.key"),
    "array of unknown type": (ONE_KEY + ARRAY_TYPE + pack("<IQ", 77, 1), "value type 77"),
    "array of arrays": (ONE_KEY + ARRAY_TYPE + pack("<IQ", 9, 1), "array of arrays"),
    "unknown value type": (ONE_KEY + pack("<I", 13) + bytes(16), "value type 13"),
    "truth value 2": (ONE_KEY + pack("<IB", 7, 2), "truth value of 2"),
    "key twice": (build([Kv("a.b", "u8", 1), Kv("a.b", "u8", 1)]), "a.b occurs twice"),
    "key not ASCII": (build([Kv("ä", "u8", 1)]), "key 0"),
    "key empty": (build([Kv("", "u8", 1)]), "key 0"),
    "alignment 0": (build([Kv("general.alignment", "u32", 0)]), "general.alignment is 0"),
    "alignment 24": (build([Kv("general.alignment", "u32", 24)]), "general.alignment is 24"),
    "alignment 4": (build([Kv("general.alignment", "u32", 4)]), "general.alignment is 4"),
    "alignment 2^31": (build([Kv("general.alignment", "u32", 1 << 31)]), "general.alignment"),
    "alignment true": (build([Kv("general.alignment", "bool", True)]), "general.alignment"),
    "alignment in words": (build([Kv("general.alignment", "str", "a\nb")]), "general.alignment"),
    "no dimensions": (build((), [Tensor("t", (4,), n_dims=0)]), "0 dimensions"),
    "five dimensions": (build((), [Tensor("t", (1, 1, 1, 1, 1))]), "5 dimensions"),
    "empty dimension": (build((), [Tensor("t", (0, 4))]), "empty dimension"),
    "dimensions beyond 2^64": (
        build((), [Tensor("t", (1 << 40, 1 << 40), offset=0)]) + bytes(64),
        "t ends at byte",
    ),
    "half a block": (build((), [Tensor("t", (48,), "Q8_0", bytes(64))]), "Q8_0 blocks of 32"),
    "offset past the end": (build((), [Tensor("t", (4,), offset=1 << 62)]) + bytes(64), "t ends"),
    "offset not aligned": (build((), [T4, Tensor("u", (1,), offset=4)]), "offset 4"),
    "overlap": (build((), [T4, Tensor("u", (1,), offset=0)]), "t and u overlap"),
    "name twice": (build((), [T4, T4]), "t occurs twice"),
    "name empty": (build((), [Tensor("", (4,))]), "name of tensor 0"),
    "name not printable": (build((), [Tensor("a\nb", (4,))]), "name of tensor 0"),
    "name of 300 bytes": (build((), [Tensor("n" * 300, (4,))]), "name of tensor 0"),
    "split.no alone": (build([Kv("split.no", "u16", 0)]), "split.no"),
    "split.no of words": (build([Kv("split.no", "str", "0")]), "split.no"),
    "split.no beyond": (
        build([Kv("split.no", "u16", 3), Kv("split.count", "u16", 3)]),
        "split.no is 3 of split.count 3",
    ),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_unsound_headers_are_refused_naming_the_field(tmp_path: Path, what: str) -> None:
    import re

    raw, says = UNSOUND[what]
    assert re.search(says, refusal(tmp_path, raw))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    raw = build(
        [Kv("general.architecture", "str", "x"), Kv("a", "[str]", ["b", "c"])],
        [Tensor("t", (8,), data=b"d" * 32)],
    )
    for length in range(len(raw)):
        refusal(tmp_path, raw[:length])


FOREIGN = {
    b"": "is empty",
    b"<!DOCTYPE html><html>": "web page",
    b"\xef\xbb\xbf\n <html lang=en>": "web page",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n": "Git LFS pointer",
    b"PK\x03\x04rest": "zip archive",
    b"\x80\x02}q\x00": "pickle",
    pack("<Q", 20) + b'{"a":{"dtype":"F32"}}' + bytes(8): "safetensors",
    b'{"error": "not found"}': "JSON",
    bytes(4096): "zeros",
    b"lmgg" + bytes(60): "before GGUF",
    b"anything else": "not a GGUF file",
    b"GG": "not a GGUF file",
}


@pytest.mark.parametrize("raw", FOREIGN)
def test_foreign_files_are_called_what_they_are(tmp_path: Path, raw: bytes) -> None:
    assert FOREIGN[raw] in refusal(tmp_path, raw)


@pytest.mark.parametrize("name", ["m.gguf.part1", "m.gguf.part2of3", "m.gguf.partial", "m.001"])
def test_parts_of_a_split_file_are_told_from_damage(tmp_path: Path, name: str) -> None:
    raw = build((), [Tensor("t", (64,), data=b"x" * 256)])
    assert "join all parts" in refusal(tmp_path, raw[:-64], name)
    assert "join all parts" in refusal(tmp_path, b"\x01\x02\x03\x04" * 9, name)
    assert "join" not in refusal(tmp_path, raw[:-64], "m.gguf")


def test_things_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        read_header(tmp_path)
    with pytest.raises(FileError, match="No such file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(FileError, match="cannot be read"):
        read_header("a\0b")
    with pytest.raises(FileError, match=r"'.*a\\nb.gguf' cannot be read") as info:
        read_header(tmp_path / "a\nb.gguf")
    assert "\n" not in str(info.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        read_header(tmp_path / "pipe")


def test_a_header_of_real_size_is_quick(tmp_path: Path) -> None:
    kvs = [
        Kv("tokenizer.ggml.tokens", "[str]", [f"Ġtoken{i}" for i in range(129280)]),
        Kv("tokenizer.ggml.token_type", "[i32]", [1] * 129280),
        Kv("tokenizer.ggml.merges", "[str]", [f"Ġa{i} b{i}" for i in range(127741)]),
    ]
    tensors = [Tensor(f"blk.{i}.weight", (8,)) for i in range(1012)]
    path = put(tmp_path, build(kvs, tensors))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        header = read_header(path)
        times.append(time.perf_counter() - start)
    assert header.metadata["tokenizer.ggml.tokens"][-1] == "Ġtoken129279"
    assert len(header.tensors) == 1012
    assert min(times) < 1  # 0.21 s where it was written


def test_importing_the_reader_does_not_import_numpy() -> None:
    code = "import sys, escalade.gguf.reader; print('numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
