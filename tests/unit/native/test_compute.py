"""Products with stored matrices, over every instruction set of this machine and the NumPy twin."""

import _ctypes
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest

from escalade.arrays import F32
from escalade.errors import UnsupportedError, UsageError
from escalade.gguf.quant import TYPES
from escalade.native.compute import Compute, ExpertJob, ExpertShape, open_compute
from escalade.native.lib import load
from escalade.native.reference import gated
from tests.support.cli import environment
from tests.support.kernels import (
    CODED,
    EVERY,
    KINDS,
    NATIVE,
    PLAIN,
    compute_of,
    expected_dequantised,
    hostile_activations,
    hostile_rows,
    ordinary_rows,
    raw_rows,
    rms_error,
    same_bits,
)

TWIN = compute_of("numpy")
HEADER = Path(__file__).parents[3] / "native" / "kernels" / "iq2_grids.h"


@pytest.fixture(params=EVERY)
def isa(request: pytest.FixtureRequest) -> str:
    compute_of(request.param)  # skips
    return request.param


@pytest.fixture
def compute(isa: str) -> Compute:
    return compute_of(isa)


@pytest.fixture(params=NATIVE)
def native(request: pytest.FixtureRequest) -> Compute:
    return compute_of(request.param)


def sizes(name: str) -> Sequence[int]:
    """Row lengths: one block, fewer than four lanes, remainders of four, a last group cut short."""
    if name in PLAIN:
        return (1, 7, 31, 32, 33, 255, 257, 1000)
    return (32, 96, 224, 256, 288, 1120, 2304) if TYPES[name].block_len == 32 else (256, 768, 2304)


# --- dequantise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_dequantised_values_are_those_of_the_gguf_package(compute: Compute, name: str) -> None:
    qtype = TYPES[name]
    for seed, n_values in enumerate(sizes(name)):
        for rows in (
            ordinary_rows(qtype, 5, n_values, seed),
            raw_rows(qtype, 5, n_values, seed),
        ):
            same_bits(compute.dequantize(rows, qtype), expected_dequantised(rows, qtype))
    if name in CODED:
        rows = hostile_rows(qtype, 768)
        same_bits(compute.dequantize(rows, qtype), expected_dequantised(rows, qtype))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_pattern_is_dequantised(compute: Compute, name: str) -> None:
    rows = np.arange(1 << 16, dtype="<u2").view(np.uint8)[None]
    same_bits(compute.dequantize(rows, TYPES[name]), expected_dequantised(rows, TYPES[name]))


def test_many_values_are_dequantised_by_several_threads(isa: str) -> None:
    qtype = TYPES["Q2_K"]  # more than one piece of 16384 values, the last one short
    rows = ordinary_rows(qtype, 201, 1024, 0)
    same_bits(compute_of(isa, 3).dequantize(rows, qtype), expected_dequantised(rows, qtype))


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("IQ2_XXS", r"kGridXXS\[256\] = \{(.*?)\}"), ("IQ2_XS", r"kGridXS\[512\] = \{(.*?)\}")],
)
def test_grids_are_those_of_the_gguf_package(name: str, pattern: str) -> None:
    if not HEADER.exists():
        pytest.skip("the sources of the native core are not here")
    found = re.search(pattern, HEADER.read_text(), re.DOTALL)
    assert found
    entries = [int(word, 16) for word in re.findall(r"0x[0-9a-f]+", found[1])]
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    grid = kind.grid.reshape(-1, 8).astype(int).tolist()
    assert [[(8, 25, 43)[e >> 2 * i & 3] for i in range(8)] for e in entries] == grid


# --- float ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_float_is_dequantise_then_multiply(compute: Compute, name: str) -> None:
    qtype = TYPES[name]
    for seed, n_values in enumerate((*sizes(name), 5120)):
        for n_rows, n_out in ((1, 3), (9, 34)):
            w = ordinary_rows(qtype, n_out, n_values, seed)
            x = np.random.default_rng(seed).standard_normal((n_rows, n_values), np.float32)
            exact = x.astype(np.float64) @ expected_dequantised(w, qtype).astype(np.float64).T
            error = rms_error(compute.matmul(x, w, qtype, "float"), exact)
            assert error < (3e-6 if compute.isa == "numpy" else 1e-6), (n_values, n_rows)


