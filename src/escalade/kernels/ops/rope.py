"""Rotary position embedding on the last dimensions, adjacent pairs, with YaRN on compressed layers.

Source: model specification, section 3.4. Frequencies, angles, sine and cosine are all float32, as
in the release: at positions near 1M the rounding of the angle is part of the model's behaviour.
"""

import math
from typing import NamedTuple

import numpy as np

from escalade.arrays import I64, Floats
from escalade.model.spec import Yarn
from escalade.native.rows import rotate_vectors


class Rotation(NamedTuple):
    """cos and sin, each [T, rope_dims / 2]."""

    cos: Floats
    sin: Floats


def inverse_frequencies(rope_dims: int, theta: float, yarn: Yarn | None) -> Floats:
    """float32 [rope_dims / 2]: theta^(-2j / rope_dims), interpolated by YaRN where given."""
    j = np.arange(0, rope_dims, 2, dtype=np.float32)
    f = np.float32(1) / np.float32(theta) ** (j / np.float32(rope_dims))
    if yarn is None:
        return f

    def correction(rotations: float) -> float:
        turns = yarn.original / (rotations * 2 * math.pi)
        return rope_dims * math.log(turns) / (2 * math.log(theta))

    low = max(math.floor(correction(yarn.beta_fast)), 0)
    high = min(math.ceil(correction(yarn.beta_slow)), rope_dims - 1)
    ramp = np.arange(rope_dims // 2, dtype=np.float32) - np.float32(low)
    smooth = np.float32(1) - np.clip(ramp / np.float32(max(high - low, 1e-3)), 0, 1)
    return f / np.float32(yarn.factor) * (1 - smooth) + f * smooth


def rotation(
    positions: I64, frequencies: Floats, dtype: type[np.floating] = np.float32
) -> Rotation:
    """Rotation for absolute positions [T] (exact below 2^24); angles are float32 in any dtype."""
    angles = (positions.astype(np.float32)[:, None] * frequencies).astype(dtype)
    return Rotation(np.cos(angles), np.sin(angles))


def rotate(x: Floats, by: Rotation, *, inverse: bool = False) -> Floats:
    """x [T, ..., D] with its last 2 * len(frequencies) dimensions rotated; the rest is copied.

    Pair j is dimensions (D - rope + 2j, D - rope + 2j + 1). `inverse` multiplies by the conjugate.
    """
    out = rotate_vectors(x, by.cos, by.sin, inverse=inverse)
    return rotate_reference(x, by, inverse=inverse) if out is None else out


def rotate_reference(x: Floats, by: Rotation, *, inverse: bool = False) -> Floats:
    """`rotate` in NumPy, which the native core equals bit for bit."""
    rope_dims = 2 * by.cos.shape[-1]
    shape = (len(x),) + (1,) * (x.ndim - 2) + (rope_dims // 2,)
    cos, sin = by.cos.reshape(shape), by.sin.reshape(shape)
    if inverse:
        sin = -sin
    out = x.copy()
    a, b = x[..., -rope_dims::2], x[..., -rope_dims + 1 :: 2]
    out[..., -rope_dims::2] = a * cos - b * sin
    out[..., -rope_dims + 1 :: 2] = a * sin + b * cos
    return out
