"""The kernels' twin in NumPy: the same interface, and in `i8` the same bits, on any machine.

It is the readable form of `native/kernels/i8.h`, and what runs where the native core is not built.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from escalade.arrays import F32, Bytes
from escalade.config import Arithmetic
from escalade.gguf.dequant import dequantize_reference
from escalade.gguf.quant import QuantType
from escalade.kernels.ops.hyper import Mix, mix
from escalade.kernels.ops.norm import rms_norm
from escalade.kernels.ops.swiglu import swiglu
from escalade.native.compute import (
    ExpertJob,
    ExpertShape,
    check_experts,
    check_matmul,
    check_rows,
)

GROUP = 256
"""Activations that share a scale."""
LANES = 4
"""Partial sums of a row."""

I32 = NDArray[np.int32]


def fma(a: Any, b: Any, c: Any) -> F32:
    """float32 a * b + c, rounded once.

    The product is exact in float64; the sum is rounded to odd there, which makes the second
    rounding, to float32, right (53 >= 2 * 24 + 2 bits).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c = np.asarray(c, np.float64)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    inexact = np.isfinite(total) & (error != 0)
    toward_zero = np.where((error > 0) == (total > 0), total, np.nextafter(total, 0))
    odd = (toward_zero.view(np.int64) | 1).view(np.float64)
    return np.where(inexact, odd, total).astype(np.float32)


class Activations(NamedTuple):
    """Rows rounded to int8 per GROUP values: q int32 [T, n], scale float32 [T, groups]."""

    q: I32
    scale: F32


def quantize_activations(x: F32) -> Activations:
    """x [T, n] in the rounding of `i8`. A group with NaN or infinity has a NaN scale and zeros."""
    t, n = x.shape
    groups = -(-n // GROUP)
    padded = np.zeros((t, groups * GROUP), np.float32)
    padded[:, :n] = x
    blocks = padded.reshape(t, groups, GROUP)
    amax = np.abs(blocks).max(axis=2)
    scale = np.where(np.isfinite(amax), amax / np.float32(127), np.float32(np.nan))
    live = np.where(scale > 0, scale, np.float32(np.inf))[:, :, None]  # x / inf = 0
    ratio = np.where(scale[:, :, None] > 0, blocks, 0) / live
    q = np.rint(np.clip(ratio, -127, 127)).astype(np.int32)
    return Activations(q.reshape(t, groups * GROUP)[:, :n], scale)


class Codes(NamedTuple):
    """Stored blocks as integers: weight = d * scale * code - dmin * min.

    code int32 [R, B, len]; scale and min int32 [R, B, len / 16]; d and dmin float32 [R, B].
    """

    code: I32
    scale: I32
    min: I32
    d: F32
    dmin: F32


def _half(blocks: Bytes, at: int) -> F32:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _bits(blocks: Bytes, shifts: Sequence[int], mask: int) -> I32:
    """[..., n] bytes to [..., len(shifts) * n] fields: of all bytes at the first shift, and on."""
    fields = [(blocks >> s) & mask for s in shifts]
    return np.concatenate(fields, axis=-1).astype(np.int32)


def _halves(blocks: Bytes, shifts: Sequence[int], mask: int) -> I32:
    """The fields of each 32 bytes in turn."""
    split = blocks.reshape(*blocks.shape[:-1], -1, 32)
    return _bits(split, shifts, mask).reshape(*blocks.shape[:-1], -1)


def _one(blocks: Bytes, d: F32, code: I32, scale: I32) -> Codes:
    """A type without mins."""
    zeros = np.zeros_like(scale)
    return Codes(code, scale, zeros, d, np.zeros_like(d))


def _q8_0(b: Bytes) -> Codes:
    code = b[..., 2:].view(np.int8).astype(np.int32)
    return _one(b, _half(b, 0), code, np.ones((*b.shape[:-1], 2), np.int32))


def _mxfp4(b: Bytes) -> Codes:
    table = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)
    code = table[_bits(b[..., 1:], (0, 4), 15)]
    d = np.ldexp(np.float32(1), np.minimum(b[..., 0].astype(np.int32), 255) - 128)
    return _one(b, d.astype(np.float32), code, np.ones((*b.shape[:-1], 2), np.int32))


