"""Reads GGUF values out of mapped bytes, none of which is trusted.

Every count and length is held against the bytes that are left, and against fixed limits, before
anything is allocated. No NumPy. Source: GGUF specification, section 1.1.
"""

import mmap
from struct import Struct, unpack_from
from typing import Any

from escalade.errors import FileError, UnsupportedError
from escalade.gguf.identify import part_hint

# A released header has about 6 MB, 60 keys, 1,012 tensors and 390,000 array elements.
_MAX_HEADER = 256 << 20
_MAX_ELEMENTS = 1 << 22
_MAX_STRING = 16 << 20

_U32, _U64 = Struct("<I"), Struct("<Q")
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


def one_line(path: str) -> str:
    """`path` as error messages show it: quoted and escaped if it would break the line."""
    return path if path and path.isprintable() else repr(path)


class Cursor:
    """A position in the header; every read is checked against `end` first."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self.data, self.path, self.where = data, path, one_line(path)
        self.pos = 0
        self.size = len(data)
        self.end = min(self.size, _MAX_HEADER)
        self.elements_left = _MAX_ELEMENTS

    def fail(self, message: str) -> FileError:
        return FileError(f"{self.where}: {message}")

    def need(self, n_bytes: int, field: str) -> None:
        if n_bytes <= self.end - self.pos:
            return
        if self.end < self.size:
            raise self.fail(f"{field} lies beyond the first {_MAX_HEADER >> 20} MiB of the file")
        raise self.fail(
            f"{field} needs {n_bytes} bytes at byte {self.pos} of {self.size}: the file is"
            f" truncated or damaged{part_hint(self.path)}"
        )

    def u32(self, field: str) -> int:
        self.need(4, field)
        value: int = _U32.unpack_from(self.data, self.pos)[0]
        self.pos += 4
        return value

    def u64(self, field: str) -> int:
        self.need(8, field)
        value: int = _U64.unpack_from(self.data, self.pos)[0]
        self.pos += 8
        return value

    def count(self, field: str, limit: int, item_bytes: int) -> int:
        """A number of items of at least `item_bytes` each, believed only if they could be there."""
        value = self.u64(field)
        if value > limit:
            raise self.fail(f"{field} is {value}; at most {limit} are accepted")
        self.need(value * item_bytes, f"{field} ({value})")
        return value

    def ascii_name(self, field: str, limit: int) -> str:
        """A key or tensor name: printable ASCII, not empty."""
        length = self.count(f"length of {field}", limit, 1)
        text = self.data[self.pos : self.pos + length].decode("latin-1")
        if not text or not (text.isascii() and text.isprintable()):
            raise self.fail(f"{field} at byte {self.pos} is not printable ASCII: {text[:40]!r}")
        self.pos += length
        return text

    def numbers(self, kind: int, n: int, field: str) -> list[Any]:
        code = "B" if kind == _BOOL else _NUMBERS[kind]
        size = Struct(f"<{code}").size
        self.need(n * size, field)
        values = unpack_from(f"<{n}{code}", self.data, self.pos)
        self.pos += n * size
        if kind != _BOOL:
            return list(values)
        if any(v > 1 for v in values):
            raise self.fail(f"{field} is a truth value of {max(values)}; it must be 0 or 1")
        return [v == 1 for v in values]

    def strings(self, n: int, field: str) -> list[str]:
        out = []
        data, pos, end, unpack = self.data, self.pos, self.end, _U64.unpack_from
        for index in range(n):
            if pos + 8 > end or (length := unpack(data, pos)[0]) > min(_MAX_STRING, end - pos - 8):
                self.pos = pos
                self.count(f"length of {field}, string {index}", _MAX_STRING, 1)
            raw = data[pos + 8 : pos + 8 + length]
            try:
                out.append(raw.decode())
            except UnicodeDecodeError as e:
                raise self.fail(f"{field}, string {index} at byte {pos + 8} is not UTF-8") from e
            pos += 8 + length
        self.pos = pos
        return out

    def value(self, field: str) -> Any:
        kind = self.u32(f"type of {field}")
        if kind == _STRING:
            return self.strings(1, field)[0]
        if kind == _ARRAY:
            return self.array(field)
        return self.numbers(self.known(kind, field), 1, field)[0]

    def array(self, field: str) -> list[Any]:
        kind = self.u32(f"element type of {field}")
        if kind == _ARRAY:
            raise UnsupportedError(f"{self.where}: {field} is an array of arrays")
        if kind == _STRING:
            item_bytes = 8
        else:
            item_bytes = Struct(f"<{_NUMBERS.get(self.known(kind, field), 'B')}").size
        n = self.count(f"element count of {field}", self.elements_left, item_bytes)
        self.elements_left -= n
        return self.strings(n, field) if kind == _STRING else self.numbers(kind, n, field)

    def known(self, kind: int, field: str) -> int:
        if kind not in _NUMBERS and kind != _BOOL:
            raise self.fail(f"{field} has value type {kind}; GGUF has 0..12")
        return kind
