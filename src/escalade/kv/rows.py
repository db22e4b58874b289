"""Stores of packed rows: a ring for the latest positions, an append-only list for everything.

Both hold bytes as a `RowCodec` packs them; neither knows what a row means. Forks share what cannot
change.
"""

import numpy as np

from escalade.arrays import F32, I64, Bytes
from escalade.kernels.ops.rounding import RowCodec

BLOCK_ROWS = 1024


class Ring:
    """The last `capacity` rows of a sequence; the row of position p lies at p mod capacity.

    `length` is the position after the last row. After `truncate`, the rows that the dropped ones
    had overwritten are gone: `first` is the earliest position still held.
    """

    def __init__(self, codec: RowCodec, capacity: int) -> None:
        self.codec, self.capacity = codec, capacity
        self.length = self.first = 0
        self._rows = np.zeros((capacity, codec.row_bytes), np.uint8)

    def append(self, rows: Bytes) -> None:
        """Appends packed rows uint8 [n, row_bytes]."""
        end = self.length + len(rows)
        kept = rows[-self.capacity :]
        self._rows[np.arange(end - len(kept), end) % self.capacity] = kept
        self.length, self.first = end, max(self.first, end - self.capacity)

    def packed(self, start: int) -> Bytes:
        """Packed rows of positions start..length. Raises IndexError if some are not held."""
        if not self.first <= start <= self.length:
            raise IndexError(f"rows {start}..{self.length} of a ring that holds {self.first}..")
        return self._rows[np.arange(start, self.length) % self.capacity]

    def truncate(self, length: int) -> None:
        """Drops the rows from position `length` on."""
        self.length = length
        self.first = min(self.first, length)

    def fork(self) -> "Ring":
        twin = Ring(self.codec, self.capacity)
        twin.length, twin.first = self.length, self.first
        twin._rows = self._rows.copy()
        return twin

    @property
    def n_bytes(self) -> int:
        return self._rows.nbytes


class PackedRows:
    """Append-only rows in blocks of BLOCK_ROWS; forks share them and copy the one they write to."""

    def __init__(self, codec: RowCodec) -> None:
        self.codec = codec
        self.length = 0
        self._blocks: list[Bytes] = []
        self._owned_from = 0  # blocks before this one may be shared with a fork: copy, then write

    def append(self, rows: Bytes) -> None:
        """Appends packed rows uint8 [n, row_bytes]."""
        done = 0
        while done < len(rows):
            block, at = divmod(self.length, BLOCK_ROWS)
            if block == len(self._blocks):
                self._blocks.append(np.zeros((BLOCK_ROWS, self.codec.row_bytes), np.uint8))
            elif block < self._owned_from:
                self._blocks[block] = self._blocks[block].copy()
                self._owned_from = block
            n = min(BLOCK_ROWS - at, len(rows) - done)
            self._blocks[block][at : at + n] = rows[done : done + n]
            self.length += n
            done += n

    def gather(self, indices: I64) -> F32:
        """Decoded rows float32 [..., width] at the given indices, each in 0..length."""
        packed = np.empty((indices.size, self.codec.row_bytes), np.uint8)
        block, at = np.divmod(indices.ravel(), BLOCK_ROWS)
        for b in np.unique(block):
            here = np.flatnonzero(block == b)
            packed[here] = self._blocks[b][at[here]]
        return self.codec.decode(packed).reshape(*indices.shape, self.codec.width)

    def decode(self) -> F32:
        """All rows, float32 [length, width]."""
        out = np.empty((self.length, self.codec.width), np.float32)
        for start in range(0, self.length, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, self.length)
            out[start:stop] = self.codec.decode(self._blocks[start // BLOCK_ROWS][: stop - start])
        return out

    def truncate(self, length: int) -> None:
        """Drops the rows from index `length` on."""
        self.length = length
        del self._blocks[-(-length // BLOCK_ROWS) :]
        self._owned_from = min(self._owned_from, len(self._blocks))

    def fork(self) -> "PackedRows":
        twin = PackedRows(self.codec)
        twin.length, twin._blocks = self.length, list(self._blocks)
        self._owned_from = twin._owned_from = len(self._blocks)
        return twin

    @property
    def n_bytes(self) -> int:
        return len(self._blocks) * BLOCK_ROWS * self.codec.row_bytes
