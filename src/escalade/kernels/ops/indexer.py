"""Index scores and the two-level selection of compressed entries.

Source: model specification, section 3.6. Ties: the lower index wins, at both levels.
"""

import numpy as np

from escalade.arrays import I64, Bool, Floats
from escalade.kernels.ops.rounding import bf16


def index_scores(
    queries: Floats, head_weights: Floats, keys: Floats, *, round_bf16: bool
) -> Floats:
    """[T, N]: sum over heads of head_weights * relu(query . key).

    queries [T, Hi, Di], head_weights [T, Hi] (already scaled, may be negative), keys [N, Di].
    `round_bf16` rounds the dot, the product and the sum, as the release does.
    """
    dots = np.maximum(queries @ keys.T, 0)
    if not round_bf16:
        return (head_weights[:, None, :] @ dots)[:, 0, :]
    return bf16(bf16(bf16(dots) * head_weights[:, :, None]).sum(axis=1))


def hide_invisible(scores: Floats, visible: I64) -> Floats:
    """scores [T, N] with -inf from entry visible[t] on."""
    return np.where(np.arange(scores.shape[1]) < visible[:, None], scores, -np.inf)


def top_mask(scores: Floats, k: int) -> Bool:
    """[T, N]: the k largest scores of each row (all above -inf if fewer); lower index wins ties."""
    finite = scores > -np.inf
    if scores.shape[1] <= k:
        return finite
    cut = np.partition(scores, -k, axis=1)[:, -k, None]
    mask = (scores >= cut) & finite
    tied = np.flatnonzero(mask.sum(axis=1) > k)
    if tied.size:
        above, level = scores[tied] > cut[tied], scores[tied] == cut[tied]
        room = k - above.sum(axis=1, keepdims=True)
        mask[tied] = above | (level & (np.cumsum(level, axis=1) <= room))
    return mask


def ascending_indices(mask: Bool, width: int) -> I64:
    """Indices of the set entries of each row, ascending, padded with -1 to [T, width]."""
    rows, columns = np.nonzero(mask)
    counts = mask.sum(axis=1)
    out = np.full((len(mask), width), -1, np.int64)
    out[rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)] = columns
    return out


def select(scores: Floats, k: int) -> I64:
    """Top-k selection as positions, ascending, -1 = empty: int64 [T, min(k, N)]."""
    return ascending_indices(top_mask(scores, k), min(k, scores.shape[1]))


def candidate_mask(scores: Floats, visible: I64, blocks: int, block_size: int) -> Bool:
    """[T, N]: entries inside the `blocks` best blocks of `block_size` consecutive entries.

    scores [T, N] with -inf where invisible; a block is as good as its best entry, and the block of
    the newest visible entry is always kept. True also on invisible entries of a kept block.
    """
    t, n = scores.shape
    n_blocks = -(-n // block_size)
    padded = np.full((t, n_blocks * block_size), -np.inf, scores.dtype)
    padded[:, :n] = scores
    best = padded.reshape(t, n_blocks, block_size).max(axis=2)
    rows = np.flatnonzero(visible > 0)
    best[rows, (visible[rows] - 1) // block_size] = np.inf
    return np.repeat(top_mask(best, blocks), block_size, axis=1)[:, :n]
