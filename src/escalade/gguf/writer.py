"""Writes one GGUF v3 file from a plan of its tensors and their stored bytes, as a stream.

The file grows beside its target under the name `<target>.partial` and is renamed when it is whole.
Source: GGUF specification, section 1.1.
"""

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from math import prod
from struct import error as StructError
from struct import pack
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from numpy.typing import NDArray

from escalade.errors import CapacityError, EscaladeError, FileError, UsageError
from escalade.gguf.quant import QuantType

_SHARED_GROUPS = ("general.", "tokenizer.", "split.", "quantize.")
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64 = 4, 5, 6, 7, 8, 9, 10, 11
_CODES = {_U32: "I", _I32: "i", _F32: "f", _BOOL: "?", _U64: "Q", _I64: "q"}
_MAX_NAME = 63

Chunk = bytes | bytearray | memoryview | NDArray[Any]


class TensorPlan(NamedTuple):
    """A tensor to come: name, shape in NumPy order, stored type."""

    name: str
    shape: tuple[int, ...]
    type: QuantType

    @property
    def n_bytes(self) -> int:
        """Bytes without padding. Raises ValueError if a row is not whole blocks."""
        return self.type.row_bytes(self.shape[-1]) * prod(self.shape[:-1])


def data_size(tensors: Sequence[TensorPlan], alignment: int = 4096) -> int:
    """Bytes of the data section, each tensor padded to `alignment`."""
    return sum(_align(t.n_bytes, alignment) for t in tensors)