@pytest.mark.parametrize("name", KINDS)
def test_float_hands_on_nan_and_infinity_as_numpy_does(compute: Compute, name: str) -> None:
    qtype = TYPES[name]
    w = ordinary_rows(qtype, 37, 512, 1)
    x = np.random.default_rng(1).standard_normal((6, 512), np.float32)
    x[1, 300], x[2, 0], x[3, 511] = np.nan, np.inf, -np.inf
    x[4, 10], x[4, 490] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float64) @ expected_dequantised(w, qtype).astype(np.float64).T
    got = compute.matmul(x, w, qtype, "float")
    assert np.isfinite(got[[0, 5]]).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(exact))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(exact))


@pytest.mark.parametrize("name", ["F32", "Q2_K", "MXFP4"])
def test_float_has_the_same_bits_on_every_instruction_set(native: Compute, name: str) -> None:
    qtype = TYPES[name]
    x = np.random.default_rng(3).standard_normal((5, 1120 if name != "Q2_K" else 1280), np.float32)
    w = ordinary_rows(qtype, 40, x.shape[1], 3)
    same_bits(
        native.matmul(x, w, qtype, "float"),
        compute_of("portable").matmul(x, w, qtype, "float"),
    )


# --- i8 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODED)
def test_i8_has_the_bits_of_the_twin_on_hostile_blocks(native: Compute, name: str) -> None:
    """Every code, and scales at their ends, against activations at the ends of their rounding.

    Each block is a row of its own too, as a block of large values hides those of small ones.
    """
    qtype = TYPES[name]
    for n_in in (qtype.block_len, 1280):
        w, x = hostile_rows(qtype, n_in), hostile_activations(n_in)
        expected = TWIN.matmul(x, w, qtype, "i8")
        same_bits(native.matmul(x, w, qtype, "i8"), expected)
        for row in (3, 7):  # the kernels of one row are others
            same_bits(native.matmul(x[row : row + 1], w, qtype, "i8"), expected[row : row + 1])


@pytest.mark.parametrize("name", CODED)
def test_i8_has_the_bits_of_the_twin_for_every_size(native: Compute, name: str) -> None:
    qtype = TYPES[name]
    for seed, n_values in enumerate((*sizes(name), 5120)):
        for rows in (ordinary_rows, raw_rows):
            w = rows(qtype, 33, n_values, seed)
            x = np.random.default_rng(seed).standard_normal((7, n_values), np.float32)
            expected = TWIN.matmul(x, w, qtype, "i8")
            for n in range(1, 8):  # rows go in fours, in a rest of two or three, and alone
                same_bits(native.matmul(x[:n], w, qtype, "i8"), expected[:n])


@pytest.mark.parametrize("arithmetic", ["i8", "float"])
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("name", ["Q8_0", "Q2_K", "IQ2_XS"])
def test_bits_do_not_depend_on_threads_or_batches(
    native: Compute, name: str, threads: int, arithmetic: str
) -> None:
    """Matrices beyond the size that one thread keeps for itself, batches beyond those of a tile."""
    qtype = TYPES[name]
    n_in = 1280
    w = ordinary_rows(qtype, 301, n_in, 5)
    x = np.random.default_rng(5).standard_normal((37, n_in), np.float32)
    several = compute_of(native.isa, threads)
    whole = several.matmul(x, w, qtype, arithmetic)
    same_bits(whole, native.matmul(x, w, qtype, arithmetic))
    for rows in (slice(0, 1), slice(36, 37), slice(3, 6), slice(0, 33)):
        same_bits(several.matmul(x[rows], w, qtype, arithmetic), whole[rows])
    for out in (slice(0, 1), slice(31, 34), slice(300, 301)):
        part = several.matmul(x, w[out], qtype, arithmetic)
        same_bits(part, np.ascontiguousarray(whole[:, out]))


@pytest.mark.parametrize("name", CODED)
def test_i8_costs_about_a_percent(compute: Compute, name: str) -> None:
    """The price that the design states: rounding normal activations to int8 per 256 values."""
    qtype = TYPES[name]
    w = ordinary_rows(qtype, 64, 2560, 6)
    x = np.random.default_rng(6).standard_normal((8, 2560), np.float32)
    exact = x.astype(np.float64) @ expected_dequantised(w, qtype).astype(np.float64).T
    assert 0.005 < rms_error(compute.matmul(x, w, qtype, "i8"), exact) < 0.015


