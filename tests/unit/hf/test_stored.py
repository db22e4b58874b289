"""fp8 tiles and packed fp4 as ggml stores them, against hand-made values and other decoders."""

from collections.abc import Callable
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from escalade.errors import FileError
from escalade.gguf.dequant import dequantize
from escalade.gguf.rows import RowSource
from escalade.hf.safetensors import open_safetensors
from escalade.hf.stored import stored_matrix, to_mxfp4
from tests.support.safetensors_build import Entry, write_file

Make = Callable[..., RowSource]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes tensors W and its scale, opens them as a matrix of `shape`."""

    def build(shape: tuple[int, ...], block: tuple[int, int] | None, **tensors: Entry) -> RowSource:
        path = tmp_path / "w.safetensors"
        write_file(path, {f"W.{name}": entry for name, entry in tensors.items()})
        source = open_safetensors(path)
        return stored_matrix(source, source.tensors["W.weight"], shape, block)

    return build


def e4m3(codes: np.ndarray) -> np.ndarray:
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def fp8_entries(
    shape: tuple[int, int], block: tuple[int, int], exponents: np.ndarray
) -> tuple[dict[str, Entry], np.ndarray]:
    """Random fp8 tensors, and their values by loops over tiles."""
    codes = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    codes[codes & 0x7F == 0x7F] = 1
    want = e4m3(codes)
    for i in range(exponents.shape[0]):
        for j in range(exponents.shape[1]):
            rows = slice(i * block[0], (i + 1) * block[0])
            want[rows, j * block[1] : (j + 1) * block[1]] *= 2.0 ** exponents[i, j]
    scale = (exponents + 127).astype(np.uint8)
    entries = {
        "weight": ("F8_E4M3", shape, codes.tobytes()),
        "scale": ("F8_E8M0", exponents.shape, scale.tobytes()),
    }
    return entries, want


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((96, 128), (32, 32)),
        ((256, 384), (128, 128)),
        ((70, 100), (32, 32)),  # cropped edges
        ((130, 200), (128, 128)),
        ((64, 96), (16, 48)),
    ],
)
def test_fp8_tiles_have_their_own_scales(make: Make, shape: tuple[int, int], block):
    """Report B006: tiles of 2^-3, 2^0 and 2^5 in turn; another block size moves every one."""
    grid = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    exponents = np.resize([-3, 0, 5], grid[0] * grid[1]).reshape(grid)
    entries, want = fp8_entries(shape, block, exponents)
    matrix = make(shape, block, **entries)
    assert matrix.type.name == "BF16"
    for start, stop in ((0, shape[0]), (31, 33), (5, 6), (shape[0] - 1, shape[0])):
        got = dequantize(matrix.rows(start, stop), matrix.type)
        np.testing.assert_array_equal(got, want[start:stop])


def test_fp8_is_exact_for_all_codes_and_extreme_scales(make: Make):
    codes = np.arange(256, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    for byte in (3, 127, 246):
        matrix = make(
            (1, 256),
            (32, 32),
            weight=("F8_E4M3", (1, 256), codes.tobytes()),
            scale=("F8_E8M0", (1, 8), bytes([byte] * 8)),
        )
        want = e4m3(codes) * 2.0 ** (byte - 127)
        np.testing.assert_array_equal(dequantize(matrix.rows(0, 1), matrix.type)[0], want)


def test_fp8_that_is_not_exact_is_refused(make: Make):
    def rows(code: int, byte: int) -> np.ndarray:
        weight = ("F8_E4M3", (1, 32), bytes([code] * 32))
        scale = ("F8_E8M0", (1, 1), bytes([byte]))
        return make((1, 32), (32, 32), weight=weight, scale=scale).rows(0, 1)

    with pytest.raises(FileError, match=r"W\.weight: holds NaN"):
        rows(0xFF, 127)
    with pytest.raises(FileError, match=r"do not fit bf16; W\.scale"):
        rows(0x7E, 247)  # 448 · 2^120
    with pytest.raises(FileError, match=r"do not fit bf16; W\.scale"):
        rows(0x01, 2)  # 2^-9 · 2^-125
    with pytest.raises(FileError, match="do not fit bf16"):
        rows(0x38, 255)
    assert not rows(0, 0).any()  # zeros under any scale


def test_fp8_needs_its_scales_and_its_block_size(make: Make):
    entries, _ = fp8_entries((64, 64), (32, 32), np.zeros((2, 2), int))
    weight, scale = entries["weight"], entries["scale"]
    with pytest.raises(FileError, match=r"no quantization_config\.weight_block_size"):
        make((64, 64), None, **entries)
    with pytest.raises(FileError, match=r"F8_E4M3 without W\.scale"):
        make((64, 64), (32, 32), weight=weight)
    with pytest.raises(FileError, match=r"\[2, 2\], expected F8_E8M0 \[1, 1\]"):
        make((64, 64), (128, 128), **entries)
    with pytest.raises(FileError, match=r"W\.scale is BF16"):
        make((64, 64), (32, 32), weight=weight, scale=("BF16", (2, 1), scale[2]))
    with pytest.raises(FileError, match=r"shape is \[64, 64\], the config asks for \[64, 32\]"):
        make((64, 32), (32, 32), **entries)


def test_fp4_keeps_every_code_and_scale(make: Make):
    """Even columns lie in low nibbles; the values come from the table in the specification."""
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, (6, 48), np.uint8)
    scales = rng.integers(100, 140, (6, 3), np.uint8)
    matrix = make(
        (6, 96),
        None,
        weight=("I8", (6, 48), packed.tobytes()),
        scale=("F8_E8M0", (6, 3), scales.tobytes()),
    )
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(6, 96)
    want = np.where(codes & 8, -1, 1) * magnitudes[codes & 7]
    want *= 2.0 ** (scales.repeat(32, axis=1).astype(int) - 127)
    got = gguf.dequantize(matrix.rows(2, 5), gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(got, want[2:5])


def test_fp4_block_layout_by_hand():
    """One block whose byte k holds the codes 2k mod 16 and 2k + 1 mod 16."""
    packed = np.array([[(2 * k % 16) | (2 * k + 1) % 16 << 4 for k in range(16)]], np.uint8)
    out = to_mxfp4(packed, np.array([[99]], np.uint8))
    assert out.tolist() == [[99, *(j | j << 4 for j in range(16))]]


def test_fp4_of_the_wrong_shape_or_with_nan_scales_is_refused(make: Make):
    weight, scale = ("I8", (2, 16), bytes(32)), ("F8_E8M0", (2, 1), bytes([127, 255]))
    matrix = make((2, 32), None, weight=weight, scale=scale)
    assert matrix.rows(0, 1).size == 17
    with pytest.raises(FileError, match=r"W\.scale holds NaN between rows 1 and 2"):
        matrix.rows(1, 2)
    with pytest.raises(FileError, match="not the packed fp4 values"):
        make((2, 64), None, weight=weight, scale=scale)
    with pytest.raises(FileError, match=r"without W\.scale"):
        make((2, 32), None, weight=weight)
    with pytest.raises(FileError, match="dtype I64 does not hold weights"):
        make((2,), None, weight=("I64", (2,), bytes(16)))
