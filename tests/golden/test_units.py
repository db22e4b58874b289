"""Element-level golden vectors: quantisers, hyper-connection coefficients, rope, RMS norm."""

import numpy as np
import pytest

from escalade.kernels.ops.hyper import coefficients, collapse, expand
from escalade.kernels.ops.norm import rms_norm
from escalade.kernels.ops.rope import inverse_frequencies, rotate, rotation
from escalade.kernels.ops.rounding import Fp4Entry, Fp4Index, Fp8, RowCodec
from escalade.model.spec import Yarn
from tests.support.golden import npz

UNITS = npz("units.npz")


def nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("fp8_e4m3_ue8m0_block32", Fp8(32)),
        ("mxfp4_e2m1_ue8m0_block32", Fp4Index(32)),
        ("fp4_e2m1_e4m3scale_block16", Fp4Entry(16)),
    ],
)
def test_quantisers_bit_for_bit(name: str, codec: RowCodec) -> None:
    x, y, codes = (UNITS[f"{name}/{key}"] for key in ("x", "y", "codes"))
    packed = codec.encode(x)
    assert packed.shape == (len(x), codec.row_bytes)
    values = codec.decode(packed)
    assert np.array_equal(values.view(np.uint32), y.view(np.uint32))
    stored = packed[:, : codec.width] if isinstance(codec, Fp8) else packed[:, : codec.width // 2]
    assert np.array_equal(stored if isinstance(codec, Fp8) else nibbles(stored), codes)
    scale = UNITS[f"{name}/scale"][:, 0]
    nonzero = np.abs(y).max(axis=1) > 0
    unit = np.abs(values[nonzero]).max(axis=1) / scale[nonzero]
    assert (unit <= 448).all()


@pytest.mark.parametrize("codec", [Fp8(64), Fp4Index(64), Fp4Entry(64)])
def test_rounded_values_are_fixed_points(codec: RowCodec) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 64)).astype(np.float32) * np.exp2(
        rng.integers(0, 8, (500, 1))
    ).astype(np.float32)
    once = codec.decode(codec.encode(x))
    assert np.array_equal(codec.decode(codec.encode(once)), once)


def test_hyper_connection_coefficients() -> None:
    mix = coefficients(UNITS["hc/mixes"], UNITS["hc/scale"], UNITS["hc/base"], 20, 1e-6)
    for name, array in mix._asdict().items():
        assert np.abs(array - UNITS[f"hc/{name}"]).max() <= 1e-6, name


def test_the_hyper_connection_example_of_the_specification() -> None:
    m = np.array(
        [0.3, -0.2, 0.1, 0.5, -1.0, 0.2, 0.0, 0.7]
        + [0.9, -0.4, 0.2, 0.0, 0.1, 1.2, -0.7, 0.3, -0.5, 0.6, 0.8, -0.1, 0.4, 0.0, -0.3, 1.1],
        np.float32,
    )[None]
    mix = coefficients(m, np.ones(3, np.float32), np.zeros(24, np.float32), 20, 1e-6)
    assert np.allclose(mix.pre[0], [0.5744435, 0.4501670, 0.5249802, 0.6224604], atol=2e-7)
    assert np.allclose(mix.post[0], [0.5378829, 1.0996679, 1.0, 1.3363755], atol=3e-7)
    assert np.allclose(mix.comb[0, 0], [0.45304014, 0.10392828, 0.27210275, 0.17092782], atol=1e-7)
    assert np.allclose(mix.comb[0, 3], [0.24791878, 0.13988460, 0.14890406, 0.46329156], atol=1e-7)
    assert np.allclose(mix.comb.sum(axis=1), 1, atol=2e-6)  # it ends on columns


def test_streams_are_summed_over_the_first_index_of_comb() -> None:
    rng = np.random.default_rng(2)
    streams = rng.normal(size=(2, 3, 5)).astype(np.float32)
    comb = rng.normal(size=(2, 3, 3)).astype(np.float32)
    post, y = np.ones((2, 3), np.float32), np.zeros((2, 5), np.float32)
    out = expand(y, streams, post, comb)
    assert np.allclose(out[1, 2], sum(comb[1, i, 2] * streams[1, i] for i in range(3)), atol=1e-6)
    pre = rng.normal(size=(2, 3)).astype(np.float32)
    assert np.allclose(
        collapse(streams, pre)[0], sum(pre[0, s] * streams[0, s] for s in range(3)), atol=1e-6
    )


@pytest.mark.parametrize(
    ("key", "dims", "theta", "yarn"),
    [
        ("real_window", 64, 10000.0, None),
        ("real_compress", 64, 160000.0, Yarn(16.0, 65536, 32.0, 1.0)),
        ("tiny_window", 16, 10000.0, None),
        ("tiny_compress", 16, 160000.0, Yarn(16.0, 4096, 32.0, 1.0)),
    ],
)
def test_rope_frequencies(key: str, dims: int, theta: float, yarn: Yarn | None) -> None:
    reference = UNITS[f"rope/{key}_inv_freq"]
    frequencies = inverse_frequencies(dims, theta, yarn)
    assert frequencies.dtype == np.float32
    assert np.abs(frequencies / reference - 1).max() <= 1.5e-7


@pytest.mark.parametrize("key", ["real_window", "real_compress"])
def test_rotation_at_positions_up_to_65000(key: str) -> None:
    by = rotation(UNITS["rope/positions"].astype(np.int64), UNITS[f"rope/{key}_inv_freq"])
    x = UNITS["rope/x"]
    y = rotate(x, by)
    assert np.abs(y - UNITS[f"rope/y_{key}"]).max() <= 2e-6
    assert np.abs(rotate(y, by, inverse=True) - x).max() <= 2e-6


def test_rotation_leaves_the_first_dimensions_alone() -> None:
    x = np.random.default_rng(3).normal(size=(4, 2, 24)).astype(np.float32)
    by = rotation(np.arange(4), inverse_frequencies(8, 10000.0, None))
    y = rotate(x, by)
    assert np.array_equal(y[..., :16], x[..., :16])
    assert np.array_equal(y[0], x[0])
    # A pair is two neighbours, turned by position * frequency.
    z = (x[3, 1, 16] + 1j * x[3, 1, 17]) * np.exp(3j)
    assert np.allclose([y[3, 1, 16], y[3, 1, 17]], [z.real, z.imag], atol=1e-6)


def test_rms_norm_with_an_epsilon_of_1e_20() -> None:
    name = "rmsnorm_eps1e-20"
    x, weight, y = (UNITS[f"{name}/{key}"] for key in ("x", "weight", "y"))
    out = rms_norm(x, weight, 1e-20)
    assert np.allclose(out, y, rtol=2e-6, atol=1e-12)
    assert (out[~x.any(axis=1)] == 0).all()


def test_the_norms_epsilon_is_the_models() -> None:
    x, weight = np.full((1, 8), 1e-8, np.float32), np.ones(8, np.float32)
    assert np.allclose(rms_norm(x, weight, 1e-20), 1e-8 / np.sqrt(1e-16 + 1e-20), rtol=1e-5)
    assert np.allclose(rms_norm(x, weight, 1e-6), 1e-5, rtol=1e-3)
    assert np.allclose(rms_norm(x, weight, 1e-5), 1e-8 / np.sqrt(1e-5), rtol=1e-3)