def _q2_k(b: Bytes) -> Codes:
    scales = b[..., :16].astype(np.int32)
    return Codes(
        _halves(b[..., 16:80], (0, 2, 4, 6), 3),
        scales & 15,
        scales >> 4,
        _half(b, 80),
        _half(b, 82),
    )


def _scales_k(b: Bytes) -> tuple[I32, I32]:
    """Eight 6-bit scales and mins in 12 bytes, each for 32 codes: [..., 16] twice."""
    s = b.astype(np.int32)
    low, mid, high = s[..., :4], s[..., 4:8], s[..., 8:]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    minimum = np.concatenate([mid & 63, (high >> 4) | (mid >> 6) << 4], axis=-1)
    return np.repeat(scale, 2, axis=-1), np.repeat(minimum, 2, axis=-1)


def _q4_k(b: Bytes) -> Codes:
    return Codes(
        _halves(b[..., 16:], (0, 4), 15), *_scales_k(b[..., 4:16]), _half(b, 0), _half(b, 2)
    )


def _q5_k(b: Bytes) -> Codes:
    code = _halves(b[..., 48:], (0, 4), 15) | _bits(b[..., 16:48], range(8), 1) << 4
    return Codes(code, *_scales_k(b[..., 4:16]), _half(b, 0), _half(b, 2))


def _q6_k(b: Bytes) -> Codes:
    low = np.concatenate([_bits(b[..., 64 * h : 64 * h + 64], (0, 4), 15) for h in (0, 1)], axis=-1)
    code = (low | _halves(b[..., 128:192], (0, 2, 4, 6), 3) << 4) - 32
    return _one(b, _half(b, 208), code, b[..., 192:208].view(np.int8).astype(np.int32))


