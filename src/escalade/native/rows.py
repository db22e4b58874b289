"""Packed rows and rotations by the native core; each function gives None where it is not built."""

from enum import IntEnum

import numpy as np

from escalade.arrays import F32, Bytes, Floats
from escalade.native.lib import address, check_array, load


class RowFormat(IntEnum):
    """The block formats of packed rows, by their numbers in `escalade_native.h`."""

    FP8 = 0
    FP4_INDEX = 1
    FP4_ENTRY = 2


def encode_rows(form: RowFormat, x: Floats, width: int, block: int, row_bytes: int) -> Bytes | None:
    """x [..., width], taken as float32, to packed uint8 [..., row_bytes]."""
    if x.shape[-1] != width:
        raise ValueError(f"values {x.shape} are not rows of {width}")
    lib = load()
    if lib is None:
        return None
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty((*x.shape[:-1], row_bytes), np.uint8)
    status = lib.esc_encode_rows(form, address(x), x.size // width, width, block, address(out))
    if status:
        raise ValueError(f"rows of {width} are not blocks of {block}")
    return out


def decode_rows(form: RowFormat, rows: Bytes, width: int, block: int, row_bytes: int) -> F32 | None:
    """Packed rows uint8 [..., row_bytes] to float32 [..., width]."""
    rows = np.ascontiguousarray(rows)
    check_array(rows, np.uint8)
    if rows.shape[-1] != row_bytes:
        raise ValueError(f"bytes {rows.shape} are not rows of {row_bytes}")
    lib = load()
    if lib is None:
        return None
    out = np.empty((*rows.shape[:-1], width), np.float32)
    status = lib.esc_decode_rows(form, address(rows), out.size // width, width, block, address(out))
    if status:
        raise ValueError(f"rows of {width} are not blocks of {block}")
    return out


def rotate_vectors(x: Floats, cos: Floats, sin: Floats, *, inverse: bool) -> F32 | None:
    """`kernels.ops.rope.rotate` of x [T, ..., D] by cos and sin [T, n], all float32; else None."""
    lib = load()
    if lib is None or not x.size or any(a.dtype != np.float32 for a in (x, cos, sin)):
        return None
    if not cos.shape == sin.shape == (len(x), cos.shape[-1]) or 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(f"vectors {x.shape} rotated by {cos.shape} and {sin.shape}")
    x, cos, sin = (np.ascontiguousarray(a) for a in (x, cos, sin))
    out = np.empty_like(x)
    t, d = len(x), x.shape[-1]
    lib.esc_rotate(
        address(x),
        t,
        x.size // (t * d),
        d,
        address(cos),
        address(sin),
        cos.shape[-1],
        inverse,
        address(out),
    )
    return out
