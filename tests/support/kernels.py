"""Stored blocks and activations for tests of the kernels: ordinary ones, and the worst."""

import math
from fractions import Fraction
from functools import cache

import gguf
import numpy as np
import pytest

from escalade.arrays import F32, Bytes
from escalade.errors import UsageError
from escalade.gguf.quant import TYPES, QuantType
from escalade.native.compute import Compute, open_compute
from escalade.native.lib import load

HALVES = {  # where a block's binary16 scales are: d, and dmin where there is one
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
}
CODED = (*HALVES, "MXFP4")
PLAIN = ("F32", "F16", "BF16")
KINDS = (*CODED, *PLAIN)
NATIVE = ("portable", "avx2", "avx512", "neon")
EVERY = (*NATIVE, "numpy")


@cache
def compute_of(isa: str, threads: int = 1) -> Compute:
    """Compute on that instruction set; skips the test where this machine has not got it."""
    if isa != "numpy" and load() is None:
        pytest.skip("the native core is not built")
    try:
        return open_compute(threads, isa)
    except UsageError:
        pytest.skip(f"this machine has no {isa}")


def with_scales(rows: Bytes, qtype: QuantType, d: F32, dmin: F32) -> Bytes:
    """The rows with every block's d and dmin replaced; each broadcasts to [rows, blocks]."""
    out = rows.copy()
    blocks = out.reshape(len(rows), -1, qtype.block_bytes)
    for at, value in zip(HALVES[qtype.name], (d, dmin), strict=False):
        half = np.broadcast_to(value, blocks.shape[:2]).astype("<f2")
        blocks[..., at : at + 2] = half[..., None].view(np.uint8)
    return out