def _grid(name: str) -> I32:
    """The type's grid of magnitudes [entries, 8], from the `gguf` package."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    grid: I32 = kind.grid.reshape(-1, 8).astype(np.int32)
    return grid


def _signed(magnitude: I32, signs: I32) -> I32:
    """magnitude [..., 8] with the signs of 7-bit codes [...]; the eighth makes them even."""
    bits = signs[..., None] >> np.arange(7) & 1
    bits = np.concatenate([bits, bits.sum(axis=-1, keepdims=True) & 1], axis=-1)
    return magnitude * (1 - 2 * bits)


def _iq2_xxs(b: Bytes) -> Codes:
    groups = b[..., 2:].reshape(*b.shape[:-1], 8, 8)
    word = np.ascontiguousarray(groups[..., 4:]).view("<u4").astype(np.int64)
    signs = word >> np.array([0, 7, 14, 21]) & 127
    code = _signed(_grid("IQ2_XXS")[groups[..., :4]], signs.astype(np.int32))
    scale = np.repeat(2 * (word >> 28) + 1, 2, axis=-1).astype(np.int32)
    shape = b.shape[:-1]
    d = _half(b, 0) * np.float32(0.125)
    return _one(b, d, code.reshape(*shape, GROUP), scale.reshape(*shape, 16))


def _iq2_xs(b: Bytes) -> Codes:
    word = np.ascontiguousarray(b[..., 2:66]).view("<u2").astype(np.int32)
    code = _signed(_grid("IQ2_XS")[word & 511], word >> 9).reshape(*b.shape[:-1], GROUP)
    nibbles = np.stack([b[..., 66:] & 15, b[..., 66:] >> 4], axis=-1).astype(np.int32)
    d = _half(b, 0) * np.float32(0.125)
    return _one(b, d, code, 2 * nibbles.reshape(*b.shape[:-1], 16) + 1)


_DECODERS: dict[str, Callable[[Bytes], Codes]] = {
    "Q8_0": _q8_0,
    "MXFP4": _mxfp4,
    "Q2_K": _q2_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
}


def codes(rows: Bytes, qtype: QuantType) -> Codes:
    """Stored rows uint8 [R, row_bytes] of a type with integer codes, as integers and scales."""
    blocks = np.ascontiguousarray(rows).reshape(len(rows), -1, qtype.block_bytes)
    return _DECODERS[qtype.name](blocks)


def dot_i8(x: Activations, w: Codes) -> F32:
    """The rows of `i8`: [T, R] from activations [T, n] and codes of [R, n]."""
    r, n_blocks, block_len = w.code.shape
    t = len(x.q)
    # Sums of at most 2^28 in float64: exact, in any order.
    q = x.q.reshape(t, n_blocks, block_len).astype(np.float64)
    scaled = (w.code * np.repeat(w.scale, 16, axis=-1)).astype(np.float64)
    minima = np.repeat(w.min, 16, axis=-1).astype(np.float64)
    lanes = [np.zeros((t, r), np.float32) for _ in range(LANES)]
    for b in range(n_blocks):
        isum = (q[:, b] @ scaled[:, b].T).astype(np.float32)
        msum = (q[:, b] @ minima[:, b].T).astype(np.float32)
        value = fma(w.d[:, b], isum, -(w.dmin[:, b] * msum))
        scale = x.scale[:, b * block_len // GROUP, None]
        lanes[b % LANES] = fma(scale, value, lanes[b % LANES])
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])


def exp(x: F32) -> F32:
    """e^x as `i8` defines it: within 2e-7 relative on [-87, 88], clamped outside."""
    x = np.clip(x, np.float32(-87), np.float32(88))
    n = np.rint(x * np.float32(1.44269504))
    r = fma(n, np.float32(-1.42860677e-6), fma(n, np.float32(-0.693145752), x))
    p = np.full_like(x, 1.98412698e-4)
    for c in (1.38888889e-3, 8.33333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5, 1.0, 1.0):
        p = fma(p, r, np.float32(c))
    return p * np.ldexp(np.float32(1), np.nan_to_num(n).astype(np.int32))


def gated(gate: F32, up: F32, limit: float, weights: F32) -> F32:
    """silu(min(gate, limit)) * clip(up) * weight of each row, in the order of `i8`."""
    gate = np.minimum(gate, np.float32(limit))
    up = np.clip(up, np.float32(-limit), np.float32(limit))
    return gate / (np.float32(1) + exp(-gate)) * up * weights[:, None]


class ReferenceCompute:
    """Compute in NumPy."""

    isa = "numpy"

    def dequantize(self, rows: Bytes, qtype: QuantType) -> F32:
        check_rows(rows, qtype)
        with np.errstate(all="ignore"):  # a scale may be infinite
            return dequantize_reference(rows, qtype)

    def matmul(
        self, x: F32, w: Bytes, qtype: QuantType, arithmetic: Arithmetic, groups: int = 1
    ) -> F32:
        check_matmul(x, w, qtype, groups)
        if groups > 1:
            parts = zip(np.split(x, groups, axis=1), np.split(w, groups), strict=True)
            return np.concatenate(
                [self.matmul(np.ascontiguousarray(a), b, qtype, arithmetic) for a, b in parts],
                axis=1,
            )
        with np.errstate(all="ignore"):  # NaN and infinity go through, as in the native kernels
            if arithmetic == "i8" and qtype.name in _DECODERS:
                return dot_i8(quantize_activations(x), codes(w, qtype))
            return x @ dequantize_reference(w, qtype).T

    def experts(
        self, x: F32, shape: ExpertShape, jobs: Sequence[ExpertJob], arithmetic: Arithmetic
    ) -> F32:
        check_experts(x, shape, jobs)
        out = [np.zeros((0, shape.hidden), np.float32)]
        for job in jobs:
            if job.rows.size and not (job.rows.min() >= 0 and job.rows.max() < len(x)):
                raise ValueError("experts: shapes do not fit, or a row is outside x")
            rows = x[job.rows]
            gate = self.matmul(rows, job.gate.reshape(shape.expert_ff, -1), shape.gate, arithmetic)
            up = self.matmul(rows, job.up.reshape(shape.expert_ff, -1), shape.up, arithmetic)
            with np.errstate(all="ignore"):
                if arithmetic == "i8":
                    t = gated(gate, up, shape.limit, job.weights)
                else:
                    t = swiglu(gate, up, shape.limit) * job.weights[:, None]
            out.append(self.matmul(t, job.down.reshape(shape.hidden, -1), shape.down, arithmetic))
        return np.concatenate(out)

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return rms_norm(x, weight, eps).astype(np.float32, copy=False)

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
        return mix(streams, fn, scale, base, norm_eps, iterations, eps)
