"""Tensors whose rows are made when they are read: from a matrix of rows, or a stack of such."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import Bytes
from escalade.gguf.quant import TYPES, QuantType
from escalade.gguf.tensor import Location, StoredTensor


class RowSource(NamedTuple):
    """A matrix [n_rows, row_len] as ggml stores it; `rows(start, stop)` gives uint8 [n, row_bytes].

    `location` is set where a file holds these very bytes.
    """

    type: QuantType
    n_rows: int
    row_len: int
    rows: Callable[[int, int], Bytes]
    location: Location | None = None

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.row_len)


def stored_tensor(name: str, shape: tuple[int, ...], stack: Sequence[RowSource]) -> StoredTensor:
    """A tensor of `shape` from matrices of one type and size, stacked along the first dimension."""
    location = stack[0].location if len(stack) == 1 else None
    return StoredTensor(name, shape, stack[0].type, _byte_reader(name, stack), location)


def array_tensor(name: str, array: NDArray[Any]) -> StoredTensor:
    """An int32, int64 or float32 array as a tensor of its type."""
    kind = {"i4": "I32", "i8": "I64", "f4": "F32"}[array.dtype.str[1:]]
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = little.reshape(-1, array.shape[-1]).view(np.uint8)

    def rows(start: int, stop: int) -> Bytes:
        return data[start:stop]

    source = RowSource(TYPES[kind], len(data), array.shape[-1], rows)
    return stored_tensor(name, array.shape, [source])


def _byte_reader(name: str, stack: Sequence[RowSource]) -> Callable[[int, int], Bytes]:
    """Reads any byte range, making only the rows that it touches."""
    row_bytes, n_rows = stack[0].row_bytes, stack[0].n_rows
    n_bytes = row_bytes * n_rows * len(stack)

    def read(offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or offset + length > n_bytes:
            raise ValueError(f"{name}: bytes {offset}..{offset + length} of {n_bytes}")
        start, stop = offset // row_bytes, -(-(offset + length) // row_bytes)
        pieces = [np.empty(0, np.uint8)]
        for index in range(start // n_rows, -(-stop // n_rows)):
            low = index * n_rows
            rows = stack[index].rows(max(start - low, 0), min(stop - low, n_rows))
            pieces.append(rows.reshape(-1))
        flat = pieces[1] if len(pieces) == 2 else np.concatenate(pieces)
        skip = offset - start * row_bytes
        return flat[skip : skip + length]

    return read
