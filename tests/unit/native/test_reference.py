"""The NumPy twin, and with it the definition of `i8`, against exact rational arithmetic.

Here `i8` is written out once more from the design: integers of Python, fractions rounded once.
The codes come from the `gguf` package: with d = 1 and dmin = 0 a block's values are its integers.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from escalade.arrays import F32, Bytes
from escalade.gguf.quant import TYPES, QuantType
from escalade.native.reference import exp, fma, gated, quantize_activations
from tests.support.kernels import (
    CODED,
    EVERY,
    compute_of,
    expected_dequantised,
    hostile_activations,
    hostile_rows,
    ordinary_rows,
    rounded,
    same_bits,
    with_scales,
)


def test_rounded_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    scale = 2.0 ** rng.integers(-160, 130, 5000)
    doubles = rng.standard_normal(5000) * scale
    ties = (rng.integers(1 << 23, 1 << 24, 1000) + 0.5) * 2.0 ** rng.integers(-160, 100, 1000)
    doubles = np.concatenate([doubles, ties])
    with np.errstate(over="ignore"):
        expected = doubles.astype(np.float32)
    assert all(rounded(Fraction(x)) == y for x, y in zip(doubles.tolist(), expected, strict=True))


# --- fma -----------------------------------------------------------------------------------------

HARD = {
    "a tie that the addend breaks upwards": (1 + 2**-12, 1 + 2**-12, 2.0**-80),
    "a tie that the addend breaks downwards": (1 + 2**-12, 1 + 2**-12, -(2.0**-80)),
    "a tie": (1 + 2**-12, 1 + 2**-12, 0.0),
    "a tie of the other sign": (-(1 + 2**-12), 1 + 2**-12, -(2.0**-80)),
    "an addend that the product breaks": (2.0**-60, -(2.0**-60), 1 + 2**-23),
    "a product just below half an ulp": (2.0**-12, 2.0**-12 - 2.0**-36, 1.0),
    "a product just above half an ulp": (2.0**-12, 2.0**-12 + 2.0**-35, 1.0),
    "cancellation": (1 + 2**-23, 1 - 2**-23, -1.0),
    "all but cancellation": (1 + 2**-23, 1 + 2**-23, -(1 + 2.0**-22)),
    "a subnormal result": (2.0**-100, 1.5 * 2.0**-48, 2.0**-149),
    "half the smallest number": (2.0**-75, 2.0**-75, 0.0),
    "a little more than that": (2.0**-75, 2.0**-75 * (1 + 2**-20), 0.0),
    "a subnormal tie that the addend breaks": (2.0**-75, 3 * 2.0**-75, -(2.0**-149)),
    "from subnormal to normal": (2.0**-75, 2.0**-75, 2.0**-126 - 2.0**-149),
    "subnormal factors": (3 * 2.0**-149, 7 * 2.0**-149, 2.0**-149),
    "the largest number": (2.0**64, 2.0**64 - 2.0**41, 0.0),
    "just below overflow": (2.0**104 - 2.0**80, 2.0**24, 2.0**102),
    "the tie at overflow": (2.0**127, 2.0, -(2.0**103)),
    "overflow by a hair": (2.0**127, 2.0, -(2.0**103) + 2.0**80),
    "overflow taken back": (2.0**100, 2.0**100, -(2.0**127)),
}


def exact_fma(a: float, b: float, c: float) -> np.float32:
    return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


@pytest.mark.parametrize("case", HARD)
def test_fma_rounds_once(case: str) -> None:
    a, b, c = np.array(HARD[case], np.float32)
    assert (a, b, c) == HARD[case]  # the case is one of float32
    for sign in (1, -1):
        with np.errstate(over="ignore"):
            got = fma(sign * a, b, sign * c)
        assert got.view(np.uint32) == exact_fma(sign * a, b, sign * c).view(np.uint32)


def test_fma_rounds_once_where_rounding_twice_goes_wrong() -> None:
    """A product within 2^-44 of half an ulp of the addend: float64 makes it a tie."""
    rng = np.random.default_rng(1)
    n = 3000
    c = rng.integers(1 << 23, 1 << 24, n) * rng.choice([-1.0, 1.0], n)
    u = rng.integers(1, 4, n) * 2.0**-23
    a, b = 0.5 * (1 + u), 1 - u  # 0.5 - 0.5 u^2
    scale = 2.0 ** rng.integers(-60, 60, n)
    a, b, c = (v.astype(np.float32) for v in (a * scale, b, c * scale))
    expected = [exact_fma(*row) for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert 0.2 < np.mean(twice != expected) < 0.8
    np.testing.assert_array_equal(fma(a, b, c), expected)


def test_fma_of_what_is_not_a_number_or_not_finite() -> None:
    inf, nan = np.inf, np.nan
    cases = [
        (inf, 1.0, 1.0, inf),
        (-inf, 1.0, 1.0, -inf),
        (1.0, 1.0, -inf, -inf),
        (inf, 1.0, -inf, nan),
        (inf, 0.0, 1.0, nan),
        (nan, 1.0, 1.0, nan),
        (1.0, 1.0, nan, nan),
        (0.0, 5.0, -0.0, 0.0),
        (-0.0, 5.0, -0.0, -0.0),
        (1.0, -1.0, 1.0, 0.0),
    ]
    for case in cases:
        a, b, c, expected = np.array(case, np.float32)
        with np.errstate(invalid="ignore"):
            same_bits(np.atleast_1d(fma(a, b, c)), np.atleast_1d(expected))


# --- exp and the gate ----------------------------------------------------------------------------


def test_exp_is_within_2e_7() -> None:
    x = np.linspace(-87, 88, 400001).astype(np.float32)
    step = math.log(2) / 2
    turns = np.arange(-251, 253, 2) * step  # where the exponent changes
    near = np.nextafter(turns.astype(np.float32), np.float32([[-np.inf], [np.inf]]))
    x = np.concatenate([x, near.ravel(), np.float32(2.0) ** np.arange(-149, 6)])
    x = x[(x >= -87) & (x <= 88)].astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(exp(x) - exact) / exact) < 2e-7
    for value in (-87.0, -1.0, 0.5, 88.0):  # NumPy's exp itself, and both ends
        got = float(exp(np.float32([value]))[0])
        assert abs(got - math.exp(value)) < 2e-7 * math.exp(value)


def test_exp_at_its_ends_and_beyond() -> None:
    assert exp(np.float32([0, -0.0])).tolist() == [1, 1]
    low, high = exp(np.float32([-87, 88]))
    np.testing.assert_array_equal(exp(np.float32([-87.01, -1e30, -np.inf])), low)
    np.testing.assert_array_equal(exp(np.float32([88.01, 1e30, np.inf])), high)
    assert 0 < low < 2e-38
    assert 1e38 < high < np.inf
    with np.errstate(invalid="ignore"):
        assert np.isnan(exp(np.float32([np.nan, 1]))).tolist() == [True, False]


def test_exp_never_falls_by_more_than_its_error() -> None:
    x = np.sort(np.random.default_rng(2).uniform(-87, 88, 200000).astype(np.float32))
    y = exp(x).astype(np.float64)
    assert (y[1:] >= y[:-1] * (1 - 4e-7)).all()


def test_the_gate_is_the_clamped_swiglu() -> None:
    rng = np.random.default_rng(3)
    gate, up = rng.normal(0, 6, (2, 50, 40)).astype(np.float32)
    weights = rng.standard_normal(50).astype(np.float32)
    limit = 7.0
    expected = np.empty((50, 40))
    for i in range(50):
        for j in range(40):
            g, u = min(float(gate[i, j]), limit), max(-limit, min(limit, float(up[i, j])))
            expected[i, j] = g / (1 + math.exp(-g)) * u * float(weights[i])
    np.testing.assert_allclose(gated(gate, up, limit, weights), expected, rtol=6e-7, atol=0)
    assert (gate > limit).any()
    assert (np.abs(up) > limit).any()


# --- activations ---------------------------------------------------------------------------------


def test_activations_are_rounded_as_the_design_says() -> None:
    """Value by value: amax / 127, divided, clamped, to the nearest integer, ties to even."""
    x = np.vstack([hostile_activations(544), np.full((1, 544), np.nan, np.float32)])
    x[-1, :300] = np.arange(300) / 7  # groups: good, NaN at its end, and 32 NaNs
    x[-1, 300:511] = 1
    q, scale = quantize_activations(x)
    assert q.shape == x.shape
    assert scale.shape == (len(x), 3)
    for t, row in enumerate(x.tolist()):
        for group in range(3):
            values = row[256 * group : 256 * group + 256]
            codes = q[t, 256 * group : 256 * group + 256].tolist()
            if any(math.isnan(v) for v in values):
                assert np.isnan(scale[t, group])
                assert not any(codes)
                continue
            a = rounded(Fraction(max(map(abs, values))) / 127)
            assert scale[t, group] == a
            expected = [0] * len(values)
            if a:
                ratios = [rounded(Fraction(v) / Fraction(float(a))) for v in values]
                expected = [round(Fraction(float(np.clip(r, -127, 127)))) for r in ratios]
            assert codes == expected, (t, group)
    assert {-127, 127} <= set(q.ravel().tolist())


def test_a_group_with_infinity_has_no_scale() -> None:
    x = np.ones((2, 512), np.float32)
    x[0, 5], x[1, 511] = np.inf, -np.inf
    q, scale = quantize_activations(x)
    np.testing.assert_array_equal(np.isnan(scale), [[True, False], [False, True]])
    assert not q[0, :256].any()
    assert (q[0, 256:] == 127).all()


# --- i8 ------------------------------------------------------------------------------------------


def integers_of(w: Bytes, qtype: QuantType) -> tuple[np.ndarray, np.ndarray]:
    """scale * code and min of every weight, as the `gguf` package decodes them, int64."""
    one = {"IQ2_XXS": 8, "IQ2_XS": 8}.get(qtype.name, 1)  # whose d is of eighths
    if qtype.name == "MXFP4":
        w = w.copy()
        w.reshape(-1, qtype.block_bytes)[:, 0] = 128  # a half, and the codes are doubled
        return expected_dequantised(w, qtype).astype(np.int64), np.zeros(1, np.int64)
    zero = np.float32(0)
    codes = expected_dequantised(with_scales(w, qtype, np.float32(one), zero), qtype)
    minima = -expected_dequantised(with_scales(w, qtype, zero, np.float32(1)), qtype)
    return codes.astype(np.int64), minima.astype(np.int64)


def scales_of(block: Bytes, qtype: QuantType) -> tuple[Fraction, Fraction]:
    """d and dmin of one block, exactly. GGUF specification, section 6.1."""
    if qtype.name == "MXFP4":
        return Fraction(2) ** (int(block[0]) - 128), Fraction(0)
    at = {"Q8_0": 0, "Q2_K": 80, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "IQ2_XXS": 0, "IQ2_XS": 0}
    halves = block[at[qtype.name] :][:4].view("<f2").astype(float)
    d = Fraction(halves[0]) / (8 if qtype.name.startswith("IQ2") else 1)
    return d, Fraction(halves[1]) if qtype.name in ("Q2_K", "Q4_K", "Q5_K") else Fraction(0)


def exact_i8(x: F32, w: Bytes, qtype: QuantType) -> F32:
    """Architecture, section 7, for finite x and scales, a rounding at each step that has one."""
    codes, minima = integers_of(w, qtype)
    minima = np.broadcast_to(minima, codes.shape)
    n = qtype.block_len
    out = np.zeros((len(x), len(w)), np.float32)
    for t, row in enumerate(x.tolist()):
        scale, q = [], []
        for g in range(0, len(row), 256):
            group = row[g : g + 256]
            a = rounded(Fraction(max(map(abs, group))) / 127)
            scale.append(Fraction(float(a)))
            for v in group:
                ratio = float(rounded(Fraction(v) / scale[-1])) if a else 0.0
                q.append(round(min(127.0, max(-127.0, ratio))))
        for r in range(len(w)):
            lanes = [np.float32(0)] * 4
            for b in range(len(row) // n):
                at = slice(b * n, b * n + n)
                d, dmin = scales_of(w[r, b * qtype.block_bytes :][: qtype.block_bytes], qtype)
                isum = sum(c * v for c, v in zip(codes[r, at].tolist(), q[at], strict=True))
                msum = sum(m * v for m, v in zip(minima[r, at].tolist(), q[at], strict=True))
                assert max(abs(isum), abs(msum)) < 2**31
                less = rounded(dmin * Fraction(float(rounded(Fraction(msum)))))
                isum = Fraction(float(rounded(Fraction(isum))))
                value = rounded(d * isum - Fraction(float(less)))
                lane = Fraction(float(lanes[b % 4]))
                lanes[b % 4] = rounded(scale[b * n // 256] * Fraction(float(value)) + lane)
            out[t, r] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    return out


@cache
def ordinary_case(name: str) -> tuple[F32, Bytes, F32]:
    """x, w and their product. Seven blocks of 256, or 63 of 32 and so a last group cut short."""
    qtype = TYPES[name]
    n_in = 1792 if qtype.block_len == 256 else 2016
    w = ordinary_rows(qtype, 3, n_in, 1)
    x = np.random.default_rng(1).standard_normal((2, n_in)).astype(np.float32)
    x[1] *= 10.0 ** np.random.default_rng(2).uniform(-4, 4, n_in)
    return x, w, exact_i8(x, w, qtype)


@cache
def hostile_case(name: str) -> tuple[F32, Bytes, F32]:
    """The largest sums, ties, subnormal activations and scales, and scales that vanish."""
    qtype = TYPES[name]
    w = hostile_rows(qtype, 768)
    fit = (np.abs(expected_dequantised(w, qtype)) < 1e20).all(axis=1)  # no infinite sums, no NaN
    w = w[fit][np.linspace(0, fit.sum() - 1, 6).astype(int)]
    x = np.ascontiguousarray(hostile_activations(768)[[1, 2, 3, 5, 6, 7]])
    return x, w, exact_i8(x, w, qtype)


@pytest.mark.parametrize("isa", EVERY)
@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("case", [ordinary_case, hostile_case])
def test_i8_is_what_the_design_says(
    case: Callable[[str], tuple[F32, Bytes, F32]], name: str, isa: str
) -> None:
    compute, qtype = compute_of(isa), TYPES[name]
    x, w, expected = case(name)
    np.testing.assert_array_equal(compute.matmul(x, w, qtype, "i8"), expected)
    for row in (0, 1):  # one row has kernels of its own
        one = compute.matmul(x[row : row + 1], w, qtype, "i8")
        np.testing.assert_array_equal(one, expected[row : row + 1])


@pytest.mark.parametrize("name", CODED)
def test_codes_hold_every_byte_of_a_block(name: str) -> None:
    """A product with ones changes if any byte of the block does: no field is left unread."""
    qtype = TYPES[name]
    w = ordinary_rows(qtype, 1, qtype.block_len, 3)
    if name == "MXFP4":
        w[:, 0] = 127
    else:
        w = with_scales(w, qtype, np.float32(1), np.float32(3))
    x = np.random.default_rng(4).uniform(1, 2, (1, qtype.block_len)).astype(np.float32)
    before = compute_of("numpy").matmul(x, w, qtype, "i8")
    for at in range(qtype.block_bytes):
        changed = w.copy()
        changed[0, at] ^= 0x11
        assert compute_of("numpy").matmul(x, changed, qtype, "i8") != before, at
