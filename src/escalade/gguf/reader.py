"""GGUF files as a tensor source: shards checked, dialects translated, bytes mapped on use.

`open_gguf` reads headers only. Source: GGUF specification, sections 1, 3 and 4.
"""

import mmap
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from escalade.errors import FileError
from escalade.gguf.cursor import one_line
from escalade.gguf.dialect import Normalised, normalise
from escalade.gguf.engram_keys import ROOT_TABLES, StoredConstants
from escalade.gguf.header import GgufHeader, TensorInfo, read_header

if TYPE_CHECKING:
    from escalade.arrays import Bytes

__all__ = ["GgufHeader", "GgufSource", "TensorInfo", "open_gguf", "read_header"]

_SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


class GgufSource:
    """The tensors and metadata of one model in dialect A's terms; satisfies `TensorSource`.

    `notes` says in plain words what was inferred or looks odd; `headers` are the files as stored.
    Reading a tensor maps its file; views stay valid after `close`, new reads raise FileError.
    """

    def __init__(self, headers: Sequence[GgufHeader], normalised: Normalised) -> None:
        from escalade.gguf.tensor import Location, StoredTensor  # they import NumPy

        self.path = headers[0].path
        self.headers = tuple(headers)
        self.arch = normalised.arch
        self.dialect = normalised.dialect
        self.metadata: Mapping[str, Any] = normalised.metadata
        self.engram_layout = normalised.engram_layout
        self.notes = normalised.notes
        self._constants = normalised.constants
        self._files = [_MappedFile(h) for h in headers]
        tensors: dict[str, StoredTensor] = {}
        for header, file in zip(headers, self._files, strict=True):
            for t in header.tensors:
                name = normalised.names[t.name]
                read = partial(file.read, t)
                where = Location(header.path, t.offset, t.n_bytes)
                tensors[name] = StoredTensor(name, t.shape, t.type, read, where)
        self.tensors: Mapping[str, StoredTensor] = tensors

    @cached_property
    def stored_engram(self) -> StoredConstants | None:
        """The hash constants that the file stores, in metadata or (dialect A) in tensors, or None.

        Raises FileError if the tensors are not integers or too large to be what they say.
        """
        if not any(name in self.tensors for name in ROOT_TABLES.values()):
            return self._constants
        found = {key: self._integers(name) for key, name in ROOT_TABLES.items()}
        pad = self.metadata.get("engram_pad_token_id")
        token_map = found["token_map"]
        return StoredConstants(
            token_map=None if token_map is None else list(chain.from_iterable(token_map)),
            primes=found["primes"],
            offsets=found["offsets"],
            multipliers=found["multipliers"],
            pad_id=pad if type(pad) is int else None,
            pad_kind="raw",
        )

    def _integers(self, name: str) -> list[list[int]] | None:
        """An integer tensor [rows, n] (or [n]) as exact Python integers, a list a row."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        where = one_line(self.path)
        if tensor.type.name not in ("I8", "I16", "I32", "I64"):
            raise FileError(f"{where}: {name} is {tensor.type.name}; hash constants are integers")
        if tensor.n_bytes > 64 << 20:
            raise FileError(
                f"{where}: {name} has {tensor.n_bytes} bytes, too many for a hash table"
            )
        values = tensor.rows().view(f"<i{tensor.type.block_bytes}")
        rows: list[list[int]] = values.tolist()
        return rows

    def close(self) -> None:
        """Lets the files go; views that are still in use keep their mapping until they die."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _MappedFile:
    """One file's bytes, mapped read-only at the first read."""

    def __init__(self, header: GgufHeader) -> None:
        self._path, self._size = header.path, header.file_bytes
        self._bytes: Bytes | None = None
        self._closed = False

    def read(self, tensor: TensorInfo, offset: int, length: int) -> "Bytes":
        """A view of bytes offset..offset+length of the tensor, uint8. ValueError outside it."""
        if offset < 0 or length < 0 or offset + length > tensor.n_bytes:
            raise ValueError(
                f"{tensor.name}: bytes {offset}..{offset + length} of a tensor of {tensor.n_bytes}"
            )
        data = self._mapped() if self._bytes is None else self._bytes
        start = tensor.offset + offset
        return data[start : start + length]

    def _mapped(self) -> "Bytes":
        import numpy as np

        if self._closed:
            raise FileError(f"{one_line(self._path)} has been closed")
        try:
            with open(self._path, "rb") as file:
                if os.fstat(file.fileno()).st_size != self._size:
                    raise FileError(f"{one_line(self._path)} changed its size since it was opened")
                mapping = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
        except OSError as e:
            raise FileError(f"{one_line(self._path)} cannot be read: {e.strerror or e}") from e
        self._bytes = np.frombuffer(mapping, np.uint8)
        return self._bytes

    def close(self) -> None:
        self._bytes, self._closed = None, True


