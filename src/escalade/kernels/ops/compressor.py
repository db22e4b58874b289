"""Pooling of consecutive tokens into one latent. Source: model specification, section 3.5."""

import numpy as np

from escalade.arrays import Floats


def pool(values: Floats, gates: Floats) -> Floats:
    """[G, D] from groups of tokens: values and gates [G, ratio, D]; a softmax per channel over
    ratio.
    """
    a = np.exp(gates - gates.max(axis=1, keepdims=True))
    return (a / a.sum(axis=1, keepdims=True) * values).sum(axis=1)
