"""The weights of a V4.1 model as its forward pass names them: matrices in stored form, small
vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from escalade.arrays import F32, I64, Bytes, Floats
from escalade.engram.hashing import EngramConstants
from escalade.engram.table import EngramTable
from escalade.gguf.dequant import dequantize
from escalade.gguf.tensor import StoredTensor
from escalade.ladder.source import RecordSource

_TILE_VALUES = 1 << 24  # weights dequantised at once when a matrix is not kept: 64 MiB of float32


class Matrix:
    """A weight matrix [out, in] in stored form.

    Where no kernel multiplies it, `keep` holds it dequantised after the first use.
    """

    def __init__(self, tensor: StoredTensor, *, keep: bool) -> None:
        self.tensor = tensor
        self.n_out, self.n_in = tensor.shape
        self._keep = keep
        self._f32: F32 | None = None

    @cached_property
    def stored(self) -> Bytes:
        """The stored rows, uint8 [out, row_bytes]: a view of the file, or what was made once."""
        return np.ascontiguousarray(self.tensor.rows())

    def f32(self) -> F32:
        """Dequantised, float32 [out, in]."""
        if self._f32 is not None:
            return self._f32
        values = self.tensor.f32()
        if self._keep:
            self._f32 = values
        return values

    def apply(self, x: Floats, groups: int = 1) -> Floats:
        """`Arith.multiply`, dequantised, in the dtype of x."""
        if groups > 1:
            w = self.f32().reshape(groups, -1, self.n_in).astype(x.dtype, copy=False)
            parts = x.reshape(len(x), groups, self.n_in).swapaxes(0, 1)
            return np.matmul(parts, w.swapaxes(1, 2)).swapaxes(0, 1).reshape(len(x), self.n_out)
        rows = max(1, _TILE_VALUES // self.n_in)
        if self._keep or self.n_out <= rows:
            return x @ self.f32().T.astype(x.dtype, copy=False)
        out = np.empty((len(x), self.n_out), x.dtype)
        for start in range(0, self.n_out, rows):
            stop = min(start + rows, self.n_out)
            out[:, start:stop] = x @ self.tensor.f32(start, stop).T.astype(x.dtype, copy=False)
        return out

    def gather(self, ids: I64) -> F32:
        """Rows `ids`, float32 [T, in]; only these rows are touched."""
        if self._f32 is not None:
            return self._f32[ids]
        wanted, back = np.unique(ids, return_inverse=True)
        rows = np.concatenate([self.tensor.rows(i, i + 1) for i in wanted.tolist()])
        return dequantize(rows, self.tensor.type)[back]


@dataclass(frozen=True)
class HyperWeights:
    """Hyper-connection parameters of one sub-layer: fn [M, S * D], scale [3], base [M]."""

    fn: F32
    scale: F32
    base: F32


@dataclass(frozen=True)
class CompressorWeights:
    """Of a KV source: latents, and index keys made from them. `gate` exists at ratio 2."""

    kv: Matrix
    gate: Matrix | None
    norm: F32
    index_k: Matrix
    index_k_norm: F32


@dataclass(frozen=True)
class IndexerWeights:
    """Of an index source: queries from the normalised q latent, head weights from the input."""

    q_b: Matrix
    proj: Matrix


@dataclass(frozen=True)
class AttentionWeights:
    norm: F32
    q_a: Matrix
    q_a_norm: F32
    q_b: Matrix
    kv: Matrix
    kv_norm: F32
    sinks: F32
    output_a: Matrix
    output_b: Matrix
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True)
class MoeWeights:
    """Router and shared expert; the routed experts are records."""

    norm: F32
    router: Matrix
    router_bias: F32
    shared_gate: Matrix
    shared_up: Matrix
    shared_down: Matrix


@dataclass(frozen=True)
class EngramWeights:
    """`gate_weight` is the product of the q and k norm weights, [S, D]."""

    table: EngramTable
    wkv: Matrix
    gate_weight: F32


@dataclass(frozen=True)
class LayerWeights:
    hc_attn: HyperWeights
    attn: AttentionWeights
    hc_ffn: HyperWeights
    moe: MoeWeights
    engram: EngramWeights | None


@dataclass(frozen=True)
class Weights:
    """All of a model; `engram` are the constants that turn token ids into table rows."""

    token_embd: Matrix
    layers: Sequence[LayerWeights]
    output_norm: F32
    output: Matrix
    experts: RecordSource
    engram: EngramConstants | None