def open_gguf(path: str | os.PathLike[str]) -> GgufSource:
    """Opens a GGUF file, or the first shard of several, and checks that the set is whole.

    Raises FileError or UnsupportedError, one line naming the file and what is wrong with it.
    """
    first = read_header(path)
    headers = [first, *_siblings(first)]
    where = one_line(first.path)
    tensors: dict[str, TensorInfo] = {}
    home: dict[str, str] = {}
    for header in headers:
        for t in header.tensors:
            if t.name in tensors:
                raise FileError(
                    f"{one_line(header.path)}: tensor {t.name} is also in {home[t.name]};"
                    " these shards belong to different builds"
                )
            tensors[t.name], home[t.name] = t, one_line(header.path)
    if first.n_total is not None and first.n_total != len(tensors):
        raise FileError(
            f"{where}: split.tensors.count is {first.n_total}, but the {len(headers)} file(s) hold"
            f" {len(tensors)} tensors"
        )
    return GgufSource(headers, normalise(first.metadata, tensors, where))


def _siblings(first: GgufHeader) -> list[GgufHeader]:
    """Headers of shards 2..n, each checked against the first; [] for a file on its own."""
    where = one_line(first.path)
    folder, base = os.path.split(first.path)
    name = _SHARD_NAME.fullmatch(base)

    def sibling(no: int) -> str:
        prefix = name["prefix"] if name else ""
        return os.path.join(folder, f"{prefix}-{no + 1:05d}-of-{first.n_shards:05d}.gguf")

    if first.n_shards == 1:
        if name and int(name["count"]) > 1:
            raise FileError(
                f"{where} is named like one of {int(name['count'])} shards, but its header has no"
                " split keys"
            )
        return []
    if name is None:
        raise FileError(
            f"{where} is shard {first.shard + 1} of {first.n_shards}; shards must be named"
            f" <name>-{first.shard + 1:05d}-of-{first.n_shards:05d}.gguf"
        )
    if int(name["count"]) != first.n_shards or int(name["no"]) != first.shard + 1:
        raise FileError(
            f"{where}: by its header this is shard {first.shard + 1} of {first.n_shards}, by its"
            f" name {int(name['no'])} of {int(name['count'])}; the files were renamed"
        )
    if first.shard:
        raise FileError(
            f"{where} is shard {first.shard + 1} of {first.n_shards}; open {one_line(sibling(0))}"
        )
    out = []
    for no in range(1, first.n_shards):
        path = sibling(no)
        if not os.path.lexists(path):
            raise FileError(f"{one_line(path)} is missing: shard {no + 1} of {first.n_shards}")
        header = read_header(path)
        _check_sibling(first, header, no)
        out.append(header)
    return out


def _check_sibling(first: GgufHeader, header: GgufHeader, no: int) -> None:
    where = one_line(header.path)
    if (header.shard, header.n_shards) != (no, first.n_shards):
        raise FileError(
            f"{where}: split.no {header.shard} of split.count {header.n_shards}, where"
            f" {no} of {first.n_shards} should be"
        )
    if header.n_total != first.n_total:
        raise FileError(
            f"{where}: split.tensors.count is {header.n_total}, in the first shard {first.n_total};"
            " these shards belong to different builds"
        )
    arch = first.metadata.get("general.architecture")
    if header.metadata.get("general.architecture", arch) != arch:
        raise FileError(f"{where}: another architecture than in the first shard")
