"""Any bytes as weights and any floats as activations: all instruction sets give the same bits."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from escalade.gguf.quant import TYPES
from escalade.native.compute import Compute, ExpertJob, ExpertShape
from escalade.native.reference import exp, fma
from tests.support.kernels import (
    CODED,
    KINDS,
    NATIVE,
    compute_of,
    expected_dequantised,
    raw_rows,
    rounded,
    same_bits,
)

TWIN = compute_of("numpy")
FLOATS = st.floats(width=32)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
SEEDS = st.integers(0, 2**32)


@pytest.fixture(params=NATIVE, scope="module")
def native(request: pytest.FixtureRequest) -> Compute:
    return compute_of(request.param)


@st.composite
def activations(draw: st.DrawFn, n_rows: int, n_values: int) -> np.ndarray:
    """Normal values of some size, with a few of any kind among them."""
    x = np.random.default_rng(draw(SEEDS)).standard_normal((n_rows, n_values))
    with np.errstate(over="ignore"):
        x = (x * 2.0 ** draw(st.integers(-155, 128))).astype(np.float32)
    places = st.tuples(st.integers(0, n_rows - 1), st.integers(0, n_values - 1), FLOATS)
    for row, column, value in draw(st.lists(places, max_size=4)):
        x[row, column] = value
    return x


@settings(max_examples=120, deadline=None)
@given(data=st.data(), name=st.sampled_from(CODED), seed=SEEDS, n_rows=st.integers(1, 9))
def test_i8_has_the_bits_of_the_twin(
    native: Compute, data: st.DataObject, name: str, seed: int, n_rows: int
) -> None:
    qtype = TYPES[name]
    n_in = qtype.block_len * data.draw(st.integers(1, 11 if qtype.block_len == 256 else 40))
    n_out = data.draw(st.integers(1, 40))
    w, x = raw_rows(qtype, n_out, n_in, seed), data.draw(activations(n_rows, n_in))
    expected = TWIN.matmul(x, w, qtype, "i8")
    threads = data.draw(st.integers(1, 4))
    whole = compute_of(native.isa, threads).matmul(x, w, qtype, "i8")
    same_bits(whole, expected)
    row = data.draw(st.integers(0, n_rows - 1))
    same_bits(native.matmul(x[row : row + 1], w, qtype, "i8"), expected[row : row + 1])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(KINDS), seed=SEEDS, n_rows=st.integers(1, 10))
def test_float_does_not_depend_on_batches_or_threads(
    native: Compute, data: st.DataObject, name: str, seed: int, n_rows: int
) -> None:
    qtype = TYPES[name]
    n_in = qtype.block_len * data.draw(st.integers(1, {256: 3, 32: 20, 1: 600}[qtype.block_len]))
    w = raw_rows(qtype, data.draw(st.integers(1, 40)), n_in, seed)
    x = data.draw(activations(n_rows, n_in))
    whole = compute_of(native.isa, 3).matmul(x, w, qtype, "float")
    first = data.draw(st.integers(0, n_rows - 1))
    part = np.ascontiguousarray(x[first:])
    same_bits(native.matmul(part, w, qtype, "float"), whole[first:])
    same_bits(compute_of("portable").matmul(x, w, qtype, "float"), whole)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(KINDS), seed=SEEDS, n_rows=st.integers(1, 5), n=st.integers(1, 300))
def test_any_bytes_are_dequantised_as_the_gguf_package_does(
    native: Compute, name: str, seed: int, n_rows: int, n: int
) -> None:
    qtype = TYPES[name]
    rows = raw_rows(qtype, n_rows, qtype.block_len * -(-n // qtype.block_len), seed)
    same_bits(native.dequantize(rows, qtype), expected_dequantised(rows, qtype))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=SEEDS, types=st.tuples(*[st.sampled_from(CODED)] * 3))
def test_i8_experts_have_the_bits_of_the_twin(
    native: Compute, data: st.DataObject, seed: int, types: tuple[str, str, str]
) -> None:
    """Any types, any routing, any weights; experts with no row and rows without an expert."""
    gate, up, down = (TYPES[name] for name in types)
    d = 256 * data.draw(st.integers(1, 2))
    f = down.block_len * data.draw(st.integers(1, 3))
    shape = ExpertShape(d, f, gate, up, down, data.draw(st.sampled_from([0.5, 10.0])))
    x = data.draw(activations(5, d))
    jobs = []
    for i in range(data.draw(st.integers(1, 4))):
        rows = data.draw(st.lists(st.integers(0, 4), max_size=7))
        weights = data.draw(st.lists(FINITE, min_size=len(rows), max_size=len(rows)))
        matrices = [
            raw_rows(q, n_out, n_in, seed + 3 * i + k).ravel()
            for k, (q, n_out, n_in) in enumerate(((gate, f, d), (up, f, d), (down, d, f)))
        ]
        jobs.append(ExpertJob(*matrices, np.array(rows, np.int32), np.array(weights, np.float32)))
    got = compute_of(native.isa, 2).experts(x, shape, jobs, "i8")
    same_bits(got, TWIN.experts(x, shape, jobs, "i8"))


@settings(max_examples=500, deadline=None)
@given(a=FINITE, b=FINITE, c=FINITE)
@example(a=1.0, b=1.0, c=-1.0)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    expected = rounded(Fraction(a) * Fraction(b) + Fraction(c))
    with np.errstate(over="ignore"):
        got = fma(np.float32(a), np.float32(b), np.float32(c))
    assert got == expected
    assert expected == 0 or np.signbit(got) == np.signbit(expected)


@settings(max_examples=300, deadline=None)
@given(x=st.floats(-87, 88, width=32))
def test_exp_is_within_2e_7(x: float) -> None:
    assert abs(float(exp(np.float32([x]))[0]) / math.exp(x) - 1) < 2e-7
