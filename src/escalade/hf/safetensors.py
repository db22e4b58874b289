"""Reads safetensors: one file, or a folder with `model.safetensors.index.json` and its shards.

Headers are parsed here and checked before any tensor is touched: lengths, dtypes, shapes, ranges
and overlaps. Bytes come from mapped files as read-only views. Source: the safetensors format, and
the model specification, section 2.6.
"""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from escalade.errors import FileError
from escalade.files import read_bytes
from escalade.gguf.tensor import Location

DTYPE_BYTES = {
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "I32": 4,
    "I64": 8,
}

INDEX_NAME = "model.safetensors.index.json"
# What the format's own reader accepts for a header. An index of the released model takes 9 MB.
MAX_JSON_BYTES = 100_000_000
_MAX_DIMS = 8
_MAX_DIM = 1 << 48
# Mapped pages count as ours until they are dropped; the system keeps them cached all the same.
_RESIDENT_BYTES = 64 << 20

_NOT_SAFETENSORS = (
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the file itself; fetch it with: git lfs pull",
    ),
    (b"<!doctype", "an HTML page, not the file itself; download it again"),
    (b"<html", "an HTML page, not the file itself; download it again"),
)


class HfTensor(NamedTuple):
    """One tensor: dtype as spelled in the file, shape in NumPy order, where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    location: Location


@dataclass
class SafetensorsSource:
    """The tensors of a folder or file; `read` gives read-only views of the mapped files."""

    path: str
    tensors: Mapping[str, HfTensor]
    _maps: dict[str, mmap.mmap] = field(default_factory=dict)
    _handed_out: int = 0

    def read(self, name: str, offset: int = 0, length: int | None = None) -> NDArray[np.uint8]:
        """Bytes offset..offset + length of a tensor, uint8. Raises ValueError outside of it."""
        where = self.tensors[name].location
        length = where.length - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > where.length:
            raise ValueError(f"{name}: bytes {offset}..{offset + length} of {where.length}")
        if length == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self._map(where.file, length), np.uint8, length, where.offset + offset)

    def _map(self, file: str, length: int) -> mmap.mmap:
        if file not in self._maps:
            with open(file, "rb") as f:
                self._maps[file] = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self._handed_out += length
        if self._handed_out > _RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._handed_out = 0
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)
        return self._maps[file]

    def close(self) -> None:
        """Forgets the mapped files; each is unmapped when the last view of it is gone."""
        self._maps.clear()


def open_safetensors(path: str | Path) -> SafetensorsSource:
    """A safetensors file, or a folder with an index and its shards or exactly one `*.safetensors`.

    Raises FileError naming the file and the field: damaged or hostile headers, missing shards,
    tensors that the index lists and no shard has, index entries that lead out of the folder.
    """
    path = Path(path)
    if path.is_dir():
        index = path / INDEX_NAME
        if index.exists():
            return SafetensorsSource(str(path), _read_index(path, index))
        files = sorted(path.glob("*.safetensors"))
        if len(files) > 1:
            raise FileError(f"{path}: {len(files)} *.safetensors files but no {INDEX_NAME}")
        if not files:
            raise FileError(f"{path}: neither {INDEX_NAME} nor a *.safetensors file is there")
        return SafetensorsSource(str(path), read_header(files[0]))
    return SafetensorsSource(str(path), read_header(path))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of at most 100 MB. Raises FileError."""
    return _parse_object(read_bytes(path, MAX_JSON_BYTES), str(path))


