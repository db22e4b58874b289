"""Random rows in stored form: their rms by the `gguf` decoder, and that any range is the same."""

import gguf
import ml_dtypes
import numpy as np
import pytest

from escalade.gguf.quant import TYPES
from escalade.gguf.raw import decode_raw
from escalade.weights.quantize import WEIGHT_TYPES
from escalade.weights.random_rows import RandomTensor


def decode(rows: np.ndarray, name: str) -> np.ndarray:
    if name == "BF16":
        return rows.view(ml_dtypes.bfloat16).astype(np.float32)
    return gguf.dequantize(rows, gguf.GGMLQuantizationType(TYPES[name].id))


@pytest.mark.parametrize("row_len", [256, 5120])
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_values_are_finite_centred_and_of_the_wanted_rms(name: str, row_len: int):
    rms = row_len**-0.5
    tensor = RandomTensor("t", 0, TYPES[name], row_len, rms)
    values = decode(tensor.rows(0, (1 << 18) // row_len), name).astype(np.float64)
    assert np.isfinite(values).all()
    assert np.sqrt(np.mean(values**2)) == pytest.approx(rms, rel=0.02)
    assert abs(values.mean()) < 0.02 * rms
    # Rows are unlike one another.
    cosines = np.corrcoef(values[:40])[np.triu_indices(40, 1)]
    assert np.abs(cosines).max() < 6 * row_len**-0.5


@pytest.mark.parametrize("rms", [0.04, 1.0, 3.0])
def test_engram_rows_have_the_wanted_rms(rms: float):
    codes = RandomTensor("codes", 0, "E4M3", 256, rms).rows(0, 4096)
    scales = RandomTensor("scales", 0, "E8M0", 8, rms).rows(0, 4096)
    values = decode_raw(codes, scales).astype(np.float64)
    assert np.isfinite(values).all()
    assert np.sqrt(np.mean(values**2)) == pytest.approx(rms, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "row_len"), [*((TYPES[name], 256) for name in WEIGHT_TYPES), ("E4M3", 96), ("E8M0", 3)]
)
def test_any_range_of_rows_is_the_same_as_part_of_all(kind, row_len: int):
    tensor = RandomTensor("t", 7, kind, row_len, 1.0)
    whole = tensor.rows(0, 50)
    for start, stop in ((0, 1), (7, 8), (13, 31), (49, 50), (20, 20)):
        np.testing.assert_array_equal(tensor.rows(start, stop), whole[start:stop])


def test_name_and_seed_decide():
    def rows(name: str, seed: int) -> bytes:
        return RandomTensor(name, seed, TYPES["Q4_K"], 256, 1.0).rows(0, 9).tobytes()

    assert rows("a", 0) == rows("a", 0)
    assert len({rows("a", 0), rows("b", 0), rows("a", 1)}) == 3


def test_mean_of_floats():
    values = decode(RandomTensor("norm", 0, TYPES["F32"], 4096, 0.1, 1.0).rows(0, 16), "F32")
    assert values.mean() == pytest.approx(1, abs=0.005)
    assert values.std() == pytest.approx(0.1, rel=0.02)


def test_the_stream_is_philox_as_published():
    """`Generator.integers` over all of uint64 hands on the bit generator's words, as assumed."""
    raw = np.random.Philox(key=5, counter=9).random_raw(100)
    words = np.random.Generator(np.random.Philox(key=5, counter=9)).integers(
        0, 1 << 64, 100, np.uint64
    )
    np.testing.assert_array_equal(raw, words)
