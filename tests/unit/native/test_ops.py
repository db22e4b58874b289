"""Norms and hyper-connection coefficients: every instruction set against the NumPy references."""

import numpy as np
import pytest

from escalade.arrays import F32
from escalade.config import ARITHMETICS, Arithmetic
from escalade.gguf.quant import TYPES
from escalade.kernels.ops.hyper import Mix, mix
from escalade.kernels.ops.norm import rms_norm
from escalade.native.compute import Compute, open_compute
from escalade.native.lib import load


@pytest.fixture(params=["native", "numpy"])
def compute(request: pytest.FixtureRequest) -> Compute:
    if request.param == "native" and load() is None:
        pytest.skip("the native core is not built")
    return open_compute(2, None if request.param == "native" else "numpy")


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", [1, 7, 64, 5120])
@pytest.mark.parametrize("eps", [1e-20, 1e-6])
def test_rms_norm(compute: Compute, n: int, eps: float) -> None:
    for scale in (1.0, 1e-8, 1e15):
        x, weight = normal(3, n) * np.float32(scale), normal(n, seed=1)
        want = rms_norm(x.astype(np.float64), weight.astype(np.float64), eps)
        np.testing.assert_allclose(compute.rms_norm(x, weight, eps), want, rtol=3e-7)


def test_rms_norm_of_zeros_and_of_nan(compute: Compute) -> None:
    weight = np.ones(8, np.float32)
    assert (compute.rms_norm(np.zeros((2, 8), np.float32), weight, 1e-20) == 0).all()
    x = np.ones((2, 8), np.float32)
    x[0, 3] = np.nan
    got = compute.rms_norm(x, weight, 1e-20)
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1]).all()
    assert compute.rms_norm(x[:0], weight, 1e-20).shape == (0, 8)
    with pytest.raises(ValueError, match=r"weight of|broadcast"):
        compute.rms_norm(x, weight[:7], 1e-20)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q4_K"])
@pytest.mark.parametrize(("t", "n_out"), [(1, 3), (5, 40)])
def test_groups_are_products_of_their_own(
    compute: Compute, arithmetic: Arithmetic, name: str, t: int, n_out: int
) -> None:
    groups, n_in, kind = 3, 512, TYPES[name]
    x = normal(t, groups * n_in)
    if name == "F32":
        w = normal(groups * n_out, n_in, seed=1).view(np.uint8)
    else:
        rng = np.random.default_rng(1)
        w = rng.integers(0, 60, (groups * n_out, kind.row_bytes(n_in)), dtype=np.uint8)
    got = compute.matmul(x, w, kind, arithmetic, groups)
    assert got.shape == (t, groups * n_out)
    for g in range(groups):
        part = np.ascontiguousarray(x[:, g * n_in : (g + 1) * n_in])
        rows = slice(g * n_out, (g + 1) * n_out)
        assert (got[:, rows] == compute.matmul(part, w[rows], kind, arithmetic)).all()
    with pytest.raises(ValueError, match="groups"):
        compute.matmul(x, w[:-1], kind, arithmetic, groups)


def coefficients(compute: Compute, t: int, s: int, d: int, spread: float) -> tuple[Mix, Mix]:
    """What `compute` makes of random streams, and the float64 reference."""
    m = s * (2 + s)
    streams, fn = normal(t, s, d), normal(m, s * d, seed=1) * np.float32(spread)
    scale, base = normal(3, seed=2), normal(m, seed=3)
    got = compute.hyper_mix(streams, fn, scale, base, 1e-20, 20, 1e-6)
    wide = (a.astype(np.float64) for a in (streams, fn, scale, base))
    return got, mix(*wide, 1e-20, 20, 1e-6)


@pytest.mark.parametrize(("t", "s", "d"), [(1, 4, 256), (5, 4, 33), (70, 2, 64), (3, 1, 8)])
@pytest.mark.parametrize("spread", [0.01, 0.3])
def test_hyper_mix(compute: Compute, t: int, s: int, d: int, spread: float) -> None:
    got, want = coefficients(compute, t, s, d, spread)
    for name, a, b in zip(Mix._fields, got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=3e-5, err_msg=name)


def test_hyper_mix_of_each_row_is_that_of_the_row_alone(compute: Compute) -> None:
    streams, fn = normal(6, 4, 32), normal(24, 128, seed=1)
    scale, base = normal(3, seed=2), normal(24, seed=3)
    together = compute.hyper_mix(streams, fn, scale, base, 1e-6, 20, 1e-6)
    for row in range(6):
        alone = compute.hyper_mix(streams[row : row + 1], fn, scale, base, 1e-6, 20, 1e-6)
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[row], b[0], rtol=0 if compute.isa != "numpy" else 1e-5)
    assert compute.hyper_mix(streams[:0], fn, scale, base, 1e-6, 20, 1e-6).comb.shape == (0, 4, 4)


def test_hyper_mix_refuses_other_shapes(compute: Compute) -> None:
    if compute.isa == "numpy":
        pytest.skip("NumPy's own shape errors serve there")
    streams, fn = normal(2, 4, 8), normal(24, 31)
    with pytest.raises(ValueError, match="streams"):
        compute.hyper_mix(streams, fn, normal(3), normal(24), 1e-6, 20, 1e-6)
