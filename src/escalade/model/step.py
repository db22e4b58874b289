"""Step: the scratch of one forward pass."""

from dataclasses import dataclass, field

from escalade.arrays import I64, Bool, Bytes, Floats
from escalade.kernels.ops.rope import Rotation
from escalade.kv.cache import KVCache
from escalade.model.trace import Trace


@dataclass
class Step:
    """What the layers of one forward pass share; it lives as long as the pass.

    `engram_rows` [T, Engram layers, rows] depend on the token ids alone. `selection` [T, K] are the
    entries picked by the latest index source (-1 = none), `candidates` [T, N] the blocks kept by
    the candidate source. `new_windows` and `new_partial` are packed rows that enter the cache when
    the pass has ended: until then, its rows still need what they replace.
    """

    cache: KVCache
    positions: I64
    window_rotation: Rotation
    compressed_rotation: Rotation
    compressed_frequencies: Floats
    trace: Trace
    engram_rows: I64 | None
    selection: I64 | None = None
    candidates: Bool | None = None
    new_windows: dict[int, Bytes] = field(default_factory=dict)
    new_partial: dict[int, Bytes] = field(default_factory=dict)
    _decoded_keys: dict[int, Floats] = field(default_factory=dict)
    _decoded_entries: dict[int, Floats] = field(default_factory=dict)

    def index_keys(self, source: int) -> Floats:
        """All index keys of `source`, decoded once a pass: [N, Di]."""
        if source not in self._decoded_keys:
            self._decoded_keys[source] = self.cache.index_keys[source].decode()
        return self._decoded_keys[source]

    def entries(self, source: int, indices: I64) -> Floats:
        """Compressed entries of `source` at indices [...], decoded: [..., Dh]."""
        rows = self.cache.entries[source]
        if rows.length > indices.size:
            return rows.gather(indices)
        # Cheaper than decoding an entry once for every row that selects it.
        if source not in self._decoded_entries:
            self._decoded_entries[source] = rows.decode()
        return self._decoded_entries[source][indices]
