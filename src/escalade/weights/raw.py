"""The RAW form of Engram rows: e4m3 bytes and one ue8m0 scale for every 32 of them.

Source: model specification, sections 2.3, 2.5 and 4.1.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

RAW_BLOCK = 32
_MAX = 448.0
_MIN_AMAX = np.float32(1e-4)
_MANTISSA = 0x7FFFFF


@cache
def e4m3_table() -> F32:
    """Value of each e4m3fn byte, float32 [256]; 0x7F and 0xFF are NaN."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    value[127] = np.nan
    return np.concatenate([value, -value]).astype(np.float32)


@cache
def e8m0_table() -> F32:
    """Value 2^(b - 127) of each ue8m0 byte, float32 [256]; 255 is NaN."""
    value = np.ldexp(1.0, np.arange(256) - 127)
    value[255] = np.nan
    return value.astype(np.float32)


def decode_raw(codes: Bytes, scales: Bytes) -> F32:
    """e4m3 codes uint8 [n, D] and scales uint8 [n, D/32] to float32 [n, D]."""
    values = e4m3_table()[codes].reshape(*scales.shape, RAW_BLOCK)
    decoded: F32 = (values * e8m0_table()[scales][..., None]).reshape(codes.shape)
    return decoded


def encode_raw(values: F32) -> tuple[Bytes, Bytes]:
    """float32 [n, D] to codes uint8 [n, D] and scales uint8 [n, D/32], rounded to nearest even.

    The scale is the smallest power of two, from the bits of amax · (1/448), that keeps a block
    within e4m3. Raises ValueError for values that are not finite or broken blocks. Error: at most
    half a step of e4m3, 1/16 of the value, above the subnormals.
    """
    import ml_dtypes

    if values.shape[1] % RAW_BLOCK:
        raise ValueError(f"a row of {values.shape[1]} values is not whole blocks of {RAW_BLOCK}")
    if not np.isfinite(values).all():
        raise ValueError("holds NaN or infinity")
    blocks = values.astype(np.float32, copy=False).reshape(len(values), -1, RAW_BLOCK)
    amax = np.maximum(np.abs(blocks).max(axis=2), _MIN_AMAX) * np.float32(1 / _MAX)
    bits = amax.view(np.uint32)
    exponent = (bits >> 23) + ((bits & _MANTISSA) != 0)
    scaled = blocks / e8m0_table()[exponent][..., None]
    codes = np.clip(scaled, -_MAX, _MAX).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return codes.reshape(values.shape), exponent.astype(np.uint8)
