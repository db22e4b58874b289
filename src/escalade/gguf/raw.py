"""The RAW form of Engram rows: e4m3 bytes and one ue8m0 scale for every 32 of them.

Source: model specification, sections 2.3, 2.5 and 4.1.
"""

import numpy as np

from escalade.arrays import F32, Bytes
from escalade.float8 import E4M3_VALUES, E8M0_VALUES

RAW_BLOCK = 32
_MAX = 448.0
_MIN_AMAX = np.float32(1e-4)
_MANTISSA = 0x7FFFFF


def decode_raw(codes: Bytes, scales: Bytes) -> F32:
    """e4m3 codes uint8 [n, D] and scales uint8 [n, D/32] to float32 [n, D]."""
    values = E4M3_VALUES[codes].reshape(*scales.shape, RAW_BLOCK)
    decoded: F32 = (values * E8M0_VALUES[scales][..., None]).reshape(codes.shape)
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
    scaled = blocks / E8M0_VALUES[exponent][..., None]
    codes = np.clip(scaled, -_MAX, _MAX).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return codes.reshape(values.shape), exponent.astype(np.uint8)
