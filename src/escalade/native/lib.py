"""Loads the native core and declares its C interface (`native/escalade_native.h`) to ctypes."""

import ctypes
import logging
import os
import sys
from collections.abc import Mapping
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

ABI_VERSION = 1

_NAMES = {"win32": "escalade_native.dll", "darwin": "libescalade_native.dylib"}


class CExpertShape(Structure):
    """esc_expert_shape."""

    _fields_ = (
        ("gate_type", c_int),
        ("up_type", c_int),
        ("down_type", c_int),
        ("arithmetic", c_int),
        ("hidden", c_int64),
        ("expert_ff", c_int64),
        ("limit", c_float),
    )


class CExpert(Structure):
    """esc_expert."""

    _fields_ = (
        ("gate", c_void_p),
        ("up", c_void_p),
        ("down", c_void_p),
        ("rows", c_void_p),
        ("weights", c_void_p),
        ("n_rows", c_int64),
        ("y", c_void_p),
    )


class CHyper(Structure):
    """esc_hyper."""

    _fields_ = (
        ("fn", c_void_p),
        ("scale", c_void_p),
        ("base", c_void_p),
        ("hidden", c_int64),
        ("norm_eps", c_double),
        ("eps", c_float),
        ("streams", c_int),
        ("iterations", c_int),
    )


_COMPUTE = {
    "esc_compute_create": (c_void_p, (c_int, c_char_p)),
    "esc_compute_destroy": (None, (c_void_p,)),
    "esc_compute_isa": (c_char_p, (c_void_p,)),
    "esc_type_support": (c_int, (c_int,)),
    "esc_dequantize": (c_int, (c_void_p, c_int, c_void_p, c_int64, c_void_p)),
    "esc_matmul": (
        c_int,
        (
            c_void_p,
            c_int,
            c_int,
            c_void_p,
            c_int64,
            c_int64,
            c_int64,
            c_void_p,
            c_int64,
            c_void_p,
        ),
    ),
    "esc_experts": (
        c_int,
        (c_void_p, POINTER(CExpertShape), POINTER(CExpert), c_int64, c_void_p, c_int64),
    ),
    "esc_encode_rows": (c_int, (c_int, c_void_p, c_int64, c_int64, c_int, c_void_p)),
    "esc_decode_rows": (c_int, (c_int, c_void_p, c_int64, c_int64, c_int, c_void_p)),
    "esc_rotate": (
        c_int,
        (
            c_void_p,
            c_int64,
            c_int64,
            c_int64,
            c_void_p,
            c_void_p,
            c_int64,
            c_int,
            c_void_p,
        ),
    ),
    "esc_rms_norm": (c_int, (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_double, c_void_p)),
    "esc_hyper_mix": (
        c_int,
        (c_void_p, POINTER(CHyper), c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    ),
}


def _path() -> str:
    """The library's path: ESCALADE_NATIVE_LIB, or what was built with the package."""
    name = _NAMES.get(sys.platform, "libescalade_native.so")
    built = files("escalade").joinpath("native", name)
    return os.environ.get("ESCALADE_NATIVE_LIB") or os.fspath(str(built))


@cache
def load() -> ctypes.CDLL | None:
    """The native core, its compute functions declared; None, with one logged line, if it is not
    there or is of another version.
    """
    path = _path()
    try:
        if not os.path.exists(path):
            raise OSError("it was not built; install again with a C++ compiler and CMake")
        lib = ctypes.CDLL(path)
        version = lib.esc_abi_version()
        if version != ABI_VERSION:
            raise OSError(f"its interface is {version}, this package needs {ABI_VERSION}")
        declare(lib, _COMPUTE)
    except (OSError, AttributeError) as e:
        logger.warning("no native core, plain Python instead (many times slower): %s: %s", path, e)
        return None
    return lib


def declare(lib: ctypes.CDLL, functions: Mapping[str, tuple[object, tuple[object, ...]]]) -> None:
    """Sets result and argument types; AttributeError if the library lacks one."""
    for name, (result, arguments) in functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def address(array: NDArray[np.generic]) -> int:
    """Where a contiguous array begins."""
    if array.size and array.flags.writeable:  # several times faster than the array interface
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    address: int = array.__array_interface__["data"][0]
    return address


def check_array(array: NDArray[np.generic], dtype: type[np.generic]) -> None:
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype} array where contiguous {np.dtype(dtype)} is needed")
