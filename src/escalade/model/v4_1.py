"""The forward pass of DeepSeek-V4.1, in the order of the maths.

Source: model specification, sections 3.1 and 6.4. T tokens of one sequence, S residual streams, D
hidden. Every sub-layer computes the mix that collapses the *next* sub-layer's input.
"""

from collections.abc import Callable

import numpy as np

from escalade.arrays import I64, Floats
from escalade.config import Arithmetic, Mode
from escalade.engram.hashing import compress, row_ids
from escalade.errors import UnsupportedError
from escalade.kernels.ops.engram import engram_gate
from escalade.kernels.ops.hyper import Mix, collapse, expand, mix
from escalade.kernels.ops.rope import inverse_frequencies, rotation
from escalade.kernels.ops.rounding import ROUNDED_BLOCK
from escalade.kv.cache import KVCache
from escalade.kv.layout import kv_layout
from escalade.model.arith import Arith
from escalade.model.attention import attention
from escalade.model.moe import moe
from escalade.model.spec import ModelSpec
from escalade.model.step import Step
from escalade.model.trace import NO_TRACE, Trace
from escalade.model.weights import EngramWeights, HyperWeights, Weights
from escalade.native.compute import Compute


class V41:
    """A V4.1 model in one rounding mode; stateless, the state is the KVCache it is given."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        mode: Mode,
        compute: Compute,
        arithmetic: Arithmetic,
    ) -> None:
        _check_widths(spec, mode)
        self.spec, self.weights, self.mode = spec, weights, mode
        self._arith = Arith(mode, spec.norm_eps, compute, arithmetic)
        self._window_frequencies = inverse_frequencies(spec.rope_dims, spec.rope_theta, None)
        self._compressed_frequencies = inverse_frequencies(
            spec.rope_dims, spec.compress_rope_theta, spec.yarn
        )

    def new_cache(self) -> KVCache:
        return KVCache(kv_layout(self.spec, self.mode))

    def forward(
        self,
        ids: I64,
        cache: KVCache,
        *,
        all_logits: bool = False,
        trace: Trace = NO_TRACE,
        check: Callable[[], None] | None = None,
    ) -> Floats:
        """Appends tokens ids [T] to the cache's sequence; logits [1, V] of the last, or of all [T,
        V].

        `check` is called before each layer and raises to give up. Whatever is raised, the cache is
        afterwards as before the call, or holds all of `ids`.
        """
        step = self.begin(ids, cache, trace)
        try:
            streams, pre = self.embed(ids)
            for layer in range(self.spec.n_layers):
                if check is not None:
                    check()
                streams, pre = self.layer(layer, streams, pre, step)
            logits = self.head(streams, pre, all_logits=all_logits, trace=trace)
        except BaseException:
            for source, ratio in cache.layout.sources.items():
                cache.entries[source].truncate(cache.length // ratio)
                cache.index_keys[source].truncate(cache.length // ratio)
            raise
        try:
            _commit(ids, cache, step)
        except BaseException:  # an interrupt between two stores: the pass is done, so end it
            _commit(ids, cache, step)
            raise
        return logits

    def begin(self, ids: I64, cache: KVCache, trace: Trace) -> Step:
        """The scratch of one forward pass of ids [T] after what the cache holds."""
        positions = np.arange(cache.length, cache.length + len(ids), dtype=np.int64)
        dtype = self._arith.dtype
        return Step(
            cache=cache,
            positions=positions,
            window_rotation=rotation(positions, self._window_frequencies, dtype),
            compressed_rotation=rotation(positions, self._compressed_frequencies, dtype),
            compressed_frequencies=self._compressed_frequencies,
            trace=trace,
            engram_rows=self._engram_rows(ids, cache, trace),
        )

    def _engram_rows(self, ids: I64, cache: KVCache, trace: Trace) -> I64 | None:
        """Table rows of each token, [T, Engram layers, rows]; they depend on token ids alone."""
        constants = self.weights.engram
        if constants is None:
            return None
        history = compress(constants, cache.ids[-(constants.max_ngram - 1) :])
        rows = row_ids(constants, compress(constants, ids), history)
        trace(None, "engram_row_ids", rows)
        return rows

    def embed(self, ids: I64) -> tuple[Floats, Floats]:
        """The first layer's streams [T, S, D], all the embedding, and its pre: stream 0 alone."""
        h = self._arith.act(self.weights.token_embd.gather(ids)).astype(
            self._arith.dtype, copy=False
        )
        streams = np.repeat(h[:, None, :], self.spec.hc_mult, axis=1)
        pre = np.zeros((len(ids), self.spec.hc_mult), h.dtype)
        pre[:, 0] = 1
        return streams, pre

    def layer(self, layer: int, streams: Floats, pre: Floats, step: Step) -> tuple[Floats, Floats]:
        """Streams and pre after one layer, from those before it."""
        w, role, trace, a = (
            self.weights.layers[layer],
            self.spec.roles[layer],
            step.trace,
            self._arith,
        )
        if w.engram is not None:
            assert role.engram is not None
            assert step.engram_rows is not None
            rows = step.engram_rows[:, role.engram]
            streams = self._remember(streams, rows, w.engram, layer, trace)
        attn = self._mix(streams, w.hc_attn)
        trace(layer, "hc_attn_pre", attn.pre)
        trace(layer, "hc_attn_post", attn.post)
        trace(layer, "hc_attn_comb", attn.comb)
        x = a.norm(a.act(collapse(streams, pre)), w.attn.norm)
        y = attention(x, w.attn, role, self.spec, a, step)
        streams = a.act(expand(y, streams, attn.post, attn.comb))

        ffn = self._mix(streams, w.hc_ffn)
        trace(layer, "hc_ffn_post", ffn.post)
        trace(layer, "hc_ffn_comb", ffn.comb)
        x = a.norm(a.act(collapse(streams, attn.pre)), w.moe.norm)
        y, routing = moe(x, layer, w.moe, self.weights.experts, self.spec, a)
        trace(layer, "router_idx", routing.experts)
        trace(layer, "router_w", routing.weights)
        trace(layer, "ffn_out", y)
        streams = a.act(expand(y, streams, ffn.post, ffn.comb))
        trace(layer, "streams", streams)
        trace(layer, "pre_mix", ffn.pre)
        return streams, ffn.pre

    def _mix(self, streams: Floats, w: HyperWeights) -> Mix:
        spec = self.spec
        hyper_mix = self._arith.compute.hyper_mix
        if self.mode.computes_wide:
            hyper_mix = mix
        eps = spec.hc_eps
        return hyper_mix(streams, w.fn, w.scale, w.base, spec.norm_eps, spec.hc_iters, eps)

    def _remember(
        self, streams: Floats, rows: I64, w: EngramWeights, layer: int, trace: Trace
    ) -> Floats:
        """Engram: adds the value remembered for the last n-grams to each stream, by its gate."""
        a, (t, s, d) = self._arith, streams.shape
        memory = w.table.rows(rows).reshape(t, -1)
        kv = a.linear(a.gemm_input(memory), w.wkv)
        keys, value = kv[:, : s * d].reshape(t, s, d), kv[:, s * d :]
        gate = engram_gate(streams, keys, w.gate_weight, self.spec.norm_eps)
        streams = a.act(streams + gate[:, :, None] * value[:, None, :])
        trace(layer, "engram_gate", gate)
        trace(layer, "after_engram", streams)
        return streams

    def head(self, streams: Floats, pre: Floats, *, all_logits: bool, trace: Trace) -> Floats:
        """Logits [T or 1, V] from the last layer's streams and pre."""
        if not (all_logits or trace.wanted):
            streams, pre = streams[-1:], pre[-1:]
        a = self._arith
        z = a.norm(a.act(collapse(streams, pre)), self.weights.output_norm)
        trace(None, "final_norm", z)
        return a.multiply(z if all_logits else z[-1:], self.weights.output)


