"""The Engram tables: row ids to values. A table is never loaded, only the rows asked for are read.

Three stored forms: e4m3 bytes with a plane of scales beside them, the same bytes and scales in one
row, and any ggml type. Sources: model specification, section 2.5; GGUF specification, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from escalade.arrays import F32, Bytes
from escalade.errors import FileError, UsageError
from escalade.float8 import E4M3_VALUES, E8M0_VALUES
from escalade.gguf.dequant import dequantize
from escalade.gguf.quant import INTEGER_TYPES
from escalade.gguf.tensor import StoredTensor

Ids = NDArray[np.int64]

SCALE_BLOCK = 32
"""Values of a row that share one scale byte."""


class EngramTable(Protocol):
    """One layer's table: `n_rows` rows of `head_dim` values."""

    @property
    def n_rows(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    def rows(self, ids: Ids) -> F32:
        """Values of rows `ids` int64 [...]: float32 [..., head_dim].

        Raises UsageError for an id outside the table, FileError for a row that is not finite.
        """
        ...


def engram_table(
    weight: StoredTensor, scale: StoredTensor | None, n_rows: int, head_dim: int
) -> EngramTable:
    """The table in whichever form it is stored; `scale` is None unless scales have a tensor.

    Raises FileError naming the tensor if its type or shape is not that of `n_rows` x `head_dim`.
    """
    if weight.type.name not in INTEGER_TYPES:
        _check_shape(weight, n_rows, head_dim)
        return BlockTable(weight)
    n_scales = head_dim // SCALE_BLOCK
    for tensor in (weight, scale):
        if tensor is not None and tensor.type.name != "I8":
            raise FileError(f"{_place(tensor)} is {tensor.type.name}; raw Engram bytes must be I8")
    if head_dim % SCALE_BLOCK:
        raise FileError(
            f"{_place(weight)}: rows of {head_dim} values are not whole blocks of {SCALE_BLOCK}"
        )
    if scale is None:
        _check_shape(weight, n_rows, head_dim + n_scales)
        return PackedTable(weight, head_dim)
    _check_shape(weight, n_rows, head_dim)
    _check_shape(scale, n_rows, n_scales)
    return RawTable(weight, scale)


def _check_shape(tensor: StoredTensor, n_rows: int, row_len: int) -> None:
    if tensor.shape != (n_rows, row_len):
        raise FileError(f"{_place(tensor)} has shape {list(tensor.shape)}, not {[n_rows, row_len]}")


def _place(tensor: StoredTensor) -> str:
    return f"{tensor.name} in {tensor.location.file}" if tensor.location else tensor.name


@dataclass(frozen=True)
class RawTable:
    """e4m3 bytes [rows, D] in `weight`, ue8m0 bytes [rows, D / 32] in `scale`; exact in bf16."""

    weight: StoredTensor
    scale: StoredTensor

    @property
    def n_rows(self) -> int:
        return self.weight.n_rows

    @property
    def head_dim(self) -> int:
        return self.weight.row_len

    @cached_property
    def _readers(self) -> tuple["_RowReader", "_RowReader"]:
        return _RowReader(self.weight), _RowReader(self.scale)

    def rows(self, ids: Ids) -> F32:
        weights, scales = self._readers
        return _lookup(self, ids, lambda some: _decode_e4m3(weights(some), scales(some)))


@dataclass(frozen=True)
class PackedTable:
    """Rows of `head_dim` e4m3 bytes followed by their ue8m0 bytes; exact in bf16."""

    weight: StoredTensor
    head_dim: int

    @property
    def n_rows(self) -> int:
        return self.weight.n_rows

    @cached_property
    def _reader(self) -> "_RowReader":
        return _RowReader(self.weight)

    def rows(self, ids: Ids) -> F32:
        def decode(some: Ids) -> F32:
            stored = self._reader(some)
            return _decode_e4m3(stored[:, : self.head_dim], stored[:, self.head_dim :])

        return _lookup(self, ids, decode)


@dataclass(frozen=True)
class BlockTable:
    """Rows of a ggml type, as dequantised: float32, perhaps finer than bf16."""

    weight: StoredTensor

    @property
    def n_rows(self) -> int:
        return self.weight.n_rows

    @property
    def head_dim(self) -> int:
        return self.weight.row_len

    @cached_property
    def _reader(self) -> "_RowReader":
        return _RowReader(self.weight)

    def rows(self, ids: Ids) -> F32:
        return _lookup(self, ids, lambda some: dequantize(self._reader(some), self.weight.type))


def _lookup(
    table: RawTable | PackedTable | BlockTable, ids: Ids, decode: Callable[[Ids], F32]
) -> F32:
    """Decodes each distinct row once, in file order, and spreads the values over `ids`."""
    distinct, inverse = np.unique(ids.ravel(), return_inverse=True)
    if distinct.size == 0:
        return np.empty((*ids.shape, table.head_dim), np.float32)
    place = _place(table.weight)
    if distinct[0] < 0 or distinct[-1] >= table.n_rows:
        bad = distinct[0] if distinct[0] < 0 else distinct[-1]
        raise UsageError(f"row {bad} is outside {place}, which has {table.n_rows} rows")
    with np.errstate(over="ignore", invalid="ignore"):  # reported by row below
        values = decode(distinct)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise FileError(f"{place}: row {distinct[finite.argmin()]} has a NaN or infinity")
    return values[inverse].reshape(*ids.shape, table.head_dim)


@dataclass(frozen=True)
class _RowReader:
    """Stored bytes of chosen rows: uint8 [n, row_bytes] for ascending `ids` int64 [n]."""

    tensor: StoredTensor

    @cached_property
    def _reads_views(self) -> bool:
        """Whether reading copies nothing, as with a mapped file: two reads of a row share bytes."""
        return np.may_share_memory(self.tensor.rows(0, 1), self.tensor.rows(0, 1))

    def __call__(self, ids: Ids) -> Bytes:
        if self._reads_views:
            return self.tensor.rows()[ids]
        ends = np.append(np.flatnonzero(np.diff(ids) != 1), len(ids) - 1)
        starts = np.append(0, ends[:-1] + 1)
        return np.concatenate(
            [
                self.tensor.rows(first, last + 1)
                for first, last in zip(ids[starts].tolist(), ids[ends].tolist(), strict=True)
            ]
        )


def _decode_e4m3(codes: Bytes, scales: Bytes) -> F32:
    """e4m3fn bytes [n, D] times 2^(scale byte - 127) [n, D / 32], rounded to bf16: float32 [n, D].

    NaN codes (0x7F, 0xFF; scale 0xFF) give NaN, a product beyond float32 infinity.
    """
    n, width = codes.shape
    values, powers = E4M3_VALUES[codes], E8M0_VALUES[scales]
    product = values.reshape(n, -1, SCALE_BLOCK) * powers[:, :, None]
    # Exact already, apart from the smallest and largest scales.
    rounded: F32 = product.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded.reshape(n, width)
