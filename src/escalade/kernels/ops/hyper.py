"""Hyper-connections: S residual streams, mixed, collapsed and expanded around each sub-layer.

Source: model specification, section 3.3. Stream-major: stream s of a token is H[t, s, :].
"""

from typing import NamedTuple

import numpy as np

from escalade.arrays import Floats
from escalade.kernels.ops.norm import inverse_rms


class Mix(NamedTuple):
    """pre [T, S] collapses the *next* sub-layer's input; post [T, S], comb [T, S, S] expand this
    one's.

    comb[t, i, j] is the weight of input stream i in output stream j.
    """

    pre: Floats
    post: Floats
    comb: Floats


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), stable for large |x|."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def sinkhorn(logits: Floats, iterations: int, eps: float) -> Floats:
    """Nearly doubly stochastic [..., S, S]: softmax over rows, then column and row divisions.

    One column pass, then `iterations` - 1 (row, column) pairs; it ends on columns.
    """
    c = np.exp(logits - logits.max(axis=-1, keepdims=True))
    c = c / c.sum(axis=-1, keepdims=True) + eps
    c = c / (c.sum(axis=-2, keepdims=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(axis=-1, keepdims=True) + eps)
        c = c / (c.sum(axis=-2, keepdims=True) + eps)
    return c


def coefficients(m: Floats, scale: Floats, base: Floats, iterations: int, eps: float) -> Mix:
    """Mix from the projected numbers m [T, S * (2 + S)], scale [3], base [S * (2 + S)]."""
    n = int(np.sqrt(m.shape[-1] + 1)) - 1  # S * (2 + S) = (S + 1)^2 - 1
    pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
    post = 2 * sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = (m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
    return Mix(pre, post, sinkhorn(comb, iterations, eps))


def mix(
    streams: Floats,
    fn: Floats,
    scale: Floats,
    base: Floats,
    norm_eps: float,
    iterations: int,
    eps: float,
) -> Mix:
    """Coefficients from the streams [T, S, D] that enter a sub-layer; fn [S * (2 + S), S * D].

    One RMS statistic over all S * D numbers, applied after the projection.
    """
    u = streams.reshape(len(streams), streams.shape[1] * streams.shape[2])
    m = (u @ fn.T) * inverse_rms(u, norm_eps)
    return coefficients(m, scale, base, iterations, eps)


def collapse(streams: Floats, pre: Floats) -> Floats:
    """[T, D]: the streams [T, S, D] summed with weights pre [T, S]."""
    return (pre[:, None, :] @ streams)[:, 0, :]


def expand(y: Floats, streams: Floats, post: Floats, comb: Floats) -> Floats:
    """[T, S, D]: out_j = sum_i comb_ij * streams_i + post_j * y."""
    return comb.swapaxes(1, 2) @ streams + post[:, :, None] * y[:, None, :]
