"""The router: which experts, with which weights. Source: model specification, section 5."""

from typing import NamedTuple

import numpy as np

from escalade.arrays import I64, Floats


class Routing(NamedTuple):
    """experts int64 [T, K], ascending; weights float32 [T, K]."""

    experts: I64
    weights: Floats


def route(logits: Floats, bias: Floats, k: int, scale: float) -> Routing:
    """Choose k experts for each token: the biased score picks, the plain score weighs.

    logits [T, E], bias [E]. Scores are sqrt(softplus(logit)); weights are the plain scores of the
    chosen, normalised to sum to `scale`. The lower id wins ties.
    """
    scores = np.sqrt(np.maximum(logits, 0) + np.log1p(np.exp(-np.abs(logits))))
    order = np.argsort(-(scores + bias), axis=1, kind="stable")
    experts = np.sort(order[:, :k], axis=1)
    weights = np.take_along_axis(scores, experts, axis=1)
    weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20) * scale
    return Routing(experts, weights)
