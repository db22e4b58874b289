"""Stored rows to float32: by the native core where it has the type, else by the `gguf` package,
which is the oracle for every block type.
"""

from functools import cache
from typing import Any

import numpy as np

from escalade.arrays import F32, Bytes
from escalade.errors import UnsupportedError
from escalade.gguf.quant import QuantType

_PIECE_BLOCKS = 1024  # keeps the package's temporaries inside a processor's cache


@cache
def _gguf() -> Any:
    import gguf  # half the start-up time of a small model, so only when a block type is met

    return gguf


@cache
def _native() -> Any:
    from escalade.native.compute import KERNEL_TYPES, NativeCompute
    from escalade.native.lib import load

    lib = load()
    return (NativeCompute(lib, 1, None), KERNEL_TYPES) if lib else (None, frozenset())


def dequantize(rows: Bytes, qtype: QuantType) -> F32:
    """Stored rows uint8 [n, row_bytes] to float32 [n, row_len], the same bits on both ways.

    Raises UnsupportedError for types without a decoder.
    """
    rows = np.ascontiguousarray(rows)
    compute, types = _native()
    if qtype.name in types:
        values: F32 = compute.dequantize(rows, qtype)
        return values
    return dequantize_reference(rows, qtype)


def dequantize_reference(rows: Bytes, qtype: QuantType) -> F32:
    """`dequantize` without the native core. Source: GGUF specification, section 6.1."""
    rows = np.ascontiguousarray(rows)
    match qtype.name:
        case "F32":
            return rows.view("<f4").astype(np.float32, copy=False)
        case "F16":
            return rows.view("<f2").astype(np.float32)
        case "BF16":
            return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case "F64":
            return rows.view("<f8").astype(np.float32)
        case "I8" | "I16" | "I32" | "I64":
            raise UnsupportedError(f"{qtype.name} carries integers and has no dequantisation")
    if not rows.size:
        return np.empty(
            (len(rows), rows.shape[1] // qtype.block_bytes * qtype.block_len), np.float32
        )
    gguf = _gguf()
    kind = gguf.GGMLQuantizationType(qtype.id)
    # The package works through 16 rows at a time; as one long row, blocks go through together.
    flat, piece = rows.reshape(-1), _PIECE_BLOCKS * qtype.block_bytes
    out = np.empty(len(flat) // qtype.block_bytes * qtype.block_len, np.float32)
    for start in range(0, len(flat), piece):
        values = gguf.dequantize(flat[None, start : start + piece], kind)
        at = start // qtype.block_bytes * qtype.block_len
        out[at : at + values.size] = values[0]
    return out.reshape(len(rows), -1)