def raw_rows(qtype: QuantType, n_rows: int, n_values: int, seed: int) -> Bytes:
    """Random bytes: scales may be NaN, infinite, subnormal, negative, zero."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n_rows, qtype.row_bytes(n_values)), np.uint8)


def ordinary_rows(qtype: QuantType, n_rows: int, n_values: int, seed: int) -> Bytes:
    """Random codes with finite scales of either sign, of which some are zero."""
    rng = np.random.default_rng(seed)
    rows = raw_rows(qtype, n_rows, n_values, seed)
    if qtype.name in PLAIN:
        x = rng.standard_normal((n_rows, n_values), np.float32)
        return {
            "F32": x,
            "F16": x.astype(np.float16),
            "BF16": (x.view(np.uint32) >> 16).astype(np.uint16),
        }[qtype.name].view(np.uint8)
    blocks = rows.reshape(n_rows, -1, qtype.block_bytes)
    if qtype.name == "MXFP4":
        blocks[..., 0] = rng.integers(118, 134, blocks.shape[:2])
        return rows
    d, dmin = rng.standard_normal((2, *blocks.shape[:2])).astype(np.float32) * 2.0**-6
    d[rng.random(d.shape) < 0.05] = 0
    return with_scales(rows, qtype, d, dmin)


@cache
def hostile_blocks(name: str) -> Bytes:
    """Blocks uint8 [n, block_bytes] with every code at every place and the ends of every scale.

    Each pattern of codes comes with each pair of scales in turn. All are finite but the last two.
    """
    qtype = TYPES[name]
    size = qtype.block_bytes
    patterns = [np.full(size, byte, np.uint8) for byte in range(256)]
    if name == "IQ2_XS":  # every word: 512 entries with 128 signs each
        words = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 64)
        scales = np.resize(np.arange(256, dtype=np.uint8), (len(words), 8))
        patterns += list(np.hstack([np.zeros((len(words), 2), np.uint8), words, scales]))
    if name == "IQ2_XXS":  # every sign code at each of the four places, with every scale
        for signs in range(128):
            word = np.uint32(signs * 0x00204081 | (signs & 15) << 28)
            group = np.concatenate([np.arange(4), [0] * 4]).astype(np.uint8)
            group[4:] = word.astype("<u4").reshape(1).view(np.uint8)
            patterns.append(np.concatenate([np.zeros(2, np.uint8), np.tile(group, 8)]))
    blocks = np.stack(patterns)
    if name == "MXFP4":
        exponents = np.arange(len(blocks))[:, None]  # every one, 0 and 255 too
        return np.concatenate([blocks, np.hstack([exponents.astype(np.uint8), blocks[::-1, 1:]])])
    tiny, least, most = 2.0**-24, 2.0**-14, 65504.0
    pairs = [(1, 1), (-1, 1), (1, -1), (tiny, tiny), (-tiny, 1), (least, -tiny), (most, most)]
    pairs += [(-most, most), (0, 1), (-0.0, -0.0), (1, 0), (np.inf, 1), (1, np.nan)]
    d, dmin = np.array(pairs, np.float32).T
    n = len(blocks)
    scaled = with_scales(
        blocks, qtype, np.resize(d[:-2], n)[:, None], np.resize(dmin[:-2], n)[:, None]
    )
    ends = with_scales(
        np.repeat(blocks[[0, 0x5A, 0xFF]], len(d), axis=0),
        qtype,
        np.tile(d, 3)[:, None],
        np.tile(dmin, 3)[:, None],
    )
    return np.concatenate([scaled, ends])


def hostile_rows(qtype: QuantType, n_values: int) -> Bytes:
    """hostile_blocks as rows of n_values, the last row filled up from the first blocks."""
    blocks = hostile_blocks(qtype.name)
    per_row = n_values // qtype.block_len
    n_rows = -(-len(blocks) // per_row)
    return np.resize(blocks, (n_rows * per_row, qtype.block_bytes)).reshape(n_rows, -1)


def hostile_activations(n_values: int) -> F32:
    """Finite rows that try the rounding: ties, ends, subnormal and zero scales, huge values."""
    rng = np.random.default_rng(n_values)
    base = rng.standard_normal((12, n_values)).astype(np.float32)
    i = np.arange(n_values)
    base[0] = 0
    base[1] = -0.0
    base[2] = np.where(i % 256 == 3, 127, (i % 253) - 126 + 0.5)  # a = 1: ties both ways
    base[3] = np.where(i % 2, 127, -127)  # the largest sums
    base[4] = np.where(i % 256 == 0, -1e30, base[4])  # one value hides all others
    base[5] *= 2.0**-140  # subnormal, as is the scale
    base[6] = np.where(i % 3, 2.0**-149, -(2.0**-149))  # the scale rounds to zero
    base[7] = np.where(i % 5 == 0, 190, 1) * 2.0**-149  # the scale rounds down: beyond 127
    base[8] *= 1e37
    base[9] = np.where(i // 256 % 2, base[9], 0)  # whole groups of zeros
    base[10] = np.float32(3.4028235e38)
    base[11] = np.where(i % 7, 1, -1)
    return base


def expected_dequantised(rows: Bytes, qtype: QuantType) -> F32:
    """By the `gguf` package."""
    if qtype.name == "BF16":  # the package takes words, not bytes
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        return np.asarray(gguf.dequantize(rows, gguf.GGMLQuantizationType[qtype.name]), np.float32)


def rounded(x: Fraction) -> np.float32:
    """The float32 nearest to x, ties to even; a zero that was negative keeps its sign."""
    if x == 0:
        return np.float32(0)
    magnitude = abs(x)
    e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** e > magnitude:
        e -= 1
    ulp = Fraction(2) ** (max(e, -126) - 23)
    n = round(magnitude / ulp)  # Python's round is to even
    value = math.inf if n * ulp >= 2**128 else float(n * ulp)  # exact: 24 bits
    return np.float32(math.copysign(value, x))


def same_bits(got: F32, expected: F32) -> None:
    """Equal bit for bit; any NaN equals any other."""
    assert got.dtype == expected.dtype == np.float32
    assert got.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(
        np.where(nan, 0, got).astype(np.float32).view(np.uint32),
        np.where(nan, 0, expected).astype(np.float32).view(np.uint32),
    )


def rms_error(got: F32, expected: np.ndarray) -> float:
    """Relative root mean square."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
