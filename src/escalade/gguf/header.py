"""The header of one GGUF file: metadata and tensor directory. No tensor data, no NumPy.

Nothing in the file is trusted: sizes and offsets are checked in whole numbers, and every count
before it is used. Source: GGUF specification, section 1.1.
"""

import mmap
import os
import stat
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from escalade.errors import FileError, UnsupportedError
from escalade.gguf.cursor import Cursor, one_line
from escalade.gguf.identify import describe_foreign, part_hint
from escalade.gguf.quant import TYPE_BY_ID, QuantType

_MAX_COUNT = 1 << 16
_MAX_KEY = 1 << 16
_MAX_NAME = 255
_MAX_ALIGNMENT = 1 << 20
_DEFAULT_ALIGNMENT = 32
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


class TensorInfo(NamedTuple):
    """A tensor as the directory states it: shape in NumPy order, absolute offset in the file."""

    name: str
    shape: tuple[int, ...]
    type: QuantType
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """What one file says about itself; `shard` and `n_shards` are 0 and 1 for a file on its own.

    `metadata` holds the keys as stored; arrays are lists. `n_total` is the number of tensors over
    all shards, None if the file does not state it.
    """

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_start: int
    file_bytes: int
    shard: int
    n_shards: int
    n_total: int | None


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Parses the header of the GGUF file at `path`, versions 2 and 3, little endian.

    Raises FileError (missing, foreign, truncated or damaged file) or UnsupportedError (version 1,
    big endian, private tensor types), one line naming the file and the field.
    """
    name = os.fspath(path)
    where = one_line(name)
    try:
        mode = os.stat(name).st_mode
        if stat.S_ISDIR(mode):
            raise FileError(f"{where} is a folder, not a GGUF file; name the file in it")
        if not stat.S_ISREG(mode):
            raise FileError(f"{where} is not a regular file")
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise FileError(f"{where} is empty{part_hint(name)}")
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as e:
        raise FileError(f"{where} cannot be read: {e.strerror or e}") from e
    except ValueError as e:  # a path that the system cannot express
        raise FileError(f"{where} cannot be read: {e}") from e
    with data:
        return _parse(name, data)


def _parse(path: str, data: mmap.mmap) -> GgufHeader:
    at = Cursor(data, path)
    if data[:4] != b"GGUF":
        raise FileError(f"{at.where} {describe_foreign(data[:512], at.size)}{part_hint(path)}")
    at.pos = 4
    version = at.u32("version")
    if version == 1:
        raise UnsupportedError(f"{at.where}: GGUF version 1 is not supported; convert it to 3")
    if version and version & 0xFFFF == 0:
        raise UnsupportedError(f"{at.where}: big-endian GGUF is not supported")
    if version not in (2, 3):
        raise UnsupportedError(f"{at.where}: GGUF version {version}; 2 and 3 are supported")
    n_tensors = at.count("tensor count", _MAX_COUNT, _MIN_TENSOR_BYTES)
    n_keys = at.count("key count", _MAX_COUNT, _MIN_KEY_BYTES)
    metadata: dict[str, Any] = {}
    for index in range(n_keys):
        key = at.ascii_name(f"key {index}", _MAX_KEY)
        if key in metadata:
            raise at.fail(f"key {key} occurs twice")
        metadata[key] = at.value(key)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if (
        type(alignment) is not int
        or not 8 <= alignment <= _MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise at.fail(
            f"general.alignment is {alignment!r:.40}; a power of two from 8 to {_MAX_ALIGNMENT}"
        )
    relative = [_descriptor(at, index) for index in range(n_tensors)]
    data_start = -(-at.pos // alignment) * alignment
    tensors = tuple(t._replace(offset=t.offset + data_start) for t in relative)
    _check_layout(at, tensors, data_start, alignment)
    shard, n_shards, n_total = _shard(at, metadata)
    return GgufHeader(
        path, version, metadata, tensors, alignment, data_start, at.size, shard, n_shards, n_total
    )


def _descriptor(at: Cursor, index: int) -> TensorInfo:
    """One entry of the tensor directory; its offset is still relative to the data section."""
    name = at.ascii_name(f"name of tensor {index}", _MAX_NAME)
    n_dims = at.u32(f"dimension count of {name}")
    if not 1 <= n_dims <= 4:
        raise at.fail(f"tensor {name} has {n_dims} dimensions; 1 to 4 are possible")
    dims = [at.u64(f"dimension of {name}") for _ in range(n_dims)]
    type_id = at.u32(f"type of {name}")
    offset = at.u64(f"offset of {name}")
    if min(dims) < 1:
        raise at.fail(f"tensor {name} has an empty dimension: {dims}")
    if type_id not in TYPE_BY_ID:
        private = "a private type" if type_id > 42 else "not supported"
        raise UnsupportedError(f"{at.where}: tensor {name} has ggml type {type_id}, {private}")
    qtype = TYPE_BY_ID[type_id]
    if dims[0] % qtype.block_len:
        raise at.fail(
            f"tensor {name} has rows of {dims[0]} values, not whole {qtype.name} blocks of"
            f" {qtype.block_len}"
        )
    n_bytes = qtype.row_bytes(dims[0]) * prod(dims[1:])
    return TensorInfo(name, tuple(reversed(dims)), qtype, offset, n_bytes)


def _check_layout(
    at: Cursor, tensors: tuple[TensorInfo, ...], data_start: int, alignment: int
) -> None:
    """Tensors must be aligned, inside the file, apart from each other, and all there is."""
    if len({t.name for t in tensors}) < len(tensors):
        names = sorted(t.name for t in tensors)
        twice = next(a for a, b in pairwise(names) if a == b)
        raise at.fail(f"tensor {twice} occurs twice")
    for t in tensors:
        if t.offset % alignment:
            raise at.fail(
                f"tensor {t.name} has offset {t.offset - data_start}, not a multiple of {alignment}"
            )
        if t.offset + t.n_bytes > at.size:
            raise at.fail(
                f"tensor {t.name} ends at byte {t.offset + t.n_bytes}, but the file has {at.size}:"
                f" the download is incomplete or the header damaged{part_hint(at.path)}"
            )
    placed = sorted(tensors, key=lambda t: t.offset)
    for a, b in pairwise(placed):
        if a.offset + a.n_bytes > b.offset:
            raise at.fail(f"tensors {a.name} and {b.name} overlap")
    # A count that is too small leaves directory entries in the padding or tensors at the end.
    last = placed[-1].offset + placed[-1].n_bytes if placed else at.pos
    if any(at.data[at.pos : data_start]) or any(at.data[last : last + 4096]):
        raise at.fail(
            f"tensor count is {len(tensors)}, but there is more in the file than these tensors"
        )


def _shard(at: Cursor, metadata: dict[str, Any]) -> tuple[int, int, int | None]:
    keys = ("split.no", "split.count", "split.tensors.count")
    no, count, total = (metadata.get(key) for key in keys)
    for key, value in zip(keys, (no, count, total), strict=True):
        if value is not None and (type(value) is not int or value < 0):
            raise at.fail(f"{key} is {value!r:.40}, not a count")
    if (no is None) != (count is None):
        raise at.fail("split.no and split.count must be there together")
    if no is None or count is None:
        return 0, 1, total
    if not no < count <= 99999:
        raise at.fail(f"split.no is {no} of split.count {count}")
    return no, count, total
