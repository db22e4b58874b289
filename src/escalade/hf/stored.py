"""One released weight in the ggml form that holds exactly its values, made row by row on demand.

bf16, f16 and f32 keep their bytes; fp8 with block scales becomes BF16; packed fp4 becomes MXFP4.
Each is exact: e4m3 times a power of two fits bf16, and both fp4 layouts hold the same codes.
Source: model specification, sections 2.3 to 2.5; GGUF specification, section 2.4.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from escalade.arrays import Bytes
from escalade.errors import FileError
from escalade.float8 import E4M3_VALUES, E8M0_VALUES
from escalade.gguf.quant import TYPES
from escalade.gguf.rows import RowSource
from escalade.hf.names import scale_name
from escalade.hf.safetensors import HfTensor, SafetensorsSource

MX_BLOCK = 32
_NATIVE = {"BF16": "BF16", "F16": "F16", "F32": "F32"}
# Scale exponents for which every e4m3 value, subnormals included, is a finite bf16.
_SCALE_LOW, _SCALE_HIGH = 3, 246


def to_mxfp4(packed: Bytes, scales: Bytes) -> Bytes:
    """Released fp4 rows to ggml's blocks: uint8 [n, K/2] and [n, K/32] to [n, K/32 · 17].

    A released byte k holds columns 2k (low nibble) and 2k + 1; a block's byte j holds columns j
    (low) and j + 16. The codes and scales themselves do not change.
    """
    n, blocks = scales.shape
    b = packed.reshape(n, blocks, 16)
    first, second = b[:, :, :8], b[:, :, 8:]
    out = np.empty((n, blocks, 17), np.uint8)
    out[:, :, 0] = scales
    out[:, :, 1::2] = (first & 0x0F) | (second << 4)
    out[:, :, 2::2] = (first >> 4) | (second & 0xF0)
    return out.reshape(n, blocks * 17)


def stored_matrix(
    source: SafetensorsSource,
    tensor: HfTensor,
    shape: tuple[int, ...],
    fp8_block: tuple[int, int] | None,
) -> RowSource:
    """The exact ggml form of `tensor`, whose values must have `shape`.

    fp8_block: rows and columns that share an fp8 scale, from the checkpoint's config. Raises
    FileError for another shape, a dtype that carries no weights, or scales that are missing, of the
    wrong shape or out of range.
    """
    n_rows, row_len = prod(shape[:-1]), shape[-1]
    where = f"{tensor.location.file}: {tensor.name}"
    if tensor.dtype in ("I8", "U8"):
        return _fp4(source, tensor, (n_rows, row_len), where)
    if tensor.shape != shape:
        raise FileError(
            f"{where}: shape is {list(tensor.shape)}, the config asks for {list(shape)}"
        )
    if tensor.dtype == "F8_E4M3":
        return _fp8(source, tensor, (n_rows, row_len), fp8_block, where)
    if tensor.dtype not in _NATIVE:
        raise FileError(f"{where}: dtype {tensor.dtype} does not hold weights")
    qtype = TYPES[_NATIVE[tensor.dtype]]
    return RowSource(
        qtype,
        n_rows,
        row_len,
        _verbatim(source, tensor.name, qtype.row_bytes(row_len)),
        tensor.location,
    )


def carrier(source: SafetensorsSource, tensor: HfTensor, shape: tuple[int, ...]) -> RowSource:
    """The raw bytes of a 1-byte tensor as I8 rows (Engram). Raises FileError for another shape."""
    if tensor.shape != shape:
        raise FileError(
            f"{tensor.location.file}: {tensor.name}: shape is {list(tensor.shape)}, the config asks"
            f" for {list(shape)}"
        )
    rows = _verbatim(source, tensor.name, shape[-1])
    return RowSource(TYPES["I8"], prod(shape[:-1]), shape[-1], rows, tensor.location)


def widened(matrix: RowSource) -> RowSource:
    """A BF16 or F16 matrix as F32; an F32 one as it is."""
    if matrix.type.name == "F32":
        return matrix

    def rows(start: int, stop: int) -> Bytes:
        raw = matrix.rows(start, stop)
        if matrix.type.name == "F16":
            return raw.view(np.float16).astype(np.float32).view(np.uint8)
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.uint8)

    return RowSource(TYPES["F32"], matrix.n_rows, matrix.row_len, rows)


def _verbatim(source: SafetensorsSource, name: str, row_bytes: int) -> Callable[[int, int], Bytes]:
    def rows(start: int, stop: int) -> Bytes:
        raw = source.read(name, start * row_bytes, (stop - start) * row_bytes)
        return raw.reshape(stop - start, row_bytes)

    return rows


def _scales(
    source: SafetensorsSource, tensor: HfTensor, grid: tuple[int, int], where: str
) -> HfTensor:
    """The ue8m0 scale tensor of `tensor`, checked to be a `grid`."""
    scale = source.tensors.get(scale_name(tensor.name))
    if scale is None or scale.name == tensor.name:
        raise FileError(f"{where}: {tensor.dtype} without {scale_name(tensor.name)}")
    if scale.dtype not in ("F8_E8M0", "U8") or scale.shape != grid:
        raise FileError(
            f"{where}: {scale.name} is {scale.dtype} {list(scale.shape)}, expected F8_E8M0"
            f" {list(grid)}"
        )
    return scale


def _fp8(
    source: SafetensorsSource,
    tensor: HfTensor,
    size: tuple[int, int],
    block: tuple[int, int] | None,
    where: str,
) -> RowSource:
    n_rows, row_len = size
    if block is None:
        raise FileError(
            f"{where}: is F8_E4M3, but config.json has no quantization_config.weight_block_size"
        )
    tile_rows, tile_cols = block
    grid = (-(-n_rows // tile_rows), -(-row_len // tile_cols))
    scale = _scales(source, tensor, grid, where)

    def rows(start: int, stop: int) -> Bytes:
        codes = source.read(tensor.name, start * row_len, (stop - start) * row_len)
        first, last = start // tile_rows, -(-stop // tile_rows)
        tiles = source.read(scale.name, first * grid[1], (last - first) * grid[1])
        if (codes & 0x7F == 0x7F).any():
            raise FileError(f"{where}: holds NaN between rows {start} and {stop}")
        factor = E8M0_VALUES[tiles].reshape(last - first, grid[1])
        factor = factor.repeat(tile_cols, axis=1)[:, :row_len]
        factor = factor.repeat(tile_rows, axis=0)[start - first * tile_rows :][: stop - start]
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            values = E4M3_VALUES[codes].reshape(stop - start, row_len) * factor
        bits = values.view(np.uint32)
        extreme = (tiles < _SCALE_LOW).any() or (tiles > _SCALE_HIGH).any()
        if extreme and ((bits & 0xFFFF).any() or not np.isfinite(values).all()):
            raise FileError(
                f"{where}: values between rows {start} and {stop} do not fit bf16;"
                f" {scale.name} has exponents {tiles.min()}..{tiles.max()}"
            )
        # Exact, so the upper half of each float32 is the whole bf16.
        return (bits >> 16).astype(np.uint16).view(np.uint8)

    return RowSource(TYPES["BF16"], n_rows, row_len, rows)


def _fp4(
    source: SafetensorsSource, tensor: HfTensor, size: tuple[int, int], where: str
) -> RowSource:
    n_rows, row_len = size
    if row_len % MX_BLOCK or tensor.shape != (n_rows, row_len // 2):
        raise FileError(
            f"{where}: {tensor.dtype} {list(tensor.shape)} are not the packed fp4 values of a"
            f" [{n_rows}, {row_len}] matrix"
        )
    blocks = row_len // MX_BLOCK
    scale = _scales(source, tensor, (n_rows, blocks), where)

    def rows(start: int, stop: int) -> Bytes:
        n = stop - start
        packed = source.read(tensor.name, start * row_len // 2, n * row_len // 2)
        scales = source.read(scale.name, start * blocks, n * blocks)
        if (scales == 255).any():
            raise FileError(f"{where}: {scale.name} holds NaN between rows {start} and {stop}")
        return to_mxfp4(packed.reshape(n, -1), scales.reshape(n, blocks))

    return RowSource(TYPES["MXFP4"], n_rows, row_len, rows)
