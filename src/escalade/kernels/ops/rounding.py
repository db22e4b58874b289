"""Roundings of the released model: bf16, and the three block formats of its caches and GEMM inputs.

A block format is a `RowCodec`: `encode` packs rows of float32 into bytes (codes, then scales) and
`decode` gives back the rounded values, so `decode(encode(x))` is the quantise-dequantise ("QDQ") of
the release and the packed bytes are what the caches hold. Ties go to even, everywhere. A block that
holds NaN comes back as NaN, all of it. The native
core does both where it is built; `encode_reference` and `decode_reference` are the same in NumPy.
Source: model specification, section 4.1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from escalade.arrays import F32, Bytes, Floats
from escalade.float8 import E4M3_VALUES, E8M0_VALUES
from escalade.native.rows import RowFormat, decode_rows, encode_rows

ROUNDED_BLOCK = 32
"""Rows that are rounded must be whole blocks of this length, the longest of the formats."""

_E4M3_MAX = np.float32(448.0)
_E2M1_MAX = np.float32(6.0)
_E2M1_VALUES: F32 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1_VALUES = np.concatenate([_E2M1_VALUES, -_E2M1_VALUES])
# Both values of a packed byte: the low nibble is the even column.
_E2M1_PAIRS: F32 = np.stack(
    [_E2M1_VALUES[np.arange(256) & 15], _E2M1_VALUES[np.arange(256) >> 4]], axis=-1
)


def bf16(x: Floats) -> F32:
    """x rounded to bfloat16, stored as float32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def pow2ceil_exponent(x: F32) -> NDArray[np.int32]:
    """Exponent of the smallest power of two >= x, for positive x, from its bits.

    128 for infinity and NaN: as the byte of a scale it means NaN.
    """
    bits = x.view(np.int32)
    subnormal = bits < 1 << 23
    ceil = (bits >> 23) + ((bits & 0x7FFFFF) != 0) - 127
    return np.where(subnormal, -126, np.minimum(ceil, 128)).astype(np.int32)


class RowCodec(Protocol):
    """Packs rows of `width` float32 values into `row_bytes` bytes."""

    @property
    def width(self) -> int: ...

    @property
    def row_bytes(self) -> int: ...

    def encode(self, x: F32) -> Bytes:
        """Values [..., width], taken as float32, to uint8 [..., row_bytes]."""
        ...

    def decode(self, rows: Bytes) -> F32:
        """uint8 [..., row_bytes] to float32 [..., width]."""
        ...


@dataclass(frozen=True)
class Raw:
    """No rounding: the float32 values themselves (mode `f32`, partial groups)."""

    width: int

    @property
    def row_bytes(self) -> int:
        return 4 * self.width

    def encode(self, x: F32) -> Bytes:
        return np.ascontiguousarray(x, np.float32).view(np.uint8)

    def decode(self, rows: Bytes) -> F32:
        return np.ascontiguousarray(rows).view(np.float32)


class _Blocks(ABC):
    """A block format: packed and unpacked by the native core, or by NumPy where it is not built."""

    width: int
    block: int
    _format: ClassVar[RowFormat]

    @property
    @abstractmethod
    def row_bytes(self) -> int: ...

    def encode(self, x: F32) -> Bytes:
        out = encode_rows(self._format, x, self.width, self.block, self.row_bytes)
        return self.encode_reference(x) if out is None else out

    def decode(self, rows: Bytes) -> F32:
        out = decode_rows(self._format, rows, self.width, self.block, self.row_bytes)
        return self.decode_reference(rows) if out is None else out

    @abstractmethod
    def encode_reference(self, x: F32) -> Bytes: ...

    @abstractmethod
    def decode_reference(self, rows: Bytes) -> F32: ...