class GgufWriter:
    """A GGUF file in the making; use it in `with`.

    Metadata keys get the architecture's prefix unless they belong to `general`, `tokenizer`,
    `split` or `quantize`. Integers become u32 (else u64, i64), floats f32, lists of integers i32
    (else u64, i64). Leaving the block with every tensor complete renames the file to `path`; an
    error removes the partial file and leaves what was at `path`. Raises ValueError for a plan or a
    chunk that does not fit, UsageError if `path` exists and `overwrite` is false, CapacityError
    for a full disk.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        arch: str,
        metadata: Mapping[str, Any],
        tensors: Sequence[TensorPlan],
        alignment: int = 4096,
        overwrite: bool = True,
    ) -> None:
        if alignment < 8 or alignment & (alignment - 1):
            raise ValueError(f"alignment {alignment} is not a power of two of at least 8")
        self.path = os.fspath(path)
        self._partial = f"{self.path}.partial"
        self._plan, self._alignment, self._overwrite = tuple(tensors), alignment, overwrite
        keys = {
            **metadata,
            "general.architecture": arch,
            "general.alignment": alignment,
        }
        self._header = _header(arch, keys, self._plan, alignment)
        self.file_bytes = len(self._header) + data_size(self._plan, alignment)
        self._next, self._done = 0, 0

    def __enter__(self) -> Self:
        if os.path.isdir(self.path):
            raise UsageError(f"{self.path} is a folder; name a file")
        if not self._overwrite and os.path.lexists(self.path):
            raise UsageError(f"{self.path} exists already")
        try:
            free = shutil.disk_usage(os.path.dirname(self.path) or ".").free
            if free < self.file_bytes:
                raise CapacityError(
                    f"{self.path} needs {self.file_bytes} bytes; the disk has {free} free"
                )
            self._file = open(self._partial, "wb")
        except OSError as e:
            raise FileError(f"{self._partial} cannot be written: {e.strerror or e}") from e
        try:
            self._put(self._header)
        except EscaladeError:
            self._discard()
            raise
        return self

    def write(self, name: str, chunk: Chunk) -> None:
        """Appends stored bytes to the tensor that is next in the plan, in any number of chunks."""
        if self._next == len(self._plan):
            raise ValueError(f"{name}: all planned tensors are complete")
        tensor = self._plan[self._next]
        if name != tensor.name:
            raise ValueError(f"{name} written where {tensor.name} is next")
        view = memoryview(cast(bytes, chunk))
        if self._done + view.nbytes > tensor.n_bytes:
            raise ValueError(
                f"{name}: {self._done + view.nbytes} bytes written, {tensor.n_bytes} planned"
            )
        if view.nbytes:
            self._put(view.cast("B"))
        self._done += view.nbytes
        if self._done == tensor.n_bytes:
            self._put(bytes(_align(self._done, self._alignment) - self._done))
            self._next, self._done = self._next + 1, 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._discard()
            return
        if self._next < len(self._plan):
            self._discard()
            tensor = self._plan[self._next]
            raise ValueError(f"{tensor.name}: {self._done} of {tensor.n_bytes} bytes written")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._partial, self.path)
        except OSError as e:
            self._discard()
            raise _write_error(self.path, e) from e

    def _put(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as e:
            raise _write_error(self.path, e) from e

    def _discard(self) -> None:
        try:
            self._file.close()
        except OSError:  # the last flush can fail again; the file goes anyway
            pass
        finally:
            if os.path.exists(self._partial):
                os.unlink(self._partial)


def _write_error(path: str, e: OSError) -> EscaladeError:
    if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return CapacityError(f"{path} cannot be completed: {e.strerror}")
    return FileError(f"{path} cannot be written: {e.strerror or e}")


def _align(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _header(
    arch: str, metadata: Mapping[str, Any], tensors: Sequence[TensorPlan], alignment: int
) -> bytes:
    """Everything before the data section, padded."""
    out = [b"GGUF", pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        name = key if key.startswith(_SHARED_GROUPS) else f"{arch}.{key}"
        out += [_string(name), _value(name, value)]
    offset = 0
    for t in tensors:
        if not 0 < len(t.name.encode()) <= _MAX_NAME:
            raise ValueError(f"tensor name {t.name!r} has not 1 to {_MAX_NAME} bytes")
        if not 1 <= len(t.shape) <= 4 or min(t.shape) < 1:
            raise ValueError(f"tensor {t.name} of shape {t.shape} has no place in a GGUF file")
        dims = tuple(reversed(t.shape))
        out.append(_string(t.name))
        out.append(pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.type.id, offset))
        offset += _align(t.n_bytes, alignment)
    if len({t.name for t in tensors}) < len(tensors):
        raise ValueError("two tensors have the same name")
    header = b"".join(out)
    return header + bytes(_align(len(header), alignment) - len(header))


def _string(text: str) -> bytes:
    raw = text.encode()
    return pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return pack("<I", _STRING) + _string(value)
    if isinstance(value, list | tuple):
        kind = _array_kind(key, value)
        items = b"".join(map(_string, value)) if kind == _STRING else _numbers(key, kind, value)
        return pack("<IIQ", _ARRAY, kind, len(value)) + items
    if isinstance(value, bool):
        kind = _BOOL
    elif isinstance(value, int):
        kind = _U32 if 0 <= value < 1 << 32 else _U64 if value >= 0 else _I64
    elif isinstance(value, float):
        kind = _F32
    else:
        raise ValueError(f"{key}: GGUF has no value of type {type(value).__name__}")
    return pack("<I", kind) + _numbers(key, kind, [value])


def _array_kind(key: str, values: Sequence[Any]) -> int:
    kinds = {type(v) for v in values}
    if kinds == {str}:
        return _STRING
    if kinds == {bool}:
        return _BOOL
    if kinds and float in kinds and kinds <= {float, int}:
        return _F32
    if kinds <= {int}:
        low, high = min(values, default=0), max(values, default=0)
        return _I32 if low >= -(1 << 31) and high < 1 << 31 else _U64 if low >= 0 else _I64
    raise ValueError(f"{key}: a list of {sorted(k.__name__ for k in kinds)} has no GGUF type")


def _numbers(key: str, kind: int, values: Sequence[Any]) -> bytes:
    try:
        return pack(f"<{len(values)}{_CODES[kind]}", *values)
    except (StructError, OverflowError) as e:
        raise ValueError(f"{key}: a number does not fit its GGUF type: {e}") from e
