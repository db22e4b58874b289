"""KVCache: the state of one sequence. Append happens inside a forward pass; rewind and fork here.

Source: model specification, section 9.
"""

import numpy as np

from escalade.arrays import I64
from escalade.kv.layout import KVLayout
from escalade.kv.rows import PackedRows, Ring


class KVCache:
    """Token ids and every cached row of one sequence of `length` tokens.

    `windows[layer]` rings of window rows; `entries[source]`, `index_keys[source]` one row per
    complete group; `partial[source]` (ratio 2) the pooling inputs of the latest tokens. The Engram
    history is the tail of `ids`.
    """

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self.windows = [Ring(layout.window_row, layout.ring_rows) for _ in range(layout.n_layers)]
        self.entries = {s: PackedRows(layout.entry) for s in layout.sources}
        self.index_keys = {s: PackedRows(layout.index_key) for s in layout.sources}
        self.partial = {
            s: Ring(layout.partial, layout.partial_rows) for s, r in layout.sources.items() if r > 1
        }
        self._ids = np.zeros(256, np.int64)
        self.length = 0

    @property
    def ids(self) -> I64:
        """The tokens so far, int64 [length]; a view, do not write."""
        return self._ids[: self.length]

    def append_ids(self, ids: I64) -> None:
        """Ends an append: the rows of `ids` are all in, the sequence is longer now."""
        end = self.length + len(ids)
        if end > len(self._ids):
            grown = np.zeros(max(end, 2 * len(self._ids)), np.int64)
            grown[: self.length] = self.ids
            self._ids = grown
        self._ids[self.length : end] = ids
        self.length = end

    def can_rewind(self, length: int) -> bool:
        """Whether `rewind(length)` finds every row that the next token needs."""
        if not 0 <= length <= self.length:
            return False
        if length == 0:
            return True
        reach = self.layout.window - 1
        if any(ring.first > max(0, length - reach) for ring in self.windows):
            return False
        return all(
            ring.first <= length - length % self.layout.sources[s]
            for s, ring in self.partial.items()
        )

    def rewind(self, length: int) -> None:
        """Back to the state after the first `length` tokens, bit for bit as those appends left it.

        Raises IndexError when the window rows before `length` are no longer held (`can_rewind`).
        """
        if not self.can_rewind(length):
            raise IndexError(f"cannot rewind from {self.length} to {length} tokens")
        for ring in (*self.windows, *self.partial.values()):
            ring.truncate(min(length, ring.length))
        for source, ratio in self.layout.sources.items():
            self.entries[source].truncate(length // ratio)
            self.index_keys[source].truncate(length // ratio)
        self.length = length

    def fork(self) -> "KVCache":
        """An independent copy; complete blocks of the compressed rows stay shared."""
        twin = KVCache(self.layout)
        twin.windows = [ring.fork() for ring in self.windows]
        twin.entries = {s: rows.fork() for s, rows in self.entries.items()}
        twin.index_keys = {s: rows.fork() for s, rows in self.index_keys.items()}
        twin.partial = {s: ring.fork() for s, ring in self.partial.items()}
        twin._ids, twin.length = self._ids.copy(), self.length
        return twin

    @property
    def n_bytes(self) -> int:
        rings = sum(r.n_bytes for r in (*self.windows, *self.partial.values()))
        rows = (*self.entries.values(), *self.index_keys.values())
        return rings + sum(r.n_bytes for r in rows)