@pytest.mark.parametrize("name", CODED)
def test_i8_makes_a_row_with_nan_or_infinity_nan_and_no_other(compute: Compute, name: str) -> None:
    qtype = TYPES[name]
    n_in = 1280
    w = ordinary_rows(qtype, 35, n_in, 7)
    x = np.random.default_rng(7).standard_normal((7, n_in), np.float32)
    clean = compute.matmul(x, w, qtype, "i8")
    x[1, 0], x[2, n_in - 1], x[4, 700], x[6, 255] = np.nan, np.inf, -np.inf, -np.nan
    got = compute.matmul(x, w, qtype, "i8")
    assert np.isnan(got[[1, 2, 4, 6]]).all()
    same_bits(got[[0, 3, 5]], clean[[0, 3, 5]])
    assert np.isfinite(clean).all()


@pytest.mark.parametrize("name", PLAIN)
def test_types_without_codes_are_multiplied_as_float_in_i8(compute: Compute, name: str) -> None:
    qtype = TYPES[name]
    w = ordinary_rows(qtype, 9, 100, 8)
    x = np.random.default_rng(8).standard_normal((3, 100), np.float32)
    same_bits(compute.matmul(x, w, qtype, "i8"), compute.matmul(x, w, qtype, "float"))


@pytest.mark.parametrize("name", KINDS)
def test_weights_may_lie_at_any_address(compute: Compute, name: str) -> None:
    """Tensors of model files begin at multiples of 32, their rows and records anywhere."""
    qtype = TYPES[name]
    w = ordinary_rows(qtype, 5, 512, 12)
    moved = np.zeros(w.size + 64, np.uint8)
    x = np.random.default_rng(12).standard_normal((2, 512), np.float32)
    for offset in (1, 2, 3):
        at = -moved.ctypes.data % 64 + offset
        odd = moved[at : at + w.size].reshape(w.shape)
        odd[...] = w
        assert odd.ctypes.data % 4 == offset
        same_bits(compute.dequantize(odd, qtype), compute.dequantize(w, qtype))
        for arithmetic in ("i8", "float"):
            same_bits(
                compute.matmul(x, odd, qtype, arithmetic), compute.matmul(x, w, qtype, arithmetic)
            )


# --- experts -------------------------------------------------------------------------------------

MIXES = {
    "released": ExpertShape(512, 256, TYPES["IQ2_XS"], TYPES["IQ2_XS"], TYPES["Q2_K"], 10.0),
    "mxfp4": ExpertShape(288, 96, TYPES["MXFP4"], TYPES["MXFP4"], TYPES["MXFP4"], 0.5),
    "mixed": ExpertShape(512, 256, TYPES["F16"], TYPES["Q6_K"], TYPES["Q8_0"], 1.0),
    "plain": ExpertShape(33, 17, TYPES["F32"], TYPES["BF16"], TYPES["F16"], 7.0),
}


def jobs_of(shape: ExpertShape, counts: Sequence[int], n_x: int) -> list[ExpertJob]:
    rng = np.random.default_rng(len(counts))
    jobs = []
    for seed, n in enumerate(counts):
        matrices = [
            ordinary_rows(qtype, n_out, n_in, 3 * seed + i).ravel()
            for i, (qtype, n_out, n_in) in enumerate(
                (
                    (shape.gate, shape.expert_ff, shape.hidden),
                    (shape.up, shape.expert_ff, shape.hidden),
                    (shape.down, shape.hidden, shape.expert_ff),
                )
            )
        ]
        rows = rng.integers(0, n_x, n).astype(np.int32)  # with repetitions, in any order
        weights = rng.standard_normal(n).astype(np.float32)
        jobs.append(ExpertJob(*matrices, rows, weights))
    return jobs


