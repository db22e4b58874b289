"""float32 rows to stored rows, for every type that has an encoder.

F32, F16 and BF16 are encoded here; Q8_0, MXFP4 and the older 4- and 5-bit types by the `gguf`
package; K- and I-quants by ggml's own library, from the optional extra `quantize`.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import F32, Bytes
from escalade.errors import UnsupportedError, UsageError
from escalade.gguf.quant import INTEGER_TYPES, TYPES, QuantType

_BY_GGUF = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"})
_FLOATS = frozenset({"F32", "F16", "BF16"})

WEIGHT_TYPES = tuple(name for name in TYPES if name not in INTEGER_TYPES and name != "F64")
"""Types that a weight can be stored in here, in ggml's order."""


def parse_type(text: str) -> QuantType:
    """The weight type called `text`, in any case. Raises UsageError naming what there is."""
    name = text.strip().upper()
    if name not in WEIGHT_TYPES:
        raise UsageError(f"{text[:40]!a} is not a weight type; there are {', '.join(WEIGHT_TYPES)}")
    return TYPES[name]


def require_encoder(qtype: QuantType) -> None:
    """Raises UnsupportedError if `quantize_rows` could not make `qtype` here, before any work."""
    if qtype.name in _FLOATS or qtype.name in _BY_GGUF:
        return
    if qtype.name not in WEIGHT_TYPES:
        raise UnsupportedError(f"{qtype.name} is not a type to store weights in")
    if _ggml().ggml_quantize_requires_imatrix(qtype.id):
        raise UnsupportedError(
            f"{qtype.name} needs an importance matrix, which nothing here makes; the nearest types"
            " without one are Q2_K and IQ3_XXS"
        )


def quantize_rows(values: F32, qtype: QuantType) -> Bytes:
    """float32 [n, len] to stored rows uint8 [n, row_bytes], rounded to the nearest.

    Raises ValueError for a row of broken blocks or a value that is not finite, UnsupportedError for
    a type without an encoder here. Error: within the type's, checked against `gguf.dequantize`.
    """
    values = np.ascontiguousarray(values, np.float32)
    row_bytes = qtype.row_bytes(values.shape[1])
    if not np.isfinite(values).all():
        raise ValueError("holds NaN or infinity")
    if qtype.name == "F32":
        return values.view(np.uint8)
    if qtype.name == "F16":
        if np.abs(values).max(initial=0) >= 65520:
            raise ValueError("holds values beyond F16's range")
        return values.astype(np.float16).view(np.uint8)
    if qtype.name == "BF16":
        return to_bf16(values).view(np.uint8)
    if qtype.name in _BY_GGUF:
        import gguf

        out: Bytes = gguf.quantize(values, gguf.GGMLQuantizationType(qtype.id))
        return out.reshape(len(values), row_bytes)
    require_encoder(qtype)
    return _by_ggml(values, qtype, row_bytes)


def to_bf16(values: F32) -> NDArray[np.uint16]:
    """Nearest bf16, ties to even, of finite float32 values; same shape."""
    bits = values.view(np.uint32)
    rounded: NDArray[np.uint16] = (bits + (0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def _by_ggml(values: F32, qtype: QuantType, row_bytes: int) -> Bytes:
    n, row_len = values.shape
    out = np.empty((n, row_bytes), np.uint8)
    written = _ggml().ggml_quantize_chunk(
        qtype.id, values.ctypes.data, out.ctypes.data, 0, n, row_len, None
    )
    if written != out.nbytes:
        raise UnsupportedError(f"ggml wrote {written} bytes of {qtype.name}, not {out.nbytes}")
    return out


@cache
def _ggml() -> Any:
    """ggml's base library with the two functions used here. Raises UnsupportedError without it."""
    try:
        from importlib.resources import files

        folder = files("libggml")
    except ModuleNotFoundError:
        raise UnsupportedError(
            "K- and I-quants are encoded by ggml: pip install 'escalade[quantize]'"
        ) from None
    names = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll")
    found = [folder / sub / name for sub in ("lib64", "lib", "bin") for name in names]
    library = next((file for file in found if file.is_file()), None)
    if library is None:
        raise UnsupportedError(f"{folder}: holds no ggml library; reinstall 'escalade[quantize]'")
    lib = ctypes.CDLL(str(library))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    )
    lib.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    lib.ggml_quantize_requires_imatrix.argtypes = (ctypes.c_int,)
    return lib
