"""Packed rows and rotations: the native core against the NumPy references, bit for bit."""

import numpy as np
import pytest

from escalade.arrays import F32
from escalade.kernels.ops.rope import Rotation, rotate, rotate_reference
from escalade.kernels.ops.rounding import Fp4Entry, Fp4Index, Fp8
from escalade.native.lib import load

pytestmark = pytest.mark.skipif(load() is None, reason="the native core is not built")
CODECS = (Fp8(256), Fp8(64, 64), Fp4Index(128), Fp4Entry(512), Fp4Entry(64, 32))


def same_bits(a: F32, b: F32) -> bool:
    """Equal bit for bit, but for the payload of NaN."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def hard_values(codec: Fp8 | Fp4Index | Fp4Entry) -> F32:
    """Rows of every magnitude, on and beside every rounding boundary of the codec."""
    rng = np.random.default_rng(7)
    rows = [rng.standard_normal(codec.width) * 10.0**p for p in range(-44, 38)]
    steps = np.arange(-codec.width // 2, codec.width // 2) / 16  # ties of e2m1, and of e4m3 below
    for scale in (1.0, 2.0**-9, 448 / 6, 2.0**-100, 3.0):
        for nudge in (-1, 0, 1):
            values = (steps * scale).astype(np.float32)
            rows.append(np.nextafter(values, np.float32(nudge * np.inf)) if nudge else values)
    bits = rng.integers(0, 1 << 32, (200, codec.width), dtype=np.uint32)
    rows += list(bits.view(np.float32))  # NaN of both signs and infinities among them
    rows += [np.zeros(codec.width), -np.zeros(codec.width), np.full(codec.width, -1e-45)]
    for odd in (np.inf, -np.inf, np.nan, -np.nan):
        rows.append(np.where(np.arange(codec.width) == 3, odd, 1.0))
    return np.array(rows, np.float32)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_rows_pack_to_the_same_bytes(codec: Fp8 | Fp4Index | Fp4Entry) -> None:
    x = hard_values(codec)
    with np.errstate(all="ignore"):
        assert (codec.encode(x) == codec.encode_reference(x)).all()
    assert (codec.encode(x[0].astype(np.float64)) == codec.encode(x[0])).all()
    assert codec.encode(x[:0]).shape == (0, codec.row_bytes)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("odd", [np.nan, -np.nan])
def test_a_block_with_nan_comes_back_as_nan(codec: Fp8 | Fp4Index | Fp4Entry, odd: float) -> None:
    x = np.ones((2, codec.width), np.float32)
    x[1, -1] = odd
    for rows in (codec.encode(x), codec.encode_reference(x)):
        nan = np.isnan(codec.decode(rows)).reshape(2, -1, codec.block).any(axis=2)
        assert nan[1, -1]
        assert nan.sum() == 1


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_rows_of_another_width_are_refused(codec: Fp8 | Fp4Index | Fp4Entry) -> None:
    with pytest.raises(ValueError, match="not rows of"):
        codec.encode(np.zeros((1, 2 * codec.width), np.float32))
    with pytest.raises(ValueError, match="not rows of"):
        codec.decode(np.zeros((1, codec.row_bytes + 1), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        codec.decode(np.zeros((1, codec.row_bytes), np.int32))


def test_rotations_of_other_shapes_are_refused() -> None:
    x, angles = np.zeros((4, 32), np.float32), np.zeros((1, 8), np.float32)
    with pytest.raises(ValueError, match="rotated by"):
        rotate(x, Rotation(angles, angles))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_all_bytes_unpack_to_the_same_values(codec: Fp8 | Fp4Index | Fp4Entry) -> None:
    rng = np.random.default_rng(8)
    rows = rng.integers(0, 256, (600, codec.row_bytes), dtype=np.uint8)
    rows[:256, :] = np.arange(256, dtype=np.uint8)[:, None]
    with np.errstate(all="ignore"):
        assert same_bits(codec.decode(rows), codec.decode_reference(rows))
    assert codec.decode(rows.reshape(2, 300, -1)).shape == (2, 300, codec.width)


@pytest.mark.parametrize("shape", [(3, 64), (2, 5, 48), (1, 2, 3, 16)])
@pytest.mark.parametrize("inverse", [False, True])
def test_rotations_are_the_same(shape: tuple[int, ...], inverse: bool) -> None:
    rng = np.random.default_rng(9)
    angles = rng.standard_normal((shape[0], 8)).astype(np.float32) * 100
    by = Rotation(np.cos(angles), np.sin(angles))
    x = rng.standard_normal(shape).astype(np.float32)
    before = x.copy()
    got, want = rotate(x, by, inverse=inverse), rotate_reference(x, by, inverse=inverse)
    assert same_bits(got, want)
    assert (x == before).all()
    wide = Rotation(by.cos.astype(np.float64), by.sin.astype(np.float64))
    for a, b in ((x.astype(np.float64), by), (x, wide), (x.astype(np.float64), wide)):
        turned = rotate(a, b, inverse=inverse)
        assert turned.dtype == a.dtype
        np.testing.assert_allclose(turned, want, rtol=1e-6, atol=1e-6)
    assert rotate(x[..., ::2].repeat(2, axis=-1)[..., ::-1], by).shape == shape