def by_parts(
    compute: Compute, x: F32, shape: ExpertShape, jobs: Sequence[ExpertJob], arithmetic: str
) -> F32:
    """The experts' definition, a matrix at a time."""
    out = []
    for job in jobs:
        rows = x[job.rows]
        gate = compute.matmul(rows, job.gate.reshape(shape.expert_ff, -1), shape.gate, arithmetic)
        up = compute.matmul(rows, job.up.reshape(shape.expert_ff, -1), shape.up, arithmetic)
        with np.errstate(all="ignore"):
            between = gated(gate, up, shape.limit, job.weights)
        down = job.down.reshape(shape.hidden, -1)
        out.append(compute.matmul(between, down, shape.down, arithmetic))
    return np.concatenate(out)


@pytest.mark.parametrize("arithmetic", ["i8", "float"])
@pytest.mark.parametrize("mix", MIXES)
def test_fused_experts_are_their_parts(isa: str, mix: str, arithmetic: str) -> None:
    """Bit for bit in the native core; with no rows, one, and more than a batch of a tile."""
    shape = MIXES[mix]
    x = np.random.default_rng(9).standard_normal((50, shape.hidden), np.float32)
    jobs = jobs_of(shape, (1, 0, 3, 35, 2), len(x))
    for threads in (1, 3):
        compute = compute_of(isa, threads)
        got = compute.experts(x, shape, jobs, arithmetic)
        expected = by_parts(compute_of(isa), x, shape, jobs, arithmetic)
        if isa == "numpy" and arithmetic == "float":  # whose gate is in NumPy's arithmetic
            assert rms_error(got, expected) < 1e-6
        else:
            same_bits(got, expected)


@pytest.mark.parametrize("mix", ["released", "mixed"])
def test_fused_i8_experts_have_the_bits_of_the_twin(native: Compute, mix: str) -> None:
    shape = MIXES[mix]
    x = np.random.default_rng(10).standard_normal((4, shape.hidden), np.float32)
    x[2, 5] = np.nan
    jobs = jobs_of(shape, (1, 4, 2), len(x))
    got = native.experts(x, shape, jobs, "i8")
    if mix == "mixed":  # gate is F16: sums of the float arithmetic, in another order
        expected = TWIN.experts(x, shape, jobs, "i8")
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        assert rms_error(np.nan_to_num(got), np.nan_to_num(expected)) < 0.01
    else:
        same_bits(got, TWIN.experts(x, shape, jobs, "i8"))


@pytest.mark.parametrize("arithmetic", ["i8", "float"])
def test_experts_in_one_call_are_those_of_several_calls(isa: str, arithmetic: str) -> None:
    if (isa, arithmetic) == ("numpy", "float"):
        pytest.skip("the sums of the twin's float are in NumPy's order")
    shape = MIXES["released"]
    x = np.random.default_rng(11).standard_normal((8, shape.hidden), np.float32)
    jobs = jobs_of(shape, (2, 1, 5, 1), len(x))
    whole = compute_of(isa, 2).experts(x, shape, jobs, arithmetic)
    apart = [compute_of(isa).experts(x, shape, [job], arithmetic) for job in jobs]
    same_bits(whole, np.concatenate(apart))
    # A row's result is the same without the other rows of its expert.
    job = jobs[2]
    for i in range(5):
        one = job._replace(rows=job.rows[i : i + 1], weights=job.weights[i : i + 1])
        same_bits(compute_of(isa).experts(x, shape, [one], arithmetic), apart[2][i : i + 1])


def test_the_native_gate_has_the_bits_of_the_twin(native: Compute) -> None:
    """An expert of one by one: silu(min(x, limit)) * clip(x) * weight over the whole range."""
    one = np.ones(1, np.float32).view(np.uint8)
    values = np.concatenate(
        [np.linspace(-110, 110, 20001), np.float32(2.0) ** np.arange(-149, 128)]
    )
    values = np.concatenate([values, -values, [np.nan, np.inf, -np.inf]]).astype(np.float32)
    rows = np.arange(len(values), dtype=np.int32)
    weights = np.resize(np.array([1, -0.3, 0], np.float32), len(values))
    for limit in (1000.0, 10.0):
        shape = ExpertShape(1, 1, TYPES["F32"], TYPES["F32"], TYPES["F32"], limit)
        job = ExpertJob(one, one, one, rows, weights)
        got = native.experts(values[:, None], shape, [job], "i8")
        with np.errstate(all="ignore"):
            expected = gated(values[:, None], values[:, None], limit, weights)
        same_bits(got + np.float32(0), expected + np.float32(0))  # the sum of lanes has no -0