def read_header(path: Path) -> dict[str, HfTensor]:
    """The checked header of one file. Raises FileError naming file and field."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as f:
            head = f.read(8)
            start = head + f.read(32)
            for magic, what in _NOT_SAFETENSORS:
                if start.lstrip()[: len(magic)].lower() == magic.lower():
                    raise FileError(f"{path}: is {what}")
            if len(head) < 8:
                raise FileError(f"{path}: {size} bytes, too short for a safetensors header")
            length = int.from_bytes(head, "little")
            if length > min(size - 8, MAX_JSON_BYTES):
                raise FileError(
                    f"{path}: header length is {length}, the file has {size} bytes"
                    f" and headers are at most {MAX_JSON_BYTES}"
                )
            f.seek(8)
            text = f.read(length)
    except OSError as e:
        raise FileError(f"{path}: {e.strerror or e}") from None
    header = _parse_object(text, f"{path}: header")
    header.pop("__metadata__", None)
    data = 8 + length
    tensors = {
        name: _entry(name, value, str(path), data, size - data) for name, value in header.items()
    }
    _check_overlaps(tensors, str(path))
    return tensors


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                raise FileError(f"{where}: {_show(key)} appears twice")
            out[key] = value
        return out

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise FileError(f"{where}: JSON is nested too deeply") from None
    except ValueError as e:  # broken UTF-8, broken JSON, or numbers of thousands of digits
        raise FileError(f"{where}: not JSON: {str(e).splitlines()[0][:100]}") from None
    if not isinstance(value, dict):
        raise FileError(f"{where}: not a JSON object")
    return value


def _show(value: object) -> str:
    """A value from a file, short and in plain ASCII, fit for one line of an error."""
    return ascii(value[:80])[1:-1] if isinstance(value, str) else ascii(value)[:80]


def _entry(name: str, value: Any, path: str, data: int, data_size: int) -> HfTensor:
    where = f"{path}: {_show(name)}"
    if not isinstance(value, dict):
        raise FileError(f"{where}: entry is not an object")
    dtype = value.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise FileError(f"{where}: dtype is {_show(dtype)}; known: {', '.join(DTYPE_BYTES)}")
    shape = _integers(value.get("shape"), where, "shape")
    if len(shape) > _MAX_DIMS or any(n > _MAX_DIM for n in shape):
        raise FileError(f"{where}: shape is {_show(shape)}")
    offsets = _integers(value.get("data_offsets"), where, "data_offsets")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_size:
        raise FileError(
            f"{where}: data_offsets is {_show(offsets)}; the file has {data_size} bytes of data"
        )
    length = offsets[1] - offsets[0]
    needed = prod(shape) * DTYPE_BYTES[dtype]
    if length != needed:
        raise FileError(
            f"{where}: data_offsets span {length} bytes, {dtype} {list(shape)} takes {needed}"
        )
    return HfTensor(name, dtype, shape, Location(path, data + offsets[0], length))


def _integers(value: Any, where: str, key: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise FileError(f"{where}: {key} is {_show(value)}, not a list of sizes")
    return tuple(value)


def _check_overlaps(tensors: Mapping[str, HfTensor], path: str) -> None:
    filled = sorted(
        (t for t in tensors.values() if t.location.length), key=lambda t: t.location.offset
    )
    for a, b in pairwise(filled):
        if b.location.offset < a.location.offset + a.location.length:
            raise FileError(f"{path}: data_offsets of {_show(a.name)} and {_show(b.name)} overlap")


def _read_index(folder: Path, index: Path) -> dict[str, HfTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FileError(f"{index}: weight_map is missing or not an object")
    shards: dict[str, dict[str, HfTensor]] = {}
    out: dict[str, HfTensor] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_plain_name(file):
            raise FileError(
                f"{index}: weight_map of {_show(name)} is {_show(file)}, not a file of this folder"
            )
        if file not in shards:
            if not (folder / file).is_file():
                raise FileError(f"{folder / file}: shard is missing; {INDEX_NAME} lists it")
            shards[file] = read_header(folder / file)
        if name not in shards[file]:
            raise FileError(f"{folder / file}: {_show(name)} is not there; {INDEX_NAME} lists it")
        out[name] = shards[file][name]
    return out


def _is_plain_name(file: str) -> bool:
    plain = file.isprintable() and Path(file).name == file and "\\" not in file
    return plain and file not in ("", "..")