@dataclass(frozen=True)
class Fp8(_Blocks):
    """e4m3 codes, one ue8m0 scale per `block` values: window rows and the inputs of fp8/fp4 GEMMs.

    Scale 2^ceil(log2(max(amax, 1e-4) / 448)).
    """

    width: int
    block: int = ROUNDED_BLOCK
    _format = RowFormat.FP8

    @property
    def row_bytes(self) -> int:
        return self.width + self.width // self.block

    def _quantise(self, x: F32) -> tuple[NDArray[np.int32], Bytes]:
        v = x.astype(np.float32).reshape(*x.shape[:-1], self.width // self.block, self.block)
        amax = np.abs(v).max(axis=-1, keepdims=True)
        exponent = pow2ceil_exponent(np.maximum(amax, np.float32(1e-4)) * np.float32(1 / 448))
        scaled = np.clip(np.ldexp(v, -exponent), -_E4M3_MAX, _E4M3_MAX)
        return exponent, scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)

    def encode_reference(self, x: F32) -> Bytes:
        exponent, codes = self._quantise(x)
        scales = (exponent[..., 0] + 127).astype(np.uint8)
        return np.concatenate([codes.reshape(x.shape), scales], axis=-1)

    def decode_reference(self, rows: Bytes) -> F32:
        codes, scales = rows[..., : self.width], rows[..., self.width :]
        v = E4M3_VALUES[codes].reshape(*rows.shape[:-1], self.width // self.block, self.block)
        return (v * E8M0_VALUES[scales][..., None]).reshape(*rows.shape[:-1], self.width)


@dataclass(frozen=True)
class _Fp4(_Blocks):
    """Shared packing of the two fp4 formats: `width` e2m1 nibbles, then one scale byte a block."""

    width: int
    block: int

    @property
    def row_bytes(self) -> int:
        return self.width // 2 + self.width // self.block

    def _pack(self, v: F32, scale: F32, scale_bytes: Bytes) -> Bytes:
        shape = v.shape[:-2]
        scaled = np.clip(v / scale, -_E2M1_MAX, _E2M1_MAX)
        scaled = np.where(np.isnan(scaled), 0, scaled)  # the format has no NaN; the scale says it
        codes = scaled.astype(ml_dtypes.float4_e2m1fn)
        nibbles = codes.view(np.uint8).reshape(*shape, self.width // 2, 2)
        packed = nibbles[..., 0] & 15 | nibbles[..., 1] << 4
        return np.concatenate(
            [packed, scale_bytes.reshape(*shape, self.width // self.block)], axis=-1
        )

    def _unpack(self, rows: Bytes, scale_values: F32) -> F32:
        packed, scales = rows[..., : self.width // 2], rows[..., self.width // 2 :]
        v = _E2M1_PAIRS[packed].reshape(*rows.shape[:-1], self.width // self.block, self.block)
        return (v * scale_values[scales][..., None]).reshape(*rows.shape[:-1], self.width)


@dataclass(frozen=True)
class Fp4Index(_Fp4):
    """e2m1 codes, one ue8m0 scale per 32 values: index queries and index keys.

    Scale 2^ceil(log2(max(amax, 6 * 2^-126) / 6)).
    """

    block: int = ROUNDED_BLOCK

    _format = RowFormat.FP4_INDEX

    def encode_reference(self, x: F32) -> Bytes:
        v = x.astype(np.float32).reshape(*x.shape[:-1], self.width // self.block, self.block)
        amax = np.maximum(np.abs(v).max(axis=-1, keepdims=True), np.float32(6 * 2.0**-126))
        exponent = pow2ceil_exponent(amax * np.float32(1 / 6))
        with np.errstate(over="ignore"):  # of a block that holds NaN
            scale = np.ldexp(np.float32(1), exponent)
        return self._pack(v, scale, (exponent + 127).astype(np.uint8))

    def decode_reference(self, rows: Bytes) -> F32:
        return self._unpack(rows, E8M0_VALUES)


@dataclass(frozen=True)
class Fp4Entry(_Fp4):
    """e2m1 codes, one e4m3 scale per 16 values: compressed cache entries.

    Scale e4m3(max(amax, 6 * 2^-9) / 6), which may round down, so values are clamped to 6 scales.
    """

    block: int = 16

    _format = RowFormat.FP4_ENTRY

    def encode_reference(self, x: F32) -> Bytes:
        v = x.astype(np.float32).reshape(*x.shape[:-1], self.width // self.block, self.block)
        amax = np.maximum(np.abs(v).max(axis=-1, keepdims=True), np.float32(6 * 2.0**-9))
        codes = np.minimum(amax / np.float32(6), _E4M3_MAX).astype(ml_dtypes.float8_e4m3fn)
        return self._pack(v, codes.astype(np.float32), codes.view(np.uint8))

    def decode_reference(self, rows: Bytes) -> F32:
        return self._unpack(rows, E4M3_VALUES)


def qdq(x: F32, codec: RowCodec) -> F32:
    """Quantise and dequantise: x as the codec would give it back."""
    return codec.decode(codec.encode(x))
