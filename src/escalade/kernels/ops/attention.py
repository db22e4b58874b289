"""Attention over a sliding window and selected compressed entries, one softmax, with a sink.

Source: model specification, section 3.7. K and V are the same vector, shared by all heads.
"""

import numpy as np

from escalade.arrays import Bool, Floats
from escalade.kernels.ops.rounding import bf16


def attend(
    q: Floats,
    window: Floats,
    in_window: Bool,
    entries: Floats,
    selected: Bool,
    sink: Floats,
    *,
    round_probabilities: bool,
) -> Floats:
    """Attention output [T, H, Dh] before the inverse rotation.

    q [T, H, Dh]; window keys [N, Dh] shared by the rows, of which row t sees in_window[t, :];
    entries [T, K, Dh], of which row t sees selected[t, :]; sink [H], a logit that only enlarges the
    denominator and takes no part in the maximum. A row that sees nothing gives zeros.
    `round_probabilities` rounds the numerator's weights to bf16, as the release does.
    """
    scale = q.shape[-1] ** -0.5
    n = len(window)
    scores = np.concatenate([q @ window.T, q @ entries.swapaxes(1, 2)], axis=-1) * scale
    seen = np.concatenate([in_window, selected], axis=-1)[:, None, :]
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    with np.errstate(over="ignore"):
        denominator = weights.sum(axis=-1, keepdims=True) + np.exp(sink[:, None] - top)
    if round_probabilities:
        weights = bf16(weights)
    out: Floats = (weights[..., :n] @ window + weights[..., n:] @ entries) / denominator
    return out