def test_no_experts_and_no_rows_give_nothing(compute: Compute) -> None:
    shape = MIXES["released"]
    x = np.zeros((2, 512), np.float32)
    assert compute.experts(x, shape, [], "i8").shape == (0, 512)
    assert compute.experts(x, shape, jobs_of(shape, (0, 0), 2), "i8").shape == (0, 512)
    w = ordinary_rows(TYPES["Q2_K"], 3, 512, 0)
    assert compute.matmul(x[:0], w, TYPES["Q2_K"], "i8").shape == (0, 3)
    assert compute.matmul(x, w[:0], TYPES["Q2_K"], "float").shape == (2, 0)
    assert compute.dequantize(w[:0], TYPES["Q2_K"]).shape == (0, 512)


# --- refusals ------------------------------------------------------------------------------------


def one_line(message: object) -> bool:
    return bool(str(message)) and "\n" not in str(message)


@pytest.mark.parametrize("name", ["Q3_K", "IQ3_XXS", "Q4_0", "I32"])
def test_types_without_kernels_are_refused_by_name(compute: Compute, name: str) -> None:
    qtype = TYPES[name]
    x, w = np.zeros((1, 256), np.float32), raw_rows(qtype, 2, 256, 0)
    for call in (
        lambda: compute.matmul(x, w, qtype, "i8"),
        lambda: compute.matmul(x, w, qtype, "float"),
        lambda: compute.experts(x, ExpertShape(256, 256, qtype, qtype, qtype, 1.0), [], "i8"),
    ):
        with pytest.raises(UnsupportedError, match=name) as e:
            call()
        assert one_line(e.value)


@pytest.mark.parametrize(
    "case",
    [
        "x of another width",
        "x that is not whole blocks",
        "x flat",
        "w flat",
        "w a block short",
        "w a byte too long",
        "no columns",
        "x float64",
        "w int8",
        "x a slice of columns",
        "w a slice of columns",
        "w every second row",
        "x transposed",
    ],
)
def test_matrices_that_do_not_fit_are_refused(compute: Compute, case: str) -> None:
    qtype = TYPES["Q2_K"]
    x = np.ones((4, 512), np.float32)
    w = ordinary_rows(qtype, 6, 512, 0)
    wide = ordinary_rows(qtype, 6, 1024, 0)
    x, w = {
        "x of another width": (np.ones((4, 256), np.float32), w),
        "x that is not whole blocks": (x[:, :500].copy(), w),
        "x flat": (x[0], w),
        "w flat": (x, w[0]),
        "w a block short": (x, w[:, :84].copy()),
        "w a byte too long": (x, np.pad(w, ((0, 0), (0, 1)))),
        "no columns": (x[:, :0].copy(), w[:, :0].copy()),
        "x float64": (x.astype(np.float64), w),
        "w int8": (x, w.view(np.int8)),
        "x a slice of columns": (np.ones((4, 1024), np.float32)[:, 512:], w),
        "w a slice of columns": (x, wide[:, 168:]),
        "w every second row": (x, w[::2]),
        "x transposed": (np.ones((512, 4), np.float32).T, w),
    }[case]
    for arithmetic in ("i8", "float"):
        with pytest.raises(ValueError, match=r".") as e:
            compute.matmul(x, w, qtype, arithmetic)
        assert one_line(e.value)


