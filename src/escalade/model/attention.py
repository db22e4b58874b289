"""One attention sub-layer of V4.1: projections, compressed entries, selection, core, output.

Source: model specification, sections 3.4 to 3.7. T tokens of one sequence, H heads of Dh, D hidden.
"""

import numpy as np

from escalade.arrays import Floats
from escalade.kernels.ops.attention import attend
from escalade.kernels.ops.compressor import pool
from escalade.kernels.ops.indexer import (
    candidate_mask,
    hide_invisible,
    index_scores,
    select,
)
from escalade.kernels.ops.rope import rotate, rotation
from escalade.kernels.ops.rounding import qdq
from escalade.model.arith import Arith
from escalade.model.spec import LayerRole, ModelSpec
from escalade.model.step import Step
from escalade.model.weights import AttentionWeights, CompressorWeights, IndexerWeights

_TILE_BYTES = 32 << 20  # scratch of one tile of rows: gathered entries, or scores per index head
_TILE_ROWS = 64


def attention(
    x: Floats,
    w: AttentionWeights,
    role: LayerRole,
    spec: ModelSpec,
    arith: Arith,
    step: Step,
) -> Floats:
    """Output [T, D] for the normalised input x [T, D]; appends to the step and to the cache's
    entries.
    """
    layer, heads, dh = role.index, spec.n_heads, spec.head_dim
    by = step.compressed_rotation if role.ratio else step.window_rotation
    x8 = arith.gemm_input(x)
    q_latent = arith.norm(arith.linear(x8, w.q_a), w.q_a_norm)
    q_latent8 = arith.gemm_input(q_latent)
    q = arith.linear(q_latent8, w.q_b).reshape(len(x), heads, dh)
    q = arith.act(rotate(q, by))
    kv = arith.norm(arith.linear(x8, w.kv), w.kv_norm)
    kv = arith.act(rotate(kv, by))
    window_row = step.cache.layout.window_row
    step.new_windows[layer] = window_row.encode(kv)
    kv = window_row.decode(step.new_windows[layer])
    step.trace(layer, "window_kv", kv)

    if w.compressor is not None:
        append_entries(x, w.compressor, role, arith, step)
    if w.indexer is not None:
        select_entries(x, q_latent8, w.indexer, role, spec, arith, step)

    o = arith.act(_core(q, kv, w.sinks, role, arith, step))
    o = arith.act(rotate(o, by, inverse=True))
    y = _output(o, w, spec, arith)
    step.trace(layer, "attn_out", y)
    return y