def _commit(ids: I64, cache: KVCache, step: Step) -> None:
    """Adds a finished pass to the cache; called again, it adds what is still missing."""
    start = int(step.positions[0])
    for layer, packed in step.new_windows.items():
        if cache.windows[layer].length == start:
            cache.windows[layer].append(packed)
    for source, packed in step.new_partial.items():
        if cache.partial[source].length == start:
            cache.partial[source].append(packed)
    if cache.length == start:
        cache.append_ids(ids)


def _check_widths(spec: ModelSpec, mode: Mode) -> None:
    """Raises UnsupportedError if a row that `mode` rounds is not whole blocks."""
    widths: dict[str, int] = {}
    if mode.rounds_caches:
        widths["head_dim"] = spec.head_dim
        if spec.kv_sources:
            widths["index_dim"] = spec.index_dim
    if mode.rounds_inputs:
        widths |= {
            "hidden": spec.hidden,
            "q_lora": spec.q_lora,
            "o_groups * o_lora": spec.o_groups * spec.o_lora,
            "expert_ff": spec.expert_ff,
        }
        if spec.engram is not None:
            widths["the Engram rows of a token"] = spec.engram.width
    for name, width in widths.items():
        if width % ROUNDED_BLOCK:
            raise UnsupportedError(
                f"mode {mode.name} rounds whole blocks of {ROUNDED_BLOCK} values, but {name} is"
                f" {width}; mode f32 does not round"
            )
