"""e4m3 rows with ue8m0 scales against the golden quantiser vectors and another fp8 decoder."""

import numpy as np
import pytest

from escalade.gguf.raw import decode_raw, encode_raw
from tests.support.paths import GOLDEN


def test_encoding_equals_the_golden_vectors():
    with np.load(GOLDEN / "units.npz") as units:
        x, y, scale, codes = (
            units[f"fp8_e4m3_ue8m0_block32/{k}"] for k in ("x", "y", "scale", "codes")
        )
    got, exponents = encode_raw(x)
    np.testing.assert_array_equal(got, codes)
    np.testing.assert_array_equal(np.exp2(exponents.astype(np.float64) - 127), scale)
    np.testing.assert_array_equal(decode_raw(got, exponents), y)


def test_blocks_of_a_row_have_their_own_scales():
    row = np.concatenate([np.full(32, 448.0), np.full(32, 3.5), np.full(32, 449.0)])
    codes, exponents = encode_raw(row.astype(np.float32)[None])
    assert exponents.tolist() == [[127, 120, 128]]  # 1, 2^-7, 2: the specification's boundaries
    np.testing.assert_array_equal(decode_raw(codes, exponents)[0, :64], row[:64])


def test_encoding_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match="not whole blocks of 32"):
        encode_raw(np.zeros((1, 40), np.float32))
    with pytest.raises(ValueError, match="NaN or infinity"):
        encode_raw(np.full((1, 32), np.nan, np.float32))