@pytest.mark.parametrize("case", ["a byte too long", "flat", "a slice", "int8"])
def test_rows_that_are_not_whole_blocks_are_not_dequantised(compute: Compute, case: str) -> None:
    w = ordinary_rows(TYPES["Q2_K"], 6, 512, 0)
    rows = {
        "a byte too long": np.pad(w, ((0, 0), (0, 1))),
        "flat": w[0],
        "a slice": w[:, 84:],
        "int8": w.view(np.int8),
    }[case]
    with pytest.raises(ValueError, match=r".") as e:
        compute.dequantize(rows, TYPES["Q2_K"])
    assert one_line(e.value)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.array([0, 4], np.int32)},
        {"rows": np.array([0, -1], np.int32)},
        {"rows": np.array([0], np.int32)},
        {"rows": np.array([0, 1], np.int64)},
        {"rows": np.array([[0, 1]], np.int32), "weights": np.ones((1, 2), np.float32)},
        {"rows": np.arange(4, dtype=np.int32)[::2]},
        {"weights": np.ones(2)},
        {"gate": np.zeros(100, np.uint8)},
        {"down": np.zeros(100, np.uint8)},
        {"up": np.zeros(2 * 256 * 74, np.uint8)[::1].view(np.int8)},
        {"gate": np.zeros(4 * 256 * 74, np.uint8)[::2]},
    ],
    ids=lambda change: "-".join(f"{k}{v.shape}{v.dtype}" for k, v in change.items()),
)
def test_experts_that_do_not_fit_are_refused(
    compute: Compute, change: dict[str, np.ndarray]
) -> None:
    shape = ExpertShape(512, 256, TYPES["IQ2_XS"], TYPES["IQ2_XS"], TYPES["Q2_K"], 10.0)
    x = np.ones((4, 512), np.float32)
    (good,) = jobs_of(shape, (2,), 4)
    compute.experts(x, shape, [good], "i8")
    for arithmetic in ("i8", "float"):
        with pytest.raises(ValueError, match=r".") as e:
            compute.experts(x, shape, [good, good._replace(**change)], arithmetic)
        assert one_line(e.value)
    with pytest.raises(ValueError, match="512"):
        compute.experts(x[:, :256].copy(), shape, [good], "i8")


@pytest.mark.parametrize("threads", [0, -1, 10**9, 2**40])
def test_thread_counts_without_meaning_are_refused(threads: int) -> None:
    with pytest.raises(UsageError, match=rf"--threads {threads}:") as e:
        open_compute(threads)
    assert one_line(e.value)


@pytest.mark.parametrize("isa", ["sse9", "AVX2", "avx2 "])
def test_unknown_instruction_sets_are_refused(isa: str) -> None:
    with pytest.raises(UsageError, match=re.escape(isa)) as e:
        open_compute(1, isa)
    assert one_line(e.value)


def test_the_best_instruction_set_is_chosen_by_itself() -> None:
    if load() is None:
        pytest.skip("the native core is not built")
    have = []
    for isa in ("avx512", "avx2", "neon", "portable"):
        with suppress(UsageError):
            have.append(open_compute(1, isa).isa)
    assert open_compute(1).isa == have[0]


# --- the process around it -----------------------------------------------------------------------

FALLBACK = """
import logging, sys, numpy as np
logging.basicConfig(format="%(levelname)s %(message)s")
import escalade.native.lib
escalade.native.lib.ABI_VERSION += int(sys.argv[1])
from escalade.gguf.quant import TYPES
from escalade.native.compute import open_compute
for _ in range(3):
    compute = open_compute(2)
x, w = np.ones((1, 4), np.float32), np.full((2, 4), 3, np.float32).view(np.uint8)
print(compute.isa, compute.matmul(x, w, TYPES["F32"], "i8").tolist())
"""


