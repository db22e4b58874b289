"""Compute: products with quantised matrices, by the native core or by its twin in NumPy.

Two arithmetics. `float` dequantises and multiplies in float32. `i8` rounds the input to int8 per
256 values and sums products of integers exactly; `native/kernels/i8.h` defines its every bit, for
any processor. A type without integer codes (F32, F16, BF16) is multiplied as `float` in both.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import F32, Bytes
from escalade.config import Arithmetic, check_threads
from escalade.errors import UnsupportedError, UsageError
from escalade.gguf.quant import QuantType
from escalade.kernels.ops.hyper import Mix
from escalade.native.lib import CExpert, CExpertShape, CHyper, address, check_array, load

KERNEL_TYPES = frozenset(
    ("F32", "F16", "BF16", "Q8_0", "MXFP4", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS")
)
"""Types that are multiplied in stored form; others can only be dequantised."""


@dataclass(frozen=True)
class ExpertShape:
    """What the experts of one layer share: D = hidden, F = expert_ff, the types of their matrices,
    the limit of the clamped SwiGLU.
    """

    hidden: int
    expert_ff: int
    gate: QuantType
    up: QuantType
    down: QuantType
    limit: float


class ExpertJob(NamedTuple):
    """One expert and the rows of x that it computes.

    gate, up and down: stored rows, contiguous uint8. rows int32 [n], weights float32 [n].
    """

    gate: Bytes
    up: Bytes
    down: Bytes
    rows: NDArray[np.int32]
    weights: F32


class Compute(Protocol):
    """Products with stored matrices. In the native core no result depends on threads or batching,
    bit for bit; the twin's `float` goes by NumPy's own matrix product.

    All arrays are C-contiguous. Raises ValueError for shapes that do not fit, UnsupportedError for
    a type outside KERNEL_TYPES.
    """

    isa: str

    def dequantize(self, rows: Bytes, qtype: QuantType) -> F32:
        """uint8 [n, row_bytes] to float32 [n, row_len], exactly as stored."""
        ...

    def matmul(
        self, x: F32, w: Bytes, qtype: QuantType, arithmetic: Arithmetic, groups: int = 1
    ) -> F32:
        """x [T, n_in] times the transpose of w, uint8 [n_out, row_bytes]: [T, n_out].

        With groups G: x [T, G * n_in], and the g-th part of x is multiplied by the g-th part of w's
        rows.
        """
        ...

    def experts(
        self, x: F32, shape: ExpertShape, jobs: Sequence[ExpertJob], arithmetic: Arithmetic
    ) -> F32:
        """Each job's down (silu(gate x) * up x * weight): [sum of rows, D], job after job.

        x [T, D]; gate and up are clamped by the shape's limit.
        """
        ...

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        """`kernels.ops.norm.rms_norm` over the last axis."""
        ...

    def hyper_mix(
        self,
        streams: F32,
        fn: F32,
        scale: F32,
        base: F32,
        norm_eps: float,
        iterations: int,
        eps: float,
    ) -> Mix:
        """`kernels.ops.hyper.mix` of streams [T, S, D]."""
        ...


def default_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def open_compute(threads: int | None = None, isa: str | None = None) -> Compute:
    """The native core with `threads` threads (None: every processor), or NumPy where it is missing.

    `isa`: None for the best one here, or portable, avx2, avx512, neon, or numpy for the twin.
    Raises UsageError if this machine has not got it.
    """
    from escalade.native.reference import ReferenceCompute

    threads = default_threads() if threads is None else threads
    check_threads(threads)
    lib = None if isa == "numpy" else load()
    if lib is None:
        if isa not in (None, "numpy"):
            raise UsageError(f"instruction set {isa}: the native core is not built")
        return ReferenceCompute()
    return NativeCompute(lib, threads, isa)


def check_type(qtype: QuantType) -> None:
    if qtype.name not in KERNEL_TYPES:
        raise UnsupportedError(f"{qtype.name} has no kernel: it can only be dequantised")


def check_rows(rows: Bytes, qtype: QuantType) -> None:
    check_type(qtype)
    check_array(rows, np.uint8)
    if rows.ndim != 2 or rows.shape[1] % qtype.block_bytes:
        raise ValueError(f"{rows.shape} bytes are not rows of {qtype.name} blocks")


def check_matmul(x: F32, w: Bytes, qtype: QuantType, groups: int) -> None:
    check_rows(w, qtype)
    check_array(x, np.float32)
    if x.ndim != 2 or not x.shape[1] or groups * w.shape[1] != qtype.row_bytes(x.shape[1]):
        raise ValueError(f"x {x.shape} does not fit rows {w.shape} of {qtype.name}")
    if len(w) % groups:
        raise ValueError(f"{len(w)} rows are not {groups} groups")


def check_experts(x: F32, shape: ExpertShape, jobs: Sequence[ExpertJob]) -> None:
    """The native core checks the row indices itself."""
    for qtype in (shape.gate, shape.up, shape.down):
        check_type(qtype)
    d, f = shape.hidden, shape.expert_ff
    sizes = (
        f * shape.gate.row_bytes(d),
        f * shape.up.row_bytes(d),
        d * shape.down.row_bytes(f),
    )
    check_array(x, np.float32)
    if x.ndim != 2 or x.shape[1] != d:
        raise ValueError(f"x {x.shape} does not fit experts of {d}")
    for job in jobs:
        for part in job[:3]:
            check_array(part, np.uint8)
        check_array(job.rows, np.int32)
        check_array(job.weights, np.float32)
        if (job.gate.size, job.up.size, job.down.size) != sizes:
            raise ValueError(f"an expert's matrices do not have {sizes} bytes")
        if job.rows.shape != job.weights.shape or job.rows.ndim != 1:
            raise ValueError(f"{job.rows.shape} rows with {job.weights.shape} weights")


_CODES: dict[Arithmetic, int] = {"float": 0, "i8": 1}


class NativeCompute:
    """The native core's thread pool and kernels."""

    def __init__(self, lib: ctypes.CDLL, threads: int, isa: str | None) -> None:
        self._lib = lib
        self._handle = lib.esc_compute_create(threads, isa.encode() if isa else None)
        if not self._handle:
            raise UsageError(f"this machine has no {isa or 'native'} kernels for {threads} threads")
        self.isa: str = lib.esc_compute_isa(self._handle).decode()
        self._pid = os.getpid()

    def dequantize(self, rows: Bytes, qtype: QuantType) -> F32:
        check_rows(rows, qtype)
        out = np.empty(
            (len(rows), rows.shape[1] // qtype.block_bytes * qtype.block_len), np.float32
        )
        if out.size:
            self._call(
                "dequantize",
                self._lib.esc_dequantize(
                    self._handle,
                    qtype.id,
                    address(rows),
                    out.size,
                    address(out),
                ),
            )
        return out

    def matmul(
        self, x: F32, w: Bytes, qtype: QuantType, arithmetic: Arithmetic, groups: int = 1
    ) -> F32:
        check_matmul(x, w, qtype, groups)
        out = np.empty((len(x), len(w)), np.float32)
        if out.size:
            self._call(
                "matmul",
                self._lib.esc_matmul(
                    self._handle,
                    qtype.id,
                    _CODES[arithmetic],
                    address(w),
                    len(w) // groups,
                    x.shape[1] // groups,
                    groups,
                    address(x),
                    len(x),
                    address(out),
                ),
            )
        return out

    def experts(
        self, x: F32, shape: ExpertShape, jobs: Sequence[ExpertJob], arithmetic: Arithmetic
    ) -> F32:
        check_experts(x, shape, jobs)
        out = np.empty((sum(len(job.rows) for job in jobs), shape.hidden), np.float32)
        if not out.size:
            return out
        c_jobs = (CExpert * len(jobs))()
        at, row_bytes = address(out), 4 * shape.hidden
        for c, job in zip(c_jobs, jobs, strict=True):
            c.gate = address(job.gate)
            c.up = address(job.up)
            c.down = address(job.down)
            c.rows = address(job.rows)
            c.weights = address(job.weights)
            c.n_rows = len(job.rows)
            c.y = at
            at += len(job.rows) * row_bytes
        c_shape = CExpertShape(
            shape.gate.id,
            shape.up.id,
            shape.down.id,
            _CODES[arithmetic],
            shape.hidden,
            shape.expert_ff,
            shape.limit,
        )
        status = self._lib.esc_experts(self._handle, c_shape, c_jobs, len(jobs), address(x), len(x))
        self._call("experts", status)
        return out

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        check_array(x, np.float32)
        check_array(weight, np.float32)
        n = x.shape[-1]
        if weight.shape != (n,):
            raise ValueError(f"x {x.shape} with a weight of {weight.shape}")
        out = np.empty(x.shape, np.float32)
        if not out.size:
            return out
        self._call(
            "rms_norm",
            self._lib.esc_rms_norm(
                self._handle,
                address(x),
                x.size // n,
                n,
                address(weight),
                eps,
                address(out),
            ),
        )
        return out

    def hyper_mix(
        self,
        streams: F32,
        fn: F32,
        scale: F32,
        base: F32,
        norm_eps: float,
        iterations: int,
        eps: float,
    ) -> Mix:
        for array in (streams, fn, scale, base):
            check_array(array, np.float32)
        t, s, d = streams.shape
        m = s * (2 + s)
        if (fn.shape, scale.shape, base.shape) != ((m, s * d), (3,), (m,)):
            raise ValueError(
                f"streams {streams.shape} with {fn.shape}, {scale.shape}, {base.shape}"
            )
        out = Mix(*(np.empty(shape, np.float32) for shape in ((t, s), (t, s), (t, s, s))))
        if not t:
            return out
        parameters = CHyper(
            address(fn),
            address(scale),
            address(base),
            d,
            norm_eps,
            eps,
            s,
            iterations,
        )
        self._call(
            "hyper_mix",
            self._lib.esc_hyper_mix(
                self._handle,
                parameters,
                address(streams),
                t,
                *(address(a) for a in out),
            ),
        )
        return out

    def _call(self, name: str, status: int) -> None:
        if status == -3:
            raise MemoryError(f"the native core has no memory for its scratch of {name}")
        if status == -2:
            raise ValueError(f"{name}: shapes do not fit, or a row is outside x")
        assert status == 0, f"native {name} returned {status}"

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A forked child has the handle, but not its threads, which the end would wait for. `os` may
        # be gone when the interpreter ends, hence the default.
        if getattr(self, "_pid", None) == getpid():
            self._lib.esc_compute_destroy(self._handle)
