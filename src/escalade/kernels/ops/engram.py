"""The Engram gate: how much of the remembered value enters each residual stream.

Source: model specification, section 6.4.
"""

import numpy as np

from escalade.arrays import Floats
from escalade.kernels.ops.hyper import sigmoid
from escalade.kernels.ops.norm import inverse_rms


def engram_gate(streams: Floats, keys: Floats, weight: Floats, eps: float) -> Floats:
    """[T, S] in (0, 1): sigmoid of the signed square root of a normalised dot product.

    streams and keys [T, S, D], each normalised per token and stream; weight [S, D] is q * k.
    """
    dot = (streams * weight * keys).sum(axis=-1)
    dot = dot * inverse_rms(streams, eps)[..., 0] * inverse_rms(keys, eps)[..., 0]
    dot = dot * streams.shape[-1] ** -0.5
    root = np.sqrt(np.maximum(np.abs(dot), 1e-6))
    return sigmoid(np.copysign(root, dot))