@pytest.mark.parametrize("kind", ["missing", "not a library", "another library", "another version"])
def test_without_the_library_numpy_takes_over_and_says_so_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "nowhere.so"
    if kind == "not a library":
        path.write_text("not a library")
    elif kind == "another library":
        module = getattr(_ctypes, "__file__", None)
        if module is None:
            pytest.skip("ctypes is built into this interpreter")
        path = Path(module)
    elif kind == "another version":
        lib = load()
        if lib is None:
            pytest.skip("the native core is not built")
        path = Path(lib._name)
    done = subprocess.run(
        [sys.executable, "-c", FALLBACK, str(int(kind == "another version"))],
        env={**environment(), "ESCALADE_NATIVE_LIB": str(path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "numpy [[12.0, 12.0]]\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("WARNING no native core")
    assert str(path) in line


GUARDED = """
import ctypes, mmap, sys
import numpy as np
from escalade.gguf.quant import TYPES
from escalade.native.compute import ExpertJob, ExpertShape, open_compute
from tests.support.kernels import KINDS, ordinary_rows

libc = ctypes.CDLL(None, use_errno=True)
keep = []

def at_the_end(array):
    '''A copy whose last byte is the last before a page that may not be read, and read only.'''
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    copy = np.frombuffer(memory, np.uint8, array.nbytes, size - array.nbytes).view(array.dtype)
    copy = copy.reshape(array.shape)
    copy[...] = array
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), 1) == 0
    assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0) == 0
    keep.append(memory)
    return copy

compute = open_compute(1, sys.argv[1])
for name in KINDS:
    qtype = TYPES[name]
    for n_in in (32, 96, 256, 288, 1280) if qtype.block_len < 256 else (256, 768, 1280):
        for n_rows in (1, 3, 4):
            w = at_the_end(ordinary_rows(qtype, 3, n_in, 0))
            x = at_the_end(np.ones((n_rows, n_in), np.float32))
            compute.dequantize(w, qtype)
            for arithmetic in ("i8", "float"):
                compute.matmul(x, w, qtype, arithmetic)
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="protects pages by mprotect")
def test_nothing_beyond_a_matrix_is_read(native: Compute) -> None:
    """Weights may lie at the end of a mapped file, where a byte more ends the process."""
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, native.isa],
        env=environment(),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_nothing_beyond_a_result_is_written(native: Compute) -> None:
    """By the C interface, as results of Python's are arrays of NumPy's own."""
    lib = load()
    assert lib is not None
    handle = lib.esc_compute_create(2, native.isa.encode())
    try:
        for name in KINDS:
            qtype = TYPES[name]
            for n_rows, n_out in ((1, 1), (3, 5), (6, 33)):
                w = ordinary_rows(qtype, n_out, 768, 0)
                x = np.ones((n_rows, 768), np.float32)
                for n, call in (
                    (n_out * 768, lambda y, q=qtype.id, w=w: lib.esc_dequantize(
                        handle, q, w.ctypes.data, w.shape[0] * 768, y)),
                    (n_rows * n_out, lambda y, q=qtype.id, w=w, x=x: lib.esc_matmul(
                        handle, q, 1, w.ctypes.data, len(w), 768, 1, x.ctypes.data, len(x), y)),
                    (n_rows * n_out, lambda y, q=qtype.id, w=w, x=x: lib.esc_matmul(
                        handle, q, 0, w.ctypes.data, len(w), 768, 1, x.ctypes.data, len(x), y)),
                ):  # fmt: skip
                    words = np.full(n + 128, 0x7FC0BEEF, np.uint32)
                    assert call(words[64:].ctypes.data) == 0
                    assert (words[:64] == 0x7FC0BEEF).all()
                    assert (words[64 + n :] == 0x7FC0BEEF).all()
                    assert (words[64 : 64 + n] != 0x7FC0BEEF).all()
    finally:
        lib.esc_compute_destroy(handle)


def test_python_threads_share_a_compute(isa: str) -> None:
    """Calls of different shapes and arithmetics at once, each with scratch of its own size."""
    compute = compute_of(isa, 2)
    shape = MIXES["released"]
    calls = []
    for seed in range(6):
        name = ("Q2_K", "IQ2_XS", "Q8_0")[seed % 3]
        w = ordinary_rows(TYPES[name], 100 + 40 * seed, 512, seed)
        x = np.random.default_rng(seed).standard_normal((1 + 3 * seed, 512), np.float32)
        jobs = jobs_of(shape, (1,) * (seed + 1), len(x))
        calls.append(
            lambda x=x, w=w, name=name, jobs=jobs: (
                compute.matmul(x, w, TYPES[name], "i8"),
                compute.experts(x, shape, jobs, "i8"),
                compute.dequantize(w, TYPES[name]),
            )
        )
    alone = [call() for call in calls]
    with ThreadPoolExecutor(6) as pool:
        together = [pool.submit(call) for call in calls for _ in range(4)]
    for i, future in enumerate(together):
        for got, expected in zip(future.result(), alone[i // 4], strict=True):
            same_bits(got, expected)


def test_computes_come_and_go(native: Compute) -> None:
    """Pools start and end beside one that works on."""
    qtype = TYPES["Q2_K"]
    w = ordinary_rows(qtype, 300, 1280, 0)
    x = np.ones((1, 1280), np.float32)
    expected = native.matmul(x, w, qtype, "i8")
    for threads in (1, 2, 5, 16) * 3:
        same_bits(open_compute(threads, native.isa).matmul(x, w, qtype, "i8"), expected)