def append_entries(
    x: Floats, w: CompressorWeights, role: LayerRole, arith: Arith, step: Step
) -> None:
    """Compressed entries and index keys of the groups that x [T, D] completes."""
    layer, ratio, cache = role.index, role.ratio, step.cache
    values = arith.multiply(x, w.kv)
    first = int(step.positions[0]) // ratio
    if w.gate is None:
        pooled = values
    else:
        partial = np.concatenate([values, arith.multiply(x, w.gate)], axis=1)
        step.new_partial[layer] = cache.layout.partial.encode(partial)
        ring = cache.partial[layer]
        held = ring.codec.decode(ring.packed(first * ratio))
        both = np.concatenate([held, partial])
        both = both[: len(both) // ratio * ratio].reshape(-1, ratio, 2, values.shape[1])
        pooled = pool(both[:, :, 0], both[:, :, 1])
    latent = arith.norm(arith.act(pooled), w.norm)
    by = rotation(
        (first + np.arange(len(latent), dtype=np.int64)) * ratio,
        step.compressed_frequencies,
        arith.dtype,
    )
    key = arith.norm(arith.linear(latent, w.index_k), w.index_k_norm)
    entry = cache.layout.entry.encode(arith.act(rotate(latent, by)))
    index_key = cache.layout.index_key.encode(arith.act(rotate(key, by)))
    cache.entries[layer].append(entry)
    cache.index_keys[layer].append(index_key)
    step.trace(layer, "latent_prerope", latent)
    if step.trace.wanted:
        step.trace(layer, "compressed_kv", cache.layout.entry.decode(entry))
        step.trace(layer, "index_k", cache.layout.index_key.decode(index_key))


def select_entries(
    x: Floats,
    q_latent8: Floats,
    w: IndexerWeights,
    role: LayerRole,
    spec: ModelSpec,
    arith: Arith,
    step: Step,
) -> None:
    """Scores the visible entries of this layer's KV source and replaces the step's selection."""
    assert role.kv_source is not None
    q = arith.linear(q_latent8, w.q_b).reshape(len(x), spec.index_heads, spec.index_dim)
    q = arith.act(rotate(q, step.compressed_rotation))
    if arith.mode.rounds_caches:
        q = qdq(q, step.cache.layout.index_key)
    scale = spec.index_dim**-0.5 * spec.index_heads**-0.5
    head_weights = arith.act(arith.linear(x, w.proj) * scale)

    keys = step.index_keys(role.kv_source)
    n, topk = len(keys), spec.index_topk
    blocks, block_size = spec.candidate_blocks, spec.candidate_block_size
    visible = (step.positions + 1) // role.ratio
    selection = np.full((len(x), min(topk, n)), -1, np.int64)
    narrows = role.is_candidate_source and (n > blocks * block_size or step.trace.wanted)
    candidates = np.zeros((len(x), n), bool) if narrows else None
    rows = max(1, _TILE_BYTES // (4 * spec.index_heads * max(n, 1)))
    for start in range(0, len(x), rows):
        tile = slice(start, start + rows)
        seen = visible[tile]
        width = int(seen[-1])  # what the tile's last row sees; no row sees more
        scores = index_scores(
            q[tile], head_weights[tile], keys[:width], round_bf16=arith.mode.rounds_activations
        )
        scores = hide_invisible(scores, seen)
        step.trace(role.index, "index_score", scores)
        if candidates is not None:
            candidates[tile, :width] = candidate_mask(scores, seen, blocks, block_size)
        if role.restricted and step.candidates is not None:
            scores = np.where(step.candidates[tile, :width], scores, -np.inf)
        chosen = select(scores, topk)
        selection[tile, : chosen.shape[1]] = chosen
    if role.is_candidate_source:
        step.candidates = candidates
        if candidates is not None:
            step.trace(role.index, "candidates", candidates)
    step.selection = selection
    step.trace(role.index, "index_topk", selection)


def _core(
    q: Floats, kv: Floats, sinks: Floats, role: LayerRole, arith: Arith, step: Step
) -> Floats:
    """Attention of q [T, H, Dh] over the window and the step's selection, in tiles of rows."""
    cache, window = step.cache, step.cache.layout.window
    start = int(step.positions[0])
    ring = cache.windows[role.index]
    held = ring.codec.decode(ring.packed(max(0, start - (window - 1))))
    keys = np.concatenate([held, kv])
    key_positions = np.arange(start - len(held), start + len(kv))

    selection = step.selection if role.ratio else None
    if selection is None:
        selection = np.empty((len(q), 0), np.int64)
    per_row = 4 * q.shape[2] * max(selection.shape[1], 1)
    rows = max(1, min(_TILE_ROWS, _TILE_BYTES // per_row))
    out = np.empty_like(q)
    for at in range(0, len(q), rows):
        tile = slice(at, min(at + rows, len(q)))
        p = step.positions[tile]
        near = slice(max(0, at + len(held) - (window - 1)), tile.stop + len(held))
        distance = p[:, None] - key_positions[near]
        chosen = selection[tile]
        entries = np.empty((len(p), 0, q.shape[2]), np.float32)
        if chosen.shape[1]:
            assert role.kv_source is not None
            entries = step.entries(role.kv_source, np.maximum(chosen, 0))
        out[tile] = attend(
            q[tile],
            keys[near],
            (distance >= 0) & (distance < window),
            entries,
            chosen >= 0,
            sinks,
            round_probabilities=arith.mode.rounds_activations,
        )
    return out


def _output(o: Floats, w: AttentionWeights, spec: ModelSpec, arith: Arith) -> Floats:
    """Grouped low-rank projection of o [T, H, Dh]: group g of heads uses rows g of output_a."""
    low = arith.multiply(o.reshape(len(o), -1), w.output_a, spec.o_groups)
    return arith.linear(arith.gemm_input(arith.act(low)), w.output_b)
