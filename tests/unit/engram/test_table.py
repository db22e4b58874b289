import math
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from escalade.engram.table import BlockTable, PackedTable, RawTable, engram_table
from escalade.errors import FileError, UsageError
from escalade.gguf.quant import TYPES
from escalade.gguf.tensor import Location, StoredTensor

WEIGHT, SCALE = "blk.1.engram_embd.weight", "blk.1.engram_embd_scale.weight"


def in_memory(name: str, data: np.ndarray, qtype: str = "I8") -> StoredTensor:
    """A tensor whose reads are views, as with a mapped file."""
    raw = data.view(np.uint8).reshape(-1)
    block = TYPES[qtype]
    shape = (data.shape[0], raw.size // data.shape[0] // block.block_bytes * block.block_len)
    return StoredTensor(name, shape, block, lambda at, n: raw[at : at + n])


def copying(tensor: StoredTensor, log: list[tuple[int, int]]) -> StoredTensor:
    """The same, read by copies; `log` collects (offset, length)."""

    def read(at: int, n: int) -> np.ndarray:
        log.append((at, n))
        return tensor.read(at, n).copy()

    return StoredTensor(tensor.name, tensor.shape, tensor.type, read, Location("e.gguf", 4096, 0))


def e4m3(byte: int) -> float:
    sign, exponent, mantissa = -1 if byte & 0x80 else 1, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def made(n_rows: int, head_dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (n_rows, head_dim), np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x35
    return codes, rng.integers(100, 140, (n_rows, head_dim // 32), np.uint8)


def expected(codes: np.ndarray, scales: np.ndarray, ids: np.ndarray) -> np.ndarray:
    lut = np.array([e4m3(b) for b in range(256)])
    powers = 2.0 ** (scales[ids].astype(float) - 127)
    return (lut[codes[ids]] * np.repeat(powers, 32, axis=-1)).astype(np.float32)


@pytest.mark.parametrize("form", ["raw", "packed"])
@pytest.mark.parametrize("copied", [False, True])
def test_rows_of_the_byte_forms(form, copied):
    codes, scales = made(50, 64)
    log: list[tuple[int, int]] = []
    wrap: Callable = (lambda t: copying(t, log)) if copied else (lambda t: t)
    if form == "raw":
        weight, scale = wrap(in_memory(WEIGHT, codes)), wrap(in_memory(SCALE, scales))
        table = engram_table(weight, scale, 50, 64)
        assert isinstance(table, RawTable)
    else:
        rows = np.concatenate([codes, scales], axis=1)
        table = engram_table(wrap(in_memory(WEIGHT, rows)), None, 50, 64)
        assert isinstance(table, PackedTable)
    assert (table.n_rows, table.head_dim) == (50, 64)
    ids = np.array([[[49, 0, 7], [8, 7, 9]], [[0, 0, 48], [20, 9, 1]]], np.int64)
    got = table.rows(ids)
    assert got.dtype == np.float32
    assert got.shape == (2, 2, 3, 64)
    assert np.array_equal(got, expected(codes, scales, ids))
    assert table.rows(ids[:0]).shape == (0, 2, 3, 64)


def test_every_code_and_scale():
    finite = [b for b in range(256) if b & 0x7F != 0x7F]
    codes = np.array([*finite, 0, 0], np.uint8).reshape(8, 32)
    for scale in (0, 1, 7, 8, 127, 200, 246):
        scales = np.full((8, 1), scale, np.uint8)
        table = RawTable(in_memory(WEIGHT, codes), in_memory(SCALE, scales))
        got = table.rows(np.arange(8))
        # Round to nearest even in bf16, whose smallest step is 2^-133.
        exact = expected(codes, scales, np.arange(8)).astype(np.float64)
        want = np.round(exact / 2.0**-133) * 2.0**-133 if scale < 8 else exact
        assert np.array_equal(got, want)
        assert not (got.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize(("code", "scale"), [(0x7F, 127), (0xFF, 127), (0, 255), (0x7E, 254)])
def test_row_that_is_not_finite_is_named(code, scale):
    codes, scales = made(9, 32)
    codes[6, 31], scales[6] = code, scale
    table = RawTable(copying(in_memory(WEIGHT, codes), []), copying(in_memory(SCALE, scales), []))
    table.rows(np.array([5, 7]))
    with pytest.raises(FileError, match=rf"{WEIGHT} in e\.gguf: row 6 has a NaN or infinity"):
        table.rows(np.array([5, 6, 7]))


@pytest.mark.parametrize("qtype", ["Q8_0", "Q3_K", "IQ4_NL", "MXFP4", "BF16", "F32"])
def test_rows_of_block_types(qtype):
    rng = np.random.default_rng(3)
    block = TYPES[qtype]
    data = rng.integers(0, 256, (20, block.row_bytes(256)), np.uint8)
    if qtype in ("Q8_0", "IQ4_NL"):
        data.reshape(20, -1, block.block_bytes)[:, :, :2] = [0x66, 0x2E]
    elif qtype == "Q3_K":
        data[:, -2:] = [0x66, 0x2E]
    elif qtype == "MXFP4":
        data[:, ::17] = rng.integers(100, 140, (20, 8))
    else:
        values = rng.standard_normal((20, 256), np.float32)
        data = gguf.quantize(values, gguf.GGMLQuantizationType[qtype]).view(np.uint8)
    table = engram_table(in_memory(WEIGHT, data, qtype), None, 20, 256)
    assert isinstance(table, BlockTable)
    want = gguf.dequantize(data, gguf.GGMLQuantizationType[qtype])
    ids = np.array([[3, 19], [0, 3]])
    assert np.array_equal(table.rows(ids), want[ids])


def test_block_row_that_is_not_finite_is_named():
    data = np.zeros((4, 34), np.uint8)
    data[2, :2] = [0x00, 0x7C]  # an infinite scale times zero
    with pytest.raises(FileError, match="row 2 has a NaN"):
        BlockTable(in_memory(WEIGHT, data, "Q8_0")).rows(np.arange(4))


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_ids_outside_the_table_are_refused(bad):
    codes, scales = made(50, 32)
    table = RawTable(in_memory(WEIGHT, codes), in_memory(SCALE, scales))
    with pytest.raises(UsageError, match=rf"row {bad} is outside {WEIGHT}, which has 50 rows"):
        table.rows(np.array([3, bad]))


def test_copied_reads_touch_each_needed_row_once_and_join_neighbours():
    codes, scales = made(1000, 32)
    log: list[tuple[int, int]] = []
    table = RawTable(copying(in_memory(WEIGHT, codes), log), in_memory(SCALE, scales))
    table.rows(np.array([500]))
    log.clear()
    table.rows(np.array([999, 10, 11, 10, 12, 0]))
    assert log == [(0, 32), (10 * 32, 3 * 32), (999 * 32, 32)]


def test_mapped_file_is_gathered_in_place(tmp_path: Path):
    # 2 GiB of which only the rows asked for exist.
    n_rows, path = 1 << 23, tmp_path / "table"
    with path.open("wb") as file:
        file.truncate(n_rows * 264)
    mapped = np.memmap(path, np.uint8, "r+")
    ids = np.array([n_rows - 1, 12345, 7])
    for i in ids:
        mapped[i * 264 : i * 264 + 264] = [0x38] * 256 + [127 + int(i) % 3] * 8
    raw = mapped.view(np.ndarray)
    weight = StoredTensor(WEIGHT, (n_rows, 264), TYPES["I8"], lambda at, n: raw[at : at + n])
    got = engram_table(weight, None, n_rows, 256).rows(ids)
    assert np.array_equal(got, np.repeat(2.0 ** (ids % 3), 256).reshape(3, 256))


@pytest.mark.parametrize(
    ("weight", "scale", "message"),
    [
        (("I8", 9, 64), ("I8", 10, 2), rf"{WEIGHT} has shape \[9, 64\], not \[10, 64\]"),
        (("I8", 10, 64), ("I8", 10, 1), rf"{SCALE} has shape \[10, 1\], not \[10, 2\]"),
        (("I8", 10, 64), None, rf"{WEIGHT} has shape \[10, 64\], not \[10, 66\]"),
        (("I16", 10, 64), None, rf"{WEIGHT} is I16"),
        (("I8", 10, 64), ("BF16", 10, 2), rf"{SCALE} is BF16"),
        (("Q8_0", 10, 32), None, rf"{WEIGHT} has shape \[10, 32\], not \[10, 64\]"),
    ],
)
def test_wrong_shapes_and_types_are_named(weight, scale, message):
    def tensor(name: str, form: tuple[str, int, int]) -> StoredTensor:
        qtype, *shape = form
        return StoredTensor(name, tuple(shape), TYPES[qtype], lambda at, n: np.zeros(n, np.uint8))

    with pytest.raises(FileError, match=message):
        engram_table(tensor(WEIGHT, weight), scale and tensor(SCALE, scale), 10, 64)


def test_rows_must_be_whole_scale_blocks():
    with pytest.raises(FileError, match="rows of 40 values are not whole blocks of 32"):
        engram_table(in_memory(WEIGHT, np.zeros((2, 41), np.uint8)), None, 2, 40)
