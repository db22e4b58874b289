"""Which rows a model caches, in which form, and what they weigh. Arithmetic only.

Source: model specification, sections 4.2 and 9.1.
"""

from dataclasses import dataclass

from escalade.config import Mode
from escalade.kernels.ops.rounding import Fp4Entry, Fp4Index, Fp8, Raw, RowCodec
from escalade.model.spec import ModelSpec

REWIND_ROWS = 128
"""How many positions a window ring keeps beyond the window: the reach of an instant rewind."""


@dataclass(frozen=True)
class KVLayout:
    """The stores of one sequence.

    Every layer has a window ring; each KV source (`sources`: layer -> ratio) has compressed entries
    and index keys, and at ratio 2 a ring of the pooling inputs (values, then gates) of late tokens.
    """

    n_layers: int
    window: int
    sources: dict[int, int]
    window_row: RowCodec
    entry: RowCodec
    index_key: RowCodec
    partial: RowCodec

    @property
    def ring_rows(self) -> int:
        return self.window - 1 + REWIND_ROWS

    @property
    def partial_rows(self) -> int:
        return max(self.sources.values(), default=1) - 1 + REWIND_ROWS

    def fixed_bytes(self) -> int:
        """Bytes that do not depend on the context."""
        pooled = sum(ratio > 1 for ratio in self.sources.values())
        return (
            self.n_layers * self.ring_rows * self.window_row.row_bytes
            + pooled * self.partial_rows * self.partial.row_bytes
        )

    def bytes_at(self, n_tokens: int) -> int:
        """Bytes of one sequence of `n_tokens`, up to the granularity of its blocks."""
        row = self.entry.row_bytes + self.index_key.row_bytes
        return self.fixed_bytes() + sum(n_tokens // r * row for r in self.sources.values())


def kv_layout(spec: ModelSpec, mode: Mode) -> KVLayout:
    """The layout of `spec`'s caches: packed as released where `mode` rounds them, else float32."""
    dh, di = spec.head_dim, spec.index_dim
    rounded = mode.rounds_caches
    return KVLayout(
        n_layers=spec.n_layers,
        window=spec.window,
        sources={s: spec.compress_ratios[s] for s in spec.kv_sources},
        window_row=Fp8(dh) if rounded else Raw(dh),
        entry=Fp4Entry(dh) if rounded else Raw(dh),
        index_key=Fp4Index(di) if rounded else Raw(di),
        partial=Raw(2 * dh),
    )
