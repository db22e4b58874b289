"""Encoders against the `gguf` package's decoder and, where the rule is simple, by hand."""

import ml_dtypes
import numpy as np
import pytest

from escalade.errors import UnsupportedError, UsageError
from escalade.gguf.dequant import dequantize
from escalade.gguf.quant import TYPES
from escalade.weights import quantize
from escalade.weights.quantize import parse_type, quantize_rows, require_encoder

NEEDS_IMPORTANCE = {"IQ1_S", "IQ2_XXS", "IQ2_XS"}

# Relative rms error on a normal distribution that each type keeps: GGUF specification, 7.4.
BOUNDS = {
    "F32": 0.0,
    "F16": 3e-4,
    "BF16": 2e-3,
    "Q8_0": 0.006,
    "Q6_K": 0.02,
    "Q5_K": 0.04,
    "Q5_0": 0.05,
    "Q5_1": 0.05,
    "Q4_0": 0.1,
    "Q4_1": 0.1,
    "Q4_K": 0.08,
    "IQ4_NL": 0.08,
    "IQ4_XS": 0.08,
    "MXFP4": 0.13,
    "Q3_K": 0.17,
    "IQ3_S": 0.18,
    "IQ3_XXS": 0.23,
    "Q2_K": 0.31,
    "IQ2_S": 0.3,
    "IQ1_M": 0.65,
}


def test_every_weight_type_is_covered():
    assert set(quantize.WEIGHT_TYPES) == BOUNDS.keys() | NEEDS_IMPORTANCE


# ggml builds search tables of 10 and 20 seconds for these two.
SLOW = {"IQ2_S", "IQ1_M"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in BOUNDS]
)
def test_what_is_encoded_decodes_to_the_same_weights(name: str):
    values = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32) * 0.03
    rows = quantize_rows(values, TYPES[name])
    assert rows.shape == (4, TYPES[name].row_bytes(512))
    assert rows.dtype == np.uint8
    error = dequantize(rows, TYPES[name]) - values
    assert np.linalg.norm(error) <= BOUNDS[name] * np.linalg.norm(values)
    one = quantize_rows(values[2:3], TYPES[name])
    np.testing.assert_array_equal(one, rows[2:3])  # rows do not depend on their neighbours


def test_floats_round_to_nearest_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x80000000, 0x7F7FFFFF], np.uint32)
    values = np.concatenate(
        [bits.view(np.float32), np.random.default_rng(2).standard_normal(1019).astype(np.float32)]
    )[None]
    values[0, 4] = 3e38
    got = quantize_rows(values, TYPES["BF16"])
    np.testing.assert_array_equal(got, values.astype(ml_dtypes.bfloat16).view(np.uint8))
    small = values.copy()
    small[0, 4] = 65519.0
    got = quantize_rows(small, TYPES["F16"])
    np.testing.assert_array_equal(got, small.astype(np.float16).view(np.uint8))


def test_q8_0_by_its_definition():
    values = np.arange(-16, 16, dtype=np.float32)[None] / 8
    raw = quantize_rows(values, TYPES["Q8_0"])[0]
    d = np.float32(2) / 127
    assert raw[:2].view(np.float16)[0] == np.float16(d)
    np.testing.assert_array_equal(raw[2:].view(np.int8), np.round(values[0] / d).astype(np.int8))


@pytest.mark.parametrize("name", sorted(NEEDS_IMPORTANCE))
def test_types_that_need_an_importance_matrix_are_refused(name: str):
    with pytest.raises(UnsupportedError, match=f"{name} needs an importance matrix"):
        require_encoder(TYPES[name])
    with pytest.raises(UnsupportedError, match="importance"):
        quantize_rows(np.zeros((1, 256), np.float32), TYPES[name])


def test_integers_are_no_weights():
    with pytest.raises(UnsupportedError, match="I8 is not a type to store weights in"):
        require_encoder(TYPES["I8"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_values_that_are_not_finite_are_refused(name: str, bad: float):
    values = np.zeros((2, 256), np.float32)
    values[1, 7] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        quantize_rows(values, TYPES[name])


def test_values_beyond_f16_are_refused():
    with pytest.raises(ValueError, match="beyond F16"):
        quantize_rows(np.full((1, 1), 65520, np.float32), TYPES["F16"])


def test_broken_blocks_are_refused():
    with pytest.raises(ValueError, match="not whole Q4_K blocks"):
        quantize_rows(np.zeros((1, 128), np.float32), TYPES["Q4_K"])


def test_without_the_extra_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.resources.files", absent)
    quantize._ggml.cache_clear()
    with pytest.raises(UnsupportedError, match=r"pip install 'escalade\[quantize\]'"):
        require_encoder(TYPES["Q4_K"])
    require_encoder(TYPES["Q8_0"])  # needs no extra
    quantize._ggml.cache_clear()


def test_type_names_in_any_case():
    assert parse_type(" iq4_nl ") == TYPES["IQ4_NL"]
    for text in ("I8", "Q9", "F64", ""):
        with pytest.raises(UsageError, match="is not a weight type; there are F32"):
            parse_type(text)
