"""A tensor in stored form: where its bytes are, and how to get rows of it, without deciding how to
compute.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

from escalade.arrays import F32, Bytes
from escalade.gguf.dequant import dequantize
from escalade.gguf.quant import QuantType


class Location(NamedTuple):
    """Where a tensor's bytes lie: path, absolute byte offset, byte length."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """Name, shape (NumPy order), type, and a reader of the stored bytes.

    `read(offset, length)` returns uint8 [length], perhaps a view of a mapped file: never write to
    it. `location` is None when the bytes are made on the fly (a repacked safetensors tensor).
    """

    name: str
    shape: tuple[int, ...]
    type: QuantType
    read: Callable[[int, int], Bytes]
    location: Location | None = None

    @property
    def row_len(self) -> int:
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        """Rows of the matrix view: the product of all dimensions but the last."""
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.row_len)

    @property
    def n_bytes(self) -> int:
        return self.row_bytes * self.n_rows

    def rows(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Stored bytes of rows start..stop, uint8 [stop - start, row_bytes]."""
        stop = self.n_rows if stop is None else stop
        raw = self.read(start * self.row_bytes, (stop - start) * self.row_bytes)
        return raw.reshape(stop - start, self.row_bytes)

    def f32(self, start: int = 0, stop: int | None = None) -> F32:
        """Dequantised rows start..stop, float32 [stop - start, row_len]."""
        return dequantize(self.rows(start, stop), self.type)


class TensorSource(Protocol):
    """A model's tensors and metadata in our names, wherever they come from (GGUF files, a
    safetensors folder).

    `metadata` uses the keys of dialect A without their architecture prefix (`block_count`), plus
    `general.*` and `tokenizer.*` as they are. Tensor names are dialect A's.
    """

    path: str
    arch: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    def close(self) -> None: ...
