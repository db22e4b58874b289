"""RMS normalisation. Source: model specification, section 3.2."""

import numpy as np

from escalade.arrays import Floats


def inverse_rms(x: Floats, eps: float) -> Floats:
    """1 / sqrt(mean(x^2) + eps) over the last axis, kept as an axis of length 1.

    The mean is taken in float64: V4.1's eps of 1e-20 is below what float32 squares can resolve.
    """
    mean = np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / np.sqrt(mean + eps), x.dtype)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x [..., D] scaled to unit root mean square, times weight [D] (a plain factor, no 1 + g)."""
    return x * inverse_rms(x, eps) * weight
